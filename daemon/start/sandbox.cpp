// SPDX-License-Identifier: Apache-2.0
// See sandbox.hpp. The list follows what the broker does, so that each line has its reason.
#include "daemon/start/sandbox.hpp"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "base/compat.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHMB_SANITIZER 1
#endif

#if defined(SHMB_HAVE_SECCOMP) && !defined(SHMB_SANITIZER)
#include <seccomp.h>

namespace shmb::daemon {
namespace {

// Allowed with any arguments.
constexpr int kAlways[] = {
    // packets and descriptors
    SCMP_SYS(accept4), SCMP_SYS(recvmsg), SCMP_SYS(sendmsg), SCMP_SYS(sendto), SCMP_SYS(shutdown), SCMP_SYS(getsockopt),
    SCMP_SYS(getsockname), SCMP_SYS(getpeername), SCMP_SYS(close), SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(writev),
    // waiting
    SCMP_SYS(epoll_ctl), SCMP_SYS(epoll_wait), SCMP_SYS(epoll_pwait), SCMP_SYS(io_uring_enter), SCMP_SYS(poll),
    SCMP_SYS(ppoll), SCMP_SYS(futex), SCMP_SYS(nanosleep), SCMP_SYS(clock_nanosleep), SCMP_SYS(clock_gettime),
    SCMP_SYS(gettimeofday), SCMP_SYS(restart_syscall), SCMP_SYS(rt_sigreturn), SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigaction), SCMP_SYS(sched_yield),
    // regions
    SCMP_SYS(memfd_create), SCMP_SYS(ftruncate), SCMP_SYS(fchmod), SCMP_SYS(fstat), SCMP_SYS(newfstatat),
    SCMP_SYS(statx),
    // a client without SO_PEERPIDFD; the links of /proc; the broker's own socket files at its end
    SCMP_SYS(pidfd_open), SCMP_SYS(readlink), SCMP_SYS(readlinkat), SCMP_SYS(unlink), SCMP_SYS(unlinkat),
    // memory, threads, random numbers, the host's memory at a reload, the end
    SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(set_robust_list), SCMP_SYS(rseq),
    SCMP_SYS(sched_getaffinity), SCMP_SYS(getrandom), SCMP_SYS(sysinfo), SCMP_SYS(getpid), SCMP_SYS(gettid),
    SCMP_SYS(getuid), SCMP_SYS(geteuid), SCMP_SYS(exit), SCMP_SYS(exit_group)};

constexpr int kIoctls[] = {static_cast<int>(SIOCOUTQ), static_cast<int>(compat::kPidfdGetInfo)};
constexpr int kFcntls[] = {F_DUPFD_CLOEXEC, F_ADD_SEALS, F_GET_SEALS, F_GETFL, F_DUPFD_QUERY};
constexpr int kSocketOptions[] = {SO_PASSCRED, SO_PASSRIGHTS};

struct Release {
  void operator()(void* context) const { seccomp_release(context); }
};

class CallFilter {
 public:
  CallFilter() : context_(seccomp_init(SCMP_ACT_ERRNO(EPERM))) {
    if (!context_) {
      failure_ = -ENOMEM;
      return;
    }
    note(seccomp_attr_set(context_.get(), SCMP_FLTATR_CTL_TSYNC, 1));     // the helper threads, too
    note(seccomp_attr_set(context_.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2));  // a tree instead of a list
  }
  template <class... Conditions>
  void allow(int call, Conditions... conditions) {
    if (failure_ == 0)
      note(seccomp_rule_add(context_.get(), SCMP_ACT_ALLOW, call, sizeof...(conditions), conditions...));
  }
  void answer(int call, int error) {
    if (failure_ == 0) note(seccomp_rule_add(context_.get(), SCMP_ACT_ERRNO(static_cast<unsigned>(error)), call, 0));
  }
  int load() { return failure_ != 0 ? failure_ : seccomp_load(context_.get()); }

 private:
  void note(int result) {
    if (failure_ == 0) failure_ = result;
  }
  std::unique_ptr<void, Release> context_;
  int failure_ = 0;
};

// The kernel looks at the lower half of an int argument only.
scmp_arg_cmp low_is(unsigned argument, int value) {
  return {argument, SCMP_CMP_MASKED_EQ, 0xffff'ffffULL, static_cast<std::uint32_t>(value)};
}
scmp_arg_cmp bits_clear(unsigned argument, unsigned bits) { return {argument, SCMP_CMP_MASKED_EQ, bits, 0}; }
scmp_arg_cmp bits_set(unsigned argument, unsigned bits) { return {argument, SCMP_CMP_MASKED_EQ, bits, bits}; }

}  // namespace

std::string no_sandbox() {
  const std::uint32_t action = SECCOMP_RET_ERRNO;
  if (::syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0) return {};
  return "no seccomp filter: the kernel, or a sandbox around the broker, has none; a broker that was taken over could "
         "make any system call of its user";
}

Result<void> enter_sandbox() {
  if (!no_sandbox().empty()) return {};
  CallFilter filter;
  for (int call : kAlways) filter.allow(call);
  for (int request : kIoctls) filter.allow(SCMP_SYS(ioctl), low_is(1, request));
  for (int command : kFcntls) filter.allow(SCMP_SYS(fcntl), low_is(1, command));
  // Of the flags of an open file O_NONBLOCK alone is changed.
  filter.allow(SCMP_SYS(fcntl), low_is(1, F_SETFL), bits_clear(2, O_APPEND | O_ASYNC | O_DIRECT | O_NOATIME));
  for (int option : kSocketOptions) filter.allow(SCMP_SYS(setsockopt), low_is(1, SOL_SOCKET), low_is(2, option));
  // Files are opened: memory for readers, /proc, GPU nodes, the configuration. None is made, and none is emptied.
  filter.allow(SCMP_SYS(openat), bits_clear(2, O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY)));
  filter.allow(SCMP_SYS(mmap), bits_clear(2, PROT_EXEC));
  filter.allow(SCMP_SYS(mprotect), bits_clear(2, PROT_EXEC));
  // Threads, but no processes. The flags of clone3 are in memory, where no filter looks: glibc then takes clone.
  filter.allow(SCMP_SYS(clone), bits_set(0, CLONE_THREAD));
  filter.answer(SCMP_SYS(clone3), ENOSYS);
  // Whether two descriptors are one open file, before Linux 6.10, where the profile around the broker has it. An abort
  // signals the broker itself.
  filter.allow(SCMP_SYS(kcmp), low_is(0, ::getpid()), low_is(1, ::getpid()), low_is(2, KCMP_FILE));
  filter.allow(SCMP_SYS(tgkill), low_is(0, ::getpid()));
  if (const int failure = filter.load(); failure != 0)
    return system_failure(Errno{-failure}, "loading the seccomp filter");
  return {};
}

}  // namespace shmb::daemon

#else

namespace shmb::daemon {

std::string no_sandbox() {
#ifdef SHMB_SANITIZER
  return "no seccomp filter: this shmbrokerd was built with a sanitizer";
#else
  return "no seccomp filter: this shmbrokerd was built without libseccomp";
#endif
}
Result<void> enter_sandbox() { return {}; }

}  // namespace shmb::daemon

#endif
