// SPDX-License-Identifier: Apache-2.0
// Turns alone, with a clock that only service moves.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>

#include "daemon/kit/turns.hpp"

using shmb::daemon::Turns;

namespace {

// A queue of a client: each request takes `cost` and puts its name down.
struct Asker final : Turns::Item {
  Asker(Turns& all, Turns::Process& owner, char letter, std::int64_t ns, std::int64_t& time, std::string& served)
      : turns(all), process(owner), name(letter), cost(ns), clock(time), order(served) {}
  void on_turn() override {
    order += name;
    clock += cost;
    if (--left > 0) turns.ready(process, *this);
  }
  void ask(int count) {
    left = count;
    turns.ready(process, *this);
  }
  Turns& turns;
  Turns::Process& process;
  char name;
  std::int64_t cost;
  std::int64_t& clock;
  std::string& order;
  int left = 0;
};

struct Hall {
  std::int64_t time = 0;
  std::string order;
  Turns turns;
  std::deque<Asker> askers;
  Hall() {
    turns.clock = [this] { return time; };
  }
  Asker& asker(char name, std::uint32_t uid, std::uint32_t pid, std::int64_t cost) {
    return askers.emplace_back(turns, turns.join(uid, pid), name, cost, time, order);
  }
};

}  // namespace

TEST_CASE("a newcomer is served next, however many requests of one other user wait") {
  Hall hall;
  for (int i = 0; i < 100; ++i) hall.asker('f', 1, static_cast<std::uint32_t>(i), 10).ask(1000);
  hall.turns.serve(1000);
  CHECK(hall.order == std::string(100, 'f'));
  Asker& rare = hall.asker('r', 2, 1, 10);
  for (int i = 0; i < 5; ++i) {
    hall.order.clear();
    rare.ask(1);
    hall.turns.serve(30);
    CHECK(hall.order == "rff");
  }
}

TEST_CASE("a process that asks rarely comes before the many sessions of another one of its user") {
  Hall hall;
  for (int i = 0; i < 100; ++i) hall.asker('f', 1, 1, 10).ask(1000);
  hall.turns.serve(1000);
  Asker& rare = hall.asker('r', 1, 2, 10);
  hall.order.clear();
  rare.ask(1);
  hall.turns.serve(20);
  CHECK(hall.order == "rf");
}

TEST_CASE("two users that always ask get the same time, whatever one of their requests costs") {
  Hall hall;
  hall.asker('c', 1, 1, 90).ask(1'000'000);
  hall.asker('d', 2, 1, 10).ask(1'000'000);
  hall.turns.serve(90'000);
  const auto dear = 90 * std::ranges::count(hall.order, 'c'), cheap = 10 * std::ranges::count(hall.order, 'd');
  CHECK(dear + cheap >= 90'000);
  CHECK(std::abs(dear - cheap) <= 200);
}

TEST_CASE("the sessions of one process are served one after the other") {
  Hall hall;
  for (const char name : {'a', 'b', 'c'}) hall.asker(name, 1, 1, 10).ask(100);
  hall.turns.serve(60);
  CHECK(hall.order == "abcabc");
}

TEST_CASE("time that was not asked for is not saved up") {
  Hall hall;
  Asker& away = hall.asker('a', 1, 1, 10);
  Asker& here = hall.asker('h', 2, 1, 10);
  here.ask(1'000'000);
  hall.turns.serve(100'000);
  away.ask(1'000'000);
  hall.order.clear();
  hall.turns.serve(1000);
  CHECK(std::ranges::count(hall.order, 'h') >= 49);
}

TEST_CASE("a process that has left is not served, also when it leaves in its turn or in another's") {
  Hall hall;
  auto one = std::make_unique<Asker>(hall.turns, hall.turns.join(1, 1), 'a', 10, hall.time, hall.order);
  one->ask(10);
  hall.turns.serve(10);
  one.reset();
  hall.turns.serve(100);
  CHECK(hall.order == "a");
  CHECK(hall.turns.empty());
  struct Last final : Turns::Item {
    Last(Turns& all, Turns::Process& owner) : turns(all), process(owner) {}
    void on_turn() override { turns.leave(process); }
    Turns& turns;
    Turns::Process& process;
  };
  Last last(hall.turns, hall.turns.join(7, 7));
  hall.turns.ready(last.process, last);
  hall.turns.serve(100);
  CHECK(hall.turns.empty());
}
