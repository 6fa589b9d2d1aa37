// SPDX-License-Identifier: Apache-2.0
// No wait of a worker ends by a look that it makes now and then: in this program such looks never come, so a worker
// that nobody wakes misses its deadline.
#include <csignal>

#include "base/rescue.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

// Before the first wait of this program, or of a process that it forks.
[[maybe_unused]] const bool no_rescue = ::setenv(shmb::kNoRescueVariable, "1", 1) == 0;

enum WakeWord { asleep = 1, pid_of_c = 2, c_is_dead = 3, over = 4 };
constexpr double kPatience = 60;

void leave_in_order() {
  remote::ShutdownOptions options;
  options.timeout = std::chrono::seconds(60);
  remote::shutdown(options);
}

void sleeps_and_says_who() {
  words().numbers[pid_of_c] = ::getpid();
  words().numbers[asleep] = 1;
  for (;;) pause_ms(1000);
}
SHMBROKER_REMOTE_FUNCTION("sleeps_and_says_who", sleeps_and_says_who);

bool until_word(int word) {
  for (int i = 0; i < 3000 && words().numbers[word] == 0; ++i) pause_ms(10);
  return words().numbers[word] != 0;
}

bool lets_broker_go_on(int broker) {
  pause_ms(300);  // "a" sleeps by now
  ::kill(broker, SIGCONT);
  return serve_until([] { return remote::counters().owned == 0; });
}
SHMBROKER_REMOTE_FUNCTION("lets_broker_go_on", lets_broker_go_on);

}  // namespace

TEST_CASE("A worker that only waits tells the books what a stopped broker has not read before") {
  World world;
  const int broker = world.broker.pid();
  world.run(2, [broker](int rank) {
    if (rank != 0) return;
    constexpr int kMoreThanFit = 600;
    std::vector<Remote<int>> values;
    for (int i = 0; i < kMoreThanFit; ++i) values.push_back(remote::remote<int>("b", "add", i, 1));
    for (const auto& value : values) value.created().wait();
    harness::stop(broker);
    values.clear();
    EXPECT(remote::rpc_sync<bool>(remote::at("b").within(kPatience), "lets_broker_go_on", broker));
  });
}

TEST_CASE("Workers with threads of their own leave in order, world after world, woken by messages alone") {
  World world;
  const auto statuses = world.run_bare(4, [](int rank) {
    for (int round = 0; round < 60; ++round) {
      join(rank, 4, 2);
      for (int other = 0; other < 4; ++other)
        if (other != rank)
          EXPECT(remote::rpc_sync<int>(remote::at(name_of(other)).within(kPatience), "add", other, round) ==
                 other + round);
      leave_in_order();
    }
  });
  CHECK(statuses == std::vector<int>{0, 0, 0, 0});
}

TEST_CASE(
    "Workers that fill each other's queues all go on, because each takes in what has come before it waits for room") {
  for (const unsigned threads : {0U, 2U}) {
    CAPTURE(threads);
    World world;
    const auto statuses = world.run_bare(3, [&](int rank) {
      join(rank, 3, threads);
      std::vector<remote::Future<int>> answers;
      for (int i = 0; i < 1000; ++i)
        for (int other = 0; other < 3; ++other)
          if (other != rank)
            answers.push_back(remote::rpc_async<int>(remote::at(name_of(other)).within(kPatience), "add", other, i));
      std::int64_t sum = 0;
      for (auto& answer : answers) sum += answer.wait();
      EXPECT(sum == 2 * 999 * 500 + 1000 * (3 - rank));
      leave_in_order();
    });
    CHECK(statuses == std::vector<int>{0, 0, 0});
  }
}

TEST_CASE("A worker hears of a death that was told while a message lay there, which it reads first") {
  World world;
  const auto statuses = world.run_bare(3, [](int rank) {
    join(rank, 3);
    const auto patient_with = [](const char* name) { return remote::at(name).within(kPatience); };
    if (rank == 2) {
      (void)remote::serve(std::chrono::seconds(60));
    } else if (rank == 1) {
      EXPECT(until_word(asleep));
      ::kill(words().numbers[pid_of_c], SIGKILL);
      pause_ms(300);  // the broker has told of it by now, and "a" has not looked
      const auto said = remote::rpc_async<void>(patient_with("a"), "nothing");
      words().numbers[c_is_dead] = 1;
      EXPECT(serve_until([] { return words().numbers[over] == 1; }));
      said.wait();
    } else {
      const auto never = remote::rpc_async<void>(patient_with("c"), "sleeps_and_says_who");
      EXPECT(until_word(c_is_dead));
      Status status = Status::ok;
      (void)thrown([&] { never.wait(); }, &status);
      words().numbers[over] = 1;
      EXPECT(status == Status::worker_gone);
    }
    if (rank != 2) leave_in_order();
  });
  CHECK(statuses[0] == 0);
  CHECK(statuses[1] == 0);
}

}  // namespace remote_test
