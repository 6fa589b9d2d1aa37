// SPDX-License-Identifier: Apache-2.0
// Starting a private broker: one of many starters starts it. It is no child of the starter and inherits nothing.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/fault.hpp"
#include "base/sys_process.hpp"
#include "client/session/launch.hpp"
#include "client/session/views.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/support/session.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

struct LaunchWorld {
  harness::TempDir folder;
  Places places;
  ConnectOptions options;
  std::string directory;

  LaunchWorld() {
    places.system_socket = folder.file("system/socket");
    places.temporary_dir = folder.path();
    places.uid = ::geteuid();
    places.daemon_variable = harness::BrokerFixture::program();
    options.no_group = true;
    options.timeout = 30'000'000'000;
    directory = private_directory(places).path;
  }
  Result<std::shared_ptr<Session>> connect() const { return shmb::client::connect(options, places); }
  // A program that stands in for the daemon.
  void daemon_script(const std::string& text) {
    const std::string path = folder.file("daemon.sh");
    std::ofstream(path) << "#!/bin/sh\n" << text;
    ::chmod(path.c_str(), 0700);
    places.daemon_variable = path;
  }
};

// The broker that a test started is ended by it, by its pid, once it has ended its own session.
void end(pid_t broker) {
  auto pidfd = sys::pidfd_open(broker);
  ::kill(broker, SIGTERM);
  if (pidfd) (void)sys::poll_readable(pidfd->get(), 20'000'000'000);
}

std::string slurp(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("a private broker that the library starts follows its user's shmbroker.conf, and names it in a refusal") {
  LaunchWorld world;
  world.places.config_home = world.folder.file("settings");
  std::filesystem::create_directory(world.places.config_home);
  const std::string file = world.places.config_home + "/shmbroker.conf";
  std::ofstream(file) << "[limits]\nbytes = \"1G\"\ngroup_bytes = \"1M\"\n";
  auto session = must(world.connect());
  const pid_t pid = session->facts().broker_pid;
  CHECK(must(broker_status(*session, Deadline::after(30'000'000'000))).record.bytes_limit == 1 << 30);
  auto refused = create_region(session, named("large", 2 << 20));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().sentence.find("; raise limits.group_bytes in " + file + ", then kill -HUP ") !=
        std::string::npos);
  const std::string log = slurp(world.directory + "/log");
  CHECK_MESSAGE(log.find("Z shmbrokerd[" + std::to_string(pid) + "] notice: configuration read from " + file) !=
                    std::string::npos,
                log);
  session.reset();
  end(pid);
}

TEST_CASE("a private broker whose configuration is wrong does not start, and the caller hears why") {
  LaunchWorld world;
  world.places.config_home = world.folder.path();
  std::ofstream(world.folder.file("shmbroker.conf")) << "[limits]\nbytes = \"much\"\n";
  auto refused = world.connect();
  REQUIRE_FALSE(refused);
  const std::string reason = ": " + world.folder.file("shmbroker.conf") + ":2: 'limits.bytes'";
  CHECK_MESSAGE(refused.error().sentence.find("ended before it was ready" + reason) != std::string::npos,
                refused.error().sentence);
}

TEST_CASE("twenty processes that race start one broker, and all reach it") {
  LaunchWorld world;
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  {
    const harness::Gate go, done;
    std::vector<harness::Child> racers;
    for (int i = 0; i < 20; ++i)
      racers.push_back(harness::Child::run([&] {
        go.wait();
        auto session = world.connect();
        if (!session) return 1;
        const SessionFacts facts = (*session)->facts();
        const struct {
          std::uint64_t epoch;
          pid_t pid;
          bool started;
        } told{facts.epoch, facts.broker_pid, facts.started_by_us};
        if (::write(ends[1], &told, sizeof told) != sizeof told) return 2;
        done.wait();
        return 0;
      }));
    go.open();
    std::set<std::uint64_t> epochs;
    std::set<pid_t> pids;
    int starters = 0;
    for (int i = 0; i < 20; ++i) {
      struct {
        std::uint64_t epoch;
        pid_t pid;
        bool started;
      } told{};
      auto readable = sys::poll_readable(ends[0], 60'000'000'000);
      REQUIRE((readable && *readable));
      REQUIRE(::read(ends[0], &told, sizeof told) == sizeof told);
      epochs.insert(told.epoch);
      pids.insert(told.pid);
      starters += told.started ? 1 : 0;
    }
    CHECK(epochs.size() == 1);
    CHECK(pids.size() == 1);
    CHECK(starters == 1);
    done.open();
    for (auto& racer : racers) CHECK(racer.wait() == 0);
    end(*pids.begin());
  }
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("the broker survives the killing of its starter's whole process group and session") {
  LaunchWorld world;
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  auto starter = harness::Child::run([&] {
    ::setsid();
    auto session = must(world.connect());
    const pid_t broker = session->facts().broker_pid;
    (void)!::write(ends[1], &broker, sizeof broker);
    ::kill(0, SIGKILL);
    return 0;
  });
  pid_t broker = 0;
  REQUIRE(::read(ends[0], &broker, sizeof broker) == sizeof broker);
  CHECK(starter.wait() == 128 + SIGKILL);
  auto session = must(world.connect());
  CHECK(session->facts().broker_pid == broker);
  CHECK_FALSE(session->facts().started_by_us);
  auto known = sys::read_file(("/proc/" + std::to_string(broker) + "/stat").c_str());
  REQUIRE(known.has_value());
  session.reset();
  end(broker);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a started broker inherits nothing: descriptors, signals, environment, directory, limits, session") {
  LaunchWorld world;
  const std::string told = world.folder.file("told");
  const std::string program = world.folder.file("probe.sh");
  // Reports in the daemon's place, then says it is ready.
  // The descriptors first and not through a pipe, whose ends the shell itself holds for a moment.
  std::ofstream(program) << "#!/bin/sh\nls /proc/$$/fd > " << told << ".fds\n"
                         << "{ env | sort | tr '\\n' ' '; echo; pwd; umask; "
                            "grep -E '^Sig(Blk|Ign)' /proc/$$/status | tr '\\n' ' '; echo; "
                            "cut -d' ' -f4,6 /proc/$$/stat; ulimit -Sn; ulimit -Hn; } > "
                         << told << "\necho \"$@\" >> " << told << "\necho >&3\n";
  ::chmod(program.c_str(), 0700);
  const Fd log = std::move(*sys::open(world.folder.file("log").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  auto host = harness::Child::run([&] {
    // A host that has everything the daemon must not get.
    const int leaked = ::open("/dev/null", O_RDONLY);
    (void)leaked;
    ::signal(SIGTERM, SIG_IGN);
    sigset_t blocked;
    ::sigemptyset(&blocked);
    ::sigaddset(&blocked, SIGUSR1);
    ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
    ::setenv("SECRET", "1", 1);
    ::umask(0);
    if (::chdir("/usr") != 0) return 1;
    rlimit files;
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = 64;
    ::setrlimit(RLIMIT_NOFILE, &files);
    auto detached = run_detached(program, {"--a", "b c"}, log.get(), ends[1]);
    if (!detached) return 2;
    int status = 0;
    if (::waitpid(-1, &status, WNOHANG) != -1 || errno != ECHILD) return 3;   // never meets any of them
    if (::getpgrp() == 0 || ::signal(SIGTERM, SIG_IGN) != SIG_IGN) return 4;  // the host itself is as it was
    sigset_t now;
    ::sigprocmask(SIG_BLOCK, nullptr, &now);
    return ::sigismember(&now, SIGUSR1) == 1 && ::sigismember(&now, SIGUSR2) == 0 ? 0 : 5;
  });
  CHECK(host.wait() == 0);
  ::close(ends[1]);
  char byte = 0;
  CHECK(::read(ends[0], &byte, 1) == 1);
  ::close(ends[0]);
  std::istringstream lines(slurp(told));
  std::string environment, where, mask, signals, ids, soft, hard, arguments;
  for (std::string* line : {&environment, &where, &mask, &signals, &ids, &soft, &hard, &arguments})
    std::getline(lines, *line);
  int open_numbers = 0;
  for (std::istringstream numbers(slurp(told + ".fds")); !numbers.eof();) {
    int fd = -1;
    if (!(numbers >> fd)) break;
    ++open_numbers;
    CHECK((fd <= 3 || fd >= 10));  // 10 and up: the shell's own script
  }
  CHECK(open_numbers >= 4);
  CHECK(environment.find("SECRET") == std::string::npos);
  CHECK(environment.find("PATH=") != std::string::npos);
  CHECK(where == "/");
  CHECK(mask == "0077");
  CHECK(signals.find_first_of("123456789abcdef", signals.find("SigBlk:") + 7) > signals.find("SigIgn"));
  CHECK(signals.find_first_of("123456789abcdef", signals.find("SigIgn:") + 7) == std::string::npos);
  CHECK(soft == hard);
  CHECK(arguments == "--a b c");
  int parent = 0, session = 0;
  std::istringstream(ids) >> parent >> session;
  CHECK(session != ::getsid(0));
}

TEST_CASE("every failure to start is a sentence") {
  LaunchWorld world;
  const auto fails_with = [&](const std::string& words) {
    auto refused = world.connect();
    CHECK(status_of(refused) == Status::no_broker);
    if (refused.error().sentence.find(words) == std::string::npos) MESSAGE(refused.error().sentence);
    CHECK(refused.error().sentence.find(words) != std::string::npos);
  };
  SUBCASE("the program is not there") {
    world.places.daemon_variable = world.folder.file("absent");
    fails_with("SHMBROKER_DAEMON=" + world.folder.file("absent"));
  }
  SUBCASE("the program is named by a relative path") {
    world.places.daemon_variable = "shmbrokerd";
    fails_with("not absolute");
  }
  SUBCASE("the program is no program") {
    const std::string path = world.folder.file("text");
    std::ofstream(path) << "not a program\n";
    ::chmod(path.c_str(), 0700);
    world.places.daemon_variable = path;
    fails_with("execve: Exec format error");
  }
  SUBCASE("it ends before it is ready, and the error quotes its last words") {
    world.daemon_script("echo first >&2; echo 'the disk is on fire' >&2; exit 1\n");
    fails_with("the disk is on fire");
  }
  SUBCASE("the directory cannot be made") {
    world.places.temporary_dir = world.folder.file("no/such");
    fails_with("making ");
  }
  SUBCASE("the directory is read-only") {
    if (::geteuid() == 0) {
      // Root writes everywhere: the file that should be the lock is a directory instead.
      std::filesystem::create_directories(world.directory + "/start.lock");
      ::chmod(world.directory.c_str(), 0700);
      fails_with("opening ");
    } else {
      ::mkdir(world.directory.c_str(), 0500);
      fails_with("Permission denied");
    }
  }
  SUBCASE("the lock is a link to somewhere else") {
    ::mkdir(world.directory.c_str(), 0700);
    std::filesystem::create_symlink(world.folder.file("elsewhere"), world.directory + "/start.lock");
    fails_with("ELOOP");
    CHECK_FALSE(std::filesystem::exists(world.folder.file("elsewhere")));
  }
  SUBCASE("clone fails") {
    fault::inject(fault::Call::clone, EAGAIN);
    fails_with("clone for starting the broker");
    fault::clear();
  }
}

TEST_CASE("a broker that is never ready, and a starter that never finishes, are deadlines") {
  LaunchWorld world;
  world.options.timeout = 200'000'000;
  SUBCASE("never ready") {
    const std::string pid_file = world.folder.file("pid");
    world.daemon_script("echo $$ > " + pid_file + "; exec sleep 60\n");
    auto refused = world.connect();
    CHECK(status_of(refused) == Status::deadline);
    pid_t pid = 0;
    for (int i = 0; i < 500 && pid == 0; ++i) {
      std::istringstream(slurp(pid_file)) >> pid;
      if (pid == 0) ::usleep(10'000);
    }
    REQUIRE(pid > 0);
    end(pid);
  }
  SUBCASE("another starter holds the lock") {
    ::mkdir(world.directory.c_str(), 0700);
    const Fd lock =
        std::move(*sys::open((world.directory + "/start.lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    REQUIRE(::flock(lock.get(), LOCK_EX) == 0);
    auto refused = world.connect();
    CHECK(status_of(refused) == Status::deadline);
    CHECK(refused.error().sentence.find("another process is starting") != std::string::npos);
  }
}

TEST_CASE("a program beside the executable is found, and what was tried is listed") {
  LaunchWorld world;
  world.places.daemon_variable.reset();
  auto found = find_daemon(world.places);
  if (found) SKIP_CASE("a broker is installed on this machine at " + *found);
  CHECK(found.error().sentence.find("shmbrokerd") != std::string::npos);
  CHECK(found.error().sentence.find("libexec") != std::string::npos);
}
