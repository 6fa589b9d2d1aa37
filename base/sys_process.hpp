// SPDX-License-Identifier: Apache-2.0
// System calls on processes and on the small objects an event loop needs.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace shmb::sys {

Sys<Fd> pidfd_open(pid_t pid);
Sys<void> pidfd_signal(int pidfd, int signal);
struct ExitInfo {
  bool killed = false;  // by a signal
  int code = 0;         // exit status or signal number
  bool core = false;
};
// PIDFD_GET_INFO with PIDFD_INFO_EXIT (6.15), also for processes that are no children. EAGAIN while the process lives
// and until its parent has reaped it (the kernel records the end only then); EINVAL or ENOTTY where unknown.
Sys<ExitInfo> pidfd_exit_info(int pidfd);
// The same from /proc, on any kernel, for a process that has ended (its pidfd is readable) and that its parent has not
// reaped yet. EAGAIN: it was reaped. EACCES: this user may not read it in /proc.
Sys<ExitInfo> proc_exit_info(int pidfd);
Sys<ExitInfo> how_it_ended(int pidfd);         // from the one of the two that knows
Sys<pid_t> pidfd_pid(int pidfd);               // Pid: of /proc/self/fdinfo; -1 after exit
Sys<std::uint64_t> process_start_time(pid_t);  // field 22 of /proc/PID/stat (0: self), clock ticks since boot

struct ChildExit {
  pid_t pid = 0;
  ExitInfo how;
  std::int64_t user_ns = 0, system_ns = 0;  // of it and of its children that it waited for
  std::uint64_t max_rss = 0;                // bytes
};
Sys<std::optional<ChildExit>> wait_any(bool block);  // waitpid(-1); nullopt: none has ended
Sys<std::optional<ChildExit>> wait_pid(pid_t pid, bool block, bool clone_child);  // clone_child: __WCLONE
Sys<void> reap_pidfd(int pidfd);                                                  // waits for the end of this child
Sys<void> close_range(unsigned first, unsigned last);
Sys<void> set_subreaper(bool on);
Sys<void> set_parent_death_signal(int signal);
Sys<void> set_dumpable(bool on);
Sys<void> set_no_new_privileges();

Sys<Fd> event_fd();  // EFD_CLOEXEC | EFD_NONBLOCK
// Not behind the fault seam: they fail only through a bug of the caller, and a lost wake would go unnoticed.
void event_signal(int fd);  // any thread
void event_drain(int fd);
Sys<Fd> epoll();
Sys<void> epoll_watch(int epoll, int fd);         // EPOLLIN, with the descriptor as the event's data
void epoll_forget(int epoll, int fd);             // no effect if it is not in the set
Sys<Fd> signal_fd(std::span<const int> signals);  // blocks them in the calling thread
Sys<int> next_signal(int signal_fd);              // EAGAIN: none has come
Sys<void> random_bytes(std::span<std::byte> out);
Sys<bool> poll_readable(int fd, std::int64_t timeout_ns);            // false: deadline; -1: for ever
Sys<short> poll_for(int fd, short events, std::int64_t timeout_ns);  // what poll(2) reports, 0: deadline
Sys<Fd> open(const char* path, int flags, unsigned mode = 0);
Sys<std::string> read_file(const char* path, std::size_t limit = 1 << 20);
Sys<void> write_all(int fd, std::span<const std::byte> data);

struct FdLimit {
  std::uint64_t soft = 0, hard = 0;
};
Sys<FdLimit> descriptor_limit();
Sys<void> set_descriptor_limit(FdLimit limit);
std::uint64_t mappings_limit();  // vm.max_map_count of one process; the kernel's default where it cannot be read

std::int64_t now_boottime();  // CLOCK_BOOTTIME, nanoseconds
std::int64_t now_monotonic();
void rest(std::int64_t nanoseconds);  // a signal ends it early: callers that poll check again

}  // namespace shmb::sys
