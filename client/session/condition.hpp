// SPDX-License-Identifier: Apache-2.0
// A condition variable whose wait a signal may end (base/interrupt.hpp), which std::condition_variable's does not. A
// wait may end for no reason: the caller checks what it waits for, and its deadline.
//
// No wake-up is lost if the notifier changes the awaited state under the mutex: the waiter reads the word under it.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <mutex>

#include "base/sys_futex.hpp"
#include "client/session/deadline.hpp"

namespace shmb::client {

class Condition {
 public:
  void notify_one() { notify(1); }
  void notify_all() { notify(INT_MAX); }
  void wait(std::unique_lock<std::mutex>& lock, Deadline deadline) { wait_until(lock, deadline.time()); }
  void wait_until(std::unique_lock<std::mutex>& lock, std::int64_t time) {
    const std::uint32_t before = word_.load(std::memory_order_relaxed);
    ++sleepers_;
    lock.unlock();
    sys::sleep_on(word_, before, time);
    lock.lock();
    --sleepers_;
  }

 private:
  void notify(int count) {
    if (sleepers_.load(std::memory_order_relaxed) == 0) return;
    word_.fetch_add(1, std::memory_order_relaxed);
    sys::rouse(word_, count);
  }

  std::atomic<std::uint32_t> word_ = 0, sleepers_ = 0;
};

}  // namespace shmb::client
