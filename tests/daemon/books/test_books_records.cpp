// SPDX-License-Identifier: Apache-2.0
// The records of the ledger's objects: who may have a copy, what is in it, when it is there, and what happens when
// there is no memory for more. That all records are true is compared after each call, in every case of these tests.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "base/mapping.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "daemon/books/image.hpp"
#include "tests/daemon/books/books_fixture.hpp"
#include "tests/daemon/books/records_fixture.hpp"
#include "tests/harness/each_instruction.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/skip.hpp"

using namespace shmb;
using namespace shmb::daemon::test;

TEST_CASE("a copy of the books is for the admin socket, and for the user of a private broker") {
  {
    World world(system_config());
    Client user = world.client(1000), root = world.client(0), admin = world.admin();
    for (Client* client : {&user, &root}) {
      Packet& refused = ask_books(*client);
      CHECK(refused.status() == Status::denied);
      CHECK(refused.fds.empty());
    }
    CHECK(has(text_in(ask_books(admin)), "uid=1000"));
  }
  World world(private_config());
  Client user = world.client(1000);
  CHECK(has(text_in(ask_books(user)), "uid=1000"));
}

TEST_CASE("the books follow a region from its creation through its name, its publication and the shelf to its end") {
  World world(private_config());
  Client maker = world.client(1000), asker = world.client(1000);
  maker.make_group({.name = "job"});
  maker.join("job");
  const auto books = [&] { return text_in(ask_books(asker)); };
  const Created made = maker.create({.name = "kv", .length = 3 * kMiB, .keep = 0});
  const std::string id = std::to_string(made.reply.region.id);
  CHECK(has(books(), "\nregion id=" + id + " group=1 length=3145728 bytes=4194304 "));
  CHECK(has(books(), "\nname id=" + id + " group=1 text=\"kv\"\n"));
  CHECK_FALSE(has(books(), "populated="));
  maker.ready(made.ref());
  CHECK(has(books(), " page_kind=" + std::to_string(SHMBW_PAGE_KIND_HUGE)));
  CHECK(maker.release(made.ref(), 0, SHMBW_RELEASE_UNNAME | SHMBW_RELEASE_RECYCLE).status == Status::ok);
  const std::string shelved = books();
  CHECK(has(shelved, " state=" + std::to_string(SHMBW_REGION_STATE_CACHED)));
  CHECK_FALSE(has(shelved, "\nname "));
  CHECK_FALSE(has(shelved, "region id=" + id + " "));  // it has got another id
  const Created promised =
      maker.create({.name = "later", .flags = SHMBW_CREATE_NAME_AT_PUBLISH | SHMBW_CREATE_KEEP_GIVEN, .keep = kMinute});
  const std::string second = std::to_string(promised.reply.region.id);
  CHECK(has(books(), "\nname id=" + second + " group=1 keep=60000000000 promised=1 text=\"later\"\n"));
  maker.die();
  world.wait_for_closes();
  const std::string left = books();
  CHECK_FALSE(has(left, "\nregion "));
  CHECK_FALSE(has(left, "\nname "));
  CHECK(has(left, "count=1,1,0,0,0,0"));
  CHECK_FALSE(has(left, "\ngroup "));
}

TEST_CASE("the books follow leases and groups") {
  World world(private_config());
  Client maker = world.client(1000), reader = world.client(1000), asker = world.client(1000);
  const auto books = [&] { return text_in(ask_books(asker)); };
  maker.make_group({.name = "job", .keep = kMinute, .limit_bytes = kMiB});
  maker.join("job");
  const std::string founded = books();
  CHECK(has(founded, "\ngroup id=1 asked_bytes=1048576 "));
  CHECK(has(founded, " keep=60000000000 uid=1000 name=\"job\"\n"));
  CHECK_FALSE(has(founded, "sponsor="));  // it has a member now
  const Created made = maker.create({.name = "kv", .flags = SHMBW_CREATE_MANY_WRITERS});
  const Attached attached = reader.attach_name("job", "kv", kWrite);
  REQUIRE(attached.status == Status::ok);
  CHECK(has(books(), " session=" + std::to_string(reader.id) + " region=1 since=1000000000000 rights=3 count=1\n"));
  REQUIRE(reader.attach_name("job", "kv", kWrite).status == Status::ok);
  CHECK(has(books(), " count=2\n"));
  reader.ready(made.ref());
  CHECK(has(books(), " count=2 reach=2\n"));
  CHECK(reader.release(made.ref()).status == Status::ok);
  maker.die();
  const std::string kept = books();
  CHECK_FALSE(has(kept, "\nlease "));
  CHECK(has(kept, " ended_at=1000000000000 "));
  CHECK(has(kept, "\nname id=1 group=1 text=\"kv\"\n"));
}

TEST_CASE(
    "the books follow a ticket through its uses, the end of its maker, and that of the session that it ends with") {
  World world(private_config());
  Client maker = world.client(1000), bound = world.client(1000), reader = world.client(1000),
         asker = world.client(1000);
  const auto books = [&] { return text_in(ask_books(asker)); };
  const Created made = maker.create({.flags = SHMBW_CREATE_MANY_WRITERS});
  const auto secret = Client::ticket_of(maker.ticket(made.ref(), kWrite, 3));
  const std::string who = std::to_string(maker.id), whom = std::to_string(bound.id);
  const std::string fixed = " region=1 maker=" + who + " maker_group=1";
  CHECK(has(books(), fixed + " payer=" + who + " expires=1600000000000 rights=3 uses_left=3 maker_uid=1000\n"));
  CHECK(reader.attach_ticket(secret, kWrite).status == Status::ok);
  CHECK(has(books(), " uses_left=2 maker_uid=1000\n"));
  const auto other =
      Client::ticket_of(maker.ticket(made.ref(), kRead, 1, 0, SHMBW_TICKET_CREATE_WITH_SESSION, bound.id));
  CHECK(has(books(), fixed + " with=" + whom + " payer=" + who + " "));
  maker.die();
  const std::string left = books();
  CHECK(has(left, fixed + " expires=1600000000000 rights=3 uses_left=2 "));
  CHECK(has(left, fixed + " with=" + whom + " expires="));
  bound.die();
  CHECK_FALSE(has(books(), " with="));
  CHECK(reader.attach_ticket(secret, kWrite).status == Status::ok);
  CHECK(reader.attach_ticket(secret, kWrite).status == Status::ok);
  CHECK_FALSE(has(books(), "\nticket "));
  CHECK(reader.attach_ticket(other).status == Status::not_found);
}

TEST_CASE("the books follow watches of each kind until their target, their ticket or their session ends") {
  World world(private_config());
  Client maker = world.client(1000), watcher = world.client(1000), asker = world.client(1000);
  const auto books = [&] { return text_in(ask_books(asker)); };
  const std::string group = std::to_string(maker.make_group({.name = "job"}).fixed<shmbw_group_create_reply>().group);
  maker.join("job");
  const Created made = maker.create();
  const std::string of = " session=" + std::to_string(watcher.id);
  CHECK(watcher.watch_name("job", "weights").status() == Status::ok);
  CHECK(watcher.watch_name("job", "weights", SHMBW_WATCH_POOL).status() == Status::ok);
  CHECK(watcher.watch_group(std::stoul(group)).status() == Status::ok);
  CHECK(watcher.watch_reclaims(std::stoul(group)).status() == Status::ok);
  CHECK(watcher.watch_region(made.ref(), SHMBW_WATCH_EVENT_GONE).status() == Status::ok);
  const std::string all = books();
  const auto kind = [](int number) { return " kind=" + std::to_string(number); };
  CHECK(has(all, kind(SHMBW_WATCH_KIND_NAME) + " name=\"1000:job/weights\"\n"));
  CHECK(has(all, kind(SHMBW_WATCH_KIND_NAME) + " name=\"1000:job/weights/\"\n"));
  CHECK(has(all, of + " group=" + group + " events="));
  CHECK(has(all, of + " only_group=" + group + " events="));
  CHECK(has(all, of + " region=1 events="));
  shmbw_watch wish{};
  wish.kind = SHMBW_WATCH_KIND_REGION;
  wish.events = SHMBW_WATCH_EVENT_GONE;
  const auto ticket = Client::ticket_of(maker.ticket(made.ref()));
  std::ranges::copy(ticket, wish.ticket);
  CHECK(watcher.call(SHMBW_OP_WATCH, wish).status() == Status::ok);
  CHECK(has(books(), of + " region=1 ticket="));
  maker.revoke(ticket);
  CHECK_FALSE(has(books(), of + " region=1 ticket="));
  CHECK(maker.release(made.ref()).status == Status::ok);
  CHECK_FALSE(has(books(), of + " region="));
  maker.die();
  CHECK_FALSE(has(books(), of + " group="));
  CHECK(has(books(), "\nwatch "));
  watcher.die();
  CHECK_FALSE(has(books(), "\nwatch "));
}

TEST_CASE("there is one copy of the books: the next one and the end of the session give its memory back") {
  World world(private_config());
  Client first = world.client(1000), second = world.client(1000);
  const std::uint64_t before = world.status().descriptors;
  const Fd old = std::move(ask_books(first).fds.at(0));
  const auto pages_of = [](const Fd& copy) { return sys::file_facts(copy.get())->size; };
  CHECK(pages_of(old) > 0);
  CHECK(world.status().descriptors == before + 1);
  const Fd next = std::move(ask_books(second).fds.at(0));
  CHECK(pages_of(old) == 0);
  CHECK(pages_of(next) > 0);
  CHECK(world.status().descriptors == before + 1);
  first.close();  // it asked, and another one has asked since
  CHECK(pages_of(next) > 0);
  second.close();
  CHECK(pages_of(next) == 0);
  CHECK(world.status().descriptors == before - 4);
}

TEST_CASE("books that are too large to be copied are refused with both sizes") {
  BrokerFacts facts;
  facts.books_copied = 200'000;
  World world(private_config(), std::move(facts));
  Client maker = world.client(1000);
  CHECK(ask_books(maker).status() == Status::ok);
  const std::vector<Created> made = [&] {
    std::vector<Created> out;
    for (int i = 0; i < 1000; ++i) out.push_back(maker.create());
    return out;
  }();
  Packet& refused = ask_books(maker);
  CHECK(refused.status() == Status::limit);
  CHECK(refused.fds.empty());
  CHECK(
      has(refused.error().sentence, ", and at most 195.3 KiB are copied, because the broker serves nobody meanwhile"));
}

TEST_CASE("the copies of the books show no secret of a ticket, and the broker's own memory has it") {
  World world(private_config());
  Client maker = world.client(1000);
  const auto secret = Client::ticket_of(maker.ticket(maker.create().ref()));
  const auto bytes = std::as_bytes(std::span(secret));
  Packet& reply = ask_books(maker);
  REQUIRE(reply.fds.size() == 1);
  const auto copy = Mapping::map(reply.fds[0].get(), 0, sys::file_facts(reply.fds[0].get())->size, Access::read);
  REQUIRE(copy);
  CHECK(std::ranges::search(std::span(copy->data(), copy->size()), bytes).empty());
  const std::uint64_t all = sys::file_facts(own_books())->size;
  const auto own = Mapping::map(own_books(), 0, all, Access::read);
  REQUIRE(own);
  // The ticket is in one of the first places of its table.
  daemon::books::Head head;
  std::memcpy(&head, own->data(), sizeof head);
  const auto& table = head.tables[daemon::books::TicketRecord::kNumber - 1];
  CHECK_FALSE(std::ranges::search(std::span(own->data() + table.offset, table.size), bytes).empty());
}

TEST_CASE("a broker that cannot make its books does not begin, and says why") {
  {
    harness::Injected broken(fault::Call::memfd_create, EMFILE, 1, 1);
    const auto made = make_broker(system_config(), {});
    REQUIRE_FALSE(made);
    CHECK(has(made.error().sentence, "memfd_create for the books: "));
  }
  harness::Injected broken(fault::Call::madvise, ENOMEM, 1, -1);
  const auto made = make_broker(system_config(), {});
  REQUIRE_FALSE(made);
  CHECK(has(made.error().sentence, "no memory for the books: "));
}

namespace {

// A soft limit, put back at the end.
class Limited {
 public:
  Limited(__rlimit_resource what, std::uint64_t most) : what_(what) {
    REQUIRE(::getrlimit(what_, &before_) == 0);
    const rlimit little{most, before_.rlim_max};
    REQUIRE(::setrlimit(what_, &little) == 0);
  }
  ~Limited() { (void)::setrlimit(what_, &before_); }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;

 private:
  __rlimit_resource what_;
  rlimit before_{};
};

}  // namespace

TEST_CASE("the books of a system broker take little address space") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  SKIP_CASE("a sanitizer needs more address space than any limit leaves");
#endif
  const std::uint64_t used = std::stoull(sys::read_file("/proc/self/statm").value_or("0")) * 4096;
  const Limited little(RLIMIT_AS, used + 32 * kMiB);
  World world(system_config());
  Client user = world.client(1000), admin = world.admin();
  CHECK(user.create().status == Status::ok);
  CHECK(has(text_in(ask_books(admin)), "\nregion id=1 "));
}

TEST_CASE("a limit on the size of files makes smaller books, and none at all where it is too small") {
  ::signal(SIGXFSZ, SIG_IGN);  // as main() does
  {
    const Limited little(RLIMIT_FSIZE, 1024 * kMiB);
    World world(private_config());
    Client user = world.client(1000);
    Packet& status = user.call(SHMBW_OP_STATUS, shmbw_status{});
    const auto rest = status.view().rest;
    CHECK(has(std::string(reinterpret_cast<const char*>(rest.data()), rest.size()), "RLIMIT_FSIZE leaves room for "));
    CHECK(user.create().status == Status::ok);
    CHECK(has(text_in(ask_books(user)), "\nregion id=1 "));
  }
  const Limited less(RLIMIT_FSIZE, kMiB);
  const auto made = make_broker(private_config(), {});
  REQUIRE_FALSE(made);
  CHECK(has(made.error().sentence, "ftruncate of the books, within RLIMIT_FSIZE: "));
}

TEST_CASE("what a reply says is in the books before it leaves") {
  World world(private_config());
  Client maker = world.client(1000);
  const int fd = own_books();
  REQUIRE(fd >= 0);
  std::string at_reply;
  maker.link().on_reply = [&] { at_reply = text_behind(fd); };
  const Created made = maker.create({.name = "weights"});
  CHECK(has(at_reply, "\nregion id=" + std::to_string(made.reply.region.id) + " "));
  CHECK(has(at_reply, " text=\"weights\"\n"));
  CHECK(maker.create({.name = "weights"}).status == Status::exists);
  CHECK(has(at_reply, "count=1,1,1,1,1,1"));
  maker.link().on_reply = [] {};
}

TEST_CASE("what an event says is in the books before it leaves") {
  World world(private_config());
  Client maker = world.client(1000), watcher = world.client(1000);
  const int fd = own_books();
  REQUIRE(fd >= 0);
  const std::uint64_t group = maker.make_group({.name = "job"}).fixed<shmbw_group_create_reply>().group;
  maker.join("job");
  std::string at_event;
  watcher.link().on_event = [&] { at_event = text_behind(fd); };
  CHECK(watcher.watch_name("job", "weights").status() == Status::ok);
  const Created made = maker.create({.name = "weights"});
  REQUIRE(watcher.link().events.size() == 1);
  CHECK(has(at_event, " text=\"weights\"\n"));
  CHECK(has(at_event, " events=1 "));
  CHECK(watcher.watch_region(made.ref(), SHMBW_WATCH_EVENT_GONE).status() == Status::ok);
  CHECK(maker.release(made.ref(), 0, SHMBW_RELEASE_UNNAME).status == Status::ok);
  REQUIRE(watcher.link().events.size() == 2);
  CHECK_FALSE(has(at_event, "\nregion "));
  CHECK(has(at_event, " events=2 "));
  CHECK(watcher.watch_group(group).status() == Status::ok);
  maker.die();
  REQUIRE(watcher.link().events.size() == 3);
  CHECK_FALSE(has(at_event, " name=\"job\""));
  watcher.link().on_event = [] {};
}

TEST_CASE("no record names a descriptor that is closed already, at whichever instruction the broker is killed") {
  World world(private_config());
  world.check_at_end = false;  // the child changes the books that both share
  Client maker = world.client(1000);
  const Created made = maker.create({.flags = SHMBW_CREATE_NO_RECYCLE});
  const auto map = Mapping::map(own_books(), 0, sys::file_facts(own_books())->size, Access::read);
  REQUIRE(map);
  daemon::books::Head head;
  std::memcpy(&head, map->data(), sizeof head);
  const auto record = [&] {
    daemon::books::RegionRecord out;
    std::memcpy(&out, map->data() + head.tables[daemon::books::RegionRecord::kNumber - 1].offset, sizeof out);
    return out;
  };
  REQUIRE(record().id == made.ref().id);
  const std::string number = std::to_string(record().memory);
  void* const shared = ::mmap(nullptr, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(shared != MAP_FAILED);
  auto& child = *static_cast<pid_t*>(shared);
  const auto is_open = [&] {
    char target[8];
    return ::readlink(("/proc/" + std::to_string(child) + "/fd/" + number).c_str(), target, sizeof target) > 0;
  };
  long booked = 0, free = 0, closed = 0, wrong = 0;
  const auto seen = harness::at_each_instruction(
      [&](const std::function<void()>& start) {
        child = ::getpid();
        start();
        (void)maker.release(made.ref());
      },
      [&] {
        if ((booked + free) % 8 == 0) {
          const bool there = record().id != 0, open = is_open();
          wrong += there && !open;
          closed += !open;
        }
        ++(record().id != 0 ? booked : free);
        return true;
      });
  ::munmap(shared, sizeof(pid_t));
  if (!seen.traced) SKIP_CASE("no ptrace here");
  CHECK(wrong == 0);
  CHECK(booked > 0);
  CHECK(closed > 0);
}

TEST_CASE("a booked descriptor that something else has closed is a bug of the broker's own, which its tests see") {
  World world(private_config());
  Client maker = world.client(1000);
  const Created made = maker.create({.flags = SHMBW_CREATE_NO_RECYCLE});
  const std::string books = text_in(ask_books(maker));
  const std::size_t at = books.find(" memory=", books.find("\nregion id=" + std::to_string(made.ref().id) + " "));
  REQUIRE(at != books.npos);
  const int number = std::stoi(books.substr(at + 8));
  const Fd kept = Fd::adopt(::dup(number));
  ::close(number);
  (void)maker.status();
  REQUIRE_FALSE(world.log.empty());
  CHECK(world.log.front() == "own bug: region 1: memory " + std::to_string(number) + " is closed");
  REQUIRE(::dup2(kept.get(), number) == number);
  world.log.clear();
}

TEST_CASE("without memory for the books, requests that need some are refused, and others are served") {
  World world(private_config());
  Client maker = world.client(1000);
  const Created first = maker.create();
  {
    harness::Injected broken(fault::Call::madvise, ENOMEM, 1, -1);
    Status last = Status::ok;
    std::uint32_t made = 0;
    // A few fit into the memory that is there.
    for (int i = 0; i < 600 && last == Status::ok; ++i) {
      shmbw_create wish{};
      wish.length = 4096;
      last = maker.batch(SHMBW_OP_CREATE, std::vector{wish}).status();
      made += last == Status::ok;
    }
    CHECK(last == Status::no_memory);
    CHECK(maker.release(first.ref()).status == Status::ok);
    CHECK(maker.status().regions == made);
  }
  CHECK(maker.create().status == Status::ok);
}

TEST_CASE("when requests that are served in turns use up the books' memory together, the broker recovers") {
  World world(private_config());
  std::vector<Client> makers;
  for (int i = 0; i < 6; ++i) makers.push_back(world.client(1000));
  std::vector<std::byte> buffer(SHMBW_MAX_MESSAGE);
  wire::Writer out(buffer);
  constexpr std::size_t kCreates = 200;
  out.begin_batch<shmbw_create>(SHMBW_OP_CREATE, 1, kCreates);
  for (std::size_t i = 0; i < kCreates; ++i) {
    shmbw_create wish{};
    wish.length = 4096;
    out.element(i, wish);
  }
  const wire::Bytes packet = out.finish(0);
  Client late = world.client(1000), watcher = world.client(1000);
  const Created first = late.create();
  CHECK(watcher.watch_region(first.ref(), SHMBW_WATCH_EVENT_GONE).status() == Status::ok);
  for (Client& maker : makers) REQUIRE(maker.turn(packet));  // the rest of each is served in any case
  {
    harness::Injected broken(fault::Call::madvise, ENOMEM, 1, -1);
    std::vector<Client*> under_way;
    for (Client& maker : makers) under_way.push_back(&maker);
    while (!under_way.empty()) std::erase_if(under_way, [&](Client* maker) { return !maker->turn(packet); });
    CHECK(late.status().regions == makers.size() * kCreates + 1);
    CHECK(late.batch(SHMBW_OP_CREATE, std::vector{shmbw_create{}}).status() == Status::no_memory);
    // Events leave without a commit then, like replies.
    CHECK(late.release(first.ref()).status == Status::ok);
    CHECK(watcher.link().events.size() == 1);
  }
  CHECK(late.create().status == Status::ok);
  CHECK(has(text_in(ask_books(late)), "count=1,8," + std::to_string(makers.size() * kCreates + 1) + ","));
}
