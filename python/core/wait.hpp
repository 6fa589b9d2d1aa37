// SPDX-License-Identifier: Apache-2.0
// A call of the library that may wait: without the GIL, ended by a signal, continued with the time that is left. While
// a call is in a handle no other thread frees it: the close of the handle takes effect when the last call returns.
#pragma once

#include <cstdint>

#include "python/core/arguments.hpp"

namespace shmb::python {

// How often this process is the copy of another one. Calls of threads that a fork did not copy never return.
extern std::uint32_t forks;
bool watch_forks();

// The calls that are in a handle. Guarded by the GIL.
struct Calls {
  std::uint32_t count, forks;
  bool closed;  // no new call begins; the last one frees the handle

  bool any() {
    if (forks != python::forks) count = 0, forks = python::forks;
    return count != 0;
  }
};

// One call in the handle of `object`, which has `calls` and finish(): that frees the handle.
template <class Object>
class Call {
 public:
  explicit Call(Object* object) : object_(object), forks_(forks) {
    (void)object_->calls.any();
    ++object_->calls.count;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (forks_ != forks) return;  // the process forked in a handler: the child's copy of the handle knows no calls
    if (--object_->calls.count == 0 && object_->calls.closed) object_->finish();
  }
  bool over() const { return forks_ != forks || object_->calls.closed; }

 private:
  Object* object_;
  std::uint32_t forks_;
};

// Ends the use of a handle: at once, or with the last call that is in it.
template <class Object>
void close_handle(Object* object) {
  if (object->calls.closed) return;
  object->calls.closed = true;
  if (!object->calls.any()) object->finish();
}

inline constexpr int kRaised = -1;  // beside the statuses of the library: a Python exception is set

std::int64_t now();
// The rest of a wait that began at `start`.
std::int64_t left_of(std::int64_t wait, std::int64_t start);
// Runs handlers of signals. False: an exception is set, theirs or, in a child that one of them forked, forked.
bool run_handlers(std::uint32_t forks_before);

// Signals end waits of this thread in the library.
class Interruptible {
 public:
  Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
  ~Interruptible();

 private:
  int before_;
};

// `make(wait)` is the call. `over()` answers whether a handler has closed what it is made on.
template <class Make, class Over>
int wait_for(std::int64_t wait, Make&& make, Over&& over) {
  const std::uint32_t before = forks;
  const std::int64_t start = wait > 0 ? now() : 0;
  for (std::int64_t left = wait;; left = left_of(wait, start)) {
    int status = 0;
    {
      const Unlocked unlocked;
      const Interruptible interruptible;
      status = make(left);
    }
    if (status != SHMB_E_INTERRUPTED) return status;
    if (!run_handlers(before)) return kRaised;
    if (over()) return raise(SHMB_E_CLOSED, "a signal handler has closed it during the call"), kRaised;
  }
}

template <class Object, class Make>
int wait_in(Object* object, std::int64_t wait, Make&& make) {
  const Call<Object> call(object);
  return wait_for(wait, make, [&] { return call.over(); });
}

}  // namespace shmb::python
