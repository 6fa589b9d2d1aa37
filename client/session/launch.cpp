// SPDX-License-Identifier: Apache-2.0
// Two clones with CLONE_VM|CLONE_VFORK, like posix_spawn: nothing of a large or threaded host is copied, and the host's
// thread stops until the new program runs. Between clone and execve only bare system calls are made. No handler of the
// host may run, no lock of libc may be taken, and no sanitizer state may be touched.
#include "client/session/launch.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "base/fault.hpp"
#include "base/mapping.hpp"
#include "base/sys_file.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"

#ifndef SHMB_LIBEXECDIR
#error "meson passes the installed place of shmbrokerd"
#endif

#define SHMB_BARE __attribute__((no_sanitize("address", "thread", "undefined"), noinline))

namespace shmb::client {
namespace {

constexpr std::size_t kStack = 64 * 1024;
constexpr int kLastSignal = 64;
constexpr std::size_t kLongestSocketPath = 107;  // sockaddr_un holds 108 bytes with the final NUL

struct Plan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int null, log, ready;
  void* daemon_stack;
  int failed_errno = 0;  // written by the child: memory is shared
  const char* failed_at = nullptr;
};

SHMB_BARE long bare(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
  return ::syscall(number, a, b, c, d, e);
}

SHMB_BARE int fail(Plan& plan, const char* at) {
  plan.failed_errno = errno;
  plan.failed_at = at;
  bare(SYS_exit, 1);
  return 1;
}

// The later daemon. It undoes here what it must not inherit, descriptors last.
SHMB_BARE int become_daemon(void* argument) {
  Plan& plan = *static_cast<Plan*>(argument);
  char zeros[64];
  for (volatile char& byte : zeros) byte = 0;
  for (long number = 1; number <= kLastSignal; ++number)
    bare(SYS_rt_sigaction, number, reinterpret_cast<long>(zeros), 0, kLastSignal / 8);  // SIG_DFL; KILL and STOP refuse
  bare(SYS_rt_sigprocmask, SIG_SETMASK, reinterpret_cast<long>(zeros), 0, kLastSignal / 8);
  bare(SYS_umask, 077);
  if (bare(SYS_chdir, reinterpret_cast<long>("/")) != 0) return fail(plan, "chdir");
  for (long resource = 0; resource < RLIM_NLIMITS; ++resource) {
    if (resource == RLIMIT_STACK || resource == RLIMIT_CORE) continue;
    rlimit64 limit;
    if (bare(SYS_prlimit64, 0, resource, 0, reinterpret_cast<long>(&limit)) != 0) continue;
    limit.rlim_cur = limit.rlim_max;
    bare(SYS_prlimit64, 0, resource, reinterpret_cast<long>(&limit), 0);
  }
  sched_param other;
  other.sched_priority = 0;
  bare(SYS_sched_setscheduler, 0, SCHED_OTHER, reinterpret_cast<long>(&other));
  unsigned long everywhere[16];
  for (volatile unsigned long& word : everywhere) word = ~0UL;
  bare(SYS_sched_setaffinity, 0, sizeof everywhere, reinterpret_cast<long>(everywhere));  // the kernel reduces it
  const int wanted[4] = {plan.null, plan.null, plan.log, plan.ready};
  for (int number = 0; number < 4; ++number)
    if (bare(SYS_dup3, wanted[number], number, 0) < 0) return fail(plan, "dup3");
  if (bare(SYS_close_range, 4, ~0U, 0) != 0) return fail(plan, "close_range");
  bare(SYS_execve, reinterpret_cast<long>(plan.program), reinterpret_cast<long>(plan.arguments),
       reinterpret_cast<long>(plan.environment));
  return fail(plan, "execve");
}

// The process in between. It has a session of its own, so that no terminal and no job control reach the daemon. It ends
// early, so that the daemon has no parent in the host.
SHMB_BARE int in_between(void* argument) {
  Plan& plan = *static_cast<Plan*>(argument);
  bare(SYS_setsid);
  if (::clone(become_daemon, plan.daemon_stack, CLONE_VM | CLONE_VFORK, argument) < 0) return fail(plan, "clone");
  bare(SYS_exit, 0);
  return 0;
}

class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &former_);
  }
  ~AllSignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &former_, nullptr); }

 private:
  sigset_t former_;
};

// The reason that the daemon gave, complete, because it ends with the remedy. Without the head of its log line
// ("2026-11-23T05:38:17.042Z shmbrokerd[4123] error: ").
std::string last_words(const std::string& path) {
  auto log = sys::read_file(path.c_str());
  if (!log) return {};
  while (!log->empty() && log->back() == '\n') log->pop_back();
  std::string line = log->substr(log->rfind('\n') + 1);  // npos + 1 is 0
  const auto program = line.find(" shmbrokerd[");
  const auto text = line.find(": ", program == line.npos ? 0 : program);
  if (program != line.npos && program == line.find(' ') && text != line.npos) line.erase(0, text + 2);
  for (char& each : line)
    if (static_cast<unsigned char>(each) < ' ' || each == 0x7f) each = '?';
  return line;
}

// flock(2), released explicitly: otherwise a copy of the descriptor in a child that another thread forks would hold it.
class StartLock {
 public:
  static Result<StartLock> take(const std::string& path, Deadline deadline) {
    auto file = sys::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (!file) return system_failure(file.error(), "opening " + path);
    for (;;) {
      auto locked = sys::lock_file(file->get());
      if (locked) break;
      if (locked.error().value != EWOULDBLOCK) return system_failure(locked.error(), "locking " + path);
      if (deadline.passed())
        return error(Status::deadline,
                     "another process is starting the broker and was not done before the deadline (" + path + ")");
      sys::rest(3'000'000);
    }
    StartLock lock;
    lock.file_ = std::move(*file);
    return lock;
  }
  StartLock(StartLock&&) = default;
  ~StartLock() {
    if (file_) (void)sys::unlock_file(file_.get());
  }

 private:
  StartLock() = default;
  Fd file_;
};

Result<Fd> open_log(const std::string& path) {
  int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  if (auto facts = sys::path_facts(path.c_str()); facts && facts->size > (1 << 20)) flags |= O_TRUNC;
  auto log = sys::open(path.c_str(), flags, 0600);
  if (!log) return system_failure(log.error(), "opening " + path);
  return std::move(*log);
}

}  // namespace

Result<Detached> run_detached(const std::string& program, const std::vector<std::string>& arguments, int log, int ready,
                              const std::string& setting) {
  auto null = sys::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (!null) return system_failure(null.error(), "opening /dev/null");
  std::array<Fd, 3> given;
  const std::array<int, 3> wanted = {null->get(), log, ready};
  for (std::size_t i = 0; i < given.size(); ++i) {
    auto copy = sys::duplicate_above(wanted[i], 10);  // above the standard ones
    if (!copy) return system_failure(copy.error(), "descriptors for the broker");
    given[i] = std::move(*copy);
  }
  auto stacks = Mapping::anonymous(2 * kStack);
  if (!stacks) return system_failure(stacks.error(), "stacks for starting the broker");
  std::vector<char*> argument_list{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argument_list.push_back(const_cast<char*>(argument.c_str()));
  argument_list.push_back(nullptr);
  char path[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  char language[] = "LC_ALL=C.UTF-8";
  char* const environment[] = {path, language, setting.empty() ? nullptr : const_cast<char*>(setting.c_str()), nullptr};
  Plan plan{program.c_str(), argument_list.data(),   environment, given[0].get(), given[1].get(),
            given[2].get(),  stacks->data() + kStack};

  pid_t child = -1;
  int clone_errno = fault::fails(fault::Call::clone);
  if (clone_errno == 0) {
    const AllSignalsBlocked blocked;
    // Exit signal 0: invisible to the host's wait(-1) and to its SIGCHLD handler.
    child = ::clone(in_between, stacks->data() + 2 * kStack, CLONE_VM | CLONE_VFORK, &plan);
    clone_errno = errno;
  }
  if (child < 0) return system_failure(Errno{clone_errno}, "clone for starting the broker");
  if (auto ended = sys::wait_pid(child, true, true); !ended)
    return system_failure(ended.error(), "waiting for the process that starts the broker");
  if (plan.failed_at != nullptr) return system_failure(Errno{plan.failed_errno}, program + ": " + plan.failed_at);
  return Detached{child};
}

Result<std::string> find_program(const std::optional<std::string>& named, const std::string& variable,
                                 const std::string& name) {
  std::string tried;
  if (named) {
    const std::string& program = *named;
    if (program.empty() || program.front() != '/')
      return error(Status::no_broker, variable + "=" + program + " is not absolute");
    auto may = sys::may_execute(program.c_str());
    if (may) return program;
    return error(Status::no_broker, variable + "=" + program + ": " + errno_text(may.error().value));
  }
  std::vector<std::string> candidates;
  Dl_info self;
  if (::dladdr(reinterpret_cast<const void*>(&find_program), &self) != 0 && self.dli_fname != nullptr) {
    const std::string library = self.dli_fname;
    const auto slash = library.rfind('/');
    if (slash != std::string::npos && library.front() == '/') candidates.push_back(library.substr(0, slash + 1) + name);
    else if (auto link = ::realpath("/proc/self/exe", nullptr)) {  // a static program's file name is argv[0] here
      const std::string executable = link;
      ::free(link);
      candidates.push_back(executable.substr(0, executable.rfind('/') + 1) + name);
    }
  }
  candidates.emplace_back(SHMB_LIBEXECDIR "/" + name);
  for (const std::string& candidate : candidates) {
    if (sys::may_execute(candidate.c_str())) return candidate;
    tried += (tried.empty() ? "" : ", ") + candidate;
  }
  return error(Status::no_broker,
               "there is no program " + name + " (tried " + tried + "; " + variable + " names another)");
}

Result<std::string> find_daemon(const Places& places) {
  return find_program(places.daemon_variable, "SHMBROKER_DAEMON", "shmbrokerd");
}

Result<Started> start_private_broker(const std::string& directory, const Places& places, Deadline deadline) {
  const std::string socket = directory + "/socket";
  if (socket.size() > kLongestSocketPath)
    return error(Status::no_broker, socket + ": longer than the 107 bytes that a socket path may have");
  SHMB_TRY(program, find_daemon(places));
  if (auto made = sys::make_directory(directory.c_str(), 0700); !made && made.error().value != EEXIST)
    return system_failure(made.error(), "making " + directory);
  SHMB_TRY_VOID(check_directory(directory, places.uid));
  SHMB_TRY(lock, StartLock::take(directory + "/start.lock", deadline));
  if (auto running = connect_socket(socket, deadline)) return Started{false};

  const std::string log_path = directory + "/log";
  SHMB_TRY(log, open_log(log_path));
  auto ends = sys::pipe();
  if (!ends) return system_failure(ends.error(), "a pipe for the broker's readiness");
  auto& [ready, ready_end] = *ends;
  auto detached =
      run_detached(program, {"--private", "--directory", directory, "--ready-fd", "3"}, log.get(), ready_end.get(),
                   places.config_home.empty() ? "" : "XDG_CONFIG_HOME=" + places.config_home);
  ready_end.reset();
  if (!detached) return std::unexpected(detached.error());
  auto readable = sys::poll_readable(ready.get(), deadline.left());
  if (!readable) return system_failure(readable.error(), "waiting for the broker");
  if (!*readable)
    return error(Status::deadline, "the broker was started but was not ready before the deadline (" + log_path + ")");
  std::byte byte{};
  if (sys::read(ready.get(), {&byte, 1}).value_or(0) == 1) return Started{true};
  const std::string words = last_words(log_path);
  return error(Status::no_broker,
               program + " ended before it was ready" + (words.empty() ? " (" + log_path + ")" : ": " + words));
}

}  // namespace shmb::client
