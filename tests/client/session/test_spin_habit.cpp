// SPDX-License-Identifier: Apache-2.0
// Which waits look before they sleep.
#include <doctest/doctest.h>

#include <cstdint>

#include "client/session/spin_habit.hpp"

using shmb::client::SpinHabit;

namespace {

// How many waits sleep at once from now on; the sleeps of these are long.
std::uint32_t spared_waits(SpinHabit& habit) {
  std::uint32_t waits = 0;
  for (; habit.spared(); ++waits) {
    habit.sleep_at_once();
    habit.slept(false, false);
  }
  return waits;
}

void look_in_vain(SpinHabit& habit, bool short_sleep) {
  habit.found_nothing();
  habit.slept(true, short_sleep);
}

}  // namespace

TEST_CASE("the first wait looks, and so does each wait after a look that found something") {
  SpinHabit habit;
  CHECK_FALSE(habit.spared());
  habit.found();
  CHECK_FALSE(habit.spared());
}

TEST_CASE("looks in vain spare more and more of the next waits, and at most 15") {
  SpinHabit habit;
  for (const std::uint32_t spared : {1, 3, 7, 15, 15}) {
    look_in_vain(habit, false);
    CHECK(spared_waits(habit) == spared);
  }
  habit.found();
  look_in_vain(habit, false);
  CHECK(spared_waits(habit) == 1);
}

TEST_CASE("a short sleep of a spared wait makes the next wait look") {
  SpinHabit habit;
  for (int i = 0; i < 4; ++i) {
    look_in_vain(habit, false);
    if (i < 3) spared_waits(habit);
  }
  habit.sleep_at_once();
  habit.slept(false, true);
  CHECK_FALSE(habit.spared());
}

TEST_CASE("where the broker needs this processor, short sleeps prove nothing and up to 1023 waits are spared") {
  SpinHabit habit;
  std::uint32_t spared = 0;
  for (int i = 0; i < 12; ++i) {
    look_in_vain(habit, true);
    habit.sleep_at_once();
    habit.slept(false, true);
    spared = 1 + spared_waits(habit);
  }
  CHECK(spared == 1023);
  look_in_vain(habit, false);  // a long sleep behind it: the processor was free
  CHECK(spared_waits(habit) == 15);
}
