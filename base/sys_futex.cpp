// SPDX-License-Identifier: Apache-2.0
// The shared form of futex(2), because the sleepers are other processes. Only FUTEX_WAIT_BITSET takes an absolute
// deadline (futex(2)), so that a wait repeated after a signal ends at the right time.
#include "base/sys_futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/sys_call.hpp"

namespace shmb::sys {

using fault::Call;

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

Sys<void> futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t deadline) {
  const std::int64_t at = std::max<std::int64_t>(deadline, 0);
  const timespec until{at / 1'000'000'000, at % 1'000'000'000};
  return call_void(Call::futex, [&] {
    return ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, deadline == kNoDeadline ? nullptr : &until, nullptr,
                     FUTEX_BITSET_MATCH_ANY);
  });
}

Sys<long> futex_wake(std::atomic<std::uint32_t>& word, int count) {
  return call(Call::futex, [&] { return ::syscall(SYS_futex, &word, FUTEX_WAKE, count); });
}

}  // namespace shmb::sys
