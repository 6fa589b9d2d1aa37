// SPDX-License-Identifier: Apache-2.0
// futex(2) on words that processes share. Every wait has a deadline, and ends for nothing now and then: who calls looks
// at its word again.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/result.hpp"

namespace shmb::sys {

inline constexpr std::int64_t kNoDeadline = INT64_MAX;

// Sleeps while `word` is `expected`, until somebody wakes it or `deadline` (CLOCK_MONOTONIC nanoseconds) has passed:
// ETIMEDOUT. EAGAIN: it was something else already.
Sys<void> futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t deadline);
// Wakes at most `count` sleepers; how many there were. Never blocks, whatever the word's other holders do.
Sys<long> futex_wake(std::atomic<std::uint32_t>& word, int count);

}  // namespace shmb::sys
