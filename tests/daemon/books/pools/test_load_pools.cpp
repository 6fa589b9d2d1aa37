// SPDX-License-Identifier: Apache-2.0
// A broker that begins from books with pools. The last broker lives in this process, and the next one in a forked
// process, as in tests/daemon/test_load_books.cpp. The memory of the pools is common, as it is for the participants of
// a broker that dies.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/sys_memory.hpp"
#include "base/sys_socket.hpp"
#include "daemon/books/image.hpp"
#include "daemon/books/last_books.hpp"
#include "tests/daemon/books/pool_client.hpp"
#include "tests/daemon/books/records_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/each_instruction.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/skip.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using pool::CellWord;
using pool::LaneState;
using pool::ParticipantState;
using shmb::daemon::Config;
using shmb::daemon::books::LastBooks;
namespace books = shmb::daemon::books;

namespace {

constexpr std::uint32_t kReader = SHMBW_QUEUE_OPEN_READER, kWriter = SHMBW_QUEUE_OPEN_WRITER;
constexpr std::uint32_t kSpsc = SHMBW_QUEUE_KIND_SPSC, kMpmc = SHMBW_QUEUE_KIND_MPMC,
                        kBroadcast = SHMBW_QUEUE_KIND_BROADCAST;

// The records of pools, in the order of their text. `numbers`: also the numbers of descriptors.
std::string pools_in(const std::string& text, bool numbers = true) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const std::string kind = line.substr(0, line.find(' '));
    if (kind != "pool" && kind != "participant" && kind != "segment" && kind != "queue" && kind != "lane" &&
        kind != "hold" && kind != "region")
      continue;
    for (const char* field : {" directory=", " control=", " doorbell=", " memory="})
      if (const std::size_t at = line.find(field); !numbers && at != line.npos)
        line.erase(at, line.find(' ', at + 1) - at);
    lines.push_back(line);
  }
  std::ranges::sort(lines);
  std::string out;
  for (const std::string& line : lines) out += line + '\n';
  return out;
}

// What participants read in the directory.
std::string directory_text(const pool::View& view) {
  std::ostringstream out;
  for (std::size_t i = 0; i < pool::kParticipants; ++i)
    if (const auto stamp = participant(view, static_cast<std::uint32_t>(i)); stamp.serial != 0)
      out << "participant " << i << " life " << stamp.serial << " state " << int{stamp.state} << '\n';
  for (std::uint32_t i = 0; i < view.segments(); ++i)
    if (const pool::SegmentEntry& entry = view.segment(i); entry.in_use.load() != 0)
      out << "segment " << i << " first " << entry.first_slot << " slots " << entry.slots << " of " << entry.slot_size
          << " stride " << entry.stride << " limit " << entry.slots_limit << " region " << entry.region << '.'
          << entry.generation << '\n';
  for (std::uint32_t i = 0; i < view.queues(); ++i) {
    const pool::QueueEntry& entry = view.queue(i);
    const auto stamp = pool::Stamp::of(entry.stamp.load());
    if (stamp.state == 0) continue;
    out << "queue " << i << " serial " << stamp.serial << " state " << int{stamp.state} << " kind " << int{entry.kind}
        << " flags " << entry.flags << " cells " << entry.cells << " of " << entry.cell_size << " readers "
        << entry.readers.load() << " writers " << entry.writers.load() << " generation " << entry.generation.load()
        << " lane " << entry.writer_lane.load() << " deaths " << entry.deaths.load() << ' '
        << std::string(entry.name, entry.name_length) << '\n';
  }
  for (std::uint32_t i = 0; i < view.lanes(); ++i) {
    const pool::LaneEntry& entry = view.lane(i);
    const auto stamp = pool::Stamp::of(entry.stamp.load());
    if (stamp.state == 0) continue;
    out << "lane " << i << " serial " << stamp.serial << " state " << int{stamp.state} << " queue " << entry.queue
        << '.' << entry.queue_serial << " from " << entry.from << '.' << entry.from_life << " to " << entry.to << '.'
        << entry.to_life << " cells " << entry.cells << " of " << entry.cell_size << " at " << entry.offset << '\n';
  }
  out << "broken " << view.header().broken.load() << " doorbells " << view.header().doorbells.load() << '\n';
  return out.str();
}

struct Next {
  std::string begun;  // its books as they took the place of the last ones
  std::string log;
  std::string told;  // by `then`
};

// Begins from the books of this process' broker. `then` uses the next broker, with the number of its books, and returns
// a text.
Next next_broker(const World& last, const std::function<std::string(World&, int)>& then) {
  const int number = own_books();
  REQUIRE(number >= 0);
  std::FILE* const file = std::tmpfile();
  REQUIRE(file);
  auto child = harness::Child::run([&] {
    auto opened = LastBooks::open(number);
    if (!opened) {
      std::fprintf(stderr, "%s\n", opened.error().sentence.c_str());
      return 2;
    }
    std::string begun;
    daemon::BrokerFacts facts;
    int own = -1;
    facts.books_are_at = [&](int at) { own = at, begun = pools_in(text_behind(at)); };
    World& next = *new World(private_config(), std::move(facts), true, &*opened, last.now);  // it never ends
    next.next_pid = last.next_pid;
    std::string told = then(next, own);
    std::string log;
    for (const std::string& line : next.log) log += line + '\n';
    for (std::string* part : {&begun, &log, &told}) std::fwrite(part->c_str(), part->size() + 1, 1, file);
    std::fflush(file);
    return 0;
  });
  REQUIRE(child.wait() == 0);
  std::vector<std::string> parts(1);
  std::rewind(file);
  for (int c; (c = std::fgetc(file)) != EOF;) {
    if (c == 0) parts.emplace_back();
    else parts.back() += static_cast<char>(c);
  }
  std::fclose(file);
  REQUIRE(parts.size() == 4);
  CHECK(parts[1].find("own bug") == std::string::npos);
  return {parts[0], parts[1], parts[2]};
}

// A pool whose participants have all gone, and that its name keeps:
// - "jobs": an unread message of a dead sender names slot 2, whose region is a segment; another names a region
// - "news": a ring that waits for its next writer
// - "line": over, and removed; "shut": closed for all, with an unread message
struct Kept {
  explicit Kept(World& world) {
    Client keeper = world.client(), sender = world.client(), reader = world.client();
    keeper.make_group({.name = "job", .keep = 1000 * kSecond});
    for (Client* one : {&keeper, &sender, &reader}) one->join("job");
    at = map_pool(
        pool_create(keeper, {.name = "hall", .queues = 8, .flags = SHMBW_POOL_KEEP_GIVEN, .keep = 1000 * kSecond}));
    map_pool(pool_join(sender, at.pool));
    map_pool(pool_join(reader, at.pool));
    const Created memory = keeper.create({.length = 4096, .flags = SHMBW_CREATE_MANY_WRITERS});
    REQUIRE(pool_segment(keeper, at.pool, memory.ref(), 100, 8).status() == Status::ok);
    keeper.release(memory.ref());

    const auto jobs = opened(queue_open(sender, at.pool, "jobs", {kMpmc, kWriter}));
    at.view.slot(2).holders.store(0b10);
    at.view.slot(3).holders.store(0b10);  // no message names this one
    publish_slot(lane_words(at.view, jobs.lane), 0, 2);
    const Created held = sender.create();
    REQUIRE(queue_hold(sender, at.pool, jobs.lane, jobs.lane_serial, held.ref()) == Status::ok);
    sender.release(held.ref());
    opened(queue_open(sender, at.pool, "news", {kBroadcast, kWriter, 16, 128}));
    opened(queue_open(sender, at.pool, "line", {kSpsc, kWriter}));
    const auto line = opened(queue_open(reader, at.pool, "line", {kSpsc, kReader}));
    REQUIRE(queue_close(reader, at.pool, line, kReader | SHMBW_QUEUE_CLOSE_REMOVE).status() == Status::ok);
    const auto shut = opened(queue_open(keeper, at.pool, "shut", {kMpmc, kWriter}));
    publish_bytes(lane_words(at.view, shut.lane), 0);
    REQUIRE(queue_close(keeper, at.pool, shut, SHMBW_QUEUE_CLOSE_WRITER | SHMBW_QUEUE_CLOSE_ALL).status() ==
            Status::ok);
    jobs_lane = jobs.lane;
    jobs_lane_serial = jobs.lane_serial;
    sender.die();
    REQUIRE(pool_leave(reader, at.pool).status() == Status::ok);
    REQUIRE(pool_leave(keeper, at.pool).status() == Status::ok);
    reader.close();
    keeper.close();
    world.advance(kSecond);  // the repair of the sender waits, and the others are clean
    REQUIRE(participant(at.view, 0).state == static_cast<std::uint8_t>(ParticipantState::free));
    REQUIRE(participant(at.view, 1).state == static_cast<std::uint8_t>(ParticipantState::dead));
  }
  PoolClient at;
  std::uint32_t jobs_lane = 0, jobs_lane_serial = 0;
};

// Goes on with that pool. Everything that the broker decides is in the text.
std::string use_kept(World& world, int own, std::uint32_t jobs_lane, std::uint32_t jobs_lane_serial) {
  std::ostringstream out;
  std::optional<PoolClient> at;
  const auto show = [&](const char* what) {
    world.advance(0);
    out << "--- " << what << '\n' << pools_in(text_behind(own), false);
    if (at)
      out << directory_text(at->view) << "slots " << at->view.slot(2).holders.load() << ' '
          << at->view.slot(3).holders.load() << '\n';
  };
  show("as it is");
  Client first = world.client(), second = world.client();
  at = map_pool(pool_join(first, "job", "hall"));
  show("joined");
  const auto jobs =
      opened(queue_open(first, at->pool, "jobs", {SHMBW_QUEUE_KIND_NONE, kReader | SHMBW_QUEUE_OPEN_OPEN_ONLY}));
  const auto news = opened(queue_open(first, at->pool, "news", {kBroadcast, kWriter, 16, 128}));
  const auto line = opened(queue_open(first, at->pool, "line", {kSpsc, kReader | kWriter}));
  const auto shut = queue_open(first, at->pool, "shut", {kMpmc, kReader}).status();
  const auto late = queue_open(first, at->pool, "shut", {kMpmc, kWriter}).status();
  out << jobs.serial << ' ' << news.lane << '.' << news.lane_serial << ' ' << line.serial << ' '
      << static_cast<int>(shut) << static_cast<int>(late) << '\n';
  show("opened");
  // It takes the message as a receiver does.
  const pool::LaneView lane = lane_words(at->view, jobs_lane);
  pool::Cell& cell = lane.cell(0);
  out << "message " << int{CellWord::of(cell.word.load()).state} << " of slot ";
  std::uint32_t slot = 0;
  std::memcpy(&slot, cell.body(), sizeof slot);
  out << slot << '\n';
  cell.word.store(CellWord::empty(lane.cells()));
  lane_finished(first, at->pool, jobs_lane, jobs_lane_serial, SHMBW_LANE_END_RECEIVER);
  world.advance(5 * kSecond);
  show("received");
  const PoolClient again = map_pool(pool_join(second, "job", "hall"));
  out << "index " << again.index << " life " << again.life << '\n';
  const Created more = second.create({.length = 4096, .flags = SHMBW_CREATE_MANY_WRITERS});
  out << static_cast<int>(pool_segment(second, at->pool, more.ref(), 100, 8).status());
  out << static_cast<int>(pool_segment(second, at->pool, more.ref(), 100, 8).status()) << '\n';
  show("more");
  first.die();
  second.die();
  world.wait_for_closes();
  show("left");
  world.advance(2000 * kSecond);
  world.wait_for_closes();
  at.reset();
  show("kept for long enough");
  return out.str();
}

// A record of the books as they lie there, for one change.
template <class Record>
class Bent {
 public:
  Bent(std::byte* memory, std::uint32_t place) : place_(place) {
    books::Head head;
    std::memcpy(&head, memory, sizeof head);
    record_ = reinterpret_cast<Record*>(memory + head.tables[Record::kNumber - 1].offset) + place;
    before_ = *record_;
    REQUIRE(before_.id != 0);
  }
  Bent(const Bent&) = delete;
  Bent& operator=(const Bent&) = delete;
  ~Bent() { *record_ = before_; }
  template <class Body>
  void change(Body body) {
    body(*record_);
    record_->check =
        books::check_of_record(Record::kNumber, place_, reinterpret_cast<const std::byte*>(record_), sizeof(Record));
  }

 private:
  std::uint32_t place_;
  Record* record_;
  Record before_;
};

}  // namespace

TEST_CASE("a pool that its name keeps goes on with the next broker as with the last one") {
  std::string expected;
  {
    World world;
    Kept kept(world);
    expected = use_kept(world, own_books(), kept.jobs_lane, kept.jobs_lane_serial);
  }
  CHECK(has(expected, "index 1 life 2"));
  CHECK(has(expected, "message 1 of slot 2"));
  World world;
  world.check_at_end = false;  // what the next broker does here is not in the books of this one
  Kept kept(world);
  const std::string before = pools_in(text_behind(own_books()));
  for (const char* kind : {"pool ", "participant ", "segment ", "queue ", "lane ", "hold "}) CHECK(has(before, kind));
  const Next next = next_broker(
      world, [&](World& then, int own) { return use_kept(then, own, kept.jobs_lane, kept.jobs_lane_serial); });
  CHECK(next.begun == before);
  CHECK(next.told == expected);
}

TEST_CASE("the next broker writes the directory again, whatever the last one has left there") {
  World world;
  world.check_at_end = false;
  Kept kept(world);
  const auto opened_books = LastBooks::open(own_books());
  REQUIRE(opened_books);
  REQUIRE(opened_books->pools().size() == 1);
  const auto map =
      Mapping::map(opened_books->pools()[0].pool.directory, 0, kept.at.directory.size(), Access::read_write);
  REQUIRE(map);
  const std::string expected = directory_text(kept.at.view);
  std::memset(map->data(), 0x5a, map->size());
  const Next next = next_broker(world, [&](World& then, int) -> std::string {
    const std::string found = directory_text(kept.at.view);
    Client reader = then.client();
    const PoolClient at = map_pool(pool_join(reader, "job", "hall"));
    return at.index == 0 && at.life == 2 ? found : "joined at another place";
  });
  CHECK(next.told == expected);
}

TEST_CASE("a pool in use ends with its broker: its participants see it, and its memory is free") {
  World world;
  world.check_at_end = false;
  Client first = world.client(), second = world.client(), third = world.client();
  first.make_group({.name = "job", .keep = 1000 * kSecond});
  for (Client* one : {&first, &second, &third}) one->join("job");
  const PoolClient at =
      map_pool(pool_create(first, {.name = "hall", .flags = SHMBW_POOL_KEEP_GIVEN, .keep = 1000 * kSecond}));
  map_pool(pool_join(second, at.pool));
  map_pool(pool_join(third, at.pool, SHMBW_POOL_READ_ONLY));
  auto pair = sys::seqpacket_pair();
  REQUIRE(pair);
  second.link().bring(std::move((*pair)[0]));
  REQUIRE(second.call(SHMBW_OP_POOL_DOORBELL, shmbw_pool_doorbell{at.pool, SHMBW_DOORBELL_SET, 0, 0, 0}).status() ==
          Status::ok);
  opened(queue_open(first, at.pool, "line", {kSpsc, kReader}));
  opened(queue_open(second, at.pool, "line", {kSpsc, kWriter}));
  third.die();  // its repair has not begun
  const std::string before = pools_in(text_behind(own_books()));
  CHECK(has(before, " doorbell="));
  const std::uint32_t event = at.view.wait(1).event.load();
  const Next next = next_broker(world, [&](World& then, int) -> std::string {
    if (at.view.wait(1).event.load() == event) return "nobody was woken";
    Client reader = then.client();
    if (pool_join(reader, "job", "hall").status() != Status::not_found) return "it has its name";
    then.wait_for_closes();
    then.advance(2000 * kSecond);
    then.wait_for_closes();
    if (then.status().bytes != 0) return "its memory is charged";
    return directory_text(at.view);
  });
  CHECK(next.begun == before);
  CHECK(has(next.told, "broken " + std::to_string(static_cast<int>(pool::Broken::broker_ended))));
}

TEST_CASE("a pool whose records contradict each other is left out with a sentence, and others are not") {
  World world;
  Kept kept(world);
  Client other = world.client();
  map_pool(pool_create(other));
  const auto map = Mapping::map(own_books(), 0, sys::file_facts(own_books())->size, Access::read_write);
  REQUIRE(map);
  const auto sentence = [&]() -> std::string {
    const auto opened = LastBooks::open(own_books());
    if (!opened) return "refused: " + opened.error().sentence;
    if (opened->pools().size() == 2 && opened->losses().empty()) return "";
    REQUIRE(opened->pools().size() == 1);
    CHECK(opened->losses().size() == 1);
    return opened->losses().empty() ? "no sentence" : opened->losses()[0];
  };
  REQUIRE(sentence() == "");
  int changes = 0;
  const auto bend = [&]<class Record>(std::uint32_t place, const char* expected, void (*change)(Record&)) {
    {
      Bent<Record> bent(map->data(), place);
      bent.change(change);
      const std::string told = sentence();
      CAPTURE(told);
      CHECK_MESSAGE(has(told, expected), expected);
    }
    CHECK(sentence() == "");
    ++changes;
  };
  using Pool = books::PoolRecord;
  using Who = books::ParticipantRecord;
  using Segment = books::SegmentRecord;
  using Queue = books::QueueRecord;
  using Lane = books::LaneRecord;
  bend(0, "no pool has so many", +[](Pool& it) { it.most_lanes = 0; });
  bend(0, "is not its directory of", +[](Pool& it) { it.most_lanes = 4000; });
  bend(0, "is not its directory of", +[](Pool& it) { it.directory = STDERR_FILENO; });
  bend(0, "is not its directory of", +[](Pool& it) { it.directory = -1; });
  bend(0, "is not its control area of", +[](Pool& it) { it.control = -1; });
  bend(0, "it has no group", +[](Pool& it) { it.group = 0; });
  bend(0, "is over for no known reason", +[](Pool& it) { it.broken = 9; });
  bend(0, "slots, and not 9", +[](Pool& it) { it.slots = 9; });
  bend(0, "has a serial that was not given out", +[](Pool& it) { it.last_lane_serial = 1; });
  bend(1, "participant 64 has no place of its own", +[](Who& it) { it.index = 64; });
  bend(1, "participant 0 has no place of its own", +[](Who& it) { it.index = 0; });
  bend(1, "has no life", +[](Who& it) { it.life = 0; });
  bend(1, "is in no state", +[](Who& it) { it.state = 1; });
  bend(1, "is in no state", +[](Who& it) { it.state = 5; });
  bend(1, "is not there, and has a session or a doorbell", +[](Who& it) { it.doorbell = 900; });
  bend(0, "has no place of its own", +[](Segment& it) { it.index = 1; });
  bend(0, "has the slots of another one, or none", +[](Segment& it) { it.first_slot = 1; });
  bend(0, "has the slots of another one, or none", +[](Segment& it) { it.slots = 0; });
  bend(0, "has the slots of another one, or none", +[](Segment& it) { it.slots = 17; });
  bend(0, "more slots than its limit", +[](Segment& it) { it.slots_limit = 7; });
  bend(0, "does not fit into its region", +[](Segment& it) { it.slot_size = 4096; });
  bend(0, "does not fit into its region", +[](Segment& it) { it.slot_size = 0; });
  bend(0, "has no place of its own", +[](Queue& it) { it.index = 8; });
  bend(0, "is of no kind, or in no state", +[](Queue& it) { it.kind = 4; });
  bend(0, "is of no kind, or in no state", +[](Queue& it) { it.state = 3; });
  bend(0, "has no serial, or unknown flags", +[](Queue& it) { it.serial = 0; });
  bend(0, "has no serial, or unknown flags", +[](Queue& it) { it.flags = 8; });
  bend(0, "has cells that no queue has", +[](Queue& it) { it.cells = 7; });
  bend(0, "has cells that no queue has", +[](Queue& it) { it.cell_size = 65; });
  bend(0, "has an end of a participant that is not there", +[](Queue& it) { it.readers = 2; });
  bend(0, "has memory that it may not have", +[](Queue& it) { it.state = 0; });
  bend(1, "names a lane of its writer that is not there", +[](Queue& it) { it.writer_lane = 0; });
  bend(0, "has no place of its own", +[](Lane& it) { it.index = 64; });
  bend(0, "is in no state of a lane of its kind", +[](Lane& it) { it.state = 3; });
  bend(0, "has memory that it may not have", +[](Lane& it) { it.state = 0; });
  bend(0, "has other cells than its queue", +[](Lane& it) { it.cells = 16; });
  bend(0, "has a serial that was not given out", +[](Lane& it) { it.serial = 100; });
  bend(0, "has no sender", +[](Lane& it) { it.from = 64; });
  bend(0, "has a wrong receiver", +[](Lane& it) { it.to = 0; });
  bend(0, "does not lie in the memory of lanes", +[](Lane& it) { it.offset = 0; });
  bend(0, "does not lie in the memory of lanes", +[](Lane& it) { it.offset += 1; });
  bend(0, "does not lie in the memory of lanes", +[](Lane& it) { it.offset = UINT64_MAX - 127; });
  bend(0, "two of its lanes overlap", +[](Lane& it) { it.offset += 128; });
  CHECK(changes == 43);
  other.close();
  world.advance(2000 * kSecond);
}

TEST_CASE("a pool that is left out costs nobody anything, and its regions are free") {
  World world;
  world.check_at_end = false;
  Kept kept(world);
  Client maker = world.client();
  maker.join("job");
  REQUIRE(maker.create({.name = "weights", .flags = SHMBW_CREATE_KEEP_GIVEN, .keep = 1000 * kSecond}).status ==
          Status::ok);
  const auto map = Mapping::map(own_books(), 0, sys::file_facts(own_books())->size, Access::read_write);
  REQUIRE(map);
  Bent<books::PoolRecord> bent(map->data(), 0);
  bent.change([](books::PoolRecord& it) { it.most_slots = 1; });
  const Next next = next_broker(world, [](World& then, int) -> std::string {
    Client reader = then.client();
    if (reader.attach_name("job", "weights").status != Status::ok) return "the region is lost";
    if (pool_join(reader, "job", "hall").status() != Status::not_found) return "there is a pool";
    then.wait_for_closes();
    if (then.status().regions != 1) return "other regions are there";
    return map_pool(pool_create(reader, {.name = "hall"})).pool > 1 ? "right" : "an id came twice";
  });
  CHECK(next.told == "right");
  CHECK(has(next.log, "the last broker's books: pool "));
  CHECK(has(next.log, " cannot go on: "));
  CHECK_FALSE(has(next.begun, "pool "));
}

TEST_CASE("after random requests the next broker has the same pools") {
  std::string all;
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    CAPTURE(seed);
    World world;
    world.check_at_end = false;
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t below) { return static_cast<std::uint32_t>(random() % below); };
    std::vector<Client> clients;
    std::vector<PoolClient> pools;
    for (int i = 0; i < 8; ++i) clients.push_back(world.client());
    clients[0].make_group({.name = "job"});
    for (Client& client : clients) client.join("job");
    for (int step = 0; step < 400; ++step) {
      Client& client = clients[pick(clients.size())];
      client.link().replies.clear();
      client.link().events.clear();
      if (pools.empty() || pick(25) == 0) {
        const std::string name = pick(2) != 0 ? "p" + std::to_string(pick(4)) : "";
        const bool kept = !name.empty() && pick(2) != 0;
        Packet& made = pool_create(client, {.name = name,
                                            .lane_bytes = 32 << 10,
                                            .flags = kept ? std::uint32_t{SHMBW_POOL_KEEP_GIVEN} : 0U,
                                            .keep = kept ? 500 * kSecond : 0});
        if (made.status() == Status::ok) pools.push_back(map_pool(made));
        continue;
      }
      const PoolClient& at = pools[pick(pools.size())];
      const std::string queue = "q" + std::to_string(pick(3));
      const std::uint32_t kind = 1 + static_cast<std::uint32_t>(queue[1] - '0');
      shmbw_queue_open_reply place{};
      place.queue = pick(4);
      place.serial = 1 + pick(3);
      switch (pick(10)) {
        case 0:
        case 1:
          pool_join(client, at.pool, pick(4) == 0 ? std::uint32_t{SHMBW_POOL_READ_ONLY} : 0U);
          break;
        case 2:
        case 3:
        case 4: {
          const Packet& reply = queue_open(client, at.pool, queue, {kind, 1 + pick(3)});
          if (reply.status() != Status::ok) break;
          const auto there = reply.fixed<shmbw_queue_open_reply>();
          if (there.lane == pool::kNone || pick(2) == 0) break;
          publish_bytes(lane_words(at.view, there.lane), 0);
          const Created region = client.create();
          queue_hold(client, at.pool, there.lane, there.lane_serial, region.ref());
          client.release(region.ref());
          break;
        }
        case 5:
          queue_close(client, at.pool, place, 1 + pick(15));
          break;
        case 6:
          lane_finished(client, at.pool, pick(6), 1 + pick(12), pick(2));
          break;
        case 7: {
          const Created region = client.create({.length = 4096, .flags = SHMBW_CREATE_MANY_WRITERS});
          pool_segment(client, at.pool, region.ref(), 64, 1 + pick(4));
          client.release(region.ref());
          break;
        }
        case 8:
          if (pick(2) == 0) pool_leave(client, at.pool);
          else world.advance(kSecond);
          break;
        default:
          if (pick(4) != 0) break;
          client.die();
          client = world.client();
          client.join("job");
      }
    }
    const std::string before = pools_in(text_behind(own_books()));
    all += before;
    const Next next = next_broker(world, [](World& then, int) -> std::string {
      then.advance(10 * kSecond);
      then.wait_for_closes();
      return "";
    });
    CHECK(next.begun == before);
    for (Client& client : clients) client.die();
  }
  for (const char* kind : {"pool ", "participant ", "segment ", "queue ", "lane ", "hold "}) CHECK(has(all, kind));
}

TEST_CASE(
    "the directory shows what a request gives after the books have it, at whichever instruction the broker is killed") {
  World world;
  world.check_at_end = false;  // the child changes what both share
  Client keeper = world.client(), other = world.client();
  PoolClient at = map_pool(pool_create(keeper));
  map_pool(pool_join(other, at.pool));
  opened(queue_open(keeper, at.pool, "line", {kSpsc, kWriter}));
  const Created memory = other.create({.length = 4096, .group = at.group, .flags = SHMBW_CREATE_MANY_WRITERS});
  Client third = world.client();
  std::function<void()> request;
  std::function<bool()> shown;
  SUBCASE("a lane") {
    request = [&] { (void)queue_open(other, at.pool, "line", {kSpsc, kReader}); };
    shown = [&] { return lanes_in_use(at.view) != 0; };
  }
  SUBCASE("a segment") {
    request = [&] { (void)pool_segment(other, at.pool, memory.ref(), 64, 4); };
    shown = [&] { return at.view.segment(0).in_use.load() != 0; };
  }
  SUBCASE("a participant") {
    request = [&] { (void)pool_join(third, at.pool); };
    shown = [&] { return at.view.participant(2).stamp.load() != 0; };
  }
  const auto map = Mapping::map(own_books(), 0, sys::file_facts(own_books())->size, Access::read);
  REQUIRE(map);
  const auto& words = *reinterpret_cast<const books::Words*>(map->data() + books::kWordsAt);
  const std::uint64_t before = words.committed;
  long stops = 0, early = 0;
  bool seen_it = false;
  const auto seen = harness::at_each_instruction(
      [&](const std::function<void()>& start) {
        start();
        request();
      },
      [&] {
        if (++stops % 8 != 0) return true;
        seen_it = shown();
        early += seen_it && words.committed == before;
        return !seen_it;
      });
  if (!seen.traced) SKIP_CASE("no ptrace here");
  CHECK(early == 0);
  CHECK(seen_it);
  CHECK(stops > 1000);
}

TEST_CASE("where a pool cannot be mapped the broker does not begin, and the next one finds all as it was") {
  World world;
  world.check_at_end = false;
  Kept kept(world);
  const int number = own_books();
  auto child = harness::Child::run([&] {
    const auto opened = LastBooks::open(number);
    if (!opened || opened->pools().size() != 1) return 2;
    int refused = 0;
    for (int nth = 1; nth < 200; ++nth) {
      daemon::BrokerFacts facts;
      facts.now = [&] { return world.now; };
      const harness::Injected broken(fault::Call::mmap, ENOMEM, nth);
      auto begun = daemon::make_broker(private_config(), std::move(facts), &*opened);
      if (begun) {
        (void)begun->release();       // its end would close what the other brokers name
        return refused == 2 ? 0 : 3;  // the directory and the control area
      }
      refused += has(begun.error().sentence, "mapping the control memory of a pool of the last broker");
      const auto again = LastBooks::open(number);
      if (!again || again->pools().size() != 1 || !again->losses().empty()) return 4;
    }
    return 5;
  });
  CHECK(child.wait() == 0);
}
