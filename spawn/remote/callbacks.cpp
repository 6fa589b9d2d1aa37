// SPDX-License-Identifier: Apache-2.0
// See callbacks.hpp.
#include "spawn/remote/callbacks.hpp"

namespace shmb::remote {

// A chain of what this thread is in the middle of: a callback may leave its world and join another one.
struct Callbacks::Running {
  explicit Running(const Callbacks* callbacks) : of(callbacks), outer(std::exchange(innermost, this)) {}
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { innermost = outer; }
  const Callbacks* of;
  Running* outer;
  static thread_local Running* innermost;
};
thread_local Callbacks::Running* Callbacks::Running::innermost = nullptr;

unsigned Callbacks::running_here() const {
  unsigned count = 0;
  for (const Running* one = Running::innermost; one != nullptr; one = one->outer) count += one->of == this;
  return count;
}

bool Callbacks::may_run() const { return !waiting_.empty() && running_here() < kMostNested; }

bool Callbacks::idle() const { return waiting_.empty() && running_ == running_here(); }

void Callbacks::run(Lock& lock) {
  while (may_run()) {
    std::function<void()> one = std::move(waiting_.front());
    waiting_.pop_front();
    ++running_;
    lock.unlock();
    {
      const Running one_more(this);
      if (!life_.forked()) one();
      one = nullptr;
    }
    lock.lock();
    --running_;
    monitor_.wake();
  }
}

}  // namespace shmb::remote
