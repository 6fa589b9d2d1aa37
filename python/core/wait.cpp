// SPDX-License-Identifier: Apache-2.0
// See wait.hpp.
#include "python/core/wait.hpp"

#include <pthread.h>

#include <ctime>

namespace shmb::python {

std::uint32_t forks = 0;

namespace {

void count_fork() { ++forks; }

}  // namespace

bool watch_forks() {
  static const int failed = ::pthread_atfork(nullptr, nullptr, count_fork);
  if (failed != 0) PyErr_NoMemory();
  return failed == 0;
}

std::int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1'000'000'000) + time.tv_nsec;
}

std::int64_t left_of(std::int64_t wait, std::int64_t start) {
  if (wait <= 0) return wait;
  const std::int64_t passed = now() - start;
  return passed < wait ? wait - passed : 1;
}

bool run_handlers(std::uint32_t forks_before) {
  if (PyErr_CheckSignals() != 0) return false;
  if (forks == forks_before) return true;
  raise(SHMB_E_FORKED,
        "a signal handler has forked this process in the middle of the call, which only the parent ends");
  return false;
}

Interruptible::Interruptible() : before_(shmb_thread_interruptible(1)) {}
Interruptible::~Interruptible() { shmb_thread_interruptible(before_); }

}  // namespace shmb::python
