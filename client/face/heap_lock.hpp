// SPDX-License-Identifier: Apache-2.0
// The lock of a heap in shared memory, and the mutex family that Boost.Interprocess builds its own locks from.
//
// Guarantee: a wait without deadline must be asked for, and a holder's death never leaves the lock taken. A holder that
// dies while it changes something poisons the lock, for every process and for ever. One that only reads does not.
// Nothing here bounds a peer that overwrites the lock itself: processes that may write to the region are trusted.
#if __cplusplus < 202002L
#error "shmbroker/heap.hpp needs C++20: compile with -std=c++20 or later"
#elif !defined(SHMBROKER_HEAP_LOCK_HPP)
#define SHMBROKER_HEAP_LOCK_HPP

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <new>

#include "shmbroker.hpp"

#if !SHMBROKER_EXCEPTIONS
#error "shmbroker/heap.hpp needs exceptions: Boost.Interprocess has no other way to report a failure"
#endif

// For tests only: they define it to die at a chosen step.
#ifndef SHMBROKER_HEAP_STEP
#define SHMBROKER_HEAP_STEP() static_cast<void>(0)
#endif

namespace shmbroker::heap {

namespace detail {

[[gnu::format(printf, 2, 3)]] inline Error failure(Status status, const char* format, ...) noexcept {
  shmb_error error{};
  error.status = static_cast<std::int32_t>(status);
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(error.sentence, sizeof error.sentence, format, arguments);
  va_end(arguments);
  return Error(error);
}

inline std::int64_t monotonic_now() noexcept {
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The end of a wait that begins now. INT64_MAX: never.
inline std::int64_t deadline_of(std::int64_t timeout_ns) noexcept {
  if (timeout_ns == SHMB_FOREVER) return INT64_MAX;
  if (timeout_ns == SHMB_NO_WAIT) return 0;
  const std::int64_t now = monotonic_now();
  const std::int64_t wait = timeout_ns == SHMB_DEFAULT_TIMEOUT ? SHMB_CALL_TIMEOUT : timeout_ns;
  return wait > INT64_MAX - 1 - now ? INT64_MAX - 1 : now + wait;
}

// getpid() without the system call: the value is kept in a page that the kernel clears in a forked child.
inline pid_t process() noexcept {
  using Kept = std::atomic<pid_t>;
  static Kept* const kept = []() -> Kept* {
    void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return nullptr;
    if (::madvise(page, 4096, MADV_WIPEONFORK) == 0) return ::new (page) Kept(0);
    (void)::munmap(page, 4096);
    return nullptr;
  }();
  if (kept == nullptr) return ::getpid();
  pid_t known = kept->load(std::memory_order_relaxed);
  if (known == 0) kept->store(known = ::getpid(), std::memory_order_relaxed);
  return known;
}

}  // namespace detail

// The purpose of a holder. Only the death of one that changes something poisons.
enum class Intent { read, change };

/// A mutex that is recursive, robust, and shared by processes. Ownership: the heap, in shared memory. Lifetime: it is
/// never destroyed, because a thread of another process may be about to use it. Threads: any, of any process that maps
/// it.
class robust_mutex {
 public:
  /// Makes the lock in place. Throws Error with Status::system.
  robust_mutex() {
    pthread_mutexattr_t attributes;
    int failed = ::pthread_mutexattr_init(&attributes);
    if (failed == 0) {
      failed = ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
      if (failed == 0) failed = ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
      if (failed == 0) failed = ::pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
      if (failed == 0) failed = ::pthread_mutex_init(&mutex_, &attributes);
      (void)::pthread_mutexattr_destroy(&attributes);
    }
    if (failed != 0) throw detail::failure(Status::system, "the heap's lock cannot be made: error %d", failed);
  }
  robust_mutex(const robust_mutex&) = delete;
  robust_mutex& operator=(const robust_mutex&) = delete;

  /// The interface for Boost. Boost's own work is always a change. lock() waits 5 s at most, and throws Error with
  /// poisoned, deadline or broken. try_lock() does not wait; it throws nothing.
  void lock() { lock(Intent::change, SHMB_DEFAULT_TIMEOUT); }
  bool try_lock() { return take(Intent::change, SHMB_NO_WAIT) == Status::ok; }
  void unlock() noexcept { unlock(Intent::change); }

  /// Waits for the lock, at most `timeout_ns` nanoseconds, SHMB_FOREVER or SHMB_NO_WAIT. Throws Error with the statuses
  /// of take().
  void lock(Intent intent, std::int64_t timeout_ns) {
    if (const Status status = take(intent, timeout_ns); status != Status::ok) throw why(status, timeout_ns);
  }

  /// Status: ok, poisoned, deadline, or broken if the words of the lock are malformed.
  Status take(Intent intent, std::int64_t timeout_ns) noexcept {
    if (poisoned()) return Status::poisoned;
    // Only a call that has to wait reads the clock.
    int got = ::pthread_mutex_trylock(&mutex_);
    if (got == EBUSY && timeout_ns != SHMB_NO_WAIT) {
      const std::int64_t deadline = detail::deadline_of(timeout_ns);
      const timespec until{static_cast<time_t>(deadline / 1'000'000'000), static_cast<long>(deadline % 1'000'000'000)};
      got = timeout_ns == SHMB_FOREVER ? ::pthread_mutex_lock(&mutex_)
                                       : ::pthread_mutex_clocklock(&mutex_, CLOCK_MONOTONIC, &until);
    }
    SHMBROKER_HEAP_STEP();
    switch (got) {
      case 0:
        break;
      case EOWNERDEAD:
        // In this order: if this process dies too, the next one finds the same again. No later one finds a sound lock
        // over half-changed data.
        if (changes_.load(std::memory_order_relaxed) != 0) poisoned_.store(1, std::memory_order_release);
        SHMBROKER_HEAP_STEP();
        changes_.store(0, std::memory_order_relaxed);
        (void)::pthread_mutex_consistent(&mutex_);
        SHMBROKER_HEAP_STEP();
        break;
      case EBUSY:
      case ETIMEDOUT:
        return Status::deadline;
      case ENOTRECOVERABLE:
        return Status::poisoned;
      default:
        return Status::broken;
    }
    if (poisoned()) {
      (void)::pthread_mutex_unlock(&mutex_);
      return Status::poisoned;
    }
    if (intent == Intent::change) {
      changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      // The stores of a killed thread are seen in program order. So only the compiler must not reorder them.
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    SHMBROKER_HEAP_STEP();
    return Status::ok;
  }

  /// Call in the thread that took it, with the same intent.
  void unlock(Intent intent) noexcept {
    SHMBROKER_HEAP_STEP();
    if (intent == Intent::change) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
      changes_.store(changes_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
    }
    SHMBROKER_HEAP_STEP();
    (void)::pthread_mutex_unlock(&mutex_);
    SHMBROKER_HEAP_STEP();
  }

  /// Whether a holder died in a change.
  bool poisoned() const noexcept { return poisoned_.load(std::memory_order_acquire) != 0; }
  /// Whether a change is in progress. Only the holder may rely on it.
  bool changing() const noexcept { return changes_.load(std::memory_order_relaxed) != 0; }

  /// The error for a status of take(), after a wait of `timeout_ns`.
  static Error why(Status status, std::int64_t timeout_ns) noexcept {
    if (status == Status::poisoned)
      return detail::failure(status,
                             "the heap is poisoned: a process died while it held the heap's lock and was changing "
                             "something; read what is left with salvage(), and make a new heap");
    if (status == Status::deadline)
      return detail::failure(status, "the heap's lock was not free within %.3f s: its holder lives, perhaps stopped",
                             timeout_ns == SHMB_NO_WAIT           ? 0.0
                             : timeout_ns == SHMB_DEFAULT_TIMEOUT ? 5.0
                                                                  : static_cast<double>(timeout_ns) / 1e9);
    return detail::failure(status, "the heap's lock is broken: a process has written over it");
  }

 private:
  pthread_mutex_t mutex_;
  std::atomic<std::uint32_t> poisoned_{0};
  std::atomic<std::uint32_t> changes_{0};  // nested changes of the holder
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

/// For boost::interprocess::rbtree_best_fit and others that take a family. Both are recursive, because a managed buffer
/// needs that.
struct robust_mutex_family {
  using mutex_type = robust_mutex;
  using recursive_mutex_type = robust_mutex;
};

}  // namespace shmbroker::heap

#endif
