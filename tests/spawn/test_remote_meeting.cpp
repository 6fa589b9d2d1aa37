// SPDX-License-Identifier: Apache-2.0
// Worlds that cannot come together: each worker hears why, at once and in the same words, whenever it comes, and a
// world with good names begins there at once. Every worker waits for ten minutes, and its process ends after one.
#include <functional>

#include "client/calls/remote_calls.hpp"
#include "client/queue/pool.hpp"
#include "client/session/connect.hpp"
#include "client/session/views.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

namespace client = shmb::client;

enum MeetingWord { told = 0, begun = 8, done = 9, pid_of_first = 10 };  // rank r was told the word at told + r

struct Heard {
  Status status = Status::ok;
  std::string text;
};

Heard try_init(const std::string& name, int rank, int size) {
  Heard heard;
  heard.text = thrown(
      [&] {
        remote::InitOptions options;
        options.address = kAddress;
        options.timeout = std::chrono::minutes(10);
        remote::init(name, rank, size, options);
      },
      &heard.status);
  return heard;
}

// For the test, which compares what all were told.
void note_told(int rank, const Heard& heard) {
  words().numbers[told + rank] = static_cast<int>(std::hash<std::string>()(heard.text) | 1);
}

void meet_with_good_names(int rank, int size) {
  const Heard heard = try_init(name_of(rank), rank, size);
  if (heard.status != Status::ok) throw std::logic_error("the next world: " + heard.text);
  EXPECT(remote::rpc_sync<int>(name_of((rank + 1) % size), "add", rank, 1) == rank + 1);
  remote::shutdown();
}

bool await_word(int word, int value) {
  for (int i = 0; i < 3000 && words().numbers[word] < value; ++i) pause_ms(10);
  return words().numbers[word] >= value;
}

// Until all processes of the world have begun: under load one may begin when the first have met already.
void await_all(int size) {
  ++words().numbers[begun];
  EXPECT(await_word(begun, size));
}

std::shared_ptr<client::Session> ask_broker() {
  auto session = client::connect();
  if (!session) throw std::logic_error(session.error().sentence);
  return *session;
}

bool await_present(std::uint32_t count) {
  const auto session = ask_broker();
  for (int i = 0; i < 3000; ++i, pause_ms(10)) {
    const auto list = client::list_worlds(*session, {}, client::Deadline::after(0));
    if (list && !list->rows.empty() && list->rows.front().record.present == count) return true;
  }
  return false;
}

shmb::Result<client::WorldPlace> join_by_hand(client::Session& session, std::uint32_t rank, std::uint32_t size,
                                              const std::string& name) {
  client::WorldRequest wish;
  wish.port = 29500;
  wish.rank = rank;
  wish.world_size = size;
  wish.address = kAddress;
  wish.name = name;
  return client::join_world(session, wish, client::Deadline::after(60'000'000'000));
}

void leave_by_hand(client::Session& session, const client::WorldPlace& place) {
  const auto left = client::leave_world(session, place.world, client::Deadline::after(0));
  if (!left) throw std::logic_error(left.error().sentence);
}

// By a worker that has joined by hand. The pool goes with the handle, unless somebody else is in it.
std::shared_ptr<client::Pool> tell_of_pool(const std::shared_ptr<client::Session>& session,
                                           const client::WorldPlace& place) {
  client::PoolSpec spec;
  spec.group = place.group;
  spec.classes = {{512, 64, 256}};
  spec.queues = 4;
  spec.lanes = 8;
  spec.lane_bytes = std::uint64_t{1} << 20;
  auto pool = client::Pool::create(session, spec, 0);
  if (!pool) throw std::logic_error(pool.error().sentence);
  const auto told = client::tell_world_pool(*session, place.world, (*pool)->id(), client::Deadline::after(0));
  if (!told) throw std::logic_error(told.error().sentence);
  return *pool;
}

}  // namespace

TEST_CASE("With two workers of one name all learn it at once, and meet at once with other names") {
  World world;
  for (int size = 2; size <= 8; ++size)
    for (const int last : {1, size / 2, size - 1}) {
      if (last == 0) continue;
      CAPTURE(size);
      CAPTURE(last);
      for (auto& one : words().numbers) one = 0;
      const auto statuses = world.run_bare(size, [&](int rank) {
        await_all(size);
        const Heard heard = try_init(rank == last ? "a" : name_of(rank), rank, size);
        EXPECT(heard.status == Status::exists);
        EXPECT(has(heard.text, "name 'a'") && has(heard.text, "rank 0") &&
               has(heard.text, "rank " + std::to_string(last)));
        note_told(rank, heard);
        meet_with_good_names(rank, size);
      });
      CHECK(statuses == std::vector<int>(static_cast<std::size_t>(size), 0));
      for (int rank = 1; rank < size; ++rank) CHECK(words().numbers[told + rank] == words().numbers[told]);
    }
}

TEST_CASE("Workers that come when all others have given up get the error, and other processes meet there at once") {
  World world;
  const auto statuses = world.run_bare(5, [](int rank) {
    await_all(5);
    if (rank > 2) EXPECT(await_word(done, rank == 3 ? 3 : 4));
    const Heard heard = try_init(rank == 2 ? "b" : name_of(rank), rank, 5);
    EXPECT(heard.status == Status::exists);
    note_told(rank, heard);
    ++words().numbers[done];
    if (rank < 3) std::_Exit(0);
  });
  CHECK(statuses == std::vector<int>(5, 0));
  for (int rank = 1; rank < 5; ++rank) CHECK(words().numbers[told + rank] == words().numbers[told]);
  world.run(5, [](int) {});
}

TEST_CASE("A worker that begins when the others have given up learns it soon") {
  World world;
  const auto meet = [](int rank) {
    const Heard heard = try_init(rank == 2 ? "c" : "a", rank, 3);
    EXPECT(heard.status == Status::exists);
    note_told(rank, heard);
  };
  CHECK(world.run_bare(2, meet) == std::vector<int>{0, 0});
  CHECK(world.run_bare(1, [&](int) { meet(2); }) == std::vector<int>{0});
  CHECK(words().numbers[told + 2] == words().numbers[told]);
}

TEST_CASE("With all workers of one name all learn it") {
  World world;
  const auto statuses = world.run_bare(6, [](int rank) {
    await_all(6);
    const Heard heard = try_init("same", rank, 6);
    EXPECT(heard.status == Status::exists);
    note_told(rank, heard);
  });
  CHECK(statuses == std::vector<int>(6, 0));
  for (int rank = 1; rank < 6; ++rank) CHECK(words().numbers[told + rank] == words().numbers[told]);
}

TEST_CASE("With two workers of one name no worker waits, although another one is killed meanwhile") {
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    World world;
    const int killed = 1 + round % 2;  // none of the two: without one of them the world only waits
    const auto statuses = world.run_bare(4, [round, killed](int rank) {
      if (rank == killed)
        std::thread([round] {
          ::usleep(static_cast<unsigned>(1500 * round));
          ::raise(SIGKILL);
        }).detach();
      const Heard heard = try_init(rank == 3 ? "a" : name_of(rank), rank, 4);
      if (rank == killed)
        for (;;) pause_ms(1000);
      EXPECT(heard.status == Status::exists || heard.status == Status::worker_gone);
    });
    for (int rank = 0; rank < 4; ++rank)
      CHECK(statuses[static_cast<std::size_t>(rank)] == (rank == killed ? 128 + SIGKILL : 0));
    world.run(4, [](int) {});
  }
}

TEST_CASE("Workers that come later hear of a death before the world was complete, too") {
  World world;
  const auto statuses = world.run_bare(3, [](int rank) {
    if (rank == 1)
      std::thread([] {
        (void)await_present(2);
        ::raise(SIGKILL);
      }).detach();
    if (rank == 2) EXPECT(await_word(done, 1));
    const Heard heard = try_init(name_of(rank), rank, 3);
    EXPECT(heard.status == Status::worker_gone);
    EXPECT(has(heard.text, "worker 1 ('b')"));
    note_told(rank, heard);
    ++words().numbers[done];
  });
  CHECK(statuses == std::vector<int>{0, 128 + SIGKILL, 0});
  CHECK(words().numbers[told] == words().numbers[told + 2]);
}

TEST_CASE("A worker that lost the events of its world hears that it has ended, and why") {
  bool by_name = false;
  SUBCASE("because of a name") { by_name = true; }
  SUBCASE("with its group") {}
  World world;
  const auto statuses = world.run_bare(2, [by_name](int rank) {
    if (rank == 0) {
      words().numbers[pid_of_first] = ::getpid();
      const Heard heard = try_init("a", 0, 3);
      EXPECT(heard.status == (by_name ? Status::exists : Status::group_ended));
      EXPECT(has(heard.text, by_name ? "name 'a'" : "has ended"));
      return;
    }
    EXPECT(await_present(1));
    const harness::Stopped first(words().numbers[pid_of_first]);
    const auto session = ask_broker();
    // More than the broker keeps for a session that reads nothing.
    for (int i = 0; i < 3000; ++i) {
      const auto place = join_by_hand(*session, 1, 3, "b");
      EXPECT(place.has_value());
      EXPECT(client::leave_world(*session, place->world, client::Deadline::after(0)).has_value());
    }
    const auto last = join_by_hand(*session, 1, 3, by_name ? "a" : "b");
    EXPECT(last.has_value() == !by_name);
    if (last) EXPECT(session->end_group(last->group, "", 0, client::Deadline::after(0)).has_value());
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

TEST_CASE("When the first worker has given up, and its pool has gone with it, a world comes together in a new pool") {
  World world;
  const auto statuses = world.run_bare(3, [](int rank) {
    if (rank == 2) {
      auto first = ask_broker();
      const auto second = ask_broker();
      const auto made = join_by_hand(*first, 0, 3, "a");
      EXPECT(made.has_value());
      auto pool = tell_of_pool(first, *made);
      const auto stays = join_by_hand(*second, 2, 3, "c");  // and has not come to the pool
      EXPECT(stays.has_value());
      EXPECT(stays->pool == pool->id());
      leave_by_hand(*first, *made);
      pool.reset();
      first.reset();
      words().numbers[begun] = 1;
      EXPECT(await_present(2));
      leave_by_hand(*second, *stays);
      words().numbers[begun] = 2;
    }
    EXPECT(await_word(begun, rank == 0 ? 1 : 2));
    meet_with_good_names(rank, 3);
  });
  CHECK(statuses == std::vector<int>{0, 0, 0});
}

TEST_CASE("A worker that comes while the first one gives up is never left with a pool that has gone") {
  World world;
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    for (auto& one : words().numbers) one = 0;
    const auto statuses = world.run_bare(3, [round](int rank) {
      if (rank == 0) {
        auto session = ask_broker();
        const auto made = join_by_hand(*session, 0, 3, "a");
        EXPECT(made.has_value());
        auto pool = tell_of_pool(session, *made);
        words().numbers[begun] = 1;
        EXPECT(await_present(2));
        ::usleep(static_cast<unsigned>(100 * round));
        leave_by_hand(*session, *made);
        pool.reset();
        session.reset();
        words().numbers[begun] = 2;
      }
      EXPECT(await_word(begun, rank == 1 ? 1 : 2));
      meet_with_good_names(rank, 3);
    });
    CHECK(statuses == std::vector<int>{0, 0, 0});
  }
}

}  // namespace remote_test
