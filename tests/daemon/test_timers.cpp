// SPDX-License-Identifier: Apache-2.0
// Deadlines come in order, once, and not after they were cancelled.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "daemon/kit/timers.hpp"

using namespace shmb::daemon;

namespace {

struct Probe final : Timer {
  std::function<void()> body;
  void on_timer(std::int64_t) override { body(); }
};

}  // namespace

TEST_CASE("timers fire in the order of their times, whatever was set, moved and cancelled before") {
  Timers timers;
  std::mt19937 random(7);
  std::vector<std::unique_ptr<Probe>> probes;
  std::vector<std::int64_t> fired;
  for (int i = 0; i < 500; ++i) {
    probes.push_back(std::make_unique<Probe>());
    std::int64_t at = static_cast<std::int64_t>(random() % 1000);
    timers.set(*probes.back(), at + 5000);
    if (i % 3 != 0) {
      timers.set(*probes.back(), at);
      probes.back()->body = [&fired, at] { fired.push_back(at); };
    } else {
      probes.back()->body = [] { FAIL("cancelled"); };
      if (i % 2 == 0) probes.back()->cancel();
      else probes.back() = nullptr;
    }
  }
  timers.run(10'000);
  CHECK(fired.size() == 333 - 0);
  CHECK(std::is_sorted(fired.begin(), fired.end()));
  CHECK(timers.next() == kNever);
}

TEST_CASE("a timer that sets itself again for the past does not block the loop") {
  Timers timers;
  Probe again;
  int fired = 0;
  again.body = [&] {
    ++fired;
    timers.set(again, 0);
  };
  timers.set(again, 0);
  timers.run(1);
  CHECK(fired == 1);
  CHECK(again.armed());
}

TEST_CASE("a timer that sets itself again for a due time runs once in a round, and delays no other") {
  Timers timers;
  Probe again, never, other, moved, later;
  int asked = 0, others = 0, moves = 0;
  again.body = [&] {
    ++asked;
    timers.set(again, 0);
    timers.set(never, 0);
    never.cancel();
    timers.set(later, 0);
    timers.set(later, 50);  // put off while it was put aside
  };
  other.body = [&] { ++others; };
  moved.body = [&] { ++moves; };
  never.body = [] { FAIL("cancelled"); };
  later.body = [] { FAIL("too early"); };
  timers.set(again, 0);
  for (Probe* one : {&other, &moved}) timers.set(*one, 5);
  for (int run = 1; run <= 3; ++run) {
    timers.run(10);
    CHECK(asked == run);
    CHECK(others == 1);
    CHECK(moves == 1);
    CHECK(timers.next() == 0);
  }
  again.cancel();
  CHECK(timers.next() == 50);
}

TEST_CASE("a timer that dies in the run that set it is gone") {
  Timers timers;
  Probe first;
  first.body = [&] {
    auto brief = std::make_unique<Probe>();
    auto briefer = std::make_unique<Probe>();
    brief->body = briefer->body = [] { FAIL("gone"); };
    timers.set(*brief, 0);
    timers.set(*briefer, 0);
    timers.set(first, 0);
    brief.reset();
  };
  timers.set(first, 0);
  timers.run(1);
  first.body = [] {};
  timers.run(1);
  CHECK(timers.next() == kNever);
}

TEST_CASE("timers that are not due wait, and may die before the heap or after it") {
  auto timers = std::make_unique<Timers>();
  Probe late;
  late.body = [] { FAIL("too early"); };
  timers->set(late, 100);
  timers->run(99);
  CHECK(timers->next() == 100);
  timers.reset();
  CHECK_FALSE(late.armed());
}
