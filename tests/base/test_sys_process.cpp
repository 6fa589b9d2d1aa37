// SPDX-License-Identifier: Apache-2.0
// Processes by pidfd, how they ended, deadlines, and the small descriptors of an event loop.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/kernel.hpp"
#include "base/sys_process.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/emulator.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/temp_dir.hpp"

using harness::Child;
using shmb::Fd;
using shmb::fault::Call;
namespace sys = shmb::sys;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

int sleep_for_ever() {
  for (;;) ::pause();
}

// A child of our own making, because Child reaps by itself.
pid_t fork_exiting(int status) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(status);
  return pid;
}

}  // namespace

TEST_CASE("a pidfd tells its process, becomes readable at its death and forgets the number") {
  auto child = Child::run(sleep_for_ever);
  auto pidfd = sys::pidfd_open(child.pid());
  REQUIRE(pidfd);
  CHECK(sys::pidfd_pid(pidfd->get()).value() == child.pid());
  CHECK_FALSE(sys::poll_readable(pidfd->get(), 0).value());
  REQUIRE(sys::pidfd_signal(pidfd->get(), SIGKILL));
  CHECK(sys::poll_readable(pidfd->get(), 30 * kSecond).value());
  CHECK(child.wait() == 128 + SIGKILL);
  CHECK(sys::pidfd_pid(pidfd->get()).value() == -1);
  CHECK(sys::pidfd_signal(pidfd->get(), 0).error().value == ESRCH);
  CHECK(sys::pidfd_open(child.pid()).error().value == ESRCH);
}

TEST_CASE("a descriptor that is no pidfd has no process") {
  auto file = sys::event_fd();
  REQUIRE(file);
  CHECK(sys::pidfd_pid(file->get()).error().value == EBADF);
  CHECK_FALSE(sys::pidfd_pid(-1));
}

TEST_CASE("a pidfd tells how its process ended, once it has been reaped") {
  if (!shmb::kernel().exit_info) SKIP_CASE("PIDFD_INFO_EXIT needs Linux 6.15");
  auto exits = Child::run([] { return 42; });
  REQUIRE(exits.wait() == 42);
  auto how = sys::pidfd_exit_info(exits.pidfd());
  REQUIRE(how);
  CHECK_FALSE(how->killed);
  CHECK(how->code == 42);

  auto killed = Child::run(sleep_for_ever);
  CHECK(sys::pidfd_exit_info(killed.pidfd()).error().value == EAGAIN);
  killed.kill(SIGKILL);
  REQUIRE(killed.wait() == 128 + SIGKILL);
  how = sys::pidfd_exit_info(killed.pidfd());
  REQUIRE(how);
  CHECK(how->killed);
  CHECK(how->code == SIGKILL);
}

TEST_CASE("the pidfd of a dead process does not give the exit status before it is reaped") {
  if (!shmb::kernel().exit_info) SKIP_CASE("PIDFD_INFO_EXIT needs Linux 6.15");
  const pid_t pid = fork_exiting(4);
  auto pidfd = sys::pidfd_open(pid);
  REQUIRE(pidfd);
  REQUIRE(sys::poll_readable(pidfd->get(), 30 * kSecond).value());
  CHECK(sys::pidfd_exit_info(pidfd->get()).error().value == EAGAIN);
  REQUIRE(sys::wait_pid(pid, true, false));
  CHECK(sys::pidfd_exit_info(pidfd->get()).value().code == 4);
}

TEST_CASE("/proc shows how a process ended until it is reaped, and not after that") {
  auto exits = Child::run([] { return 3; });
  auto killed = Child::run([] { return ::pause(); });
  CHECK(sys::proc_exit_info(killed.pidfd()).error().value == EAGAIN);  // it lives
  ::kill(killed.pid(), SIGKILL);
  auto fine = Child::run([] { return 0; });
  for (const Child* each : {&exits, &killed, &fine}) REQUIRE(sys::poll_readable(each->pidfd(), 20'000'000'000).value());
  for (auto* look : {&sys::proc_exit_info, &sys::how_it_ended}) {
    auto how = look(exits.pidfd());
    REQUIRE(how);
    CHECK_FALSE(how->killed);
    CHECK(how->code == 3);
    how = look(killed.pidfd());
    REQUIRE(how);
    CHECK(how->killed);
    CHECK(how->code == SIGKILL);
    how = look(fine.pidfd());
    REQUIRE(how);
    CHECK_FALSE(how->killed);
    CHECK(how->code == 0);
  }
  // To who may not look at a process the kernel says 0, which is no answer. The process then seems to have succeeded.
  if (::geteuid() == 0) {
    auto other = Child::run([&] {
      if (::setresgid(12345, 12345, 12345) != 0 || ::setresuid(12345, 12345, 12345) != 0) return 1;
      const auto how = sys::proc_exit_info(exits.pidfd());
      return !how && how.error().value == EACCES ? 0 : 2;
    });
    CHECK(other.wait() == 0);
  }
  CHECK(exits.wait() == 3);
  CHECK(sys::proc_exit_info(exits.pidfd()).error().value == EAGAIN);
  (void)killed.wait();
  (void)fine.wait();
}

// The kernel gives a pid to another process once the first has been reaped, and /proc then shows that one.
TEST_CASE("the end that /proc tells is believed only if the process has still its number afterwards") {
  auto exits = Child::run([] { return 3; });
  REQUIRE(sys::poll_readable(exits.pidfd(), 20'000'000'000).value());
  {
    const harness::Injected second_look(Call::open, EMFILE, 3);  // after the first one, and after /proc/PID/stat
    CHECK(sys::proc_exit_info(exits.pidfd()).error().value == EAGAIN);
  }
  CHECK(sys::proc_exit_info(exits.pidfd()).value().code == 3);
  CHECK(exits.wait() == 3);
}

TEST_CASE("the start time of a process identifies it beside its number") {
  const auto mine = sys::process_start_time(0);
  REQUIRE(mine);
  CHECK(*mine == sys::process_start_time(::getpid()).value());
  auto child = Child::run([] {
    ::prctl(PR_SET_NAME, ") 1 (x) R");  // brackets and blanks in the name must not shift the fields
    return sys::process_start_time(0) == sys::process_start_time(::getpid()) && *sys::process_start_time(0) > 1000 ? 0
                                                                                                                   : 1;
  });
  const auto started = sys::process_start_time(child.pid());
  REQUIRE(started);
  CHECK(*started >= *mine);
  CHECK(child.wait() == 0);
  CHECK(sys::process_start_time(child.pid()).error().value == ENOENT);
}

TEST_CASE("waiting for any child tells none, running and ended apart") {
  CHECK(sys::wait_any(false).error().value == ECHILD);
  const pid_t pid = fork_exiting(9);
  auto ended = sys::wait_any(true);
  REQUIRE(ended);
  REQUIRE(*ended);
  CHECK((*ended)->pid == pid);
  CHECK((*ended)->how.code == 9);
  CHECK_FALSE((*ended)->how.killed);
  auto running = Child::run(sleep_for_ever);
  const auto none = sys::wait_any(false);
  REQUIRE(none);
  CHECK_FALSE(*none);
}

TEST_CASE("a child without exit signal is found only when asked for as a clone child") {
  if (harness::emulated()) SKIP_CASE("the emulator has no clone without an exit signal");
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone, 0, nullptr, nullptr, nullptr, nullptr));
  if (pid == 0) ::_exit(3);
  REQUIRE(pid > 0);
  CHECK(sys::wait_any(false).error().value == ECHILD);
  CHECK(sys::wait_pid(pid, true, false).error().value == ECHILD);
  auto ended = sys::wait_pid(pid, true, true);
  REQUIRE(ended);
  REQUIRE(*ended);
  CHECK((*ended)->how.code == 3);
}

TEST_CASE("close_range closes exactly its range") {
  auto child = Child::run([] {
    if (::dup2(0, 200) < 0 || ::dup2(0, 201) < 0 || ::dup2(0, 202) < 0) return 1;
    if (!sys::close_range(201, 201)) return 2;
    const auto open = [](int fd) { return ::fcntl(fd, F_GETFD) >= 0; };
    if (!open(200) || open(201) || !open(202)) return 3;
    return sys::close_range(5, 3).error().value == EINVAL ? 0 : 4;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("the process attributes are set as the kernel reads them back") {
  if (harness::emulated()) SKIP_CASE("the emulator does not pass on PR_SET_CHILD_SUBREAPER");
  auto child = Child::run([] {
    int value = 0;
    if (!sys::set_subreaper(true) || ::prctl(PR_GET_CHILD_SUBREAPER, &value) != 0 || value != 1) return 1;
    if (!sys::set_subreaper(false) || ::prctl(PR_GET_CHILD_SUBREAPER, &value) != 0 || value != 0) return 2;
    if (!sys::set_parent_death_signal(SIGTERM) || ::prctl(PR_GET_PDEATHSIG, &value) != 0 || value != SIGTERM) return 3;
    if (!sys::set_dumpable(false) || ::prctl(PR_GET_DUMPABLE) != 0) return 4;
    if (!sys::set_no_new_privileges() || ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) return 5;
    return sys::set_parent_death_signal(4711).error().value == EINVAL ? 0 : 6;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("polling ends at its deadline, also when signals interrupt it") {
  auto event = sys::event_fd();
  REQUIRE(event);
  CHECK_FALSE(sys::poll_readable(event->get(), 0).value());
  const std::int64_t before = sys::now_monotonic();
  const harness::Injected interrupted(Call::poll, EINTR, 1, 3);
  CHECK_FALSE(sys::poll_readable(event->get(), 20'000'000).value());
  CHECK(sys::now_monotonic() - before >= 20'000'000);
  const std::uint64_t one = 1;
  REQUIRE(sys::write_all(event->get(), std::as_bytes(std::span(&one, 1))));
  CHECK(sys::poll_readable(event->get(), -1).value());
  CHECK(sys::poll_readable(event->get(), INT64_MAX).value());
  CHECK(sys::poll_for(event->get(), POLLOUT, -1).value() == POLLOUT);
}

TEST_CASE("an event is closed at exec, and neither a drain in vain nor one signal too many waits") {
  auto event = sys::event_fd();
  REQUIRE(event);
  CHECK((::fcntl(event->get(), F_GETFD) & FD_CLOEXEC) != 0);
  REQUIRE((::fcntl(event->get(), F_GETFL) & O_NONBLOCK) != 0);  // else this case would hang
  sys::event_drain(event->get());
  const std::uint64_t most = UINT64_MAX - 1;
  REQUIRE(sys::write_all(event->get(), std::as_bytes(std::span(&most, 1))));
  sys::event_signal(event->get());
  CHECK(sys::poll_readable(event->get(), 0).value());
  sys::event_drain(event->get());
  CHECK_FALSE(sys::poll_readable(event->get(), 0).value());
}

TEST_CASE("a signal descriptor receives what would have been delivered") {
  auto child = Child::run([] {
    const int signals[] = {SIGTERM, SIGUSR1};
    auto fd = sys::signal_fd(signals);
    if (!fd || sys::poll_readable(fd->get(), 0).value()) return 1;
    ::raise(SIGUSR1);
    if (!sys::poll_readable(fd->get(), kSecond).value()) return 2;
    std::uint32_t number = 0;
    char info[128];
    if (::read(fd->get(), info, sizeof info) != sizeof info) return 3;
    std::memcpy(&number, info, sizeof number);
    return number == SIGUSR1 ? 0 : 4;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("random bytes fill the whole span and differ") {
  std::array<std::byte, 512> first{}, second{};
  REQUIRE(sys::random_bytes(first));
  REQUIRE(sys::random_bytes(second));
  CHECK(first != second);
  CHECK(std::memcmp(first.data() + 480, std::array<std::byte, 32>{}.data(), 32) != 0);
  CHECK(sys::random_bytes({}));
}

TEST_CASE("files are read whole up to a limit, and written whole") {
  const harness::TempDir folder;
  const std::string path = folder.file("data"), text(10'000, 'x');
  {
    auto file = sys::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0640);
    REQUIRE(file);
    CHECK((::fcntl(file->get(), F_GETFD) & FD_CLOEXEC) != 0);
    REQUIRE(sys::write_all(file->get(), std::as_bytes(std::span(text))));
  }
  CHECK(sys::read_file(path.c_str()).value() == text);
  CHECK(sys::read_file(path.c_str(), 10'000).value() == text);
  CHECK(sys::read_file(path.c_str(), 9'999).error().value == EFBIG);
  CHECK(sys::read_file(folder.file("none").c_str()).error().value == ENOENT);
  CHECK(sys::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0640).error().value == EEXIST);
  const harness::Injected full(Call::write, ENOSPC);
  auto file = sys::open(path.c_str(), O_WRONLY);
  REQUIRE(file);
  CHECK(sys::write_all(file->get(), std::as_bytes(std::span(text))).error().value == ENOSPC);
}

TEST_CASE("the descriptor limit is read and lowered") {
  auto child = Child::run([] {
    auto limit = sys::descriptor_limit();
    if (!limit || limit->soft > limit->hard) return 1;
    if (!sys::set_descriptor_limit({64, limit->hard})) return 2;
    auto lowered = sys::descriptor_limit();
    if (!lowered || lowered->soft != 64 || lowered->hard != limit->hard) return 3;
    return sys::set_descriptor_limit({65, 64}).error().value == EINVAL ? 0 : 4;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("the clocks run, and boot time is not behind the monotonic one") {
  const std::int64_t monotonic = sys::now_monotonic(), boot = sys::now_boottime();
  CHECK(monotonic > 0);
  CHECK(boot >= monotonic);
  CHECK(sys::now_monotonic() >= monotonic);
}

TEST_CASE("every process call can be made to fail") {
  auto self = sys::pidfd_open(::getpid());
  REQUIRE(self);
  struct Probe {
    Call call;
    bool (*works)(int);
  };
  for (const Probe& probe : {Probe{Call::pidfd_open, [](int) { return sys::pidfd_open(::getpid()).has_value(); }},
                             Probe{Call::kill, [](int f) { return sys::pidfd_signal(f, 0).has_value(); }},
                             Probe{Call::open, [](int f) { return sys::pidfd_pid(f).has_value(); }},
                             Probe{Call::read, [](int) { return sys::process_start_time(0).has_value(); }},
                             Probe{Call::prctl, [](int) { return sys::set_subreaper(false).has_value(); }},
                             Probe{Call::eventfd, [](int) { return sys::event_fd().has_value(); }},
                             Probe{Call::epoll, [](int) { return sys::epoll().has_value(); }},
                             Probe{Call::signalfd, [](int) { return sys::signal_fd({}).has_value(); }},
                             Probe{Call::getrandom,
                                   [](int) {
                                     std::byte bytes[8];
                                     return sys::random_bytes(bytes).has_value();
                                   }},
                             Probe{Call::poll, [](int f) { return sys::poll_readable(f, 0).has_value(); }},
                             Probe{Call::rlimit, [](int) { return sys::descriptor_limit().has_value(); }},
                             Probe{Call::close_range, [](int) { return sys::close_range(9000, 9001).has_value(); }}}) {
    if (probe.call == Call::prctl && harness::emulated()) continue;  // see the case about the process attributes
    CAPTURE(static_cast<int>(probe.call));
    CHECK(probe.works(self->get()));
    const harness::Injected failing(probe.call, EIO);
    CHECK_FALSE(probe.works(self->get()));
    CHECK(probe.works(self->get()));
  }
  const harness::Injected failing(Call::wait, EIO);
  shmb::fault::inject(Call::pidfd_info, EIO);
  CHECK(sys::wait_any(false).error().value == EIO);
  CHECK(sys::pidfd_exit_info(self->get()).error().value == EIO);
}
