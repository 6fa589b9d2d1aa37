// SPDX-License-Identifier: Apache-2.0
// The time at which a blocking call gives up. It is counted on CLOCK_MONOTONIC, so a change of the wall clock neither
// ends nor prolongs a wait. In a thread whose call a signal has ended, every deadline counts as passed
// (base/interrupt.hpp).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/interrupt.hpp"
#include "base/sys_process.hpp"
#include "client/face/shmbroker.h"

namespace shmb::client {

inline constexpr std::int64_t kDefaultTimeout = SHMB_CALL_TIMEOUT;
inline constexpr std::int64_t kForever = SHMB_FOREVER;
inline constexpr std::int64_t kNoWait = SHMB_NO_WAIT;

// Whether a call with this `wait` waits for a name that does not exist yet. If not, the name is NOT_FOUND at once.
constexpr bool waits_for_name(std::int64_t wait) { return (wait == 0 ? SHMB_NAME_WAIT : wait) != kNoWait; }

class Deadline {
 public:
  // The C ABI's durations: 0 is the default of the call, kForever is no limit, and every other negative number is a
  // deadline that has passed.
  static Deadline after(std::int64_t timeout, std::int64_t fallback = kDefaultTimeout) {
    if (timeout == 0) timeout = fallback;
    if (timeout == kForever) return Deadline(INT64_MAX);
    if (timeout < 0) return Deadline(0);
    const std::int64_t now = sys::now_monotonic();
    return Deadline(timeout > INT64_MAX - now ? INT64_MAX : now + timeout);
  }
  static Deadline now() { return Deadline(0); }

  bool endless() const { return at_ == INT64_MAX && !interrupt::cuts(); }
  bool passed() const { return interrupt::cuts() || passed_by_clock(); }
  // For a patience whose end has consequences: no signal ends it.
  bool passed_by_clock() const { return at_ != INT64_MAX && sys::now_monotonic() >= at_; }
  // For poll: nanoseconds left, 0 when passed, -1 without a limit.
  std::int64_t left() const {
    if (interrupt::cuts()) return 0;
    if (at_ == INT64_MAX) return -1;
    return at_ == 0 ? 0 : std::max<std::int64_t>(at_ - sys::now_monotonic(), 0);
  }
  // libstdc++'s steady_clock is CLOCK_MONOTONIC.
  std::chrono::steady_clock::time_point point() const {
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(time()));
  }
  std::int64_t time() const { return interrupt::cuts() ? 0 : at_; }  // INT64_MAX: without a limit
  friend Deadline earlier(Deadline a, Deadline b) { return a.at_ < b.at_ ? a : b; }
  friend Deadline later(Deadline a, Deadline b) { return a.at_ < b.at_ ? b : a; }

 private:
  explicit Deadline(std::int64_t at) : at_(at) {}
  std::int64_t at_;
};

}  // namespace shmb::client
