// SPDX-License-Identifier: Apache-2.0
// Whether a call looks for its answer for a while before it sleeps. A sleep and the wake-up behind it cost both sides
// some ten microseconds, so a look pays where the broker is quick. It is waste where the broker is slow, and it harms
// where the broker needs this very processor. So each wait learns from those before it, as the waits of queues do
// (Sleeper):
//
// - A look that finds nothing makes the next waits sleep at once: one, then 3, 7, at most 15.
// - A look that finds something ends that. So does a sleep so short that a look would have found something.
// - A short sleep right after a useless look means that the broker needed this thread's processor. Then short sleeps
//   prove nothing. Up to 1,023 waits sleep at once before the next one tries whether the broker runs elsewhere by now.
#pragma once

#include <algorithm>
#include <cstdint>

namespace shmb::client {

class SpinHabit {
 public:
  bool spared() const { return spared_ > 0; }  // the wait that begins now sleeps at once
  void sleep_at_once() { --spared_; }          // a wait that is spared
  // Of a wait that is not: what its look brought.
  void found() {
    in_vain_ = 0;
    shared_processor_ = false;
  }
  void found_nothing() { spare(2 * in_vain_ + 1, shared_processor_ ? kMostShared : kMost); }
  // The sleep of a wait is over, because something came. `looked`: a useless look was before it.
  void slept(bool looked, bool briefly) {
    if (looked) {
      shared_processor_ = briefly;
      if (!briefly) spare(in_vain_, kMost);
    } else if (briefly && !shared_processor_) {
      spared_ = in_vain_ = 0;
    }
  }

 private:
  static constexpr int kMost = 15, kMostShared = 1023;
  void spare(int waits, int most) { spared_ = in_vain_ = static_cast<std::uint16_t>(std::min(waits, most)); }

  std::uint16_t spared_ = 0, in_vain_ = 0;  // coming waits that are spared; and how many there were at first
  bool shared_processor_ = false;           // a short sleep followed the last useless look
};

}  // namespace shmb::client
