// SPDX-License-Identifier: Apache-2.0
// Pools in the books: what they cost, who gets in, what their ends leave. Their words are looked at as a client sees
// them, through the descriptors of the replies.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "tests/daemon/books/pool_client.hpp"
#include "tests/daemon/books/records_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using pool::ParticipantState;

namespace {

constexpr std::uint8_t kLive = static_cast<std::uint8_t>(ParticipantState::live);
constexpr std::uint8_t kDead = static_cast<std::uint8_t>(ParticipantState::dead);
constexpr std::uint8_t kLeft = static_cast<std::uint8_t>(ParticipantState::left);
constexpr std::uint8_t kFree = static_cast<std::uint8_t>(ParticipantState::free);

Created segment_region(Client& client, std::uint64_t length = 65536) {
  return client.create({.length = length, .flags = SHMBW_CREATE_MANY_WRITERS});
}

}  // namespace

TEST_CASE("a watch of a pool's name reports pools, one of a region's name reports regions") {
  World world;
  Client maker = world.client(1000), waiter = world.client(1000), other = world.client(2000);
  const auto group = maker.make_group({.name = "later"}).fixed<shmbw_group_create_reply>().group;
  CHECK(waiter.watch_name("later", "p", SHMBW_WATCH_POOL).fixed<shmbw_watch_reply>().state == 0);
  CHECK(other.watch_name("later", "p", SHMBW_WATCH_POOL).status() == Status::ok);  // its own "later"
  CHECK(waiter.watch_name("later", "a/b", SHMBW_WATCH_POOL).status() == Status::invalid);
  maker.create({.name = "p", .group = group});
  CHECK(waiter.link().events.empty());
  CHECK(waiter.watch_name("later", "p", SHMBW_WATCH_POOL).fixed<shmbw_watch_reply>().state == 0);
  const auto made = map_pool(pool_create(maker, {.name = "p", .group = group}));
  REQUIRE(waiter.link().events.size() == 2);  // both subscriptions
  Packet& event = waiter.link().events[0];
  const auto fixed = event.fixed<shmbw_name_appeared_event>();
  CHECK(fixed.region.id == made.pool);
  CHECK(*wire::TextReader(event.view().rest).take(fixed.name_len) == "p");
  CHECK(other.link().events.empty());
  CHECK(waiter.watch_name("later", "p", SHMBW_WATCH_POOL).fixed<shmbw_watch_reply>().state ==
        SHMBW_WATCH_EVENT_APPEARED);
  // A watch for a region of that name is another one.
  waiter.link().events.clear();
  CHECK(waiter.watch_name("later", "q").fixed<shmbw_watch_reply>().state == 0);
  CHECK(pool_create(maker, {.name = "q", .group = group}).status() == Status::ok);
  CHECK(waiter.link().events.empty());
}

TEST_CASE("a pool is made, joined by id and by name, and gone with its last participant") {
  World world;
  Client maker = world.client();
  maker.make_group({.name = "job"});
  maker.join("job");
  PoolClient made = map_pool(pool_create(maker, {.name = "frames"}));
  CHECK(made.index == 0);
  CHECK(participant(made.view, 0) == pool::Stamp{made.life, kLive});
  Client second = world.client(), third = world.client();
  PoolClient by_name = map_pool(pool_join(second, "job", "frames"));
  CHECK(by_name.pool == made.pool);
  CHECK(by_name.index == 1);
  PoolClient by_id = map_pool(pool_join(third, made.pool));
  CHECK(by_id.index == 2);
  CHECK(pool_join(third, made.pool).status() == Status::busy);
  CHECK(maker.status().bytes == made.directory.size() + made.control.size());
  CHECK(pool_leave(third, made.pool).status() == Status::ok);
  CHECK(pool_leave(third, made.pool).status() == Status::not_found);
  world.advance(0);
  CHECK(participant(made.view, 2).state == kFree);
  // The index comes back with another life.
  PoolClient again = map_pool(pool_join(third, made.pool));
  CHECK(again.index == 2);
  CHECK(again.life == by_id.life + 1);
}

TEST_CASE("no receiver can write the directory, nor resize either area") {
  World world;
  Client maker = world.client();
  PoolClient made = map_pool(pool_create(maker));
  const int directory = made.directory_fd.get(), control = made.control_fd.get();
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  CHECK((sys::seals(control).value() & seals) == seals);
  CHECK((sys::seals(directory).value() & seals) == seals);
  CHECK_FALSE(Mapping::map(directory, 0, 4096, Access::read_write));
  CHECK(::mprotect(made.directory.data(), 4096, PROT_READ | PROT_WRITE) != 0);
  CHECK_FALSE(sys::truncate(directory, 4096));
  CHECK_FALSE(sys::truncate(control, 4096));
  CHECK((sys::file_facts(directory)->mode & 0777) == 0400);
  CHECK((sys::file_facts(control)->mode & 0777) == 0600);
}

TEST_CASE("a later broker maps the directory for writing, also after exec and from a descriptor that was stored") {
  World world;
  Client maker = world.client();
  PoolClient made = map_pool(pool_create(maker));
  // The number of the broker's own descriptor, which a later broker has in its table.
  const std::string text = text_in(ask_books(maker));
  const std::size_t at = text.find(" directory=");
  REQUIRE(at != text.npos);
  const int own = std::stoi(text.substr(at + 11));
  CHECK(Mapping::map(own, 0, 4096, Access::read_write));
  // A store gets it by a socket, and gives it back so.
  auto pair = sys::seqpacket_pair();
  REQUIRE(pair);
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof own);
  std::memcpy(CMSG_DATA(head), &own, sizeof own);
  REQUIRE(::sendmsg((*pair)[0].get(), &message, 0) == 1);
  REQUIRE(::recvmsg((*pair)[1].get(), &message, MSG_CMSG_CLOEXEC) == 1);
  int stored = -1;
  std::memcpy(&stored, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof stored);
  const Fd store = Fd::adopt(stored);
  CHECK(Mapping::map(store.get(), 0, 4096, Access::read_write));
  // Another image of the program. The kernel refuses write(2) where it refuses such a mapping.
  const auto before = made.view.header().directory_bytes;
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    if (::dup2(own, 9) != 9 || ::lseek(9, 4095, SEEK_SET) != 4095) ::_exit(3);
    ::execl("/bin/sh", "sh", "-c", "printf x >&9", nullptr);
    ::_exit(4);
  }
  int how = 0;
  REQUIRE(::waitpid(pid, &how, 0) == pid);
  CHECK(how == 0);
  CHECK(made.directory.data()[4095] == std::byte{'x'});
  CHECK(made.view.header().directory_bytes == before);
}

TEST_CASE("a pool that cannot be paid for leaves nothing and says what is short") {
  daemon::Config config = private_config();
  config.limits.group_bytes = 1 << 20;
  World world(config);
  Client maker = world.client();
  Packet& refused = pool_create(maker, {.lane_bytes = 4 << 20});
  CHECK(refused.status() == Status::limit);
  CHECK(refused.error().shortage.slot == SHMBW_SLOT_BYTES);
  CHECK(refused.error().shortage.scope == SHMBW_SCOPE_GROUP);
  CHECK(maker.status().bytes == 0);
  CHECK(maker.status().descriptors == world.status().descriptors - 2);  // the asker's own session
  for (const PoolRequest& bad :
       {PoolRequest{.slots = 1 << 30}, PoolRequest{.lanes = 100'000}, PoolRequest{.queues = 100'000},
        PoolRequest{.segments = 100'000}, PoolRequest{.lane_bytes = 17 << 20}, PoolRequest{.lane_bytes = UINT64_MAX},
        PoolRequest{.name = "no/slash"}, PoolRequest{.keep = 1},
        PoolRequest{.flags = SHMBW_POOL_KEEP_GIVEN, .keep = -2},
        PoolRequest{.flags = SHMBW_POOL_KEEP_GIVEN, .keep = kMinute}})
    CHECK(pool_create(maker, bad).status() == Status::invalid);
  const std::string most = pool_create(maker, {.lane_bytes = UINT64_MAX}).error().sentence;
  CHECK_MESSAGE(most.find("not 18446744073709551615") != std::string::npos, most);
  CHECK(pool_create(maker, {.flags = SHMBW_POOL_READ_ONLY}).status() == Status::unknown_flags);
  CHECK(pool_create(maker, {.group = 12345}).status() == Status::not_found);
}

TEST_CASE("two regions of the group's count are what a pool costs") {
  World world;
  Client maker = world.client();
  maker.make_group({.name = "job", .limit_regions = 3});
  maker.join("job");
  CHECK(pool_create(maker).status() == Status::ok);
  Packet& refused = pool_create(maker);
  CHECK(refused.status() == Status::limit);
  CHECK(refused.error().shortage.asked == 2);
  CHECK(maker.create().status == Status::ok);
}

TEST_CASE("a name is taken once, and says nothing to sessions that may not address the group") {
  World world(system_config());
  Client maker = world.client(1000), stranger = world.client(2000);
  maker.make_group({.name = "job"});
  maker.join("job");
  PoolClient made = map_pool(pool_create(maker, {.name = "frames"}));
  CHECK(pool_create(maker, {.name = "frames"}).status() == Status::exists);
  // Each is told what it would be told of a pool that is not there.
  const auto said = [](const Error& error, const std::string& asked) {
    std::string sentence = error.sentence;
    const std::size_t at = sentence.find(asked);
    REQUIRE(at != std::string::npos);
    return sentence.replace(at, asked.size(), "it");
  };
  const std::string id = std::to_string(made.pool);
  CHECK(said(pool_join(stranger, made.pool).error(), id) == said(pool_join(stranger, 999).error(), "999"));
  CHECK(said(pool_join(stranger, "job", "frames").error(), "frames") ==
        said(pool_join(stranger, "job", "absent").error(), "absent"));
  CHECK(said(pool_segment(stranger, made.pool, {}, 64, 1).error(), id) ==
        said(pool_segment(stranger, 999, {}, 64, 1).error(), "999"));
  CHECK(said(queue_open(stranger, made.pool, "q").error(), id) == said(queue_open(stranger, 999, "q").error(), "999"));
}

TEST_CASE("a pool whose name goes with its holders leaves nothing in a group that lives on") {
  World world;
  Client a = world.client(1000), b = world.client(1000);
  REQUIRE(a.make_group({.name = "g"}).status() == Status::ok);
  REQUIRE(a.join("g").status() == Status::ok);
  REQUIRE(b.join("g").status() == Status::ok);
  CHECK(pool_create(a, {.flags = SHMBW_POOL_NAME_WITH_HOLDERS}).status() == Status::invalid);
  PoolClient first = map_pool(pool_create(a, {.name = "n", .flags = SHMBW_POOL_NAME_WITH_HOLDERS}));
  (void)map_pool(pool_join(b, "", "n"));
  CHECK(pool_leave(a, first.pool).status() == Status::ok);
  CHECK(pool_create(a, {.name = "n"}).status() == Status::exists);
  CHECK(pool_leave(b, first.pool).status() == Status::ok);
  CHECK(pool_join(a, "", "n").status() == Status::not_found);
  CHECK(pool_create(a, {.name = "n"}).status() == Status::ok);
}

TEST_CASE("of 65 participants the last is refused with the pool's number, until one leaves") {
  World world;
  Client maker = world.client();
  PoolClient made = map_pool(pool_create(maker));
  std::vector<Client> others;
  for (int i = 0; i < 63; ++i) {
    others.push_back(world.client());
    CHECK(pool_join(others.back(), made.pool).status() == Status::ok);
  }
  Client late = world.client();
  Packet& refused = pool_join(late, made.pool);
  CHECK(refused.status() == Status::limit);
  CHECK(refused.error().shortage.slot == SHMBW_SLOT_PARTICIPANTS);
  CHECK(refused.error().shortage.scope == SHMBW_SCOPE_POOL);
  CHECK(refused.error().shortage.scope_id == made.pool);
  CHECK(refused.error().shortage.limit == 64);
  others[10].die();
  world.advance(0);
  PoolClient joined = map_pool(pool_join(late, made.pool));
  CHECK(joined.index == 11);
  for (Client& client : others)
    if (client.session()) client.close();
}

TEST_CASE("a region becomes slots whole or not at all, and lives as long as the pool") {
  World world;
  Client maker = world.client();
  PoolClient made = map_pool(pool_create(maker, {.slots = 16}));
  Created region = segment_region(maker), closed = maker.create();
  CHECK(pool_segment(maker, made.pool, closed.ref(), 1024, 4).status() == Status::invalid);  // not many_writers
  CHECK(pool_segment(maker, made.pool, region.ref(), 0, 4).status() == Status::invalid);
  CHECK(pool_segment(maker, made.pool, region.ref(), 1024, 0).status() == Status::invalid);
  CHECK(pool_segment(maker, made.pool, region.ref(), 5000, 9).status() == Status::invalid);  // 8 KiB each
  CHECK(pool_segment(maker, made.pool, region.ref(), UINT64_MAX, UINT32_MAX).status() == Status::invalid);
  CHECK(pool_segment(maker, made.pool, region.ref(), 64, 17).status() == Status::limit);
  CHECK(pool_segment(maker, made.pool, {region.ref().id, 9, 0}, 64, 4).status() == Status::stale);
  auto cut = pool_segment(maker, made.pool, region.ref(), 1024, 12).fixed<shmbw_pool_segment_reply>();
  CHECK(cut.segment == 0);
  CHECK(cut.first_slot == 0);
  CHECK(made.view.segment(0).in_use.load() == 1);
  CHECK(made.view.segment(0).region == region.ref().id);
  CHECK(made.view.segment(0).stride == 1024);
  CHECK(pool_segment(maker, made.pool, region.ref(), 1024, 1).status() == Status::exists);
  Created second = segment_region(maker);
  CHECK(pool_segment(maker, made.pool, second.ref(), 64, 4).fixed<shmbw_pool_segment_reply>().first_slot == 12);
  CHECK(maker.release(region.ref()).status == Status::ok);
  CHECK(maker.attach_id(region.ref(), kWrite).status == Status::ok);  // the pool holds it
  CHECK(maker.release(region.ref()).status == Status::ok);
  CHECK(pool_leave(maker, made.pool).status() == Status::ok);
  CHECK(maker.attach_id(region.ref(), kWrite).status == Status::not_found);
}

TEST_CASE("slots of one size are one class, which grows to the limit that its first segment set") {
  World world;
  Client maker = world.client(), other = world.client();
  PoolClient made = map_pool(pool_create(maker, {.slots = 64}));
  other.join("#" + std::to_string(made.group));
  CHECK(pool_join(other, made.pool).status() == Status::ok);
  auto add = [&](Client& client, std::uint64_t size, std::uint32_t slots, std::uint32_t limit) -> Packet& {
    Created region = segment_region(client);
    return client.call(SHMBW_OP_POOL_SEGMENT, shmbw_pool_segment{made.pool, region.ref(), size, slots, limit});
  };
  CHECK(add(maker, 64, 4, 3).status() == Status::invalid);
  CHECK(add(maker, 64, 4, 10).status() == Status::ok);
  CHECK(add(maker, 256, 4, 0).status() == Status::ok);
  CHECK(made.view.segment(0).slots_limit == 10);
  CHECK(made.view.segment(1).slots_limit == 4);
  CHECK(add(other, 64, 4, 60).status() == Status::ok);  // what later ones say is not looked at
  CHECK(made.view.segment(2).slots_limit == 10);
  Packet& refused = add(other, 64, 4, 60);
  CHECK(refused.status() == Status::limit);
  CHECK(refused.error().shortage.slot == SHMBW_SLOT_SLOTS);
  CHECK(refused.error().shortage.limit == 10);
  CHECK(refused.error().shortage.used == 8);
  CHECK(refused.error().shortage.asked == 4);
  CHECK(add(other, 64, 2, 0).status() == Status::ok);
  CHECK(add(maker, 256, 1, 0).status() == Status::limit);
}

TEST_CASE("a pool is removed by a participant that may write: its name is free, and it goes with the last one") {
  World world;
  Client maker = world.client(), reader = world.client();
  PoolClient made = map_pool(pool_create(maker, {.name = "p"}));
  reader.join("#" + std::to_string(made.group));
  CHECK(pool_join(reader, made.pool, SHMBW_POOL_READ_ONLY).status() == Status::ok);
  auto leave = [&](Client& client, std::uint32_t flags) {
    return client.call(SHMBW_OP_POOL_LEAVE, shmbw_pool_leave{made.pool, flags, 0}).status();
  };
  CHECK(leave(maker, 4) == Status::unknown_flags);
  CHECK(leave(maker, SHMBW_POOL_LEAVE_STAY) == Status::invalid);
  CHECK(leave(reader, SHMBW_POOL_LEAVE_REMOVE) == Status::denied);
  CHECK(pool_create(maker, {.name = "p"}).status() == Status::exists);
  CHECK(leave(maker, SHMBW_POOL_LEAVE_REMOVE | SHMBW_POOL_LEAVE_STAY) == Status::ok);
  PoolClient next = map_pool(pool_create(maker, {.name = "p"}));
  CHECK(next.pool != made.pool);
  CHECK(leave(maker, SHMBW_POOL_LEAVE_REMOVE) == Status::ok);
  Client late = world.client();
  late.join("#" + std::to_string(made.group));
  CHECK(pool_join(late, made.pool).status() == Status::ok);  // by id, while somebody is in it
  CHECK(leave(late, 0) == Status::ok);
  CHECK(leave(reader, 0) == Status::ok);
  CHECK(pool_join(late, made.pool).status() == Status::not_found);
}

TEST_CASE("a participant that joined read-only adds no segment and writes no queue") {
  World world;
  Client maker = world.client(), reader = world.client();
  PoolClient made = map_pool(pool_create(maker));
  reader.join("#" + std::to_string(made.group));
  CHECK(pool_join(reader, made.pool, SHMBW_POOL_READ_ONLY).status() == Status::ok);
  Created region = reader.create({.flags = SHMBW_CREATE_MANY_WRITERS});
  CHECK(pool_segment(reader, made.pool, region.ref(), 64, 1).status() == Status::denied);
  CHECK(queue_open(reader, made.pool, "q", {.flags = SHMBW_QUEUE_OPEN_WRITER}).status() == Status::denied);
  auto queue = opened(queue_open(reader, made.pool, "q"));
  CHECK(queue_close(reader, made.pool, queue, SHMBW_QUEUE_CLOSE_ALL).status() == Status::denied);
}

TEST_CASE("a killed process is dead to its peers at once, and its place is swept and given out again") {
  World world;
  Client maker = world.client(), victim = world.client();
  PoolClient made = map_pool(pool_create(maker));
  PoolClient theirs = map_pool(pool_join(victim, made.pool));
  const std::uint32_t change = made.view.header().change.load(), event = made.view.wait(0).event.load();
  theirs.view.slot(3).holders.fetch_or(theirs.bit() | made.bit());
  theirs.view.control().slot_waiters.mask.fetch_or(theirs.bit());
  theirs.view.wait(theirs.index).sleep.store(4 | pool::kSleepFutex);
  victim.pidfd();
  CHECK(participant(made.view, theirs.index) == pool::Stamp{theirs.life, kDead});
  CHECK(made.view.header().change.load() != change);
  CHECK(made.view.wait(0).event.load() != event);
  CHECK(made.view.control().slot_waiters.mask.load() == 0);
  CHECK(made.view.wait(theirs.index).sleep.load() == 0);
  CHECK(made.view.slot(3).holders.load() == (theirs.bit() | made.bit()));  // D4 comes in a turn of its own
  world.advance(0);
  CHECK(made.view.slot(3).holders.load() == made.bit());
  CHECK(participant(made.view, theirs.index) == pool::Stamp{theirs.life, kFree});
  victim.die();
}

TEST_CASE("a closed socket is no death: the place stays until the process has ended") {
  World world;
  Client maker = world.client(), other = world.client();
  PoolClient made = map_pool(pool_create(maker));
  PoolClient theirs = map_pool(pool_join(other, made.pool));
  other.end_of_file();
  world.advance(kMinute);
  CHECK(participant(made.view, theirs.index).state == kLive);
  CHECK(world.books->awaits_end(*other.session()));
  world.books->process_ended(*other.session());
  CHECK_FALSE(world.books->awaits_end(*other.session()));
  CHECK(participant(made.view, theirs.index).state == kDead);
  other.forget();
}

TEST_CASE("a pool whose group ends with the last socket is gone with it, though the process lives") {
  World world;
  Client maker = world.client();
  map_pool(pool_create(maker));
  maker.end_of_file();
  CHECK_FALSE(world.books->awaits_end(*maker.session()));
  CHECK(world.status().bytes == 0);
  maker.forget();
}

TEST_CASE("without a pidfd the socket's end is the end") {
  World world;
  Client maker = world.client(), blind = world.silent(1000, 0, false);
  blind.hello();
  PoolClient made = map_pool(pool_create(maker));
  PoolClient theirs = map_pool(pool_join(blind, made.pool));
  blind.end_of_file();
  CHECK(participant(made.view, theirs.index).state == kDead);
  blind.forget();
}

TEST_CASE("an heir of the socket does not keep the place of a dead process, and gets none by it") {
  World world;
  Client maker = world.client(), parent = world.client();
  PoolClient made = map_pool(pool_create(maker));
  PoolClient theirs = map_pool(pool_join(parent, made.pool));
  parent.pidfd();  // the socket is still open: a forked child has it
  CHECK(participant(made.view, theirs.index).state == kDead);
  CHECK(pool_join(parent, made.pool).status() == Status::forked);
  parent.die();
}

TEST_CASE("a lazy reader that was disconnected keeps its place and takes it over when it is back") {
  World world;
  Client maker = world.client(), lazy = world.client(1000, 4242);
  PoolClient made = map_pool(pool_create(maker));
  PoolClient theirs = map_pool(pool_join(lazy, made.pool));
  lazy.disconnect();
  CHECK(participant(made.view, theirs.index).state == kLive);
  Client back = world.silent(1000, 4242);
  CHECK(back.hello({.fork_session = lazy.id, .fork_secret = lazy.secret}).status() == Status::ok);
  CHECK(participant(made.view, theirs.index).state == kLive);
  CHECK(pool_leave(back, made.pool).status() == Status::ok);
  CHECK(participant(made.view, theirs.index).state == kLeft);
  lazy.forget();
}

TEST_CASE("with its group's end a pool fails every call and wakes its sleepers; its memory goes with the last one") {
  World world;
  Client maker = world.client(), other = world.client();
  maker.make_group({.name = "job"});
  maker.join("job");
  PoolClient made = map_pool(pool_create(maker, {.name = "frames"}));
  PoolClient theirs = map_pool(pool_join(other, made.pool));
  auto queue = opened(queue_open(other, made.pool, "q"));
  const std::uint32_t event = theirs.view.wait(theirs.index).event.load();
  maker.end_group(made.group);
  CHECK(theirs.view.header().broken.load() == static_cast<std::uint32_t>(pool::Broken::group_ended));
  CHECK(theirs.view.wait(theirs.index).event.load() != event);
  CHECK(pool::Stamp::of(theirs.view.queue(queue.queue).stamp.load()).state ==
        static_cast<std::uint8_t>(pool::QueueState::closed));
  CHECK(queue_open(other, made.pool, "r").status() == Status::group_ended);
  CHECK(other.status().bytes != 0);
  CHECK(pool_leave(maker, made.pool).status() == Status::ok);
  CHECK(pool_leave(other, made.pool).status() == Status::ok);
  CHECK(other.status().bytes == 0);
}

TEST_CASE("a named pool outlives group and participants by its keep") {
  World world;
  Client maker = world.client();
  maker.make_group({.name = "job"});
  maker.join("job");
  pool_create(maker, {.name = "frames", .flags = SHMBW_POOL_KEEP_GIVEN, .keep = kMinute});
  maker.close();
  CHECK(world.status().bytes != 0);
  Client later = world.client();
  PoolClient found = map_pool(pool_join(later, "job", "frames"));
  CHECK(found.view.header().broken.load() == 0);
  world.advance(kMinute);
  CHECK(found.view.header().broken.load() == static_cast<std::uint32_t>(pool::Broken::group_ended));
  CHECK(pool_join(later, "job", "frames").status() == Status::not_found);
}

TEST_CASE("the broker marks its end in the pool") {
  World world;
  world.check_at_end = false;
  PoolClient made;
  {
    Client maker = world.client();
    maker.make_group({.name = "job"});
    maker.join("job");
    made = map_pool(pool_create(maker, {.name = "frames", .flags = SHMBW_POOL_KEEP_GIVEN, .keep = -1}));
  }
  CHECK(made.view.header().broken.load() == 0);
  world.books.reset();
  CHECK(made.view.header().broken.load() == static_cast<std::uint32_t>(pool::Broken::broker_ended));
}

TEST_CASE("a doorbell is a socket, from a session that asked for it, and is given to participants only") {
  World world;
  Client maker = world.silent(), other = world.client();
  maker.hello({.features = SHMBW_FEATURE_PASS_RIGHTS});
  CHECK(maker.link().takes_descriptors);
  CHECK_FALSE(other.link().takes_descriptors);
  PoolClient made = map_pool(pool_create(maker));
  auto ring = [&](std::uint32_t flags) { return shmbw_pool_doorbell{made.pool, flags, made.index, made.life, 0}; };
  CHECK(other.call(SHMBW_OP_POOL_DOORBELL, ring(SHMBW_DOORBELL_GET)).status() == Status::not_found);
  map_pool(pool_join(other, made.pool));
  CHECK(other.call(SHMBW_OP_POOL_DOORBELL, ring(SHMBW_DOORBELL_GET)).status() == Status::not_found);
  const std::uint32_t before = world.status().descriptors;
  maker.link().bring(std::move(*sys::memfd_create("no socket", false)));
  CHECK(maker.call(SHMBW_OP_POOL_DOORBELL, ring(SHMBW_DOORBELL_SET)).status() == Status::invalid);
  // Nor what would carry a peer's word to some service, nor what may take its time to close.
  for (const auto& [domain, type] :
       {std::pair{AF_UNIX, SOCK_DGRAM}, {AF_UNIX, SOCK_SEQPACKET}, {AF_INET, SOCK_STREAM}}) {
    maker.link().bring(Fd::adopt(::socket(domain, type | SOCK_CLOEXEC, 0)));
    CHECK(maker.call(SHMBW_OP_POOL_DOORBELL, ring(SHMBW_DOORBELL_SET)).status() == Status::invalid);
  }
  auto pair = sys::seqpacket_pair();
  maker.link().bring(std::move((*pair)[0]));
  CHECK(maker.call(SHMBW_OP_POOL_DOORBELL, ring(SHMBW_DOORBELL_SET)).status() == Status::ok);
  CHECK(world.holds_descriptors(before + 1));
  Packet& got = other.call(SHMBW_OP_POOL_DOORBELL, ring(SHMBW_DOORBELL_GET));
  REQUIRE(got.fds.size() == 1);
  const std::byte one[1] = {};
  CHECK(sys::send(got.fds[0].get(), one, {}, {}, false));
  CHECK(sys::poll_readable((*pair)[1].get(), 0).value());
  // Changes of the tables are told to it as events.
  const std::size_t events = maker.link().events.size();
  opened(queue_open(other, made.pool, "q"));
  REQUIRE(maker.link().events.size() == events + 1);
  CHECK(maker.link().events.back().op() == (SHMBW_EVENT | SHMBW_EVENT_POOL_CHANGED));
  CHECK(maker.link().events.back().fixed<shmbw_pool_changed_event>().pool == made.pool);
  // A session that leaves too much unread gets a refusal at once, and may continue.
  other.link().is_over_share = true;
  CHECK(other.call(SHMBW_OP_POOL_DOORBELL, ring(SHMBW_DOORBELL_GET)).status() == Status::busy);
  // A session without the doorbell asks the broker to ring it.
  CHECK(other.call(SHMBW_OP_POOL_DOORBELL, ring(SHMBW_DOORBELL_RING)).status() == Status::ok);
  CHECK(maker.link().events.size() == events + 2);
  const std::size_t answers = other.link().replies.size();
  auto ring_quietly = [&](std::uint32_t flags, std::uint32_t life) {
    std::vector<std::byte> buffer(256);
    wire::Writer out(buffer);
    out.begin(SHMBW_OP_POOL_DOORBELL, 0, Status::ok, shmbw_pool_doorbell{made.pool, flags, made.index, life, 0},
              SHMBW_HEADER_NO_REPLY);
    other.send_only(out.finish(0));
  };
  ring_quietly(SHMBW_DOORBELL_RING, made.life);
  CHECK(maker.link().events.size() == events + 3);
  CHECK(maker.link().events.back().op() == (SHMBW_EVENT | SHMBW_EVENT_POOL_CHANGED));
  ring_quietly(SHMBW_DOORBELL_RING, made.life + 1);
  CHECK(maker.link().events.size() == events + 3);
  CHECK(other.link().replies.size() == answers);
  ring_quietly(SHMBW_DOORBELL_GET, made.life);  // which is to be answered
  CHECK(other.link().replies.size() == answers + 1);
  CHECK(other.link().replies.back().status() == Status::invalid);
  const std::uint64_t bit = std::uint64_t{1} << made.index;
  CHECK(made.view.header().doorbells.load() == bit);
  CHECK(pool_leave(maker, made.pool).status() == Status::ok);
  CHECK(made.view.header().doorbells.load() == 0);
  CHECK(other.call(SHMBW_OP_POOL_DOORBELL, ring(SHMBW_DOORBELL_RING)).status() == Status::not_found);
  CHECK(world.holds_descriptors(before));
  CHECK(other.call(SHMBW_OP_POOL_DOORBELL, ring(SHMBW_DOORBELL_GET)).status() == Status::not_found);
}

TEST_CASE("a descriptor that the request does not state drops the peer, and so does one that is missing") {
  World world;
  Client maker = world.silent();
  maker.hello({.features = SHMBW_FEATURE_PASS_RIGHTS});
  PoolClient made = map_pool(pool_create(maker));
  auto send = [&](std::uint32_t flags, int fds) {
    std::vector<std::byte> buffer(SHMBW_MAX_MESSAGE);
    wire::Writer out(buffer);
    out.begin(SHMBW_OP_POOL_DOORBELL, 7, Status::ok, shmbw_pool_doorbell{made.pool, flags, 0, made.life, 0});
    if (fds != 0) maker.link().bring(std::move(*sys::memfd_create("stray", false)));
    maker.send_only(out.finish(static_cast<std::size_t>(fds)));
    return std::exchange(maker.link().dropped, {});
  };
  CHECK(send(SHMBW_DOORBELL_SET, 0) != "");
  CHECK(send(SHMBW_DOORBELL_GET, 1) != "");
  CHECK(send(0, 1) != "");
}

TEST_CASE("the books follow a pool, its participants and its segments") {
  World world(private_config());
  Client maker = world.client(), second = world.client(), asker = world.client();
  const auto books = [&] { return text_in(ask_books(asker)); };
  maker.make_group({.name = "job"});
  maker.join("job");
  second.join("job");
  PoolClient made = map_pool(pool_create(maker, {.name = "frames", .lane_bytes = 65536}));
  const std::string id = std::to_string(made.pool), of_pool = " pool=" + id;
  CHECK(has(books(), "\npool id=" + id + " group=1 created="));
  CHECK(has(books(), " lane_bytes=65536 most_slots=16 "));
  CHECK(has(books(), " name=\"frames\"\n"));
  CHECK(has(books(), of_pool + " session=" + std::to_string(maker.id) + " life=1 uid=1000 "));
  const Created region = segment_region(maker);
  REQUIRE(pool_segment(maker, made.pool, region.ref(), 512, 8).status() == Status::ok);
  const std::string cut = "\nsegment id=" + std::to_string(region.ref().id) + of_pool;
  CHECK(has(books(), cut + " slot_size=512 slots=8 slots_limit=8\n"));
  CHECK(has(books(), " slots=8 owner_uid=1000 "));
  map_pool(pool_join(second, made.pool, SHMBW_POOL_READ_ONLY));
  const std::string whom = of_pool + " session=" + std::to_string(second.id) + " index=1 life=1 ";
  CHECK(has(books(), whom));
  CHECK(has(books(), " state=2 read_only=1\n"));
  second.die();
  const std::string died = books();
  CHECK_FALSE(has(died, whom));
  CHECK(has(died, of_pool + " index=1 life=1 "));
  CHECK(has(died, " state=3 read_only=1\n"));
  CHECK(has(died, " slots=8 deaths=1 "));
  world.advance(kSecond);
  CHECK(has(books(), of_pool + " index=1 life=1 "));  // the next one there has life 2
  CHECK_FALSE(has(books(), " state=3 "));
  shmbw_pool_leave leave{};
  leave.pool = made.pool;
  leave.flags = SHMBW_POOL_LEAVE_REMOVE | SHMBW_POOL_LEAVE_STAY;
  CHECK(maker.call(SHMBW_OP_POOL_LEAVE, leave).status() == Status::ok);
  CHECK_FALSE(has(books(), "frames"));
  CHECK(pool_leave(maker, made.pool).status() == Status::ok);
  const std::string left = books();
  for (const char* kind : {"\npool ", "\nparticipant ", "\nsegment "}) CHECK_FALSE(has(left, kind));
}

TEST_CASE("the books have the number of a doorbell while its participant lives") {
  World world(private_config());
  Client maker = world.client();
  HelloRequest with_rights;
  with_rights.features = SHMBW_FEATURE_PASS_RIGHTS;
  Client rings = world.silent();
  REQUIRE(rings.hello(with_rights).status() == Status::ok);
  const auto books = [&] { return text_in(ask_books(maker)); };
  PoolClient made = map_pool(pool_create(rings));
  CHECK_FALSE(has(books(), " doorbell="));
  auto pair = sys::seqpacket_pair();
  REQUIRE(pair);
  rings.link().bring(std::move((*pair)[0]));
  shmbw_pool_doorbell set{};
  set.pool = made.pool;
  set.flags = SHMBW_DOORBELL_SET;
  REQUIRE(rings.call(SHMBW_OP_POOL_DOORBELL, set).status() == Status::ok);
  CHECK(has(books(), " doorbell_of=1000 doorbell="));
  REQUIRE(pool_join(maker, made.pool).status() == Status::ok);
  rings.die();
  CHECK_FALSE(has(books(), " doorbell="));
  CHECK(has(books(), " state=3\n"));
}
