// SPDX-License-Identifier: Apache-2.0
// The broker's list of system calls, loaded in a child: what is not on it fails with EPERM, what is on it works.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "daemon/start/sandbox.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/skip.hpp"

namespace sys = shmb::sys;

namespace {

struct Forbidden {
  const char* name;
  long number;
  long a = 0, b = 0, c = 0, d = 0, e = 0, f = 0;
};

// Each would succeed, or fail with another errno, without the filter; the first case makes sure of that.
std::vector<Forbidden> forbidden() {
  static const char* const empty[] = {nullptr};
  static int pair[2];
  const auto at = [](const void* pointer) { return reinterpret_cast<long>(pointer); };
  return {
      {"execve", SYS_execve, at("/nowhere/program"), at(empty), at(empty)},
      {"execveat", SYS_execveat, AT_FDCWD, at("/nowhere/program"), at(empty), at(empty)},
      {"socket", SYS_socket, AF_UNIX, SOCK_STREAM},
      {"socketpair", SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, at(pair)},
      {"connect", SYS_connect, -1},
      {"bind", SYS_bind, -1},
      {"listen", SYS_listen, -1, 1},
      {"openat with O_CREAT", SYS_openat, AT_FDCWD, at("/nowhere/file"), O_CREAT | O_WRONLY, 0600},
      {"openat with O_TRUNC", SYS_openat, AT_FDCWD, at("/nowhere/file"), O_TRUNC | O_WRONLY},
      {"mmap of code", SYS_mmap, 0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0},
      {"mprotect to code", SYS_mprotect, 0, 0, PROT_EXEC},
      {"kill", SYS_kill, 0, 0},
      {"tgkill of another process", SYS_tgkill, 1, 1, 0},
      {"pidfd_send_signal", SYS_pidfd_send_signal, -1, 0},
      {"pidfd_getfd", SYS_pidfd_getfd, -1, 0, 0},
      {"ptrace", SYS_ptrace, 0x4206, 0, 0, 0},
      {"process_vm_readv", SYS_process_vm_readv, 1},
      {"process_vm_writev", SYS_process_vm_writev, 1},
      {"io_uring_setup", SYS_io_uring_setup, 0, 0},
      {"io_uring_register", SYS_io_uring_register, -1, IORING_REGISTER_PROBE},
      {"setuid", SYS_setuid, -1},
      {"prctl", SYS_prctl, 0xffff},
      {"mount", SYS_mount, at("/nowhere"), at("/nowhere"), at("none")},
      {"unshare", SYS_unshare, -1},
      {"mkdirat", SYS_mkdirat, AT_FDCWD, at("/nowhere/folder"), 0700},
      {"fchmodat", SYS_fchmodat, AT_FDCWD, at("/nowhere/file"), 0700},
      {"renameat2", SYS_renameat2, AT_FDCWD, at("/nowhere/one"), AT_FDCWD, at("/nowhere/two"), 0},
      {"setrlimit", SYS_prlimit64, 0, 99, 0, 0},
      {"ioctl", SYS_ioctl, -1, 0x5401},
      {"fcntl", SYS_fcntl, -1, F_SETFL, O_APPEND},
      {"fcntl of another command", SYS_fcntl, -1, F_SETOWN, 0},
      {"a process by clone", SYS_clone, CLONE_SIGHAND, 0, 0, 0, 0},
  };
}

long make(const Forbidden& call) {
  errno = 0;
  return ::syscall(call.number, call.a, call.b, call.c, call.d, call.e, call.f);
}

std::string in_sandbox(const std::function<std::string()>& what) {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  auto child = harness::Child::run([&] {
    (void)sys::set_no_new_privileges();
    auto entered = shmb::daemon::enter_sandbox();
    const std::string text = entered ? what() : entered.error().sentence;
    return ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1;
  });
  ::close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t size = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  CHECK(child.wait() == 0);
  text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  return text;
}

}  // namespace

TEST_CASE("thirty system calls that the broker does not need fail with EPERM once it serves") {
  if (!shmb::daemon::no_sandbox().empty()) SKIP_CASE(shmb::daemon::no_sandbox());
  CHECK(in_sandbox([] {
          std::string wrong;
          for (const Forbidden& call : forbidden())
            if (const long result = make(call); result != -1 || errno != EPERM)
              wrong += std::string(" ") + call.name + "=" + std::to_string(result) + "/" + std::to_string(errno);
          return "refused" + wrong;
        }) == "refused");
  CHECK(forbidden().size() >= 20);
}

TEST_CASE("what the broker does while it serves works in the sandbox") {
  if (!shmb::daemon::no_sandbox().empty()) SKIP_CASE(shmb::daemon::no_sandbox());
  CHECK(in_sandbox([] {
          std::string wrong;
          const auto works = [&](bool good, const char* what) { wrong += good ? "" : std::string(" ") + what; };
          auto memory = sys::memfd_create("sandbox", false);
          works(memory && sys::truncate(memory->get(), 4096), "memfd");
          works(memory && sys::set_mode(memory->get(), 0600), "mode");
          works(memory && sys::add_seals(memory->get(), F_SEAL_GROW | F_SEAL_SHRINK), "seals");
          works(memory && sys::reopen_read_only(memory->get()).has_value(), "reopen");
          works(memory && ::fcntl(memory->get(), F_SETFL, O_NONBLOCK) == 0, "nonblocking");
          works(sys::pidfd_open(::getpid()).has_value(), "pidfd");
          works(sys::read_file("/proc/self/stat").has_value(), "proc");
          bool ran = false;
          std::thread([&] { ran = true; }).join();
          works(ran, "thread");
          void* mapped = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          works(mapped != MAP_FAILED, "mmap");
          return "done" + wrong;
        }) == "done");
}

TEST_CASE("the forbidden calls are refused by the list alone: without it each has another end") {
  if (!harness::can_change_uid()) SKIP_CASE("needs root");
  auto child = harness::Child::run_as(65534, 65534, [] {
    int same = 0;
    for (const Forbidden& call : forbidden())
      if (std::string_view(call.name).find("clone") == std::string_view::npos && make(call) == -1 && errno == EPERM)
        ++same;
    return same;
  });
  CHECK(child.wait() <= 4);  // of an ordinary user: what only root may do
}

TEST_CASE("a broker that serves is in the sandbox, on each engine, with all its threads") {
  if (!shmb::daemon::no_sandbox().empty()) SKIP_CASE(shmb::daemon::no_sandbox());
  for (const std::string& engine : harness::engines()) {
    harness::BrokerOptions options;
    options.engine = engine;
    harness::BrokerFixture broker(options);
    REQUIRE_MESSAGE(broker.running(), broker.log());
    for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(broker.pid()) + "/task")) {
      const auto status = sys::read_file((thread.path() / "status").c_str());
      REQUIRE(status);
      CHECK(status->find("\nSeccomp:\t2\n") != std::string::npos);
    }
  }
}
