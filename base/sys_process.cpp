// SPDX-License-Identifier: Apache-2.0
// Processes, their ends, and the small descriptors of an event loop. A process is identified by pidfd wherever the
// kernel can, because pids are reused.
#include "base/sys_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <ctime>
#include <string_view>

#include "base/compat.hpp"
#include "base/result.hpp"
#include "base/sys_call.hpp"
#include "base/sys_epoll.hpp"

namespace shmb::sys {

using fault::Call;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kMappingsByDefault = 65'530;

ExitInfo exit_info(int status) {
  if (WIFSIGNALED(status)) return {true, WTERMSIG(status), WCOREDUMP(status) != 0};
  return {false, WEXITSTATUS(status), false};
}

Sys<void> process_control(int option, unsigned long argument) {
  return call_void(Call::prctl, [&] { return ::prctl(option, argument, 0UL, 0UL, 0UL); });
}

Sys<std::optional<ChildExit>> wait_for(pid_t pid, int flags) {
  int status = 0;
  rusage used{};
  SHMB_TRY(ended, call(Call::wait, [&] { return ::wait4(pid, &status, flags, &used); }));
  if (ended == 0) return std::nullopt;
  const auto time = [](const timeval& value) { return value.tv_sec * kSecond + value.tv_usec * std::int64_t{1000}; };
  return ChildExit{ended, exit_info(status), time(used.ru_utime), time(used.ru_stime),
                   static_cast<std::uint64_t>(used.ru_maxrss) * 1024};
}

std::int64_t clock_now(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * kSecond + now.tv_nsec;
}

// The number at the start of `text`, blanks skipped.
template <class N>
Sys<N> leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  N value{};
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return sys_error(EPROTO);
  return value;
}

}  // namespace

Sys<Fd> pidfd_open(pid_t pid) {
  return call_fd(Call::pidfd_open, [&] { return ::syscall(SYS_pidfd_open, pid, 0U); });
}

Sys<void> pidfd_signal(int pidfd, int signal) {
  return call_void(Call::kill, [&] { return ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0U); });
}

Sys<ExitInfo> pidfd_exit_info(int pidfd) {
  if (fault::pretends_before(6, 13)) return sys_error(ENOTTY);
  if (fault::pretends_before(6, 15)) return sys_error(EINVAL);
  compat::PidfdInfo info{};
  SHMB_TRY_VOID(call(Call::pidfd_info, [&] {
    info = {};
    info.mask = compat::kPidfdInfoExit;
    return ::ioctl(pidfd, compat::kPidfdGetInfo, &info);
  }));
  if ((info.mask & compat::kPidfdInfoExit) == 0) return sys_error(EAGAIN);
  return exit_info(info.exit_code);
}

Sys<ExitInfo> proc_exit_info(int pidfd) {
  SHMB_TRY(ended, poll_readable(pidfd, 0));
  // A thread group's first thread may be over while others go on.
  if (!ended) return sys_error(EAGAIN);
  SHMB_TRY(pid, pidfd_pid(pidfd));
  const std::string folder = "/proc/" + std::to_string(pid);
  auto text = read_file((folder + "/stat").c_str());
  // It was reaped meanwhile: the pid, and what was read, may belong to another process.
  if (auto still = pidfd_pid(pidfd); !text || pid <= 0 || !still || *still != pid) return sys_error(EAGAIN);
  std::size_t at = text->rfind(')');  // as below
  const bool zombie = at != std::string::npos && text->compare(at + 1, 2, " Z") == 0;
  for (int field = 2; field < 52 && at != std::string::npos; ++field) at = text->find(' ', at + 1);
  if (!zombie || at == std::string::npos) return sys_error(EAGAIN);
  SHMB_TRY(status, leading_number<int>(std::string_view(*text).substr(at)));
  // The kernel returns 0 to a user that may not inspect the process. A link with the same check tells the cases apart.
  char link[64];
  if (status == 0 && ::readlink((folder + "/ns/user").c_str(), link, sizeof link) < 0) return sys_error(EACCES);
  return exit_info(status);
}

Sys<ExitInfo> how_it_ended(int pidfd) {
  auto told = pidfd_exit_info(pidfd);
  return told ? told : proc_exit_info(pidfd);
}

Sys<pid_t> pidfd_pid(int pidfd) {
  SHMB_TRY(text, read_file(("/proc/self/fdinfo/" + std::to_string(pidfd)).c_str()));
  const std::size_t line = text.find("\nPid:");
  if (line == std::string::npos) return sys_error(EBADF);
  return leading_number<pid_t>(std::string_view(text).substr(line + 5));
}

Sys<std::uint64_t> process_start_time(pid_t pid) {
  const std::string who = pid == 0 ? "self" : std::to_string(pid);
  SHMB_TRY(text, read_file(("/proc/" + who + "/stat").c_str()));
  // Field 2 is the command in brackets and may itself hold brackets and blanks: count from the last one.
  std::size_t at = text.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  if (at == std::string::npos) return sys_error(EPROTO);
  return leading_number<std::uint64_t>(std::string_view(text).substr(at));
}

Sys<std::optional<ChildExit>> wait_any(bool block) { return wait_for(-1, block ? 0 : WNOHANG); }

Sys<std::optional<ChildExit>> wait_pid(pid_t pid, bool block, bool clone_child) {
  return wait_for(pid, (block ? 0 : WNOHANG) | (clone_child ? __WCLONE : 0));
}

Sys<void> reap_pidfd(int pidfd) {
  siginfo_t ended{};
  return call_void(Call::wait, [&] { return ::waitid(P_PIDFD, static_cast<id_t>(pidfd), &ended, WEXITED); });
}

Sys<void> close_range(unsigned first, unsigned last) {
  return call_void(Call::close_range, [&] { return ::syscall(SYS_close_range, first, last, 0U); });
}

Sys<void> set_subreaper(bool on) { return process_control(PR_SET_CHILD_SUBREAPER, on ? 1 : 0); }
Sys<void> set_parent_death_signal(int signal) {
  return process_control(PR_SET_PDEATHSIG, static_cast<unsigned long>(signal));
}
Sys<void> set_dumpable(bool on) { return process_control(PR_SET_DUMPABLE, on ? 1 : 0); }
Sys<void> set_no_new_privileges() { return process_control(PR_SET_NO_NEW_PRIVS, 1); }

Sys<Fd> event_fd() {
  return call_fd(Call::eventfd, [] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
}

void event_signal(int fd) { (void)::eventfd_write(fd, 1); }

void event_drain(int fd) {
  eventfd_t count = 0;
  (void)::eventfd_read(fd, &count);
}

Sys<Fd> epoll() {
  return call_fd(Call::epoll, [] { return ::epoll_create1(EPOLL_CLOEXEC); });
}

Sys<void> epoll_watch(int epoll, int fd) {
  epoll_event watched{};
  watched.events = EPOLLIN;
  watched.data.fd = fd;
  return call_void(Call::epoll, [&] { return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &watched); });
}

void epoll_forget(int epoll, int fd) { (void)::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, nullptr); }

Sys<Fd> signal_fd(std::span<const int> signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal : signals) ::sigaddset(&set, signal);
  if (const int failure = ::pthread_sigmask(SIG_BLOCK, &set, nullptr)) return sys_error(failure);
  return call_fd(Call::signalfd, [&] { return ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK); });
}

Sys<int> next_signal(int signal_fd) {
  signalfd_siginfo came{};
  SHMB_TRY_VOID(call(Call::read, [&] { return ::read(signal_fd, &came, sizeof came); }));
  return static_cast<int>(came.ssi_signo);
}

Sys<void> random_bytes(std::span<std::byte> out) {
  while (!out.empty()) {
    SHMB_TRY(got, call(Call::getrandom, [&] { return ::getrandom(out.data(), out.size(), 0); }));
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

Sys<short> poll_for(int fd, short events, std::int64_t timeout_ns) {
  pollfd watched{fd, events, 0};
  SHMB_TRY(ready, poll_all({&watched, 1}, timeout_ns));
  // poll(2) would report this repeatedly, and no caller that waits for `fd` expects it.
  if ((watched.revents & POLLNVAL) != 0) return sys_error(EBADF);
  return ready > 0 ? watched.revents : short{0};
}

Sys<bool> poll_readable(int fd, std::int64_t timeout_ns) {
  SHMB_TRY(ready, poll_for(fd, POLLIN, timeout_ns));
  return ready != 0;
}

Sys<Fd> open(const char* path, int flags, unsigned mode) {
  return call_fd(Call::open, [&] { return ::open(path, flags | O_CLOEXEC, static_cast<mode_t>(mode)); });
}

Sys<std::string> read_file(const char* path, std::size_t limit) {
  SHMB_TRY(file, open(path, O_RDONLY | O_NOCTTY));
  std::string text;
  for (;;) {
    char chunk[4096];
    SHMB_TRY(got, call(Call::read, [&] { return ::read(file.get(), chunk, sizeof chunk); }));
    if (got == 0) return text;
    text.append(chunk, static_cast<std::size_t>(got));
    if (text.size() > limit) return sys_error(EFBIG);
  }
}

Sys<void> write_all(int fd, std::span<const std::byte> data) {
  while (!data.empty()) {
    SHMB_TRY(put, call(Call::write, [&] { return ::write(fd, data.data(), data.size()); }));
    data = data.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

Sys<FdLimit> descriptor_limit() {
  rlimit limit{};
  SHMB_TRY_VOID(call(Call::rlimit, [&] { return ::getrlimit(RLIMIT_NOFILE, &limit); }));
  return FdLimit{limit.rlim_cur, limit.rlim_max};
}

Sys<void> set_descriptor_limit(FdLimit limit) {
  const rlimit wanted{limit.soft, limit.hard};
  return call_void(Call::rlimit, [&] { return ::setrlimit(RLIMIT_NOFILE, &wanted); });
}

std::uint64_t mappings_limit() {
  std::uint64_t limit = 0;
  if (auto text = read_file("/proc/sys/vm/max_map_count"))
    std::from_chars(text->data(), text->data() + text->size(), limit);
  return limit != 0 ? limit : kMappingsByDefault;
}

std::int64_t now_boottime() { return clock_now(CLOCK_BOOTTIME); }
std::int64_t now_monotonic() { return clock_now(CLOCK_MONOTONIC); }

void rest(std::int64_t nanoseconds) {
  const timespec time{static_cast<time_t>(nanoseconds / kSecond), static_cast<long>(nanoseconds % kSecond)};
  if (::nanosleep(&time, nullptr) != 0 && errno == EINTR) (void)interrupt::note();
}

}  // namespace shmb::sys
