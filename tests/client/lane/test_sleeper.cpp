// SPDX-License-Identifier: Apache-2.0
// Sleeping and waking: no wake is lost, and no participant is woken for nothing.
#include <sys/socket.h>

#include <cerrno>
#include <thread>

#include "base/rescue.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "tests/client/lane/pool_memory.hpp"
#include "tests/harness/injected.hpp"

namespace {

using namespace pool_tests;
using shmb::client::Sleeper;
using shmb::fault::Call;
using Masks = std::vector<std::atomic<std::uint64_t>*>;

struct Pair {
  PoolMemory memory{0};
  Participant one{memory.view(), 0, 1}, two{memory.view(), 1, 1};
  pool::Waiters& waiters = memory.view().queue_waiters(0).readers;
  Masks masks{&waiters.mask};
  void check_awake() {
    for (std::uint32_t i = 0; i < 3; ++i) CHECK(memory.view().wait(i).sleep == 0);
    CHECK(waiters.mask == 0);
  }
};

TEST_CASE("a wait ends at its deadline and leaves no trace") {
  Pair pair;
  pair.one.sleeper().set_spin(0);
  const std::lock_guard guard(pair.one.lock());
  const auto there = pair.one.sleeper().wait(pair.masks, [] { return false; }, Deadline::after(1'000'000));
  REQUIRE(there.has_value());
  CHECK_FALSE(*there);
  pair.check_awake();
}

TEST_CASE("a message without a wake is found by the next rescue, and is not found while rescues are off") {
  Pair pair;
  Sleeper& sleeper = pair.one.sleeper();
  sleeper.set_spin(0);
  bool there = false;
  int looks = 0;
  const auto look = [&]() -> shmb::Result<void> {
    there = ++looks == 2;
    return {};
  };
  sleeper.on_look(look, [] { return std::int64_t{1'000'000}; });
  const std::lock_guard guard(pair.one.lock());
  // The second look finds it, however long the first one took on a busy machine.
  const auto found =
      sleeper.wait(pair.masks, [&] { return there; }, Deadline::after(shmb::rescues() ? 60'000'000'000 : 20'000'000));
  REQUIRE(found.has_value());
  CHECK(*found == shmb::rescues());
  CHECK(looks >= 2);
  pair.check_awake();
}

TEST_CASE("an error that a look finds ends the wait with its sentence") {
  Pair pair;
  Sleeper& sleeper = pair.one.sleeper();
  sleeper.set_spin(0);
  sleeper.on_look([]() -> shmb::Result<void> { return shmb::error(shmb::Status::session_lost, "nobody"); },
                  [] { return std::int64_t{1'000'000}; });
  const std::lock_guard guard(pair.one.lock());
  const auto ended = sleeper.wait(pair.masks, [] { return false; }, Deadline::after(60'000'000'000));
  REQUIRE_FALSE(ended.has_value());
  CHECK(ended.error().status == shmb::Status::session_lost);
  CHECK(ended.error().sentence == "nobody");
  pair.check_awake();
}

TEST_CASE("a wake without sleepers makes no system call") {
  Pair pair;
  shmb::fault::clear();
  pair.one.sleeper().wake_all(pair.waiters);
  pair.one.sleeper().wake_one(pair.waiters);
  pair.waiters.mask = 2;  // announced, but awake
  pair.one.sleeper().wake_all(pair.waiters);
  CHECK(shmb::fault::count(Call::futex) == 0);
  pair.waiters.mask = 0;
}

TEST_CASE("a waker wakes first and clears the flag afterwards, and only the flag that it saw") {
  Pair pair;
  auto& entry = pair.memory.view().wait(1);
  pair.waiters.mask = 2;
  entry.sleep = 4 | pool::kSleepFutex;
  SUBCASE("as a rule") {
    const AtStep woken(Step::S8, [&] {
      CHECK(entry.event == 1);
      CHECK(entry.sleep != 0);
    });
    pair.one.sleeper().wake_all(pair.waiters);
    CHECK(entry.sleep == 0);
  }
  SUBCASE("not that of a later sleep") {
    const AtStep later(Step::S8, [&] { entry.sleep = 8 | pool::kSleepFutex; });
    pair.one.sleeper().wake_all(pair.waiters);
    CHECK(entry.sleep == (8 | pool::kSleepFutex));
  }
  SUBCASE("and not when the wake failed") {
    const harness::Injected refused(Call::futex, EPERM, 1);
    pair.one.sleeper().wake_all(pair.waiters);
    CHECK(entry.sleep != 0);
  }
  pair.waiters.mask = 0;
}

TEST_CASE("tokens never repeat, not even in another life of the index") {
  Pair pair;
  std::vector<std::uint64_t> tokens;
  for (std::uint32_t life = 1; life < 3; ++life) {
    Participant sleeper(pair.memory.view(), 2, life);
    sleeper.sleeper().set_spin(0);
    const std::lock_guard guard(sleeper.lock());
    for (int i = 0; i < 3; ++i) {
      const AtStep asleep(Step::Z3_done, [&] { tokens.push_back(pair.memory.view().wait(2).sleep); });
      (void)sleeper.sleeper().wait(pair.masks, [] { return false; }, Deadline::after(1000));
    }
  }
  CHECK(tokens.size() > 2);
  std::sort(tokens.begin(), tokens.end());
  CHECK(std::adjacent_find(tokens.begin(), tokens.end()) == tokens.end());
}

TEST_CASE("a wait that the kernel refuses is a sentence") {
  Pair pair;
  pair.one.sleeper().set_spin(0);
  const harness::Injected refused(Call::futex, EPERM, 1);
  const std::lock_guard guard(pair.one.lock());
  const auto there = pair.one.sleeper().wait(pair.masks, [] { return false; }, Deadline::after(1'000'000'000));
  REQUIRE_FALSE(there.has_value());
  CHECK(there.error().system_errno == EPERM);
  pair.check_awake();
}

TEST_CASE("a message that is published between the announcement and the sleep is seen") {
  Pair pair;
  bool there = false;
  pair.one.sleeper().set_spin(0);
  const std::lock_guard guard(pair.one.lock());
  SUBCASE("before the last look") {
    const AtStep publish(Step::Z3_done, [&] { there = true; });
    CHECK(*pair.one.sleeper().wait(pair.masks, [&] { return there; }, Deadline::after(-1)));
  }
  SUBCASE("after it") {
    const AtStep publish(Step::Z5, [&] {
      there = true;
      pair.two.sleeper().wake_all(pair.waiters);
    });
    CHECK(*pair.one.sleeper().wait(pair.masks, [&] { return there; }, Deadline::after(-1)));
  }
  pair.check_awake();
}

TEST_CASE("of sleepers that compete one is woken, another the next time, and those awake are passed over") {
  Pair pair;
  const auto& view = pair.memory.view();
  pair.waiters.mask = 7;
  auto sleep = [&](std::uint32_t index) { view.wait(index).sleep = 4 | pool::kSleepFutex; };
  auto woken = [&] {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < 3; ++i) count += view.wait(i).event;
    return count;
  };
  sleep(1);
  sleep(2);
  pair.one.sleeper().wake_one(pair.waiters);
  CHECK(woken() == 1);
  pair.one.sleeper().wake_one(pair.waiters);
  CHECK(woken() == 2);
  CHECK(view.wait(0).event == 0);
  CHECK((view.wait(1).event == 1 && view.wait(2).event == 1));
  pair.one.sleeper().wake_one(pair.waiters);
  CHECK(woken() == 2);
  for (std::uint32_t i = 0; i < 3; ++i) sleep(i);
  pair.one.sleeper().wake_all(pair.waiters);
  CHECK(woken() == 5);
  pair.waiters.mask = 0;
}

TEST_CASE("after a useless spin the next sleeps begin early, until a spin would have found something") {
  constexpr std::int64_t kShort = 1'000'000, kLong = 60'000'000'000;
  constexpr int kLate = 400;  // more looks than there are before each sleep in any case
  Pair pair;
  Sleeper& sleeper = pair.one.sleeper();
  const std::lock_guard guard(pair.one.lock());
  auto looks_long = [&] {  // else it sleeps, and its deadline comes before so many looks
    int looks = 0;
    return *sleeper.wait(pair.masks, [&] { return ++looks >= kLate; }, Deadline::after(20'000'000));
  };
  auto sleep_until_woken = [&](bool late = false) {
    bool there = false;
    const AtStep publish(Step::Z5, [&] {
      if (late) shmb::sys::rest(2 * kShort);
      there = true;
      pair.two.sleeper().wake_all(pair.waiters);
    });
    REQUIRE(*sleeper.wait(pair.masks, [&] { return there; }, Deadline::after(-1)));
  };
  auto look_in_vain = [&] {
    sleeper.set_spin(kShort, false);
    sleep_until_woken(true);
    sleeper.set_spin(kLong, false);
  };
  look_in_vain();
  CHECK_FALSE(looks_long());
  look_in_vain();
  for (int spared = 0; spared < 3; ++spared) CHECK_FALSE(looks_long());
  SUBCASE("the next look finds nothing: more are spared, and at most 15") {
    for (const int most : {7, 15, 15}) {
      look_in_vain();
      for (int spared = 0; spared < most; ++spared) CHECK_FALSE(looks_long());
    }
  }
  SUBCASE("a participant that is set to poll always does so") {
    look_in_vain();
    sleeper.set_spin(kLong);
    int looks = 0;
    const AtStep asleep(Step::Z5, [&] { FAIL_CHECK("it slept"); });
    CHECK(*sleeper.wait(pair.masks, [&] { return ++looks >= kLate; }, Deadline::after(kLong)));
  }
  SUBCASE("a message that came right after it had fallen asleep") {
    look_in_vain();
    sleep_until_woken();
    int looks = 0;
    const AtStep asleep(Step::Z5, [&] { FAIL_CHECK("it slept"); });
    CHECK(*sleeper.wait(pair.masks, [&] { return ++looks >= kLate; }, Deadline::after(kLong)));
  }
  pair.check_awake();
}

TEST_CASE("a wait ends its own spin, whatever spin another thread sets meanwhile") {
  constexpr std::int64_t kShort = 1'000'000, kLong = 1'000'000'000;
  Pair pair;
  Sleeper& sleeper = pair.one.sleeper();
  const std::lock_guard guard(pair.one.lock());
  for (const std::int64_t meanwhile : {std::int64_t{0}, std::int64_t{-1}, 4 * kLong}) {
    CAPTURE(meanwhile);
    sleeper.set_spin(kShort);
    int looks = 0;
    bool slept = false;
    const AtStep asleep(Step::Z5, [&] {
      slept = true;
      pair.two.sleeper().wake_all(pair.waiters);
    });
    const auto there = sleeper.wait(
        pair.masks,
        [&] {
          if (++looks == 3) sleeper.set_spin(meanwhile);  // a call of another thread, while this one spins
          return slept;
        },
        Deadline::after(2 * kLong));
    REQUIRE(there.has_value());
    CHECK(slept);
  }
  pair.check_awake();
}

TEST_CASE("a thread that finds nothing until it sleeps, and then at once, sleeps at once, and spins now and then") {
  constexpr std::int64_t kShort = 200'000'000;  // far longer than a busy machine keeps a thread
  constexpr int kLate = 400;
  Pair pair;
  Sleeper& sleeper = pair.one.sleeper();
  sleeper.set_spin(kShort, false);
  const std::lock_guard guard(pair.one.lock());
  int looks = 0;
  // The peer runs as soon as this thread sleeps, and not before. How often this one looked until then.
  const auto on_one_processor = [&] {
    bool there = false;
    looks = 0;
    int until_asleep = 0;
    const AtStep publish(Step::Z5, [&] {
      until_asleep = looks;
      there = true;
      pair.two.sleeper().wake_all(pair.waiters);
    });
    REQUIRE(*sleeper.wait(pair.masks, [&] { return ++looks, there; }, Deadline::after(-1)));
    return until_asleep;
  };
  const auto early_sleeps = [&] {  // until one looks for long
    for (int count = 0;; ++count)
      if (on_one_processor() >= kLate) return count;
  };
  REQUIRE(on_one_processor() >= kLate);
  for (const int spared : {1, 3, 7, 15, 31}) CHECK(early_sleeps() == spared);
  CHECK_FALSE(sleeper.peer_runs_elsewhere());
  CHECK(on_one_processor() <= 2);  // before the sleep, and behind its announcement
  // A look that finds something: the peer has another processor again.
  for (bool found_awake = false; !found_awake;) {
    int seen = 0;
    found_awake = true;
    const AtStep asleep(Step::Z5, [&] {
      found_awake = false;
      seen = kLate;
      pair.two.sleeper().wake_all(pair.waiters);
    });
    REQUIRE(*sleeper.wait(pair.masks, [&] { return ++seen >= kLate; }, Deadline::after(-1)));
  }
  CHECK(sleeper.peer_runs_elsewhere());
  pair.check_awake();
}

TEST_CASE("an armed doorbell is rung once, and not by a waker that finds it disarmed") {
  Pair pair;
  auto ends = shmb::sys::seqpacket_pair();
  REQUIRE(ends.has_value());
  auto& [bell, listener] = *ends;
  std::vector<std::uint32_t> asked;
  int dead_ones = 0;
  pair.two.sleeper().on_doorbell([&](std::uint32_t index, std::uint32_t life, bool dead) {
    dead_ones += dead ? 1 : 0;
    asked.push_back(index * 100 + life);
    return bell.get();
  });
  CHECK_FALSE(pair.one.sleeper().arm_doorbell(pair.masks, [] { return true; }));
  CHECK_FALSE(pair.one.sleeper().armed());
  pair.check_awake();
  REQUIRE(pair.one.sleeper().arm_doorbell(pair.masks, [] { return false; }));
  pair.two.sleeper().wake_all(pair.waiters);
  pair.two.sleeper().wake_all(pair.waiters);
  CHECK(asked == std::vector<std::uint32_t>{1});
  std::byte buffer[8];
  CHECK(shmb::sys::receive_data(listener.get(), buffer).has_value());
  CHECK(*shmb::sys::poll_readable(listener.get(), 0) == false);

  SUBCASE("a full one counts as rung") {
    REQUIRE(pair.one.sleeper().arm_doorbell(pair.masks, [] { return false; }));
    const harness::Injected full(Call::send, EAGAIN, 1);
    pair.two.sleeper().wake_all(pair.waiters);
    CHECK(pair.memory.view().wait(0).sleep == 0);
  }
  SUBCASE("one whose other end is gone leaves the flag, and is reported") {
    REQUIRE(pair.one.sleeper().arm_doorbell(pair.masks, [] { return false; }));
    const harness::Injected gone(Call::send, EPIPE, 1);
    pair.two.sleeper().wake_all(pair.waiters);
    CHECK(pair.memory.view().wait(0).sleep != 0);
    CHECK(dead_ones == 1);
    pair.two.sleeper().wake_all(pair.waiters);
    CHECK(pair.memory.view().wait(0).sleep == 0);
    CHECK(dead_ones == 1);
  }
  SUBCASE("one that cannot be had leaves the flag for the next waker") {
    REQUIRE(pair.one.sleeper().arm_doorbell(pair.masks, [] { return false; }));
    Participant third(pair.memory.view(), 2, 1);
    third.sleeper().wake_all(pair.waiters);
    CHECK(pair.memory.view().wait(0).sleep != 0);
    pair.two.sleeper().wake_all(pair.waiters);
    CHECK(pair.memory.view().wait(0).sleep == 0);
  }
  pair.one.sleeper().disarm_doorbell();
  pair.check_awake();
}

TEST_CASE("threads of one participant sleep side by side, each for its own source") {
  Pair pair;
  pool::Waiters& others = pair.memory.view().queue_waiters(1).readers;
  std::atomic<bool> first{false}, second{false};
  const Deadline patience = Deadline::after(60'000'000'000);
  pair.one.sleeper().set_spin(0);
  std::atomic<int> ended{0};
  auto sleep = [&](pool::Waiters& source, std::atomic<bool>& there) {
    const std::lock_guard guard(pair.one.lock());
    std::atomic<std::uint64_t>* const masks[] = {&source.mask};
    const auto woken = pair.one.sleeper().wait(masks, [&] { return there.load(); }, patience);
    if (woken && *woken) ++ended;
  };
  std::thread a([&] { sleep(pair.waiters, first); }), b([&] { sleep(pair.waiters, first); }),
      c([&] { sleep(others, second); });
  while ((pair.waiters.mask == 0 || others.mask == 0) && !patience.passed()) std::this_thread::yield();
  {
    const std::lock_guard guard(pair.one.lock());
    const auto ended_early = pair.one.sleeper().wait(pair.masks, [] { return false; }, Deadline::after(1'000'000));
    CHECK((ended_early && !*ended_early));
  }
  CHECK(pair.waiters.mask == 1);  // of those who sleep on
  second = true;
  pair.two.sleeper().wake_all(others);
  c.join();
  CHECK(pair.waiters.mask == 1);  // its bit stays while the others sleep there
  CHECK(others.mask == 0);
  first = true;
  pair.two.sleeper().wake_all(pair.waiters);
  a.join();
  b.join();
  CHECK(ended == 3);
  pair.check_awake();
}

// A ball goes to and fro: if one wake is lost, both sleep until the patience ends.
void play(std::int64_t spin, std::uint64_t count) {
  Pair pair;
  std::atomic<std::uint64_t> ball{0};
  const Deadline patience = Deadline::after(200'000'000'000);
  pool::Waiters* const sources[] = {&pair.memory.view().queue_waiters(0).readers,
                                    &pair.memory.view().queue_waiters(1).readers};
  std::atomic<std::uint64_t> played{0};
  auto player = [&](std::uint64_t side, Participant& me) {
    const std::lock_guard guard(me.lock());
    me.sleeper().set_spin(spin);
    std::atomic<std::uint64_t>* const masks[] = {&sources[side]->mask};
    for (std::uint64_t n = side; n < count; n += 2) {
      const auto mine = me.sleeper().wait(masks, [&] { return ball.load(std::memory_order_acquire) == n; }, patience);
      if (!mine || !*mine) return;
      ball.store(n + 1, std::memory_order_release);
      me.sleeper().wake_one(*sources[1 - side]);
      ++played;
    }
  };
  std::thread other([&] { player(1, pair.two); });
  player(0, pair.one);
  other.join();
  CHECK(played == count);
  pair.check_awake();
}

TEST_CASE("no wake is lost in many sleeps, without spinning") {
  play(0, 100'000 / static_cast<std::uint64_t>(harness::slowdown()));
}
TEST_CASE("no wake is lost in many waits, with spinning") {
  play(1'000, 100'000 / static_cast<std::uint64_t>(harness::slowdown()));
}

}  // namespace
