// SPDX-License-Identifier: Apache-2.0
// The private broker on demand: many starters start one, it takes nothing of its starter with it, outlives it however
// that is killed, and ends by itself.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <sstream>
#include <vector>

#include "tests/e2e/machine.hpp"
#include "tests/e2e/own_broker.hpp"
#include "tests/e2e/programs.hpp"
#include "tests/harness/sanitizer.hpp"

using namespace e2e;

namespace {

Session find_or_start() { return Session::connect({.timeout = std::chrono::seconds(30)}); }

std::string status_line(pid_t pid, const std::string& key) {
  std::istringstream lines(contents("/proc/" + std::to_string(pid) + "/status"));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(key + ":")) return line.substr(line.find_first_not_of(" \t", key.size() + 1));
  return {};
}

}  // namespace

TEST_CASE("20 processes that race to start a private broker start exactly one") {
  const int rounds = 5 / std::min(harness::kSlowdown, 5) + 1;
  for (int round = 0; round < rounds; ++round) {
    const OwnBroker own;
    struct Facts {
      std::atomic<int> started, connected;
      std::atomic<std::uint64_t> epoch;
      std::atomic<int> strangers;
    };
    Shared<Facts> facts;
    Gate go, done;
    std::vector<Child> starters;
    for (int i = 0; i < 20; ++i) {
      starters.push_back(actor([&] {
        own.enter();
        NEED(go.wait());
        const Session session = find_or_start();
        const auto info = session.info();
        NEED(info.mode == SHMB_MODE_PRIVATE);
        facts->started += static_cast<int>(info.started_by_us);
        std::uint64_t none = 0;
        if (!facts->epoch.compare_exchange_strong(none, info.epoch) && none != info.epoch) ++facts->strangers;
        Region region = session.create(4096);
        fill(region.bytes(), 1);
        ++facts->connected;
        NEED(done.wait());
        NEED(holds(region.bytes(), 1));
      }));
    }
    go.open();
    CHECK(eventually([&] { return facts->connected == 20; }));
    CHECK(facts->started == 1);
    CHECK(facts->strangers == 0);
    CHECK(processes_with(own.directory()).size() == 1);
    done.open();
    for (Child& one : starters) CHECK(one.wait() == 0);
  }
}

TEST_CASE("the started broker has no descriptor, variable, directory, session or signal setting of its starter") {
  const OwnBroker own;
  int held[2];  // of the starter alone: once it is gone, whoever still holds the end would keep it from being closed
  REQUIRE(::pipe(held) == 0);
  Gate started, done;
  Child starter = actor([&] {
    own.enter();
    ::setenv("SECRET_OF_THE_STARTER", "yes", 1);
    NEED(::chdir("/tmp") == 0);
    ::signal(SIGUSR1, SIG_IGN);
    ::signal(SIGINT, SIG_IGN);
    sigset_t some;
    ::sigemptyset(&some);
    ::sigaddset(&some, SIGUSR2);
    ::sigprocmask(SIG_BLOCK, &some, nullptr);
    ::close(held[0]);
    for (int number = 500; number < 520; ++number) NEED(::dup2(held[1], number) == number);
    const Session session = find_or_start();
    NEED(session.info().started_by_us == 1);
    // Nothing of the start is visible to the program: no child to wait for, signals as they were.
    NEED(::waitpid(-1, nullptr, WNOHANG | __WALL) == -1);
    NEED(errno == ECHILD);
    struct sigaction action;
    NEED(::sigaction(SIGUSR1, nullptr, &action) == 0 && action.sa_handler == SIG_IGN);
    started.open();
    NEED(done.wait());
  });
  ::close(held[1]);
  REQUIRE(started.wait());
  const pid_t broker = own.pid();
  REQUIRE(broker > 0);
  CHECK(::getsid(broker) != ::getsid(starter.pid()));
  CHECK(::getpgid(broker) != ::getpgid(starter.pid()));
  CHECK(parent_of(broker) != starter.pid());
  CHECK(parent_of(broker) != ::getpid());
  const auto bits = [&](const char* key) { return std::stoull(status_line(broker, key), nullptr, 16); };
  CHECK((bits("SigIgn") & (1ULL << (SIGUSR1 - 1))) == 0);
  CHECK((bits("SigIgn") & (1ULL << (SIGINT - 1))) == 0);
  CHECK((bits("SigBlk") & (1ULL << (SIGUSR2 - 1))) == 0);
  const std::string environment = contents("/proc/" + std::to_string(broker) + "/environ");
  if (environment.empty()) harness::skip("the environment of a process that is not dumpable cannot be read here");
  CHECK(environment.find("SECRET_OF_THE_STARTER") == std::string::npos);
  char where[256];
  const ssize_t size = ::readlink(("/proc/" + std::to_string(broker) + "/cwd").c_str(), where, sizeof where);
  if (size > 0) CHECK(std::string(where, static_cast<std::size_t>(size)) == "/");
  starter.kill();
  starter.wait();
  pollfd entry{held[0], POLLIN, 0};
  CHECK(::poll(&entry, 1, 10'000) == 1);
  CHECK((entry.revents & POLLHUP) != 0);
  ::close(held[0]);
  CHECK(process_lives(broker));
  done.open();
}

namespace {

// Every process below `root`, as an angry administrator finds them.
std::vector<pid_t> tree_of(pid_t root) {
  std::vector<pid_t> found = {root};
  for (std::size_t i = 0; i < found.size(); ++i)
    for (const pid_t pid : all_processes())
      if (parent_of(pid) == found[i]) found.push_back(pid);
  return found;
}

}  // namespace

TEST_CASE("the started broker survives SIGKILL to its starter's process group, session and whole tree") {
  enum class Way { group, session, tree };
  for (const Way way : {Way::group, Way::session, Way::tree}) {
    CAPTURE(static_cast<int>(way));
    const OwnBroker own;
    struct Facts {
      std::uint64_t epoch;
      RegionId id;
    };
    Shared<Facts> facts;
    Gate started;
    Child root = actor([&] {
      NEED(::setsid() == ::getpid());
      // The starter is a grandchild, and its parents wait as a shell does.
      Child middle = actor([&] {
        Child starter = actor([&] {
          own.enter();
          const Session session = find_or_start();
          facts->epoch = session.epoch().value;
          const Region region = session.create(2 * MiB, {.name = "kept", .keep = Keep::until_released()});
          facts->id = region.id();
          started.open();
          ::pause();
        });
        starter.wait();
      });
      middle.wait();
    });
    REQUIRE(started.wait());
    const pid_t broker = own.pid();
    REQUIRE(broker > 0);
    std::vector<pid_t> doomed = tree_of(root.pid());
    REQUIRE(doomed.size() == 3);
    if (way == Way::group) {
      ::kill(-::getpgid(doomed.back()), SIGKILL);
    } else if (way == Way::session) {
      for (const pid_t pid : all_processes())
        if (::getsid(pid) == root.pid()) ::kill(pid, SIGKILL);
    } else {
      for (const pid_t pid : doomed) ::kill(pid, SIGKILL);
    }
    root.wait();
    REQUIRE(eventually([&] { return std::ranges::none_of(doomed, process_lives); }));
    CHECK(process_lives(broker));
    Child next = actor([&] {
      own.enter();
      const Session session = find_or_start();
      NEED(session.info().started_by_us == 0);
      NEED(session.epoch().value == facts->epoch);
      NEED_STATUS(session.try_attach(facts->id), ok);
      const auto stat = session.stat(facts->id);
      session.unname("#" + std::to_string(stat.group) + "/kept");
    });
    CHECK(next.wait() == 0);
  }
}

TEST_CASE("a private broker ends when it has been idle, not while a session is connected or something is kept") {
  const OwnBroker own("--idle-exit 600ms");
  Child user = actor([&] {
    own.enter();
    {
      const Session session = find_or_start();
      ::usleep(1'200'000);
      NEED_STATUS(session.try_ping(), ok);
      session.create_group({.name = "job"});
      session.join("job");
      session.create(4096, {.name = "kept", .keep = Keep::until_released()});
    }
    ::usleep(1'200'000);
    const Session again = Session::connect({.start = false});
    again.unname("job/kept");
  });
  CHECK(user.wait() == 0);
  CHECK(own.ended());
  CHECK(::access(own.socket().c_str(), F_OK) != 0);
  CHECK(own.log().find("nobody has used this private broker for a while") != std::string::npos);
  Child next = actor([&] {
    own.enter();
    NEED(find_or_start().info().started_by_us == 1);
  });
  CHECK(next.wait() == 0);
}

TEST_CASE(
    "where the starter is a subreaper the broker becomes its child, which status shows, and is no trouble to it") {
  const OwnBroker own("--idle-exit 600ms");
  Child starter = actor([&] {
    NEED(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    own.enter();
    {
      const Session session = find_or_start();
      NEED(session.info().started_by_us == 1);
      NEED(parent_of(own.pid()) == ::getpid());
      NEED(::waitpid(-1, nullptr, WNOHANG) == 0);  // it is there, and has not ended
      NEED_STATUS(session.try_create(4096), ok);
      const std::string output = own.runtime_directory() + "/status";
      const int file = ::open(output.c_str(), O_CREAT | O_WRONLY, 0600);
      NEED(program({tool(), "status", "--socket", own.socket()}, {}, -1, file).wait() == 0);
      ::close(file);
      NEED(contents(output).find("pid " + std::to_string(::getpid()) + " ") != std::string::npos);
    }
    int status = -1;
    NEED(::waitpid(-1, &status, 0) > 0);
    NEED(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  });
  CHECK(starter.wait() == 0);
}
