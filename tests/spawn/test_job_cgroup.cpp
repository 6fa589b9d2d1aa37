// SPDX-License-Identifier: Apache-2.0
// The cgroup of a job, where this process may make one: below a tree of version 2 that it can write to.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "client/region/headroom.hpp"
#include "spawn/ranks/job_cgroup.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/spawn/runner.hpp"

using shmb::spawn::JobCgroup;
using shmb::test::eventually;
using shmb::test::Runner;

namespace {

namespace files = std::filesystem;

const char* const kNone = "no cgroup of version 2 can be made here";

bool can_make() {
  JobCgroup one = JobCgroup::make();
  const bool made = static_cast<bool>(one);
  one.remove();
  return made;
}

// The last part of its path in the tree of version 2: cgroups(7), "0::/path".
std::string cgroup_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cgroup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("0::")) return line.substr(line.rfind('/') + 1);
  return {};
}

std::string folder_of(pid_t rank) { return shmb::client::own_cgroup() + "/" + cgroup_of(rank); }

// A process that no job has started, in the cgroup of one.
class Outsider {
 public:
  explicit Outsider(const std::string& folder) : pid_(::fork()) {
    if (pid_ == 0) {
      ::signal(SIGTERM, SIG_DFL);
      for (;;) ::pause();
    }
    std::ofstream(folder + "/cgroup.procs") << pid_ << std::flush;
  }
  ~Outsider() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Outsider(const Outsider&) = delete;
  Outsider& operator=(const Outsider&) = delete;
  pid_t pid() const { return pid_; }
  void end() const { ::kill(pid_, SIGKILL); }
  int wait() {
    int status = -1;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

 private:
  pid_t pid_;
};

bool lives(pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) == 0; }

}  // namespace

TEST_CASE("a folder that is no cgroup is not taken for one, and is left as it was") {
  const harness::TempDir root;
  const auto file = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root.path() + path).parent_path());
    std::ofstream(root.path() + path) << text;
  };
  file("/proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  file("/proc/self/cgroup", "0::/job\n");
  file("/sys/fs/cgroup/job/cgroup.procs", "");
  JobCgroup none = JobCgroup::make(root.path());
  CHECK_FALSE(static_cast<bool>(none));
  CHECK_FALSE(none.populated());
  none.kill();
  none.remove();
  std::size_t left = 0;
  for (const auto& one : std::filesystem::directory_iterator(root.path() + "/sys/fs/cgroup/job"))
    left += one.path().filename() != "cgroup.procs";
  CHECK(left == 0);
}

TEST_CASE("a job starts: empty folders of guards that have ended go, all others stay") {
  const harness::TempDir root;
  const std::string job = root.path() + "/sys/fs/cgroup/job/";
  files::create_directories(job);
  files::create_directories(root.path() + "/proc/self");
  std::ofstream(root.path() + "/proc/self/mountinfo") << "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  std::ofstream(root.path() + "/proc/self/cgroup") << "0::/job\n";
  // No process has such a number: the kernel's highest is 4194304.
  const std::string ended = "shmbroker-4194305-", lives = "shmbroker-" + std::to_string(::getpid()) + "-";
  for (const std::string& folder : {ended + "1", ended + "2/" + ended + "3", ended + "4/" + lives + "5",
                                    ended + "6/other", lives + "7", std::string("shmbroker-4194305"),
                                    std::string("shmbroker-x-1"), std::string("shmbroker--5-1"), std::string("other")})
    files::create_directories(job + folder);
  std::ofstream(job + ended + "6/other/a-process-is-in-it");
  (void)JobCgroup::make(root.path());
  CHECK_FALSE(files::exists(job + ended + "1"));
  CHECK_FALSE(files::exists(job + ended + "2"));
  for (const std::string& folder :
       {ended + "4/" + lives + "5", ended + "6/other", lives + "7", std::string("shmbroker-4194305"),
        std::string("shmbroker-x-1"), std::string("shmbroker--5-1"), std::string("other")}) {
    CAPTURE(folder);
    CHECK(files::exists(job + folder));
  }
}

TEST_CASE("guard and supervisor are killed at once: the next job removes their folder, once nothing is in it") {
  if (!can_make()) SKIP_CASE(kNone);
  Runner runner("(setsid sleep ${N}1 &) ; exec sleep ${N}2");
  runner.start();
  REQUIRE(runner.has_marked(2));
  const std::string folder = folder_of(runner.marked()[0]);
  const pid_t guard = runner.guard(), supervisor = runner.supervisor();
  for (const pid_t one : {guard, supervisor}) ::kill(one, SIGSTOP);
  for (const pid_t one : {supervisor, guard}) ::kill(one, SIGKILL);
  (void)runner.wait();
  REQUIRE(runner.has_marked(1));  // the daemon; the other has the parent-death signal
  JobCgroup next = JobCgroup::make();
  CHECK(files::exists(folder));
  next.remove();
  ::kill(runner.marked()[0], SIGKILL);
  REQUIRE(runner.has_marked(0));
  CHECK(eventually([&] {  // the kernel takes a moment to see that it is empty
    JobCgroup another = JobCgroup::make();
    another.remove();
    return !files::exists(folder);
  }));
}

TEST_CASE("the processes of a job are in a cgroup of their own, which goes with them; guard and supervisor are not") {
  if (!can_make()) SKIP_CASE(kNone);
  Runner runner("sleep ${N}1 & (setsid sleep ${N}2 &) ; wait");
  runner.start();
  REQUIRE(runner.has_marked(2));
  const auto ranks = runner.marked();
  const std::string folder = folder_of(ranks[0]), outside = cgroup_of(::getpid());
  CHECK(cgroup_of(ranks[0]).starts_with("shmbroker-" + std::to_string(runner.guard())));
  CHECK(cgroup_of(ranks[1]) == cgroup_of(ranks[0]));
  CHECK(cgroup_of(runner.guard()) == outside);
  CHECK(cgroup_of(runner.supervisor()) == outside);
  CHECK(std::filesystem::exists(folder));
  ::kill(runner.guard(), SIGTERM);
  (void)runner.wait();
  CHECK_FALSE(std::filesystem::exists(folder));
}

TEST_CASE("a process that somebody puts into the job's cgroup belongs to the job: its end is waited for") {
  if (!can_make()) SKIP_CASE(kNone);
  Runner runner("sleep ${N}1");
  runner.start();
  REQUIRE(runner.has_marked(1));
  const pid_t rank = runner.marked()[0];
  const std::string folder = folder_of(rank);
  Outsider outsider(folder);
  REQUIRE(folder_of(outsider.pid()) == folder);
  ::kill(rank, SIGKILL);
  REQUIRE(runner.has_marked(0));
  ::usleep(100'000);
  CHECK(lives(runner.guard()));
  outsider.end();
  (void)outsider.wait();
  CHECK(WEXITSTATUS(runner.wait()) == 128 + SIGKILL);
  CHECK_FALSE(std::filesystem::exists(folder));
}

TEST_CASE("the end of a job kills all that is in its cgroup, also what is no descendant") {
  if (!can_make()) SKIP_CASE(kNone);
  Runner runner("trap '' TERM; (trap '' TERM; setsid sleep ${N}1 &) ; sleep ${N}2; sleep ${N}3");
  runner.start();
  REQUIRE(runner.has_marked(2));
  Outsider outsider(folder_of(runner.marked()[0]));
  ::kill(runner.guard(), SIGTERM);
  ::usleep(50'000);
  ::kill(runner.guard(), SIGTERM);  // the second time: at once
  (void)runner.wait();
  const int status = outsider.wait();
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  CHECK(runner.marked().empty());
}

TEST_CASE("if the supervisor is killed, the guard ends what is in the job's cgroup") {
  if (!can_make()) SKIP_CASE(kNone);
  Runner runner("trap '' TERM; (trap '' TERM; setsid sleep ${N}1 &) ; sleep ${N}2; sleep ${N}3");
  runner.job.grace = 0;
  runner.start();
  REQUIRE(runner.has_marked(2));
  const std::string folder = folder_of(runner.marked()[0]);
  Outsider outsider(folder);
  ::kill(runner.supervisor(), SIGKILL);
  (void)runner.wait();
  CHECK(WIFSIGNALED(outsider.wait()));
  CHECK(runner.marked().empty());
  CHECK_FALSE(std::filesystem::exists(folder));
}

TEST_CASE("a broker that one of the job has started is moved out of its cgroup, and lives on") {
  if (!can_make()) SKIP_CASE(kNone);
  Runner runner("sleep ${N}1");
  Outsider broker(shmb::client::own_cgroup());
  runner.bystanders = {broker.pid()};
  runner.start();
  REQUIRE(runner.has_marked(1));
  const std::string job = folder_of(runner.marked()[0]);
  std::ofstream(job + "/cgroup.procs") << broker.pid() << std::flush;
  REQUIRE(folder_of(broker.pid()) == job);
  ::kill(runner.guard(), SIGTERM);
  ::usleep(50'000);
  ::kill(runner.guard(), SIGTERM);
  (void)runner.wait();
  CHECK(lives(broker.pid()));
  CHECK(cgroup_of(broker.pid()) == cgroup_of(::getpid()));
  CHECK_FALSE(std::filesystem::exists(job));
}

TEST_CASE("a broker in another cgroup stays there when a job ends") {
  if (!can_make()) SKIP_CASE(kNone);
  const std::string name = "aside-" + std::to_string(::getpid()), aside = shmb::client::own_cgroup() + "/" + name;
  REQUIRE(std::filesystem::create_directory(aside));
  {
    Runner runner("sleep ${N}1");
    Outsider broker(aside);
    runner.bystanders = {broker.pid()};
    runner.start();
    REQUIRE(runner.has_marked(1));
    ::kill(runner.guard(), SIGTERM);
    (void)runner.wait();
    CHECK(lives(broker.pid()));
    CHECK(cgroup_of(broker.pid()) == name);
  }
  CHECK(::rmdir(aside.c_str()) == 0);
}
