// SPDX-License-Identifier: Apache-2.0
// A broker that begins from the books of another one. That one lives in this process, and the next one in a forked
// process: it has a copy of the descriptors with the same numbers, and the memory of the books is common.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <vector>

#include "base/sys_memory.hpp"
#include "daemon/books/image.hpp"
#include "daemon/books/last_books.hpp"
#include "tests/daemon/books/books_fixture.hpp"
#include "tests/daemon/books/records_fixture.hpp"
#include "tests/harness/child.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using shmb::daemon::Config;
using shmb::daemon::books::LastBooks;

namespace {

// The records of the kinds that a next broker loads, in the order of their text: it may use other places.
std::string loaded_part(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const std::string kind = line.substr(0, line.find(' '));
    if (kind == "session" || kind == "group" || kind == "region" || kind == "name" || kind == "lease" ||
        kind == "ticket")
      lines.push_back(line);
  }
  std::ranges::sort(lines);
  std::string out;
  for (const std::string& line : lines) out += line + '\n';
  return out;
}

// The lines that only one of two texts has.
std::string difference(const std::string& one, const std::string& other) {
  const auto lines = [](const std::string& text) {
    std::istringstream in(text);
    std::set<std::string> out;
    for (std::string line; std::getline(in, line);) out.insert(line);
    return out;
  };
  const auto a = lines(one), b = lines(other);
  std::string out;
  for (const std::string& line : a)
    if (!b.contains(line)) out += "- " + line + '\n';
  for (const std::string& line : b)
    if (!a.contains(line)) out += "+ " + line + '\n';
  return out;
}

// The charges, as an administrator sees them.
std::string charges(World& world) {
  world.wait_for_closes();
  Client admin = world.admin();
  std::ostringstream out;
  for (const auto& row : admin.rows<shmbw_uid_record>(SHMBW_TABLE_UIDS))
    if (row.uid != 0)
      out << "uid " << row.uid << " bytes " << row.bytes << " regions " << row.regions << " sessions " << row.sessions
          << " groups " << row.groups << " leases " << row.leases << " tickets " << row.tickets << " left "
          << row.tickets_left << '\n';
  for (const auto& row : admin.rows<shmbw_group_record>(SHMBW_TABLE_GROUPS))
    out << "group " << row.group << " bytes " << row.bytes << " of " << row.bytes_limit << " cached "
        << row.bytes_cached << " regions " << row.regions << " of " << row.regions_limit << '\n';
  const auto status = admin.status();
  out << "all " << status.bytes << ' ' << status.regions << ' ' << status.leases << ' ' << status.tickets << '\n';
  return out.str();
}

class Parts {
 public:
  Parts() : file_(std::tmpfile()) { REQUIRE(file_); }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() { std::fclose(file_); }
  void put(const std::string& part) const {  // in the next broker's process
    std::fwrite(part.c_str(), part.size() + 1, 1, file_);
    std::fflush(file_);
  }
  std::vector<std::string> parts() const {
    std::vector<std::string> out(1);
    std::rewind(file_);
    for (int c; (c = std::fgetc(file_)) != EOF;) {
      if (c == 0) out.emplace_back();
      else out.back() += static_cast<char>(c);
    }
    out.pop_back();
    return out;
  }

 private:
  std::FILE* file_;
};

struct Next {
  std::string begun;    // its books as they took the place of the last ones
  std::string ended;    // as soon as it can serve
  std::string charged;  // then
  std::string log;
  std::string told;  // by `then`
};

// Begins from the books of this process' broker. `then` uses the next broker, and returns a text.
Next next_broker(const World& last, const Config& config, const std::function<std::string(World&)>& then = {}) {
  const int number = own_books();
  REQUIRE(number >= 0);
  const Parts outcome;
  auto child = harness::Child::run([&] {
    auto books = LastBooks::open(number);
    if (!books) {
      std::fprintf(stderr, "%s\n", books.error().sentence.c_str());
      return 2;
    }
    int own = -1;
    daemon::BrokerFacts facts;
    facts.books_are_at = [&](int at) {
      own = at;
      outcome.put(loaded_part(text_behind(at)));
    };
    // It never ends: its end would want that everything is gone.
    World& next = *new World(config, std::move(facts), true, &*books, last.now);
    next.next_pid = last.next_pid;
    const std::string charged = charges(next);  // after the last close: a group outlives its regions
    outcome.put(loaded_part(text_behind(own)));
    outcome.put(charged);
    const std::string told = then ? then(next) : "";
    std::string log;
    for (const std::string& line : next.log) log += line + '\n';
    outcome.put(log);
    outcome.put(told);
    return 0;
  });
  REQUIRE(child.wait() == 0);
  const auto parts = outcome.parts();
  REQUIRE(parts.size() == 5);
  CHECK(parts[3].find("own bug") == std::string::npos);
  return {parts[0], parts[1], parts[2], parts[3], parts[4]};
}

// A process and how far its end has come.
struct Process {
  Client client;
  enum class State { whole, heir, disconnected } state = State::whole;
  void end() {
    if (state == State::whole) return client.die();
    if (state == State::heir) client.end_of_file();
    else client.pidfd();
    client.forget();
  }
};

// Requests of each kind that changes something which a next broker loads.
class Storm {
 public:
  explicit Storm(World& world, unsigned seed) : world_(world), random_(seed) {
    for (int i = 0; i < 12; ++i) connect();
  }
  void blow(int steps) {
    for (int i = 0; i < steps; ++i) step();
  }
  // In the order in which a next broker ends them.
  void end_all() {
    std::ranges::sort(processes_, {}, [](const Process& process) { return process.client.id; });
    for (Process& process : processes_) process.end();
    processes_.clear();
  }

 private:
  std::size_t pick(std::size_t below) { return random_() % below; }
  std::int64_t seconds(std::size_t below) { return static_cast<std::int64_t>(pick(below)) * kSecond; }
  void connect() { processes_.push_back({world_.client(static_cast<std::uint32_t>(1000 + pick(3)))}); }
  void step();
  void end_one(std::size_t at);

  World& world_;
  std::mt19937 random_;
  std::vector<Process> processes_;
  std::vector<std::array<std::uint8_t, 16>> tickets_{1}, tokens_{1};
  std::uint64_t last_ = 1;
};

void Storm::end_one(std::size_t at) {
  Process& process = processes_[at];
  switch (pick(4)) {
    case 0:
      if (process.state == Process::State::whole) process.client.pidfd();
      if (process.state == Process::State::whole) process.state = Process::State::heir;
      break;
    case 1:
      if (process.state == Process::State::whole) process.client.disconnect();
      if (process.state == Process::State::whole) process.state = Process::State::disconnected;
      break;
    default:
      process.end();
      std::swap(process, processes_.back());
      processes_.pop_back();
      break;
  }
  connect();
}

void Storm::step() {
  const std::size_t at = pick(processes_.size());
  if (processes_[at].state == Process::State::disconnected) return end_one(at);
  Client& client = processes_[at].client;
  client.link().replies.clear();
  client.link().events.clear();
  const shmbw_region_ref ref{last_ - std::min<std::uint64_t>(pick(40), last_ - 1), 0, 0};
  const std::string name = "n" + std::to_string(pick(6)), group = "g" + std::to_string(pick(4));
  switch (pick(16)) {
    case 0:
    case 1:
    case 2: {
      CreateRequest wish{.length = std::uint64_t{1} << (10 + pick(11)), .flags = static_cast<std::uint32_t>(pick(16))};
      wish.flags &= ~std::uint32_t{SHMBW_CREATE_REPLACE};
      if (pick(8) == 0) wish.flags |= SHMBW_CREATE_HEAP;
      if (pick(2) == 0) {
        wish.name = name;
        if (pick(2) == 0) wish.flags |= SHMBW_CREATE_REPLACE;
        if (pick(3) == 0) wish.flags |= SHMBW_CREATE_NAME_AT_PUBLISH;
        if (pick(2) == 0) wish.flags |= SHMBW_CREATE_KEEP_GIVEN, wish.keep = pick(4) == 0 ? -1 : seconds(100);
        else if (pick(4) == 0) wish.flags |= SHMBW_CREATE_NAME_WITH_HOLDERS;
      }
      const Created created = client.create(wish);
      if (created.status == Status::ok) last_ = std::max(last_, created.ref().id);
      break;
    }
    case 3:
      client.attach_id(ref, pick(2) ? kRead : kAll);
      break;
    case 4:
      client.attach_name(group, name, kWrite);
      break;
    case 5:
      client.attach_ticket(tickets_[pick(tickets_.size())], kRead);
      break;
    case 6:
      client.release(ref, 0, static_cast<std::uint32_t>(pick(16)));
      break;
    case 7:
      client.ready(ref, static_cast<std::uint32_t>(pick(5)));
      break;
    case 8:
      client.publish(ref);
      break;
    case 9:
    case 10: {
      const bool bound = pick(3) == 0;
      Packet& reply = client.ticket(ref, kRead, static_cast<std::uint32_t>(pick(3)), kSecond + seconds(50),
                                    bound ? SHMBW_TICKET_CREATE_WITH_SESSION : 0,
                                    bound ? processes_[pick(processes_.size())].client.id : 0);
      if (reply.status() == Status::ok) tickets_.push_back(Client::ticket_of(reply));
      break;
    }
    case 11: {
      Packet& reply = client.make_group({.name = pick(4) ? group : "",
                                         .flags = static_cast<std::uint32_t>(pick(4)),
                                         .keep = seconds(30),
                                         .limit_bytes = pick(3) ? 0 : kMiB << pick(8)});
      if (reply.status() != Status::ok) break;
      tokens_.emplace_back();
      std::memcpy(tokens_.back().data(), reply.fixed<shmbw_group_create_reply>().token, 16);
      break;
    }
    case 12:
      client.join(group, static_cast<std::uint32_t>(pick(2)));
      break;
    case 13:
      client.join(raw(tokens_[pick(tokens_.size())]), static_cast<std::uint32_t>(pick(2)));
      break;
    case 14:
      if (pick(3) == 0) client.watch_region(ref, SHMBW_WATCH_EVENT_KNOWN);
      else if (pick(2) == 0) client.leave();
      else world_.advance(seconds(10));
      break;
    default:
      if (pick(6) == 0) end_one(at);
      else if (pick(20) == 0) client.end_group(1 + pick(tokens_.size()), static_cast<std::uint32_t>(pick(4)));
  }
}

Config config_of_storm() {
  Config config = private_config();
  config.limits.shelf_bytes = 16 * kMiB;
  config.limits.uid_tickets = 30;
  return config;
}

}  // namespace

TEST_CASE(
    "the next broker has what the last one had, and then what that one would have had after all sessions' death") {
  int tickets = 0;
  for (const unsigned seed : {1U, 2U, 3U, 4U, 5U, 6U}) {
    CAPTURE(seed);
    const Config config = config_of_storm();
    World world(config);
    world.check_at_end = false;  // some regions are kept until they are released
    Storm storm(world, seed);
    storm.blow(300 + static_cast<int>(seed) * 200);
    const std::string before = text_behind(own_books());
    const Next next = next_broker(world, config);
    CHECK(difference(loaded_part(before), next.begun) == "");
    CHECK(has(next.begun, "\nlease "));
    tickets += has(next.begun, "\nticket ") ? 1 : 0;
    CHECK(has(next.begun, "\nname "));
    CHECK(text_behind(own_books()) == before);  // it was only read
    const Next again = next_broker(world, config);
    CHECK(difference(next.begun, again.begun) == "");
    CHECK(difference(next.ended, again.ended) == "");
    storm.end_all();
    const std::string charged = charges(world);
    CHECK(difference(loaded_part(text_behind(own_books())), next.ended) == "");
    CHECK(difference(charged, next.charged) == "");
  }
  CHECK(tickets > 1);
}

TEST_CASE("a region that is kept has its bytes, its identity and the rest of its time with the next broker") {
  World world(private_config());
  Client maker = world.client(1000);
  maker.make_group({.name = "job", .limit_bytes = 2 * kMiB});
  maker.join("job");
  const Created kept =
      maker.create({.name = "weights", .length = kMiB, .flags = SHMBW_CREATE_KEEP_GIVEN, .keep = 100 * kSecond});
  const Created other = maker.create({.length = kMiB});
  REQUIRE(other.status == Status::ok);
  REQUIRE(::pwrite(kept.memory.get(), "bytes", 5, 4096) == 5);
  const std::uint64_t id = kept.ref().id, epoch = maker.epoch;
  maker.die();
  world.advance(40 * kSecond);  // of 100
  const Next next = next_broker(world, private_config(), [&](World& then) -> std::string {
    Client reader = then.client(1000);
    if (reader.epoch != epoch) return "another epoch";
    // Not as a member: that would make the group alive again.
    const Attached found = reader.attach_name("job", "weights");
    if (found.status != Status::ok || found.reply.region.id != id) return "not found";
    char bytes[6] = {};
    if (::pread(found.memory.get(), bytes, 5, 4096) != 5 || std::string(bytes) != "bytes") return "other bytes";
    if (reader.release(found.reply.region).status != Status::ok) return "not released";
    if (reader.create().ref().id <= other.ref().id) return "an id came twice";
    then.advance(59 * kSecond);
    if (reader.attach_name("job", "weights").status != Status::ok) return "gone too early";
    if (reader.release(found.reply.region).status != Status::ok) return "not released again";
    then.advance(2 * kSecond);
    if (reader.attach_name("job", "weights").status != Status::not_found) return "kept for too long";
    return "right";
  });
  CHECK(next.told == "right");
  CHECK(has(next.charged, "group 1 bytes 1048576 of 2097152 "));
}

TEST_CASE("a ticket that its maker has left is good for a region of the last broker") {
  World world(private_config());
  Client maker = world.client(1000), other = world.client(1000);
  const Created made = maker.create({.flags = SHMBW_CREATE_MANY_WRITERS});
  const auto ticket = Client::ticket_of(maker.ticket(made.ref(), kWrite, 2));
  const auto bound =
      Client::ticket_of(maker.ticket(made.ref(), kRead, 1, 0, SHMBW_TICKET_CREATE_WITH_SESSION, other.id));
  maker.die();
  const Next next = next_broker(world, private_config(), [&](World& then) -> std::string {
    Client reader = then.client(1000);
    if (reader.attach_ticket(bound).status != Status::not_found) return "it outlived its session";
    if (reader.attach_ticket(ticket, kWrite).status != Status::ok) return "first use";
    if (reader.attach_ticket(ticket, kWrite).status != Status::ok) return "second use";
    return reader.attach_ticket(ticket, kWrite).status == Status::not_found ? "right" : "third use";
  });
  CHECK(next.told == "right");
}

TEST_CASE("a region whose descriptor names another file is lost, and the others are kept") {
  World world(private_config());
  Client maker = world.client(1000);
  maker.make_group({.name = "job"});
  maker.join("job");
  for (const char* name : {"first", "second"})
    REQUIRE(maker.create({.name = name, .flags = SHMBW_CREATE_KEEP_GIVEN, .keep = -1}).status == Status::ok);
  maker.die();
  const auto books = LastBooks::open(own_books());
  REQUIRE(books);
  CHECK(books->losses().empty());
  REQUIRE(books->numbers().size() == 3);
  const int victim = std::ranges::find_if(books->numbers(), [](int number) { return number != own_books(); })[0];
  const int kept = ::dup(victim), other = ::memfd_create("other", 0);
  REQUIRE(::dup2(other, victim) == victim);
  const Next next = next_broker(world, private_config(), [](World& then) {
    Client reader = then.client(1000);
    std::string found;
    for (const char* name : {"first", "second"})
      if (reader.attach_name("job", name).status == Status::ok) found += name;
    return found;
  });
  CHECK((next.told == "first" || next.told == "second"));
  CHECK(has(next.log, "descriptor " + std::to_string(victim) + " is not its memory of 4096 bytes"));
  REQUIRE(::dup2(kept, victim) == victim);
  ::close(kept);
  ::close(other);
  Client end = world.client(1000);
  end.join("job");
  end.end_group(1, SHMBW_END_RELEASE_KEPT);
}

TEST_CASE("books that are damaged, or something else, are refused with a sentence") {
  const auto sentence = [](int number) {
    const auto opened = LastBooks::open(number);
    return opened ? std::string() : opened.error().sentence;
  };
  CHECK(has(sentence(-1), "is no memory file"));
  CHECK(has(sentence(STDERR_FILENO), "is no memory file"));
  const int empty = ::memfd_create("empty", 0);
  CHECK(has(sentence(empty), "is no memory file or an empty one"));
  REQUIRE(::ftruncate(empty, 8192) == 0);
  CHECK(sentence(empty) == "the books cannot be read: this is no file of books: those begin with the word shmbooks");
  ::close(empty);
  World world(private_config());
  Client maker = world.client(1000);
  const Created made = maker.create();
  REQUIRE(made.status == Status::ok);
  CHECK(sentence(own_books()).empty());
  const auto map = Mapping::map(own_books(), 0, sys::file_facts(own_books())->size, Access::read_write);
  REQUIRE(map);
  daemon::books::Head head;
  std::memcpy(&head, map->data(), sizeof head);
  std::byte* const region = map->data() + head.tables[daemon::books::RegionRecord::kNumber - 1].offset;
  region[40] ^= std::byte{1};
  CHECK(has(sentence(own_books()), "the books contradict themselves: region 1 (place 0): the checksum is wrong"));
  region[40] ^= std::byte{1};
  CHECK(sentence(own_books()).empty());
  std::byte* const totals = map->data() + head.tables[daemon::books::TotalsRecord::kNumber - 1].offset;
  totals[60] ^= std::byte{1};
  CHECK(has(sentence(own_books()), "the totals do not say how many records there are"));
  totals[60] ^= std::byte{1};
  CHECK(sentence(own_books()).empty());
}

TEST_CASE("books in which two regions have the same memory are refused with a sentence") {
  using daemon::books::RegionRecord;
  World world(private_config());
  Client maker = world.client(1000);
  REQUIRE(maker.create().status == Status::ok);
  REQUIRE(maker.create().status == Status::ok);
  const auto map = Mapping::map(own_books(), 0, sys::file_facts(own_books())->size, Access::read_write);
  REQUIRE(map);
  daemon::books::Head head;
  std::memcpy(&head, map->data(), sizeof head);
  auto* const regions = reinterpret_cast<RegionRecord*>(map->data() + head.tables[RegionRecord::kNumber - 1].offset);
  const RegionRecord before = regions[1];
  regions[1].memory = regions[0].memory;
  regions[1].check = daemon::books::check_of_record(
      RegionRecord::kNumber, 1, reinterpret_cast<const std::byte*>(&regions[1]), sizeof(RegionRecord));
  const auto opened = LastBooks::open(own_books());
  REQUIRE_FALSE(opened);
  CHECK(has(opened.error().sentence, " belongs to region "));
  regions[1] = before;
  CHECK(LastBooks::open(own_books()));
}

TEST_CASE("a broker that has not served yet has books from which the next one can begin") {
  World world(private_config());
  world.check_at_end = false;
  CHECK(LastBooks::open(own_books()));
}
