// SPDX-License-Identifier: Apache-2.0
// Remote where the user's functions do what they should not: hang, fork and return in the child, drop the future that
// they gave; and where a worker has more threads than it can have, or that share one reference.
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "tests/harness/proc.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"
#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

enum Word { hung = 0, looked = 1, child = 2, making = 5, going = 6 };

std::optional<Remote<Counter>> shared;
int look_at_shared() {
  int sum = 0;
  for (int i = 0; i < 200; ++i) sum += shared.value().local_value().value();
  ++words().numbers[looked];
  return sum;
}
void hang() {
  words().numbers[hung] = 1;
  for (;;) pause_ms(1000);
}
void fork_and_return() {
  const pid_t born = ::fork();
  if (born != 0) words().numbers[child] = born;
}
Future<int> drop_it() { return {}; }
// Its destruction takes time, and says when it begins.
struct Slow {
  Slow() = default;
  Slow(Slow&& other) noexcept : here(std::exchange(other.here, false)) {}
  ~Slow() {
    if (!here) return;
    words().numbers[going] = 1;
    pause_ms(300);
  }
  bool here = true;
};
struct Late {
  Late() {
    words().numbers[making] = 1;
    for (int i = 0; i < 3000 && words().numbers[going] == 0; ++i) pause_ms(10);
  }
  void take(const Remote<Slow>&) {}
};
Remote<int> own_value_late() {
  Remote<int> own(5);
  words().numbers[making] = 1;
  for (int i = 0; i < 3000 && words().numbers[going] == 0; ++i) pause_ms(10);
  return own;
}
long sleeps_so_far() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return used.ru_nvcsw;
}
SHMBROKER_REMOTE_CLASS("Late", Late);
SHMBROKER_REMOTE_METHOD("Late.take", &Late::take);
SHMBROKER_REMOTE_FUNCTION("own_value_late", own_value_late);
SHMBROKER_REMOTE_FUNCTION("look_at_shared", look_at_shared);
SHMBROKER_REMOTE_FUNCTION("hang", hang);
SHMBROKER_REMOTE_FUNCTION("fork_and_return", fork_and_return);
SHMBROKER_REMOTE_FUNCTION("drop_it", drop_it);

}  // namespace

TEST_CASE("Threads of a worker use one reference to its own object at once") {
  World world;
  world.run(
      1,
      [](int) {
        shared.emplace(Counter(5));
        for (int round = 0; round < 20; ++round) {
          std::vector<Future<int>> all;
          for (int i = 0; i < 8; ++i)
            all.push_back(remote::rpc_async<int>(remote::at("a").within(60s), "look_at_shared"));
          for (const auto& one : all) EXPECT(one.wait() == 1000);
        }
        EXPECT(words().numbers[looked] == 160);
        shared.reset();
      },
      4);
  CHECK(words().numbers[14] == 0);  // the object is gone, once
}

TEST_CASE("Threads of two workers call each other at once: small and large arguments, references, callbacks") {
  World world;
  world.run(
      2,
      [](int rank) {
        const std::string other = name_of(1 - rank);
        const auto value = remote::remote<int>(remote::at(other).within(60s), "add", rank, 10);
        std::vector<std::string> wrong(4);
        std::vector<std::thread> threads;
        for (int n = 0; n < 4; ++n)
          threads.emplace_back([&, n] {
            const auto patient = remote::at(other).within(60s);
            wrong[static_cast<std::size_t>(n)] = thrown([&] {
              for (int i = 0; i < 15; ++i) {
                EXPECT(remote::rpc_sync<int>(patient, "add", n, i) == n + i);
                const std::size_t size = std::size_t{70'000} << (i % 4);
                EXPECT(remote::rpc_sync<std::string>(patient, "repeated", size).size() == size);
                EXPECT(value.to_here(60s) == rank + 10);
                const auto next = remote::rpc_async<int>(patient, "add", i, 1).then([](const Future<int>& sum) {
                  return sum.wait() + 1;
                });
                EXPECT(remote::rpc_sync<int>(patient, "unwrap", value) == rank + 10);
                EXPECT(next.wait() == i + 2);
              }
            });
          });
        for (auto& thread : threads) thread.join();
        for (const std::string& one : wrong)
          if (!one.empty()) throw std::logic_error(one);
      },
      2);
}

TEST_CASE("A callback may wait for what was settled in the same moment") {
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    join(rank, 2, rank);
    if (rank == 1) {
      for (int i = 0; i < 4000 && words().numbers[going] == 0; ++i) pause_ms(10);
      return;
    }
    const auto patient = remote::at("b").within(60s);
    const auto first = remote::rpc_async<int>(patient, "add", 1, 2),
               second = remote::rpc_async<int>(patient, "add", 3, 4);
    const auto third = remote::rpc_async<int>(patient, "add", 5, 6);
    const auto all =
        first.then([second, third](const Future<int>& one) { return one.wait() + third.wait() + second.wait(); });
    pause_ms(300);  // the three answers lie there by now
    ::alarm(30);
    EXPECT(all.wait() == 21);
    ::alarm(0);
    words().numbers[going] = 1;
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

TEST_CASE("A shutdown and the making of a value that calls wait for are not in each other's way") {
  World world;
  world.run(
      1,
      [](int) {
        const auto patient = remote::at("a").within(60s);
        const auto value = remote::remote<Late>(patient, "Late");
        while (words().numbers[making] == 0) pause_ms(1);
        for (int i = 0; i < 6; ++i) (void)value.rpc_async<void>("Late.take", Remote<Slow>(Slow()));
        for (int i = 0; i < 3000 && remote::counters().waiting < 6; ++i) pause_ms(1);
        remote::shutdown({.graceful = false});
        EXPECT(words().numbers[going] == 1);
      },
      2, false);
}

TEST_CASE("An answer after the shutdown leaves no session behind") {
  World world;
  const auto statuses = world.run_bare(1, [](int) {
    const auto before = harness::open_descriptors();
    join(0, 1, 1);
    (void)remote::rpc_async<Remote<int>>(remote::at("a").within(60s), "own_value_late");
    while (words().numbers[making] == 0) pause_ms(1);
    remote::shutdown({.graceful = false});
    words().numbers[going] = 1;
    for (int i = 0; i < 3000 && harness::open_descriptors() != before; ++i) pause_ms(10);
    EXPECT(harness::open_descriptors() == before);
  });
  CHECK(statuses == std::vector<int>{0});
}

TEST_CASE("96b: a graceful shutdown waits for what a callback does while another thread runs it") {
  World world;
  world.run(
      2,
      [](int rank) {
        if (rank != 0) return;
        remote::rpc_async<int>(remote::at("b").within(60s), "add", 1, 1).when_done([](const Future<int>&) {
          words().numbers[4] = 1;
          pause_ms(300);
          (void)remote::rpc_async<void>(remote::at("b").within(60s), "nothing");
        });
        while (words().numbers[4] == 0) pause_ms(1);
      },
      1);
  CHECK(words().numbers[15] == 1);
}

TEST_CASE("A shutdown is over at its deadline although a thread is in a function that never returns") {
  for (const bool graceful : {true, false}) {
    CAPTURE(graceful);
    World world;
    world.run(
        2,
        [graceful](int rank) {
          if (rank == 0) {
            Status status = Status::ok;
            (void)thrown([] { remote::rpc_sync<void>(remote::at("b").within(500ms), "hang"); }, &status);
            EXPECT((status == Status::deadline || status == Status::worker_gone));
            remote::shutdown({.graceful = false});
            return;
          }
          while (words().numbers[hung] == 0) pause_ms(5);
          Status status = Status::ok;
          const std::string why = thrown([&] { remote::shutdown({.graceful = graceful, .timeout = 1s}); }, &status);
          EXPECT(graceful == (status == Status::deadline));
          EXPECT(graceful == has(why, "1 of others here are not through"));
        },
        1, false);
  }
}

TEST_CASE("A worker that cannot have its threads is no worker") {
  if (harness::kAddressSanitizer || harness::kThreadSanitizer) SKIP_CASE("a sanitizer needs all address space");
  World world;
  const auto statuses = world.run_bare(1, [](int) {
    std::ifstream sizes("/proc/self/statm");
    rlim_t pages = 0;
    sizes >> pages;
    rlimit before{};
    EXPECT(::getrlimit(RLIMIT_AS, &before) == 0);
    const rlimit little{pages * 4096 + (rlim_t{200} << 20), before.rlim_max};
    EXPECT(::setrlimit(RLIMIT_AS, &little) == 0);
    Status status = Status::ok;
    const std::string why = thrown([] { join(0, 1, 200); }, &status);
    EXPECT(status == Status::system);
    EXPECT(has(why, "of the 200 that this worker is to have cannot be started"));
    EXPECT(::setrlimit(RLIMIT_AS, &before) == 0);
    join(0, 1, 2);  // nothing of it is in the way
    EXPECT(remote::rpc_sync<int>("a", "add", 1, 2) == 3);
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0});
}

TEST_CASE("A child that returns from the function which forked it serves no worker") {
  for (const unsigned threads : {0U, 2U}) {
    // The child of a thread ends with that thread, by exit: the sanitizer looks for what the threads that are not there
    // referred to. TSan follows no process that forks with threads.
    if (threads != 0 && (harness::kAddressSanitizer || harness::kThreadSanitizer)) continue;
    CAPTURE(threads);
    World world;
    world.run(
        2,
        [](int rank) {
          if (rank == 1) {
            Status status = Status::ok;
            const auto served = [] { return serve_until([] { return words().numbers[3] != 0; }); };
            const std::string why = thrown([&] { EXPECT(served()); }, &status);
            if (::getpid() == words().numbers[child] || status == Status::forked)
              ::_exit(status == Status::forked ? 0 : 3);
            EXPECT(why.empty());
            int how = -1;
            EXPECT(::waitpid(words().numbers[child], &how, 0) == words().numbers[child]);
            EXPECT(how == 0);
            return;
          }
          const auto patient = remote::at("b").within(60s);
          remote::rpc_sync<void>(patient, "fork_and_return");
          for (int i = 0; i < 200; ++i) EXPECT(remote::rpc_sync<int>(patient, "add", i, 1) == i + 1);
          words().numbers[3] = 1;
        },
        threads);
  }
}

TEST_CASE("Threads of a worker do not wake each other without end over messages that find no room at a peer") {
  World world;
  const auto statuses = world.run_bare(2, [](int rank) {
    enum : int { joined = 1, measured = 2 };
    const auto until = [](int word) {
      for (int i = 0; i < 6000 && words().numbers[word] == 0; ++i) pause_ms(10);
      return words().numbers[word] != 0;
    };
    join(rank, 2, rank == 0 ? 0 : 2);
    remote::ShutdownOptions options;
    if (rank == 0) {  // reads nothing from here on
      words().numbers[joined] = 1;
      EXPECT(until(measured));
      options.graceful = false;
      remote::shutdown(options);
    } else {
      EXPECT(until(joined));
      const auto fills = [] {
        for (;;) (void)remote::rpc_async<int>(remote::at("a").within(200ms), "add", 1, 1);
      };
      EXPECT_THROWN(fills(), shmbroker::Error);
      // The leader is told that this worker is idle, and its queue has no room. One thread leads and one waits.
      options.timeout = std::chrono::seconds(2);
      const long before = sleeps_so_far();
      EXPECT_THROWN(remote::shutdown(options), shmbroker::Error);
      // Each look at what found no room is some sleeps, and there are at most 200 looks in a second.
      EXPECT(sleeps_so_far() - before < 12'000);
      words().numbers[measured] = 1;
    }
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

TEST_CASE("A fork and a thread that sends calls do not wait for each other") {
  World world;
  world.run(
      2,
      [](int rank) {
        if (rank != 0) return;
        std::atomic<bool> stop = false;
        std::string wrong;
        std::thread sends([&] {
          const auto there = remote::at(name_of(1)).within(60s);
          wrong = thrown([&] {
            while (!stop) {
              std::vector<Future<int>> calls;
              for (int i = 0; i < 256; ++i) calls.push_back(remote::rpc_async<int>(there, "add", 1, i));
              for (int i = 0; i < 256; ++i) EXPECT(calls[static_cast<std::size_t>(i)].wait() == 1 + i);
            }
          });
        });
        for (int i = 0; i < 3000 / harness::kSlowdown; ++i) {  // a fork under ASan takes 25 ms
          const pid_t born = ::fork();
          if (born == 0) ::_exit(0);
          EXPECT(born > 0);
          EXPECT(::waitpid(born, nullptr, 0) == born);
        }
        stop = true;
        sends.join();
        if (!wrong.empty()) throw std::logic_error(wrong);
      },
      2);
}

TEST_CASE("The caller gets an error where a function drops the future that it returned") {
  World world;
  world.run(2, [](int rank) {
    if (rank != 0) return;
    const std::string why = thrown([] { (void)remote::rpc_sync<int>(remote::at("b").within(60s), "drop_it"); });
    EXPECT(has(why, "dropped before it had a result"));
  });
}

}  // namespace remote_test
