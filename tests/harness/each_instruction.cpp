// SPDX-License-Identifier: Apache-2.0
// See each_instruction.hpp. Plain system calls, as in ptrace_killer.cpp.
#include "tests/harness/each_instruction.hpp"

#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

namespace harness {
namespace {

constexpr int kNoPtrace = 96;

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, __WALL) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

EachInstruction at_each_instruction(const std::function<void(const std::function<void()>& start)>& body,
                                    const std::function<bool()>& at_stop) {
  std::fflush(nullptr);
  EachInstruction seen;
  const pid_t pid = ::fork();
  if (pid < 0) return seen;
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body([] {
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(kNoPtrace);
      ::raise(SIGSTOP);
    });
    ::_exit(0);
  }
  int status = wait_for(pid);
  if (WIFSTOPPED(status)) ::ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_EXITKILL);
  for (int deliver = 0; WIFSTOPPED(status);) {
    if (::ptrace(PTRACE_SINGLESTEP, pid, nullptr, deliver) != 0) ::kill(pid, SIGKILL);
    status = wait_for(pid);
    if (!WIFSTOPPED(status)) break;
    deliver = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
    ++seen.stops;
    if (!at_stop()) ::kill(pid, SIGKILL);
  }
  seen.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  seen.traced = seen.status != kNoPtrace;
  return seen;
}

}  // namespace harness
