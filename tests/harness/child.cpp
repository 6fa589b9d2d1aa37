// SPDX-License-Identifier: Apache-2.0
// Plain system calls, as in snapshot.cpp: the seam of base must not reach the harness.
#include "tests/harness/child.hpp"

#include <grp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/harness/sanitizer.hpp"

namespace harness {

namespace {

constexpr int kChildPatience = 180'000;

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::abort();
}

// doctest's handlers would report the parent's case from inside the child.
void default_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGABRT}) ::signal(signal, SIG_DFL);
  if (kAddressSanitizer) return;  // its report is wanted; TSan's would be of what doctest's handler does
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) ::signal(signal, SIG_DFL);
}

bool readable(int fd, int milliseconds) {
  pollfd watched{fd, POLLIN, 0};
  int ready;
  do ready = ::poll(&watched, 1, milliseconds);
  while (ready < 0 && errno == EINTR);
  return ready > 0;
}

}  // namespace

Child Child::run(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  sigset_t every, before;
  ::sigfillset(&every);
  ::pthread_sigmask(SIG_SETMASK, &every, &before);  // the parent may kill before the child has set its handlers
  const pid_t pid = ::fork();
  if (pid != 0) ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) give_up("fork of a test's child");
  if (pid == 0) {
    // A test program that is killed must not leave its children behind.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kHung);
    default_signals();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    int status = kThrew;
    try {
      status = body();
    } catch (...) {
      std::fputs("a test's child threw\n", stderr);
    }
    std::fflush(nullptr);
    ::_exit(status);
  }
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) give_up("pidfd_open of a test's child");
  return {pid, pidfd};
}

Child Child::run_as(uid_t uid, gid_t gid, const std::function<int()>& body) {
  return run([&] {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(gid, gid, gid) != 0 || ::setresuid(uid, uid, uid) != 0)
      return kCannotDrop;
    ::prctl(PR_SET_DUMPABLE, 1);  // else /proc/self belongs to root, as it would not in a real process of that user
    return body();
  });
}

Child& Child::operator=(Child&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::exchange(other.pidfd_, -1);
    status_ = other.status_;
  }
  return *this;
}

void Child::kill(int signal) const {
  if (pidfd_ >= 0) ::syscall(SYS_pidfd_send_signal, pidfd_, signal, nullptr, 0);
}

int Child::wait() {
  if (pid_ < 0 || status_ >= 0) return status_;
  const bool hung = !readable(pidfd_, kChildPatience);
  if (hung) kill();
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  status_ = hung ? kHung : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return status_;
}

bool Child::wait_ended(int milliseconds) const { return status_ >= 0 || readable(pidfd_, milliseconds); }

void Child::end() {
  if (pid_ < 0) return;
  if (status_ < 0) {
    kill();
    wait();
  }
  ::close(pidfd_);
  pid_ = pidfd_ = -1;
}

bool can_change_uid() {
  static const bool can = Child::run_as(65534, 65534, [] { return 0; }).wait() == 0;
  return can;
}

Gate::Gate() : fd_(::eventfd(0, EFD_CLOEXEC)) {
  if (fd_ < 0) give_up("eventfd of a test's gate");
}

Gate::~Gate() { ::close(fd_); }

void Gate::open() const {
  const std::uint64_t one = 1;
  if (::write(fd_, &one, sizeof one) != sizeof one) give_up("opening a test's gate");
}

bool Gate::wait(int milliseconds) const { return readable(fd_, milliseconds); }

}  // namespace harness
