// SPDX-License-Identifier: Apache-2.0
// A child that is stopped at the entry and at the exit of each of its system calls, and killed at the k-th stop: no
// hook in the program under test, every point at which the outside world can have changed. Also counts the calls of a
// piece of code.
#pragma once

#include <functional>
#include <vector>

namespace harness {

struct Stepped {
  bool traced = false;      // false: ptrace is not to be had here
  bool ended = false;       // by itself, before the k-th stop
  int status = -1;          // if ended: exit status, or 128 + signal
  long stops = 0;           // seen
  std::vector<long> calls;  // numbers of the calls entered
};

// Runs `body` in a forked child. Stops are counted from the moment it calls its argument to its end; at stop `k` it is
// killed with SIGKILL (0: never). A child that hangs ends by SIGALRM after a minute. Its own children are not traced.
Stepped run_killed_at(long k, const std::function<int(const std::function<void()>& start)>& body);

}  // namespace harness
