// SPDX-License-Identifier: Apache-2.0
// Work that must run without the lock: callbacks of the user, requests to the broker, and the destruction of objects
// that hold memory or references. The next thread that waits runs it.
//
// Callbacks run one by one, in order. A callback may wait itself, perhaps for one behind it. So its wait, and those of
// other threads, run the ones behind it. One thread nests them at most kMostNested deep on its stack.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "spawn/remote/life.hpp"
#include "spawn/remote/monitor.hpp"

namespace shmb::remote {

inline constexpr unsigned kMostNested = 200;  // the most calls of others, and callbacks, on one stack

class Callbacks {
 public:
  Callbacks(Monitor& monitor, const Life& life) : monitor_(monitor), life_(life) {}

  // All are called with the lock; run() lets it go for each callback.
  void add(std::function<void()> callback) { waiting_.push_back(std::move(callback)); }
  void destroy_later(std::shared_ptr<void> remains) {
    waiting_.emplace_back([kept = std::move(remains)] {});
  }
  bool may_run() const;  // one waits, and this thread is not too deep in others
  void run(Lock& lock);
  bool idle() const;  // none waits or runs, but for those that this thread is in the middle of

 private:
  struct Running;
  unsigned running_here() const;

  Monitor& monitor_;
  const Life& life_;
  std::deque<std::function<void()>> waiting_;
  unsigned running_ = 0;
};

}  // namespace shmb::remote
