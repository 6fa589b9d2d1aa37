// SPDX-License-Identifier: Apache-2.0
// ptrace(2) with PTRACE_SYSCALL stops at the entry and at the exit of each call; PTRACE_O_EXITKILL ends the child with
// a test that dies. Children of `body` are not traced: they live on or die by their own rules.
#include "tests/harness/ptrace_killer.hpp"

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace harness {
namespace {

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, __WALL) < 0)
    if (errno != EINTR) std::abort();
  return status;
}

}  // namespace

Stepped kill_after_system_call(long k, const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) std::abort();
  if (pid == 0) {
    for (int signal : {SIGTERM, SIGINT, SIGSEGV, SIGABRT, SIGFPE, SIGILL}) ::signal(signal, SIG_DFL);
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    int status = 98;
    try {
      status = body();
    } catch (...) {
    }
    ::_exit(status);
  }
  Stepped stepped;
  int status = wait_for(pid);
  ::ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  bool first_exit = true;  // of the raise that stopped it
  bool entered = true;
  int deliver = 0;
  for (;;) {
    ::ptrace(PTRACE_SYSCALL, pid, nullptr, deliver);
    deliver = 0;
    status = wait_for(pid);
    if (WIFEXITED(status) || WIFSIGNALED(status)) break;
    const int signal = WSTOPSIG(status);
    if (signal != (SIGTRAP | 0x80)) {
      deliver = signal == SIGTRAP ? 0 : signal;
      continue;
    }
    entered = !entered;
    if (entered) continue;
    if (first_exit) {
      first_exit = false;
      continue;
    }
    ++stepped.calls;
    if (stepped.calls == k) {
      stepped.killed = true;
      ::kill(pid, SIGKILL);
      while (!WIFSIGNALED(status) && !WIFEXITED(status)) status = wait_for(pid);
      return stepped;
    }
  }
  stepped.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return stepped;
}

}  // namespace harness
