// SPDX-License-Identifier: Apache-2.0
// Plain system calls, as in child.cpp. PTRACE_O_EXITKILL ends the child with a test that dies.
#include "tests/harness/ptrace_killer.hpp"

#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

namespace harness {
namespace {

constexpr int kSystemCallStop = SIGTRAP | 0x80;  // PTRACE_O_TRACESYSGOOD
constexpr int kNoPtrace = 96;
constexpr unsigned kTraceePatience = 60;

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, __WALL) < 0 && errno == EINTR) {
  }
  return status;
}

// 5.3; on every architecture alike. -1 at the exit of a call.
long call_number(pid_t pid) {
  __ptrace_syscall_info info{};
  if (::ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) <= 0 || info.op != PTRACE_SYSCALL_INFO_ENTRY)
    return -1;
  return static_cast<long>(info.entry.nr);
}

[[noreturn]] void become_stepped(const std::function<int(const std::function<void()>&)>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : {SIGALRM, SIGABRT, SIGSEGV, SIGBUS}) ::signal(signal, SIG_DFL);
  ::alarm(kTraceePatience);
  int status = 98;
  try {
    status = body([] {
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(kNoPtrace);
      ::raise(SIGSTOP);
    });
  } catch (...) {
    std::fputs("a stepped child threw\n", stderr);
  }
  ::_exit(status);
}

}  // namespace

Stepped run_killed_at(long k, const std::function<int(const std::function<void()>& start)>& body) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) become_stepped(body);
  Stepped seen;
  if (pid < 0) return seen;
  seen.traced = true;
  // The first stop is that of raise(); its own exit from the kernel is not counted.
  bool counting = false;
  int status = wait_for(pid);
  if (WIFSTOPPED(status)) ::ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  for (long deliver = 0; WIFSTOPPED(status);) {
    ::ptrace(PTRACE_SYSCALL, pid, nullptr, deliver);
    status = wait_for(pid);
    if (!WIFSTOPPED(status)) break;
    deliver = WSTOPSIG(status) == kSystemCallStop ? 0 : WSTOPSIG(status);
    if (deliver != 0) continue;
    if (const long number = call_number(pid); number >= 0) {
      counting = true;
      seen.calls.push_back(number);
    }
    if (!counting || ++seen.stops != k) continue;
    ::kill(pid, SIGKILL);
    while (WIFSTOPPED(status)) status = wait_for(pid);
    return seen;
  }
  seen.ended = true;
  seen.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (seen.status == kNoPtrace) seen.traced = false;
  return seen;
}

}  // namespace harness
