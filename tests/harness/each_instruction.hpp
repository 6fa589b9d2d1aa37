// SPDX-License-Identifier: Apache-2.0
// A forked child that is stopped after each of its machine instructions. The memory that it shares with this process
// is, at each stop, as a SIGKILL at that instruction would leave it. The program under test needs no hook.
#pragma once

#include <functional>

namespace harness {

struct EachInstruction {
  bool traced = false;  // false: ptrace is not permitted here
  long stops = 0;
  int status = -1;  // exit status, or 128 + signal
};

// Runs `body` in the child. From the moment it calls its argument to its end, `at_stop` runs here after each
// instruction of it; when that returns false, the child is killed.
EachInstruction at_each_instruction(const std::function<void(const std::function<void()>& start)>& body,
                                    const std::function<bool()>& at_stop);

}  // namespace harness
