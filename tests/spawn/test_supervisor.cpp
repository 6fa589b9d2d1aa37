// SPDX-License-Identifier: Apache-2.0
// The supervisor with real processes. If guard or supervisor is killed, nothing of the tree is left, and the end is
// reported once.
#include <doctest/doctest.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>

#include "spawn/ranks/ending.hpp"
#include "spawn/ranks/tree.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/spawn/runner.hpp"

using shmb::test::eventually;
using shmb::test::Runner;

namespace {

// Five processes: two in sight of the shell that waits, three daemonised (session of their own, parent gone).
const char* const kTreeOfFive =
    "sleep ${N}1 & sleep ${N}2 & "
    "(setsid sh -c 'sleep ${N}3 & sleep ${N}4 & exec sleep ${N}5' &) ; wait";

int exit_status(const std::vector<std::string>& command) {
  Runner runner(command);
  runner.start();
  const int status = runner.wait();
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

bool reported_by(const std::string& heard, pid_t pid) {
  return heard.find("gone " + std::to_string(pid) + "\n") != heard.npos;
}

}  // namespace

TEST_CASE("the command's exit status is passed on, signals as 128 + n") {
  CHECK(exit_status({"true"}) == 0);
  CHECK(exit_status({"sh", "-c", "exit 37"}) == 37);
  CHECK(exit_status({"sh", "-c", "kill -KILL $$"}) == 128 + SIGKILL);
  CHECK(exit_status({"sh", "-c", "kill -SEGV $$"}) == 128 + SIGSEGV);
}

TEST_CASE("a command that is absent gives 127, one that cannot be executed 126, none at all 125") {
  CHECK(exit_status({"/nonexistent/command"}) == 127);
  {
    // Where a folder of PATH may not be searched, what is found nowhere counts as refused (execvp(3)).
    const char* const path = ::getenv("PATH");
    const std::string before = path == nullptr ? "" : path;
    ::setenv("PATH", "/usr/bin:/bin", 1);
    CHECK(exit_status({"command-that-nobody-has-installed"}) == 127);
    if (path == nullptr) ::unsetenv("PATH");
    else ::setenv("PATH", before.c_str(), 1);
  }
  CHECK(exit_status({"/etc/passwd"}) == 126);
  CHECK(exit_status({}) == 125);
}

TEST_CASE("the sentence of a command that cannot start names it with control bytes made visible") {
  Runner runner(std::vector<std::string>{"/nonexistent/\x1b[31mred"});
  runner.start();
  (void)runner.wait();
  CHECK(runner.heard().find("cannot run") != std::string::npos);
  CHECK(runner.heard().find('\x1b') == std::string::npos);
}

TEST_CASE("TERM to run ends a tree of five with its daemons, and the end is reported once") {
  Runner runner(kTreeOfFive);
  runner.start();
  REQUIRE(runner.has_marked(5));
  const pid_t supervisor = runner.supervisor();
  ::kill(runner.guard(), SIGTERM);
  const int status = runner.wait();
  CHECK(runner.marked().empty());
  CHECK(WEXITSTATUS(status) == 128 + SIGTERM);
  CHECK(count(runner.heard(), "gone ") == 1);
  CHECK(reported_by(runner.heard(), supervisor));
}

TEST_CASE("SIGKILL of run: the supervisor ends the tree and reports") {
  Runner runner(kTreeOfFive);
  runner.start();
  REQUIRE(runner.has_marked(5));
  const pid_t supervisor = runner.supervisor();
  ::kill(runner.guard(), SIGKILL);
  CHECK(WIFSIGNALED(runner.wait()));
  CHECK(runner.has_marked(0));
  CHECK(reported_by(runner.heard(), supervisor));
}

TEST_CASE("SIGKILL of the supervisor: run ends the tree, reports and says what happened") {
  Runner runner(kTreeOfFive);
  runner.start();
  REQUIRE(runner.has_marked(5));
  const pid_t guard = runner.guard();
  ::kill(runner.supervisor(), SIGKILL);
  const int status = runner.wait();
  CHECK(runner.marked().empty());
  CHECK(WEXITSTATUS(status) == 125);
  CHECK(reported_by(runner.heard(), guard));
  CHECK(runner.heard().find("the supervisor was killed by signal 9") != std::string::npos);
}

TEST_CASE("SIGKILL of a supervisor that could not start the command, before the end is reported: run reports it") {
  auto run = harness::Child::run([] {
    class DiesThere final : public shmb::spawn::Reporter {
     public:
      void tree_gone() override {
        if (::getpid() != guard) ::kill(::getpid(), SIGKILL);
        ++reported;
      }
      const pid_t guard = ::getpid();
      int reported = 0;
    } reporter;
    shmb::spawn::Plan job;
    job.command = {"/no such command"};
    const auto outcome = shmb::spawn::run_job(job, reporter);
    if (outcome.exit_status != shmb::spawn::kExitNotFound) return 1;
    if (outcome.sentence.find("/no such command") == std::string::npos) return 2;
    return reporter.reported == 1 ? 0 : 3;
  });
  CHECK(run.wait() == 0);
}

TEST_CASE("a job that finds the descriptor table full is told of the limit, and how to raise it") {
  auto run = harness::Child::run([] {
    shmb::spawn::Plan job;
    job.command = {"true"};
    shmb::spawn::Reporter silent;
    // Room for the descriptor that it hears signals by, and for nothing more.
    const int next = ::dup(STDERR_FILENO);
    ::close(next);
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    rlimit full = limit;
    full.rlim_cur = static_cast<rlim_t>(next) + 1;
    ::setrlimit(RLIMIT_NOFILE, &full);
    const auto outcome = shmb::spawn::run_job(job, silent);
    ::setrlimit(RLIMIT_NOFILE, &limit);  // a sanitizer opens a pipe to check an object
    if (outcome.exit_status != shmb::spawn::kExitFailed) return 1;
    if (!outcome.sentence.starts_with("cannot make a socket pair: ")) return 2;
    if (outcome.sentence.find("(EMFILE)") == std::string::npos) return 3;
    return outcome.sentence.find(": RLIMIT_NOFILE of pid ") != std::string::npos ? 0 : 4;
  });
  CHECK(run.wait() == 0);
}

TEST_CASE("SIGKILL of run's whole process group leaves a supervisor that ends the daemons") {
  Runner runner(kTreeOfFive);
  runner.before_job = [] { ::setpgid(0, 0); };
  runner.start();
  REQUIRE(runner.has_marked(5));
  ::kill(-runner.guard(), SIGKILL);
  (void)runner.wait();
  CHECK(runner.has_marked(0));
  CHECK(count(runner.heard(), "gone ") == 1);
}

TEST_CASE("both killed at once: the command goes by its parent-death signal") {
  Runner runner(std::vector<std::string>{"sleep", ""});
  runner.job.command[1] = runner.mark(1);
  runner.start();
  REQUIRE(runner.has_marked(1));
  const pid_t supervisor = runner.supervisor();
  harness::stop(runner.guard());  // so that it cannot take over in between
  ::kill(supervisor, SIGKILL);
  ::kill(runner.guard(), SIGKILL);
  (void)runner.wait();
  CHECK(runner.has_marked(0));
}

TEST_CASE("a daemon that outlives the command is named and waited for, and the command's status is kept") {
  Runner runner("(setsid sleep ${N}1 &) ; exit 3");
  runner.start();
  REQUIRE(runner.has_marked(1));
  REQUIRE(runner.has_heard("waiting"));
  // Nothing ends it: the test does.
  REQUIRE(runner.marked().size() == 1);
  ::kill(runner.marked().front(), SIGKILL);
  CHECK(WEXITSTATUS(runner.wait()) == 3);
  CHECK(runner.heard().find("1 process of it is left (") != std::string::npos);
  CHECK(runner.heard().find("waiting") != std::string::npos);
}

TEST_CASE("kill_rest ends what the command leaves, also what ignores SIGTERM") {
  Runner runner("(setsid sh -c 'trap \"\" TERM; sleep ${N}1' &) ; (setsid sleep ${N}2 &) ; sleep 0.2; exit 4");
  runner.job.kill_rest = 100'000'000;
  runner.start();
  CHECK(WEXITSTATUS(runner.wait()) == 4);
  CHECK(runner.marked().empty());
  CHECK(runner.heard().find("ending them") != std::string::npos);
}

TEST_CASE("a second TERM does not wait for the grace") {
  Runner runner("trap '' TERM; sleep ${N}1 & sleep ${N}2 & wait");
  runner.job.grace = 3'600'000'000'000;  // with one signal this test would not end
  runner.start();
  REQUIRE(runner.has_marked(2));
  ::kill(runner.guard(), SIGTERM);
  ::usleep(100'000);
  CHECK(runner.marked().size() == 2);
  ::kill(runner.guard(), SIGTERM);
  CHECK(WEXITSTATUS(runner.wait()) == 128 + SIGKILL);
  CHECK(runner.marked().empty());
}

TEST_CASE("stopped processes are ended too, and so is the tree of a stopped supervisor") {
  Runner runner(kTreeOfFive);
  runner.start();
  REQUIRE(runner.has_marked(5));
  for (pid_t pid : runner.marked()) ::kill(pid, SIGSTOP);
  harness::stop(runner.supervisor());
  ::kill(runner.guard(), SIGTERM);
  (void)runner.wait();
  CHECK(runner.marked().empty());
}

TEST_CASE("a broker below us is neither waited for nor killed, also when its starter has ended") {
  Runner runner(std::vector<std::string>{"true"});
  int handed[2];
  REQUIRE(::pipe(handed) == 0);
  // The broker is an orphan that will come to the guard: child of a child, made before the job.
  const std::string marker = runner.mark(7);
  const pid_t starter = ::fork();
  if (starter == 0) {
    const pid_t middle = ::fork();
    if (middle == 0) {
      const pid_t daemon = ::fork();
      if (daemon == 0) ::execlp("sleep", "sleep", marker.c_str(), nullptr);
      (void)!::write(handed[1], &daemon, sizeof daemon);
      ::usleep(300'000);  // ends, and orphans the daemon, while the job runs
      ::_exit(0);
    }
    pid_t daemon = -1;
    (void)!::read(handed[0], &daemon, sizeof daemon);
    class Names final : public shmb::spawn::Reporter {
     public:
      explicit Names(pid_t pid) : pid_(pid) {}
      std::vector<pid_t> bystanders() override { return {pid_}; }

     private:
      pid_t pid_;
    } reporter(daemon);
    shmb::spawn::Plan job;
    job.command = {"sleep", "0.6"};
    const int status = shmb::spawn::run_job(job, reporter).exit_status;
    auto parent = shmb::spawn::process(daemon);
    const bool came_to_us = parent && parent->parent == ::getpid();
    ::_exit(status == 0 && came_to_us ? 0 : 1);
  }
  int status = -1;
  ::waitpid(starter, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  REQUIRE(runner.marked().size() == 1);
  ::kill(runner.marked().front(), SIGKILL);
  ::close(handed[0]);
  ::close(handed[1]);
}

TEST_CASE("a child from before the job survives its end by force") {
  Runner runner(kTreeOfFive);
  const std::string older = runner.mark(9);
  runner.before_job = [&] {
    if (::fork() == 0) ::execlp("sleep", "sleep", older.c_str(), nullptr);
  };
  runner.start();
  REQUIRE(runner.has_marked(6));
  ::kill(runner.supervisor(), SIGKILL);  // the harder case: the guard must tell them apart
  (void)runner.wait();
  REQUIRE(runner.marked().size() == 1);
  ::kill(runner.marked().front(), SIGKILL);
}

TEST_CASE("USR1 reaches the command, and only it") {
  Runner runner("trap 'exit 21' USR1; sleep ${N}1 & wait");
  runner.job.kill_rest = 100'000'000;
  runner.start();
  REQUIRE(runner.has_marked(1));
  ::kill(runner.guard(), SIGUSR1);
  CHECK(WEXITSTATUS(runner.wait()) == 21);
}

TEST_CASE("on a terminal the command is in the foreground, and Ctrl-C is its own affair") {
  shmb::spawn::Plan job;
  // `read` is interrupted by the signal in some shells and goes on in others.
  job.command = {"sh", "-c",
                 "trap 'echo caught' INT; echo ready; while [ -z \"$line\" ]; do read line; done; "
                 "echo \"got $line\"; exit 5"};
  int terminal = -1;
  const pid_t guard = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  REQUIRE(guard >= 0);
  if (guard == 0) {
    shmb::spawn::Reporter silent;
    ::_exit(shmb::spawn::run_job(job, silent).exit_status);
  }
  std::string seen;
  auto shows = [&](const std::string& text) {
    return eventually([&] {
      char buffer[512];
      const ssize_t size = ::read(terminal, buffer, sizeof buffer);
      if (size > 0) seen.append(buffer, static_cast<std::size_t>(size));
      return seen.find(text) != seen.npos;
    });
  };
  CHECK(shows("ready"));
  CHECK(::tcgetpgrp(terminal) == guard);
  (void)!::write(terminal, "\x03", 1);
  CHECK(shows("caught"));
  (void)!::write(terminal, "word\n", 5);
  CHECK(shows("got word"));
  int status = -1;
  ::waitpid(guard, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 5);
  ::close(terminal);
}

TEST_CASE("on a terminal Ctrl-Z stops the whole job for the shell, and continuing it continues the command") {
  int terminal = -1;
  const pid_t shell = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  REQUIRE(shell >= 0);
  if (shell == 0) {  // what an interactive shell does with a job
    ::signal(SIGTTOU, SIG_IGN);
    const pid_t run = ::fork();
    if (run == 0) {
      ::setpgid(0, 0);
      ::tcsetpgrp(0, ::getpid());
      ::signal(SIGTTOU, SIG_DFL);
      shmb::spawn::Reporter silent;
      shmb::spawn::Plan job;
      job.command = {"sh", "-c", "echo ready; read line; echo \"got $line\"; exit 9"};
      ::_exit(shmb::spawn::run_job(job, silent).exit_status);
    }
    int status = -1;
    ::waitpid(run, &status, WUNTRACED);
    if (!WIFSTOPPED(status)) ::_exit(1);
    ::tcsetpgrp(0, ::getpgrp());
    if (::write(1, "stopped\n", 8) != 8) ::_exit(2);
    ::tcsetpgrp(0, run);
    ::kill(-run, SIGCONT);
    ::waitpid(run, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
  }
  std::string seen;
  auto shows = [&](const std::string& text) {
    return eventually([&] {
      char buffer[512];
      const ssize_t size = ::read(terminal, buffer, sizeof buffer);
      if (size > 0) seen.append(buffer, static_cast<std::size_t>(size));
      return seen.find(text) != seen.npos;
    });
  };
  CHECK(shows("ready"));
  (void)!::write(terminal, "\x1a", 1);
  CHECK(shows("stopped"));
  (void)!::write(terminal, "again\n", 6);
  CHECK(shows("got again"));
  int status = -1;
  ::waitpid(shell, &status, 0);
  CHECK(WEXITSTATUS(status) == 9);
  ::close(terminal);
}

TEST_CASE("where there is no /proc the command is still ended") {
  Runner runner(std::vector<std::string>{"sleep", ""});
  runner.job.command[1] = runner.mark(1);
  runner.before_job = [] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", "/proc", "tmpfs", 0, nullptr) != 0)
      ::_exit(77);
  };
  runner.start();
  siginfo_t ended{};
  REQUIRE(eventually([&] {
    return !runner.marked().empty() ||
           (::waitid(P_PID, static_cast<id_t>(runner.guard()), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            ended.si_pid != 0);
  }));
  if (ended.si_pid != 0) {
    REQUIRE(WEXITSTATUS(runner.wait()) == 77);
    SKIP_CASE("no right to mount over /proc");
  }
  ::kill(runner.guard(), SIGTERM);
  CHECK(WEXITSTATUS(runner.wait()) == 128 + SIGTERM);
}

namespace {

// Children of this process that are ended with an hour of grace: what has not gone soon has not been told.
bool goes_soon(shmb::spawn::Tree& tree, pid_t child) {
  for (int i = 0; i < 10'000; ++i) {
    (void)tree.step();
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) return WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
    ::usleep(1000);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return false;
}

pid_t sleeping_child(bool stopped) {
  const auto of_the_tests = ::signal(SIGTERM, SIG_DFL);  // doctest's would say that this case has crashed
  const pid_t child = ::fork();
  if (child == 0)
    for (;;) ::pause();
  ::signal(SIGTERM, of_the_tests);
  if (stopped) {
    ::kill(child, SIGSTOP);
    ::waitpid(child, nullptr, WUNTRACED);
  }
  return child;
}

constexpr std::int64_t kHour = 3'600'000'000'000;

}  // namespace

TEST_CASE("a process that was stopped acts on the ending signal, long before it is killed") {
  for (const bool stopped : {false, true}) {
    CAPTURE(stopped);
    const shmb::spawn::JobCgroup none;
    shmb::spawn::Tree tree({}, none);
    const pid_t child = sleeping_child(stopped);
    tree.begin_ending(SIGTERM, kHour);
    CHECK(goes_soon(tree, child));
  }
}

TEST_CASE("a process that was forked while the ending signal went round ends too, also a stopped one") {
  for (const bool stopped : {false, true}) {
    CAPTURE(stopped);
    const shmb::spawn::JobCgroup none;
    shmb::spawn::Tree tree({}, none);
    tree.begin_ending(SIGTERM, kHour);
    CHECK(goes_soon(tree, sleeping_child(stopped)));
  }
}
