// SPDX-License-Identifier: Apache-2.0
// A process that is killed after its k-th system call, from outside: the library under test needs no hook for it.
#pragma once

#include <functional>

namespace harness {

struct Stepped {
  bool killed = false;  // false: it ended by itself before its k-th system call
  int status = -1;      // of one that ended by itself
  long calls = 0;       // system calls that had returned
};

// Forks `body` and sends SIGKILL when its k-th system call has returned, counted from the first of `body`. The process
// is gone and reaped when this returns. k = 0: it is never killed, only counted.
Stepped kill_after_system_call(long k, const std::function<int()>& body);

}  // namespace harness
