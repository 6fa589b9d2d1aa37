// SPDX-License-Identifier: Apache-2.0
// Worlds that can never be complete, because two workers have one name or one has died: all workers learn why, those
// that have come and those that come later, and nobody of the next start of the job does.
#include <algorithm>
#include <vector>

#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;

namespace {

constexpr std::uint64_t kTicksOfSecond = 100;  // the kernel's USER_HZ

struct Place {
  std::uint32_t rank = 0, size = 0;
  std::string name;
  std::uint32_t port = 29500;
};

Packet& come(Client& client, const Place& place) {
  const std::string address = "localhost:" + std::to_string(place.port);
  const shmbw_world_join wish{place.port, place.rank, place.size, static_cast<std::uint16_t>(address.size()),
                              static_cast<std::uint16_t>(place.name.size())};
  return client.call(SHMBW_OP_WORLD_JOIN, wish, address + place.name);
}

// A process that began so many ticks after the world's clock.
Client process(World& world, std::int64_t ticks = 0, std::uint32_t uid = 1000) {
  Client client = world.silent(uid, world.next_pid++);
  const std::uint64_t now = static_cast<std::uint64_t>(world.now) * kTicksOfSecond / kSecond;
  REQUIRE(client.hello({.start_time = now + static_cast<std::uint64_t>(ticks)}).status() == Status::ok);
  return client;
}

std::string good_name(std::uint32_t rank) { return std::string(1, static_cast<char>('a' + rank)); }

// The broker's answer to a worker that asks why its world has ended.
Error cause_told(Client& client, std::uint64_t world) {
  Packet& reply = client.call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{world});
  REQUIRE(reply.status() != Status::ok);
  return reply.error();
}

bool hears_of_end(Client& client) {
  return std::ranges::any_of(client.link().events, [](const Packet& event) {
    return event.op() == (SHMBW_EVENT_WORLD_CHANGED | SHMBW_EVENT) &&
           event.fixed<shmbw_world_changed_event>().change == SHMBW_WORLD_CHANGE_ENDED;
  });
}

bool in_text(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// All ranks come with names of their own, and are one world.
void come_all(std::vector<Client>& clients) {
  const auto size = static_cast<std::uint32_t>(clients.size());
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    Packet& joined = come(clients[rank], {rank, size, good_name(rank)});
    REQUIRE_MESSAGE(joined.status() == Status::ok, joined.error().sentence);
    if (rank + 1 == size) CHECK(joined.fixed<shmbw_world_join_reply>().flags == SHMBW_WORLD_STATE_COMPLETE);
  }
}

}  // namespace

TEST_CASE("two workers of one name: all hear one sentence, those that have come and those that come later") {
  for (std::uint32_t size = 2; size <= 8; ++size)
    for (std::uint32_t second = 1; second < size; ++second)
      for (std::uint32_t first = 0; first < second; ++first) {
        CAPTURE(size);
        CAPTURE(first);
        CAPTURE(second);
        World world;
        std::vector<Client> clients;
        for (std::uint32_t rank = 0; rank < size; ++rank) clients.push_back(process(world));
        std::uint64_t id = 0;
        std::string sentence;
        for (std::uint32_t rank = 0; rank < size; ++rank) {
          Packet& reply = come(clients[rank], {rank, size, good_name(rank == second ? first : rank)});
          if (rank < second) {
            id = reply.fixed<shmbw_world_join_reply>().world;
            continue;
          }
          REQUIRE(reply.status() == Status::exists);
          if (rank == second) sentence = reply.error().sentence;
          CHECK(reply.error().sentence == sentence);
        }
        for (const std::string& part :
             {"name '" + good_name(first) + "'",
              "rank " + std::to_string(first) + " (pid " + std::to_string(clients[first].link().peer().pid) + ")",
              "rank " + std::to_string(second) + " (pid " + std::to_string(clients[second].link().peer().pid) + ")"})
          CHECK_MESSAGE(in_text(sentence, part), sentence);
        for (std::uint32_t rank = 0; rank < second; ++rank) {
          CHECK(hears_of_end(clients[rank]));
          const Error told = cause_told(clients[rank], id);
          CHECK(told.status == Status::exists);
          CHECK(told.sentence == sentence);
        }
        CHECK(clients[0].rows<shmbw_world_record>(SHMBW_TABLE_WORLDS).empty());
        come_all(clients);  // the same processes once more: each has been told
      }
}

TEST_CASE("a job that starts again at once does not hear of the earlier failure, though not all had heard of it") {
  World world;
  std::int64_t later = 0;
  SUBCASE("in the same tick of the kernel's clock") {}
  SUBCASE("in the next one") { later = 1; }
  std::vector<Client> before, after;
  for (int i = 0; i < 3; ++i) before.push_back(process(world));
  REQUIRE(come(before[0], {0, 3, "a"}).status() == Status::ok);
  REQUIRE(come(before[1], {1, 3, "a"}).status() == Status::exists);
  for (int i = 0; i < 3; ++i) after.push_back(process(world, later));
  REQUIRE(come(after[2], {2, 3, "c"}).status() == Status::ok);
  // One of the first start is late, and does not disturb the second start.
  CHECK(come(before[2], {2, 3, "c"}).status() == Status::exists);
  REQUIRE(come(after[0], {0, 3, "a"}).status() == Status::ok);
  CHECK(come(after[1], {1, 3, "b"}).fixed<shmbw_world_join_reply>().flags == SHMBW_WORLD_STATE_COMPLETE);
}

TEST_CASE("a worker that began after the failure waits for those that heard of it, and hears of it when none returns") {
  World world;
  Client a = process(world), twin = process(world);
  REQUIRE(come(a, {0, 4, "a"}).status() == Status::ok);
  const std::string sentence = come(twin, {1, 4, "a"}).error().sentence;
  Client c = process(world), d = process(world), again = process(world);
  const auto id = come(c, {2, 4, "c"}).fixed<shmbw_world_join_reply>().world;
  world.advance(4 * kSecond);
  CHECK_FALSE(hears_of_end(c));
  SUBCASE("none comes") {
    REQUIRE(come(d, {3, 4, "d"}).fixed<shmbw_world_join_reply>().world == id);
    world.advance(kSecond);
    for (Client* one : {&c, &d}) {
      CHECK(hears_of_end(*one));
      CHECK(cause_told(*one, id).sentence == sentence);
    }
    std::vector<Client> next;
    for (int i = 0; i < 4; ++i) next.push_back(process(world));
    come_all(next);
  }
  SUBCASE("one comes") {
    REQUIRE(come(again, {1, 4, "b"}).fixed<shmbw_world_join_reply>().world == id);
    world.advance(kMinute);
    CHECK_FALSE(hears_of_end(c));
    REQUIRE(come(d, {3, 4, "d"}).status() == Status::ok);
    CHECK(come(a, {0, 4, "a"}).fixed<shmbw_world_join_reply>().flags == SHMBW_WORLD_STATE_COMPLETE);
  }
  SUBCASE("it leaves before") {
    c.call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{id});
    world.advance(kMinute);
    CHECK_FALSE(hears_of_end(c));
  }
}

TEST_CASE("only workers of the failed world hear of the failure, and not for ever") {
  World world(system_config());
  Client a = process(world, -1), twin = process(world, -1), late = process(world, -1);
  Client other_user = process(world, -1, 2000), nameless = world.client();
  REQUIRE(come(a, {0, 4, "a"}).status() == Status::ok);
  REQUIRE(come(twin, {1, 4, "a"}).status() == Status::exists);
  SUBCASE("another user's, port's or size's") {
    CHECK(come(other_user, {2, 4, "c"}).status() == Status::ok);
    CHECK(come(late, {2, 4, "c", 29501}).status() == Status::ok);
    late.call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{0});
    CHECK(come(late, {2, 3, "c"}).status() == Status::ok);
  }
  SUBCASE("a process with an unknown start time") { CHECK(come(nameless, {2, 4, "c"}).status() == Status::ok); }
  SUBCASE("a long time later") {
    world.advance(kMinute);
    CHECK(come(late, {2, 4, "c"}).status() == Status::ok);
  }
  SUBCASE("a short time later, when all workers that came are gone") {
    a.die(), twin.die();
    world.advance(kMinute - kSecond);
    CHECK(come(late, {2, 4, "c"}).status() == Status::exists);
  }
}

TEST_CASE("the broker remembers the last failed worlds of each user") {
  constexpr std::uint32_t kMany = 9;
  World world;
  Client a = process(world, -1), twin = process(world, -1), late = process(world, -1);
  for (std::uint32_t i = 0; i < kMany; ++i) {
    REQUIRE(come(a, {0, 3, "a", 30000 + i}).status() == Status::ok);
    REQUIRE(come(twin, {1, 3, "a", 30000 + i}).status() == Status::exists);
  }
  for (std::uint32_t i = 1; i < kMany; ++i) CHECK(come(late, {2, 3, "c", 30000 + i}).status() == Status::exists);
  CHECK(come(late, {2, 3, "c", 30000}).status() == Status::ok);
}

TEST_CASE("a rank that is taken is refused alone, whatever its name") {
  World world;
  Client a = process(world), other = process(world), b = process(world);
  const auto id = come(a, {0, 2, "a"}).fixed<shmbw_world_join_reply>().world;
  Packet& refused = come(other, {0, 2, "a"});
  CHECK(refused.status() == Status::exists);
  CHECK(in_text(refused.error().sentence, "rank of its own"));
  CHECK_FALSE(hears_of_end(a));
  CHECK(come(b, {1, 2, "b"}).fixed<shmbw_world_join_reply>().world == id);
}

TEST_CASE("a worker whose process has ended is no second one of its rank or name: its successor comes in a moment") {
  World world;
  Client a = process(world), next = process(world, +1), other = process(world, +1);
  REQUIRE(come(a, {0, 2, "a"}).status() == Status::ok);
  a.link().process_is_over = true;
  CHECK(come(next, {0, 2, "a"}).status() == Status::not_ready);
  CHECK(come(other, {1, 2, "a"}).status() == Status::not_ready);
  a.die();
  CHECK(come(next, {0, 2, "a"}).status() == Status::ok);
  CHECK(come(other, {1, 2, "b"}).status() == Status::ok);
}

TEST_CASE("a world whose pool left with a worker that gave up has none, until another worker names a new one") {
  World world;
  std::vector<Client> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(world.client());
  const auto first = come(clients[0], {0, 3, "a"}).fixed<shmbw_world_join_reply>();
  const auto make_pool = [](Client& client) {
    shmbw_pool_create wish{};
    wish.lane_bytes = 65536;
    Packet& made = client.call(SHMBW_OP_POOL_CREATE, wish);
    REQUIRE(made.status() == Status::ok);
    return made.fixed<shmbw_pool_create_reply>().pool;
  };
  const auto tell = [&](Client& client, std::uint64_t pool) {
    return client.call(SHMBW_OP_WORLD_POOL, shmbw_world_pool{first.world, pool}).fixed<shmbw_world_pool_reply>().pool;
  };
  const auto listed = [](Client& client) { return client.rows<shmbw_world_record>(SHMBW_TABLE_WORLDS).at(0).pool; };
  const std::uint64_t gone = make_pool(clients[0]);
  CHECK(tell(clients[0], gone) == gone);
  CHECK(come(clients[1], {1, 3, "b"}).fixed<shmbw_world_join_reply>().pool == gone);  // and is slow to open it
  REQUIRE(clients[0].call(SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{first.world}).status() == Status::ok);
  CHECK(listed(clients[1]) == gone);
  REQUIRE(clients[0].call(SHMBW_OP_POOL_LEAVE, shmbw_pool_leave{gone, 0, 0}).status() == Status::ok);
  CHECK(listed(clients[1]) == 0);
  const auto again = come(clients[2], {0, 3, "a"}).fixed<shmbw_world_join_reply>();
  CHECK(again.world == first.world);
  CHECK(again.pool == 0);
  clients[1].link().events.clear();
  const std::uint64_t next = make_pool(clients[2]);
  CHECK(tell(clients[2], next) == next);
  CHECK(std::ranges::any_of(clients[1].link().events, [](const Packet& event) {
    return event.op() == (SHMBW_EVENT_WORLD_CHANGED | SHMBW_EVENT) &&
           event.fixed<shmbw_world_changed_event>().change == SHMBW_WORLD_CHANGE_POOL;
  }));
  CHECK(come(clients[3], {2, 3, "c"}).fixed<shmbw_world_join_reply>().pool == next);
  CHECK(tell(clients[3], gone) == next);
}

TEST_CASE("before a world is complete a worker's death ends it: all live workers learn why, and so do later ones") {
  World world;
  Client a = process(world, -1), b = process(world, -1), c = process(world, -1), next = process(world, +1);
  const auto id = come(a, {0, 3, "a"}).fixed<shmbw_world_join_reply>().world;
  REQUIRE(come(b, {1, 3, "b"}).status() == Status::ok);
  const std::uint32_t pid = b.link().peer().pid;
  b.die();
  CHECK(hears_of_end(a));
  const Error why = cause_told(a, id);
  CHECK(why.status == Status::worker_gone);
  CHECK_MESSAGE(in_text(why.sentence, "worker 1 ('b'), pid " + std::to_string(pid)), why.sentence);
  Packet& late = come(c, {2, 3, "a"});
  CHECK(late.status() == Status::worker_gone);
  CHECK(late.error().sentence == why.sentence);
  REQUIRE(come(next, {1, 3, "b"}).status() == Status::ok);
  REQUIRE(come(c, {2, 3, "c"}).status() == Status::ok);
  CHECK(come(a, {0, 3, "a"}).fixed<shmbw_world_join_reply>().flags == SHMBW_WORLD_STATE_COMPLETE);
}

TEST_CASE("a worker that dies while no other has come is as if it had never come") {
  World world;
  Client a = process(world, -1), b = process(world, -1), next = process(world, +1);
  REQUIRE(come(a, {0, 2, "a"}).status() == Status::ok);
  a.die();
  REQUIRE(come(b, {1, 2, "b"}).status() == Status::ok);
  CHECK(come(next, {0, 2, "a"}).fixed<shmbw_world_join_reply>().flags == SHMBW_WORLD_STATE_COMPLETE);
}

TEST_CASE("a worker that was disconnected for laziness hears why its world has ended, under its new session") {
  World world;
  Client a = process(world), twin = process(world);
  const auto id = come(a, {0, 2, "a"}).fixed<shmbw_world_join_reply>().world;
  bool before = false;
  SUBCASE("disconnected before") { before = true; }
  SUBCASE("disconnected afterwards") {}
  if (before) a.disconnect();
  REQUIRE(come(twin, {1, 2, "a"}).status() == Status::exists);
  if (!before) a.disconnect();
  Client back = world.silent(1000, a.link().peer().pid);
  HelloRequest wish;
  wish.fork_session = a.id;
  wish.fork_secret = a.secret;
  REQUIRE(back.hello(wish).status() == Status::ok);
  CHECK(cause_told(back, id).status == Status::exists);
}
