// SPDX-License-Identifier: Apache-2.0
// futex(2) on words that processes share. Every wait has a deadline, and may end without a reason: the caller checks
// its word again.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/result.hpp"

namespace shmb::sys {

inline constexpr std::int64_t kNoDeadline = INT64_MAX;

// Sleeps while `word` is `expected`, until a wake or until `deadline` (CLOCK_MONOTONIC nanoseconds) has passed:
// ETIMEDOUT. EAGAIN: the word had another value already. A signal that ends the wait counts as the deadline.
Sys<void> futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t deadline);
// Wakes at most `count` sleepers, and returns how many. Never blocks, whatever other holders of the word do.
Sys<long> futex_wake(std::atomic<std::uint32_t>& word, int count);

// The same on a word of this process alone. Not behind the fault seam: they fail only through a bug of the caller, and
// a lost wake would go unnoticed.
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t deadline);
void rouse(std::atomic<std::uint32_t>& word, int count);

}  // namespace shmb::sys
