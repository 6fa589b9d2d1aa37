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

namespace {

// A wait without a time is restarted by the kernel behind a handler with SA_RESTART, one with a time is not
// (signal(7)). So a wait that a signal may end has a time, however far away.
long wait_on(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t deadline, int flags) {
  const std::int64_t at = std::max<std::int64_t>(deadline, 0);
  const timespec until{at / 1'000'000'000, at % 1'000'000'000};
  const bool endless = deadline == kNoDeadline && !interrupt::enabled();
  return ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | flags, expected, endless ? nullptr : &until, nullptr,
                   FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

Sys<void> futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t deadline) {
  auto slept = call_waiting(Call::futex, [&] { return wait_on(word, expected, deadline, 0); });
  if (slept) return {};
  return sys_error(slept.error().value == EINTR ? ETIMEDOUT : slept.error().value);
}

Sys<long> futex_wake(std::atomic<std::uint32_t>& word, int count) {
  return call(Call::futex, [&] { return ::syscall(SYS_futex, &word, FUTEX_WAKE, count); });
}

void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t deadline) {
  if (wait_on(word, expected, deadline, FUTEX_PRIVATE_FLAG) != 0 && errno == EINTR) (void)interrupt::note();
}

void rouse(std::atomic<std::uint32_t>& word, int count) {
  (void)::syscall(SYS_futex, &word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count);
}

}  // namespace shmb::sys
