// SPDX-License-Identifier: Apache-2.0
// Workers that are killed and replaced: the newcomer gets the calls from then on, and nothing that was the dead one's.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>

#include "client/queue/queue.hpp"
#include "client/session/connect.hpp"
#include "client/session/views.hpp"
#include "spawn/remote/message.hpp"
#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

using NoWait = shmb::client::Deadline;

constexpr int kKilledBySigkill = 128 + SIGKILL;

// Dies when the word has the value, whatever its other threads do.
void die_at(int word, int value) {
  std::thread([word, value] {
    while (words().numbers[word] != value) pause_ms(1);
    ::raise(SIGKILL);
  }).detach();
}
void serve_for_good(unsigned threads = 0) {
  for (;;)
    if (threads == 0) (void)remote::serve();
    else pause_ms(1000);
}
bool waits_for(int word, int value) {
  for (int i = 0; i < 6000 && words().numbers[word] < value; ++i) pause_ms(5);
  return words().numbers[word] >= value;
}
// Until one comes in its place: before, calls say that it has died.
int add_at(const remote::To& to, int a, int b) {
  for (int i = 0;; ++i) {
    Status status{};
    int sum = 0;
    const std::string why = thrown([&] { sum = remote::rpc_sync<int>(to, "add", a, b); }, &status);
    if (why.empty()) return sum;
    if (i == 3000 || (status != Status::worker_gone && status != Status::owner_gone)) throw std::logic_error(why);
    (void)remote::serve(std::chrono::milliseconds(10));
  }
}
// A worker that is started again at once, perhaps before it is known that its predecessor has died.
void take_place(int rank, int size, unsigned threads = 0) {
  for (int i = 0;; ++i) {
    Status status{};
    const std::string why = thrown([&] { join(rank, size, threads); }, &status);
    if (why.empty()) return;
    if (i == 6000 || status != Status::world_taken) throw std::logic_error("cannot come: " + why);
    pause_ms(5);
  }
}
void expect_died(const std::function<void()>& call, Status wanted) {
  Status status{};
  const std::string why = thrown(call, &status);
  if (!has(why, "has died") || status != wanted) throw std::logic_error("of a dead worker it is said: " + why);
}
bool books_are_empty() {
  const auto session = shmb::client::connect();
  if (!session) return false;
  const auto none = [](const auto& list) { return list && list->rows.empty(); };
  for (int i = 0; i < 3000; ++i) {
    if (none(shmb::client::list_worlds(**session, {}, NoWait::after(0))) &&
        none(shmb::client::list_references(**session, {}, NoWait::after(0))) &&
        none(shmb::client::list_pools(**session, {}, NoWait::after(0))) &&
        none(shmb::client::list_regions(**session, {}, NoWait::after(0))))
      return true;
    pause_ms(10);
  }
  return false;
}

}  // namespace

TEST_CASE("A killed worker's successor gets the calls from then on, and nothing that was the dead one's") {
  for (const unsigned threads : {0U, 1U}) {
    CAPTURE(threads);
    World world;
    const auto statuses = world.run_bare(4, [threads](int rank) {
      if (rank == 3) {
        EXPECT(waits_for(3, 1));
        take_place(1, 3, threads);
        EXPECT(remote::rpc_sync<int>("a", "add", 1, 2) == 3);
        EXPECT(remote::remote<int>("c", "add", 4, 5).to_here() == 9);
        words().numbers[4] = 1;
        return (void)remote::shutdown();
      }
      join(rank, 3, threads);
      if (rank == 1) {
        die_at(2, 2);
        serve_for_good(threads);
      }
      const auto before = remote::remote<int>("b", "add", 1, rank);
      EXPECT(before.to_here() == 1 + rank);
      if (rank == 0) {
        EXPECT(waits_for(6, 1));
        // One that runs there, one that waits behind it, and a creation.
        std::vector<Future<void>> calls;
        calls.push_back(remote::rpc_async<void>("b", "sleeps"));
        EXPECT(waits_for(1, 1));
        calls.push_back(remote::rpc_async<void>("b", "nothing"));
        const auto made = remote::remote<void>("b", "nothing");
        words().numbers[2] += 1;
        EXPECT(waits_for(2, 2));
        for (const auto& call : calls) {
          expect_died([&] { call.wait(); }, Status::worker_gone);
        }
        expect_died([&] { made.created().wait(); }, Status::owner_gone);
        words().numbers[3] = 1;
      } else {
        words().numbers[6] = 1;
        words().numbers[2] += 1;
        EXPECT(serve_until([] { return words().numbers[3] == 1; }));
      }
      EXPECT(add_at("b", 20, rank) == 20 + rank);
      EXPECT(words().numbers[15] == 0);
      Status status{};
      expect_died([&] { (void)before.to_here(); }, Status::owner_gone);
      EXPECT(!before.is_owner());
      (void)thrown([&] { (void)remote::rpc_sync<int>("b", "unwrap", before); }, &status);
      EXPECT(status == Status::owner_gone);
      const auto after = remote::remote<int>("b", "add", 30, rank);
      EXPECT(after.to_here() == 30 + rank);
      EXPECT(remote::rpc_sync<int>(2 - rank, "unwrap", after) == 30 + rank);
      EXPECT(serve_until([] { return words().numbers[4] == 1; }));
      remote::shutdown();
    });
    CHECK(statuses == std::vector<int>{0, kKilledBySigkill, 0, 0});
    CHECK(books_are_empty());
  }
}

TEST_CASE("Of two that come for one place at once one gets it, and the other hears that it is taken") {
  World world;
  const auto statuses = world.run_bare(4, [](int rank) {
    if (rank < 2) join(rank, 2);
    if (rank == 1) {
      die_at(1, 1);
      serve_for_good();
    }
    if (rank == 0) {
      words().numbers[1] = 1;
      EXPECT(add_at("b", 1, 2) == 3);
      EXPECT(serve_until([] { return words().numbers[3] + words().numbers[4] == 2; }));
      EXPECT(words().numbers[3] == 1);
      return (void)remote::shutdown();
    }
    EXPECT(waits_for(1, 1));
    // Of the one before, it is said as well that it lives, until the broker has heard.
    for (int i = 0; i < 3000; ++i) {
      Status status{};
      const std::string why = thrown([] { join(1, 2); }, &status);
      if (why.empty()) {
        ++words().numbers[3];
        EXPECT(serve_until([] { return words().numbers[4] == 1; }));
        return (void)remote::shutdown();
      }
      EXPECT(status == Status::world_taken);
      EXPECT(has(why, "runs with"));
      if (words().numbers[3] == 1) {
        ++words().numbers[4];
        return;
      }
      pause_ms(5);
    }
    EXPECT(false);
  });
  CHECK(statuses == std::vector<int>{0, kKilledBySigkill, 0, 0});
  CHECK(books_are_empty());
}

TEST_CASE("A worker without threads reaches a successor though it sleeps between its tries and does not serve") {
  World world;
  const auto statuses = world.run_bare(3, [](int rank) {
    if (rank == 2) {
      EXPECT(waits_for(3, 1));
      take_place(1, 2, 1);
      words().numbers[4] = 1;
      return (void)remote::shutdown();
    }
    join(rank, 2, rank);
    if (rank == 1) {
      die_at(2, 1);
      serve_for_good(1);
    }
    EXPECT(remote::rpc_sync<int>("b", "add", 1, 2) == 3);
    words().numbers[2] = 1;
    expect_died([] { (void)remote::rpc_sync<int>("b", "sleeps"); }, Status::worker_gone);
    words().numbers[3] = 1;
    int sum = 0;
    for (int i = 0; sum == 0 && i < 6000; ++i) {
      Status status{};
      const std::string why = thrown([&] { sum = remote::rpc_sync<int>("b", "add", 4, 5); }, &status);
      if (!why.empty() && status != Status::worker_gone) throw std::logic_error(why);
      if (sum == 0) pause_ms(words().numbers[4] == 0 ? 5 : 20);
    }
    EXPECT(sum == 9);
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0, kKilledBySigkill, 0});
}

TEST_CASE("Successors that are killed as they come are replaced as well, and the others go on") {
  constexpr int kLives = 8;
  World world;
  std::vector<int> expected{0, 0};
  for (int life = 0; life < kLives; ++life) expected.push_back(kKilledBySigkill);
  expected.push_back(0);
  const auto statuses = world.run_bare(3 + kLives, [](int number) {
    if (number < 2) {
      const int rank = number * 2;
      join(rank, 3);
      for (int i = 0; words().numbers[2] == 0; ++i) {
        Status status{};
        int sum = 0;
        const std::string why = thrown(
            [&] {
              const auto made = remote::remote<int>("b", "add", i, rank);
              sum = remote::rpc_sync<int>(2 - rank, "unwrap", made);
            },
            &status);
        if (why.empty() ? sum != i + rank : !has(why, "died") && !has(why, "gone"))
          throw std::logic_error("a call said: " + why);
        EXPECT(remote::rpc_sync<int>(2 - rank, "add", i, rank) == i + rank);
      }
      EXPECT(add_at("b", 1, rank) == 1 + rank);
      ++words().numbers[3];
      return (void)remote::shutdown();
    }
    const int life = number - 2;
    EXPECT(waits_for(1, life));
    if (life == kLives) {
      take_place(1, 3);
      words().numbers[2] = 1;
      EXPECT(serve_until([] { return words().numbers[3] == 2; }));
      return (void)remote::shutdown();
    }
    std::thread([life] {
      if (life == 0)
        while (words().numbers[5] == 0) pause_ms(1);
      std::this_thread::sleep_for(std::chrono::microseconds(1500 * life));
      ++words().numbers[1];
      ::raise(SIGKILL);
    }).detach();
    take_place(1, 3);
    words().numbers[5] = 1;
    serve_for_good();
  });
  CHECK(statuses == expected);
  CHECK(books_are_empty());
}

TEST_CASE("A dead worker's successor that comes while others shut down is waited for, and works meanwhile") {
  for (const int victim : {0, 1}) {
    CAPTURE(victim);
    World world;
    const auto statuses = world.run_bare(4, [victim](int number) {
      const int rank = number == 3 ? victim : number;
      const std::string other = name_of(1 - victim), patient = "c";
      if (number == 3) {
        EXPECT(waits_for(2, 1));
        take_place(rank, 3);
        EXPECT(remote::rpc_sync<int>(other, "add", 1, 2) == 3);
        const auto made = remote::remote<int>(patient, "add", 3, 4);
        EXPECT(remote::rpc_sync<int>(other, "unwrap", made) == 7);
        words().numbers[3] = 1;
        return (void)remote::shutdown();
      }
      join(rank, 3);
      if (rank == victim) {
        die_at(1, 1);
        serve_for_good();
      }
      if (rank == 2) {
        EXPECT(serve_until([] { return words().numbers[3] == 1; }));
        return (void)remote::shutdown();
      }
      const remote::To to(victim);
      EXPECT(remote::rpc_sync<int>(to, "add", 1, 2) == 3);
      words().numbers[1] = 1;
      EXPECT(serve_until([&] { return !thrown([&] { (void)remote::rpc_sync<int>(to, "add", 1, 2); }).empty(); }));
      words().numbers[2] = 1;
      remote::shutdown();
    });
    std::vector<int> expected{0, 0, 0, 0};
    expected[static_cast<std::size_t>(victim)] = kKilledBySigkill;
    CHECK(statuses == expected);
    CHECK(books_are_empty());
  }
}

TEST_CASE("Workers that are killed and replaced again and again: calls are answered or fail, and nothing is left") {
  constexpr int kSize = 4, kDeaths = 16;
  World world;
  REQUIRE(world.broker.running());
  const auto worker = [](int rank, unsigned seed) {
    return harness::Child::run([rank, seed] {
      try {
        std::mt19937 random(seed);
        take_place(rank, kSize, rank == 3 ? 1 : 0);
        ++words().numbers[1 + rank];
        std::vector<Remote<int>> held;
        for (int i = 0; words().numbers[0] == 0; ++i) {
          const int to = static_cast<int>(random() % kSize), third = static_cast<int>(random() % kSize);
          const std::string why = thrown([&] {
            held.push_back(remote::remote<int>(to, "add", i, rank));
            EXPECT(remote::rpc_sync<int>(third, "unwrap", held.back()) == i + rank);
            EXPECT(remote::rpc_sync<int>(to, "add", i, i) == 2 * i);
          });
          if (!why.empty() && !has(why, "died") && !has(why, "gone")) throw std::logic_error("a call said: " + why);
          if (held.size() > 8) held.erase(held.begin(), held.begin() + 4);
        }
        held.clear();
        remote::shutdown();
        return 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "worker %d: %s\n", rank, error.what());
        return 1;
      }
    });
  };
  std::mt19937 random(7);
  std::vector<harness::Child> workers;
  for (int rank = 0; rank < kSize; ++rank) workers.push_back(worker(rank, static_cast<unsigned>(rank)));
  int came[kSize] = {};
  const auto all_came = [&] {
    for (int rank = 0; rank < kSize; ++rank)
      if (!waits_for(1 + rank, came[rank] + 1)) return false;
    return true;
  };
  REQUIRE(all_came());
  for (int death = 0; death < kDeaths; ++death) {
    CAPTURE(death);
    pause_ms(static_cast<int>(random() % 15));
    const auto rank = static_cast<int>(random() % kSize);
    harness::Child& victim = workers[static_cast<std::size_t>(rank)];
    victim.kill();
    REQUIRE(victim.wait() == kKilledBySigkill);
    victim = worker(rank, 100U + static_cast<unsigned>(death));
    if (death % 3 == 2) continue;  // perhaps before the last one has come
    ++came[rank];
    CHECK(waits_for(1 + rank, came[rank] + 1));
  }
  const auto session = shmb::client::connect();
  REQUIRE(session);
  // The last ones that were killed may stand there for a moment still: each worker is to be the process that lives.
  const auto full = [&] {
    const auto there = shmb::client::list_workers(**session, {}, NoWait::after(0));
    return there && there->rows.size() == kSize && std::ranges::all_of(there->rows, [&](const auto& row) {
             return row.record.state == SHMBW_WORKER_STATE_PRESENT && row.record.rank < kSize &&
                    row.record.pid == static_cast<std::uint32_t>(workers[row.record.rank].pid());
           });
  };
  for (int i = 0; i < 3000 && !full(); ++i) pause_ms(10);
  CHECK(full());
  const auto list = shmb::client::list_worlds(**session, {}, NoWait::after(0));
  REQUIRE(list);
  REQUIRE(list->rows.size() == 1);
  CHECK(list->rows.front().record.present == kSize);
  CHECK(list->rows.front().record.replaced > 0);
  CHECK(list->rows.front().record.replaced <= kDeaths);
  words().numbers[0] = 1;
  for (auto& one : workers) CHECK(one.wait() == 0);
  CHECK(books_are_empty());
}

TEST_CASE("A participant of a world's pool that is no worker cannot send messages to its workers") {
  World world;
  world.run(2, [](int rank) {
    if (rank == 0) {
      EXPECT(serve_until([] { return words().numbers[1] == 1; }));
      return;
    }
    // Of this process, but not by its worker.
    const auto session = shmb::client::connect();
    EXPECT(session.has_value());
    const auto list = shmb::client::list_worlds(**session, {}, NoWait::after(0));
    EXPECT(list && list->rows.size() == 1);
    shmb::client::Pool::Opening opening;
    opening.id = list->rows.front().record.pool;
    const auto pool = shmb::client::Pool::open(*session, opening);
    EXPECT(pool.has_value());
    shmb::client::QueueSpec spec;
    spec.name = "worker-0";
    spec.writer = spec.open_only = true;
    const auto queue = shmb::client::Queue::open(*pool, spec);
    EXPECT(queue.has_value());
    const auto workers = shmb::client::list_workers(**session, {}, NoWait::after(0));
    EXPECT(workers && workers->rows.size() == 2);
    for (const auto& row : workers->rows) {
      shmb::remote::Outgoing forged;
      forged.head.to_life = row.record.life;
      forged.function = "nothing";
      std::string head;
      EXPECT((*queue)->send(shmb::remote::parts_of(forged, head), 0, 0, 0).has_value());
    }
    EXPECT(remote::rpc_sync<int>("a", "add", 1, 2) == 3);
    EXPECT(remote::rpc_sync<int>("a", "add", 3, 4) == 7);
    EXPECT(words().numbers[15] == 0);
    words().numbers[1] = 1;
  });
}

}  // namespace remote_test
