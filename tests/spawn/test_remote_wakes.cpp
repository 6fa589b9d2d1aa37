// SPDX-License-Identifier: Apache-2.0
// No wait of a worker ends by a look that it makes now and then: in this program such looks never come, so a worker
// that nobody wakes misses its deadline.
#include <csignal>
#include <thread>

#include "base/rescue.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

// Before the first wait of this program, or of a process that it forks.
[[maybe_unused]] const bool no_rescue = ::setenv(shmb::kNoRescueVariable, "1", 1) == 0;

enum WakeWord {
  asleep = 1,
  pid_of_c = 2,
  c_is_dead = 3,
  over = 4,
  told = 5,
  may_flood = 6,
  pid_of = 7,      // and 8: of ranks 0 and 1
  sent_by = 9,     // and 10
  is_there = 11,   // and 12
  has_called = 13  // and 14
};
constexpr auto kPatience = 60s;

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

Remote<int> gives_when_told() {
  if (!until_word(told)) throw std::runtime_error("nobody told");
  return Remote<int>(7);
}
SHMBROKER_REMOTE_FUNCTION("gives_when_told", gives_when_told);

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

TEST_CASE("A worker reads a message that lies there before it hears of a death") {
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

TEST_CASE("Workers whose threads fill each other's queues all go on, whichever of the threads takes in what comes") {
  for (const unsigned threads : {0U, 2U}) {
    CAPTURE(threads);
    World world;
    const auto statuses = world.run_bare(2, [&](int rank) {
      constexpr int kThreads = 4, kCalls = 600;
      join(rank, 2, threads);
      std::atomic<int> right = 0;
      std::vector<std::thread> callers;
      for (int thread = 0; thread < kThreads; ++thread)
        callers.emplace_back([&, other = name_of(1 - rank)] {
          std::vector<remote::Future<int>> answers;
          for (int i = 0; i < kCalls; ++i)
            answers.push_back(remote::rpc_async<int>(remote::at(other).within(kPatience), "add", i, 1));
          for (int i = 0; i < kCalls; ++i) right += answers[static_cast<std::size_t>(i)].wait() == i + 1;
        });
      for (auto& caller : callers) caller.join();
      EXPECT(right == kThreads * kCalls);
      leave_in_order();
    });
    CHECK(statuses == std::vector<int>{0, 0});
  }
}

// The broker stands still while a thread that leads asks it something. So nobody takes in what comes, and both queues
// fill. When the broker goes on, that thread has what it waited for, and never waits again.
TEST_CASE("Workers that wait for room in each other's queues go on when the thread that took in messages has gone") {
  World world;
  const int broker = world.broker.pid();
  const auto statuses = world.run_bare(3, [broker](int rank) {
    constexpr int kCalls = 1000;
    join(rank, 3, rank == 2 ? 2 : 0);
    if (rank == 2) {
      EXPECT(until_word(is_there));
      EXPECT(until_word(is_there + 1));
      pause_ms(100);  // the threads that wait for this worker's answers sleep by now
      for (int other : {0, 1}) harness::stop(words().numbers[pid_of + other]);
      words().numbers[told] = 1;
      for (int i = 0; i < 6000 && remote::counters().running != 0; ++i) pause_ms(10);
      harness::stop(broker);
      words().numbers[may_flood] = 1;
      for (int other : {0, 1}) ::kill(words().numbers[pid_of + other], SIGCONT);
      for (int still = 0, seen = 0; still < 30; pause_ms(10)) {
        const int now = words().numbers[sent_by] + words().numbers[sent_by + 1];
        still = now > 256 && now == seen ? still + 1 : 0;
        seen = now;
      }
      ::kill(broker, SIGCONT);
    } else {
      const auto at_other = remote::at(name_of(1 - rank)).within(kPatience);
      const auto at_c = remote::at("c").within(kPatience);
      EXPECT(remote::rpc_sync<int>(at_c, "add", 1, 1) == 2);
      words().numbers[pid_of + rank] = ::getpid();
      std::vector<remote::Future<int>> answers;
      std::string failed;
      answers.push_back(remote::rpc_async<int>(at_other, "add", 0, 0));
      EXPECT(serve_until([&] { return answers[0].done(); }));
      words().numbers[has_called + rank] = 1;
      EXPECT(serve_until([&] { return words().numbers[has_called + 1 - rank] == 1; }));
      const auto given = remote::rpc_async<Remote<int>>(at_c, "gives_when_told");
      std::thread leads([&] { (void)thrown([&] { (void)given.wait(); }); });
      words().numbers[is_there + rank] = 1;
      std::thread sends([&, rank] {
        failed = thrown([&] {
          EXPECT(until_word(may_flood));
          for (int i = 1; i < kCalls; ++i) {
            answers.push_back(remote::rpc_async<int>(at_other, "add", i, 0));
            words().numbers[sent_by + rank] = i;
          }
        });
      });
      leads.join();
      sends.join();
      if (!failed.empty()) throw std::logic_error(failed);
      for (int i = 0; i < kCalls; ++i) EXPECT(answers[static_cast<std::size_t>(i)].wait() == i);
    }
    leave_in_order();
  });
  CHECK(statuses == std::vector<int>{0, 0, 0});
}

}  // namespace remote_test
