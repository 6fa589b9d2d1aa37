// SPDX-License-Identifier: Apache-2.0
// The test seam, compiled only with SHMB_TEST_SEAM. Every wrapper in base/sys_*.cpp asks `fault::fails(Call::x)` first.
// In the shipped build that is the constant 0, and the branch disappears. Function calls steer it and, in the
// uninstalled `shmbrokerd-testseam`, the option --seam. No environment variable does, because the broker is privileged;
// base/rescue.hpp is the only exception.
#pragma once

#ifdef SHMB_BOTH_FLAVOURS
#error "compiled once for the broker with and without the seam: daemon/meson.build names the files that are not"
#endif

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace shmb::fault {

// One name per wrapped system call.
// clang-format off
#define SHMB_CALLS(X) \
  X(memfd_create) X(ftruncate) X(fchmod) X(fstat) X(add_seals) X(get_seals) X(reopen) X(mmap) X(munmap) X(mremap) \
  X(madvise) X(socket) X(bind) X(listen) X(connect) X(accept) X(send) X(receive) X(getsockopt) X(setsockopt) X(outq) \
  X(pidfd_open) X(peer_pidfd) X(pidfd_info) X(clone) X(wait) X(kill) X(close_range) X(dup) X(epoll) X(timerfd) \
  X(eventfd) X(io_uring_setup) X(io_uring_enter) X(open) X(read) X(write) X(getrandom) X(poll) X(prctl) X(signalfd) \
  X(rlimit) X(fallocate) X(shutdown) X(futex) X(stat) X(mkdir) X(chmod) X(chown) X(unlink) X(flock) X(access) X(pipe) \
  X(kcmp) X(readlink) X(getdents) X(rename) X(lease) X(shmctl) X(setns) X(mbind)
// clang-format on

enum class Call {
#define X(name) name,
  SHMB_CALLS(X)
#undef X
};

#ifdef SHMB_TEST_SEAM
int fails(Call call);  // the errno to report instead of making the call, or 0
void inject(Call call, int err, int first = 1,
            int times = 1);  // the first-th call from now fails, and `times` in all (-1: for ever)
void clear();
long count(Call call);                       // calls since clear()
void pretend_kernel(int major, int minor);   // 0, 0: the real one
bool pretends_before(int major, int minor);  // the wrappers then answer as that kernel would
int pretended();                             // major * 1000 + minor, 0: the real one
std::string gpu_root();                      // where the fake GPU driver's files are; empty: no driver
// "pretend_kernel=5.15;fail=memfd_create:EMFILE:3;fail=accept:EMFILE:1:-1;gpu=/tmp/nodes"
Result<void> configure(std::string_view text);
#else
inline constexpr int fails(Call) { return 0; }
inline constexpr bool pretends_before(int, int) { return false; }
inline constexpr int pretended() { return 0; }
#endif

}  // namespace shmb::fault
