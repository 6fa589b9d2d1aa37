// SPDX-License-Identifier: Apache-2.0
// Each feature is probed with the call that will need it; a version number is only reported. Distributions backport
// features, and seccomp profiles remove what the version promises.
#include "base/kernel.hpp"

#include <linux/io_uring.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

#include "base/compat.hpp"
#include "base/fault.hpp"
#include "base/fd.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"

namespace shmb {

namespace {

KernelVersion version_of(std::string_view release) {
  KernelVersion version;
  const char* end = release.data() + release.size();
  const auto after = std::from_chars(release.data(), end, version.major).ptr;
  if (after != end && *after == '.') std::from_chars(after + 1, end, version.minor);
  return version;
}

bool has_exec_seal() {
  if (fault::pretends_before(6, 3)) return false;
  return static_cast<bool>(Fd::adopt(::memfd_create("shmb-probe", MFD_CLOEXEC | MFD_NOEXEC_SEAL)));
}

struct SocketFeatures {
  bool peer_pidfd = false, pass_rights = false;
};

SocketFeatures probe_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return {};
  const Fd left = Fd::adopt(ends[0]), right = Fd::adopt(ends[1]);
  SocketFeatures found;
  int value = -1;
  socklen_t size = sizeof value;
  if (!fault::pretends_before(6, 5) && ::getsockopt(ends[0], SOL_SOCKET, SO_PEERPIDFD, &value, &size) == 0) {
    const Fd pidfd = Fd::adopt(value);
    found.peer_pidfd = true;
  }
  size = sizeof value;
  found.pass_rights =
      !fault::pretends_before(6, 16) && ::getsockopt(ends[0], SOL_SOCKET, SO_PASSRIGHTS, &value, &size) == 0;
  return found;
}

// 6.13 and 6.14 accept the ioctl but give no exit status, and a living process has none. Only an ended one shows the
// difference. Exit signal 0 hides that child from wait(-1) of the host program.
bool has_exit_info() {
  auto self = sys::pidfd_open(::getpid());
  if (!self) return false;
  if (auto told = sys::pidfd_exit_info(self->get()); !told && told.error().value != EAGAIN) return false;
  int number = -1;
#if defined(__x86_64__) || defined(__aarch64__)
  const long child = ::syscall(SYS_clone, CLONE_PIDFD, nullptr, &number, nullptr, nullptr);
#else
#error "the order of clone(2)'s arguments differs between architectures: add yours"
#endif
  if (child == 0) {
    ::syscall(SYS_exit_group, 7);
    __builtin_unreachable();
  }
  if (child < 0) return false;
  const Fd pidfd = Fd::adopt(number);
  if (!sys::wait_pid(static_cast<pid_t>(child), true, true)) return false;
  const auto told = sys::pidfd_exit_info(pidfd.get());
  return told && !told->killed && told->code == 7;
}

bool knows_advice(int advice) { return sys::madvise(nullptr, 0, advice).has_value(); }  // madvise(2): length 0 probes

// The engine's needs: a cheap ring (a plain one is slower than epoll) and these operations.
std::string why_no_io_uring() {
  if (const int failure = fault::fails(fault::Call::io_uring_setup)) return "io_uring_setup: " + errno_text(failure);
  if (fault::pretends_before(6, 0)) return "IORING_SETUP_SINGLE_ISSUER and multishot receive need Linux 6.0";
  io_uring_params parameters{};
  parameters.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN;
  const Fd ring = Fd::adopt(static_cast<int>(::syscall(SYS_io_uring_setup, 8U, &parameters)));
  if (!ring) {
    switch (const int failure = errno) {
      case EINVAL:
        return "IORING_SETUP_SINGLE_ISSUER needs Linux 6.0";
      case ENOSYS:
        return "this kernel has no io_uring, or a seccomp profile hides it";
      case EPERM:
      case EACCES:
        return "io_uring is forbidden here (seccomp profile, or sysctl kernel.io_uring_disabled)";
      default:
        return "io_uring_setup: " + errno_text(failure);
    }
  }
  constexpr unsigned kOps = 256;
  alignas(io_uring_probe) unsigned char area[sizeof(io_uring_probe) + kOps * sizeof(io_uring_probe_op)] = {};
  if (::syscall(SYS_io_uring_register, ring.get(), IORING_REGISTER_PROBE, area, kOps) != 0)
    return "io_uring_register: " + errno_text(errno);
  auto* probe = reinterpret_cast<io_uring_probe*>(area);
  const auto* ops = reinterpret_cast<const io_uring_probe_op*>(area + sizeof(io_uring_probe));
  struct Needed {
    unsigned op;
    const char* name;
  };
  for (const Needed& needed :
       {Needed{IORING_OP_ACCEPT, "accept"}, Needed{IORING_OP_RECVMSG, "recvmsg"}, Needed{IORING_OP_SENDMSG, "sendmsg"},
        Needed{IORING_OP_POLL_ADD, "poll"}, Needed{IORING_OP_ASYNC_CANCEL, "cancel"}, Needed{IORING_OP_READ, "read"},
        Needed{IORING_OP_TIMEOUT, "timeout"}}) {
    if (needed.op > probe->last_op || (ops[needed.op].flags & IO_URING_OP_SUPPORTED) == 0)
      return std::string("io_uring here lacks the operation ") + needed.name;
  }
  return {};
}

bool proc_shows_ourselves() {
  char target[32];
  const ssize_t size = ::readlink("/proc/self", target, sizeof target);
  if (size <= 0) return false;
  return std::string_view(target, static_cast<std::size_t>(size)) == std::to_string(::getpid());
}

void name_losses(KernelFeatures& found) {
  const auto lost = [&](bool has, const char* sentence) {
    if (!has) found.losses.emplace_back(sentence);
  };
  lost(found.exec_seal, "MFD_NOEXEC_SEAL needs Linux 6.3: region memory can be made executable by who holds it");
  lost(found.peer_pidfd,
       "SO_PEERPIDFD needs Linux 6.5: clients are identified by process number, start time and open connection");
  lost(found.pidfd_open, "pidfd_open is missing or hidden: a client's death is seen by its closed connection only");
  lost(found.pass_rights,
       "SO_PASSRIGHTS needs Linux 6.16: descriptors that clients send unasked arrive and are closed at once");
  lost(found.exit_info, "PIDFD_INFO_EXIT needs Linux 6.15: reclaim reports do not say how a client ended");
  lost(found.collapse, "MADV_COLLAPSE needs Linux 6.1: regions use huge pages only where shmem_enabled allows them");
  lost(found.populate, "MADV_POPULATE_WRITE needs Linux 5.14: region memory appears at first touch");
  if (!found.io_uring) found.losses.push_back("io_uring is not used: " + found.io_uring_reason);
  lost(found.proc, "/proc is not mounted or shows another PID namespace: read-only reopening is not possible");
}

}  // namespace

KernelFeatures probe_kernel() {
  KernelFeatures found;
  utsname name{};
  ::uname(&name);
  found.release = name.release;
  found.version = version_of(found.release);
  if (const int pretended = fault::pretended()) {
    found.version = {pretended / 1000, pretended % 1000};
    found.release += " pretending " + std::to_string(found.version.major) + "." + std::to_string(found.version.minor);
  }
  found.exec_seal = has_exec_seal();
  const SocketFeatures sockets = probe_sockets();
  found.peer_pidfd = sockets.peer_pidfd;
  found.pass_rights = sockets.pass_rights;
  found.pidfd_open = sys::pidfd_open(::getpid()).has_value();
  found.exit_info = has_exit_info();
  found.collapse = knows_advice(MADV_COLLAPSE);
  found.populate = knows_advice(MADV_POPULATE_READ) && knows_advice(MADV_POPULATE_WRITE);
  found.io_uring_reason = why_no_io_uring();
  found.io_uring = found.io_uring_reason.empty();
  found.proc = proc_shows_ourselves();
  name_losses(found);
  return found;
}

const KernelFeatures& kernel() {
  static std::mutex lock;
  // By pretended version: references that were given out stay valid when a test pretends another kernel.
  static std::map<int, std::unique_ptr<const KernelFeatures>> known;
  std::lock_guard guard(lock);
  auto& found = known[fault::pretended()];
  if (!found) found = std::make_unique<const KernelFeatures>(probe_kernel());
  return *found;
}

}  // namespace shmb
