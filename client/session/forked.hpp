// SPDX-License-Identifier: Apache-2.0
// How the library notices that it runs in a forked child, and how its locks survive fork(2). A page with
// MADV_WIPEONFORK (4.14) reads as zeros in every child, also after a bare clone(2) that runs no handler. pthread_atfork
// takes the locks, so that the child of a threaded parent finds its data whole.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/mapping.hpp"

namespace shmb::client {

// One word that is zero in a forked child until `set`.
class ForkMark {
 public:
  static Sys<ForkMark> make();
  bool intact() const { return word()->load(std::memory_order_acquire) != 0; }
  void set() { word()->store(1, std::memory_order_release); }

 private:
  // Not at the start of its page. Words that are read for every message begin a page: the pool's header, the
  // contents of slots. At the start, this one and they would evict each other from the processor's nearest cache.
  static constexpr std::size_t kOffset = 2496;
  std::atomic<std::uint32_t>* word() const {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(page_.data() + kOffset);
  }
  Mapping page_;
};

// An object whose locks are held while the process forks. Enrolled objects are locked in order of enrolment. An object
// that calls others under its own lock comes before all of these.
class ForkGuarded {
 public:
  virtual void lock_for_fork() = 0;
  virtual void unlock_after_fork() = 0;  // in the parent and in the child

 protected:
  ~ForkGuarded() = default;
};
void enrol(ForkGuarded& object, bool before_others = false);
void withdraw(ForkGuarded& object);

// How often this process has forked by fork(3) since the library was first used. A mapping older than the last fork may
// exist in a child that the broker does not know.
std::uint64_t forks_seen();

}  // namespace shmb::client
