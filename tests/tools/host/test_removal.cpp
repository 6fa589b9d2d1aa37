// SPDX-License-Identifier: Apache-2.0
// Removal and its races. No object that is open, mapped or attached goes. No process that opens a file finds it missing
// for a moment or without its name. The next gc repairs all that a killed gc leaves.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/fault.hpp"
#include "base/sys_host.hpp"
#include "base/sys_process.hpp"
#include "tests/harness/ptrace_killer.hpp"
#include "tests/harness/skip.hpp"
#include "tests/support/shared.hpp"
#include "tests/tools/host/plant.hpp"
#include "tools/host/removal.hpp"
#include "tools/host/verdict.hpp"

using namespace shmb;
using host::Outcome;
using test::Plot;

namespace {

struct IgnoreSigio {
  IgnoreSigio() { ::signal(SIGIO, SIG_IGN); }
};
const IgnoreSigio ignored;

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

host::Inventory scanned() {
  auto inventory = host::scan({});
  REQUIRE(inventory);
  return std::move(*inventory);
}

host::RemovalOptions at_once() { return {.without_lease = false, .settle = 0}; }

host::Removal remove_one(const std::string& path, const host::RemovalOptions& options) {
  const host::Inventory inventory = scanned();
  const auto found = test::find_all(inventory, {path});
  REQUIRE(found.size() == 1);
  return host::remove(inventory, found, options).front();
}

void leaves_nothing_aside() {
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    CHECK_FALSE(entry.path().filename().string().starts_with(".shmbroker-gc-" + std::to_string(::getpid()) + "-"));
}

int hold_open(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) ::_exit(9);
  return fd;
}

void hold_mapped(const std::string& path, int open_flags, int protection, int map_flags) {
  const int fd = hold_open(path, open_flags);
  if (::mmap(nullptr, 4096, protection, map_flags, fd, 0) == MAP_FAILED) ::_exit(9);
  ::close(fd);
}

}  // namespace

TEST_CASE("a file that no process holds is removed, and its memory counted") {
  Plot plot;
  const std::string path = plot.file(plot.own("a"), 3);
  const host::Removal removal = remove_one(path, at_once());
  CHECK(removal.outcome == Outcome::removed);
  CHECK(removal.freed == 3 * 4096);
  CHECK_FALSE(exists(path));
  leaves_nothing_aside();
}

TEST_CASE("a file that any process has open or mapped is left as it was") {
  Plot plot;
  const std::string path = plot.file(plot.own("a"));
  const std::vector<std::function<void()>> ways = {
      [&] { hold_open(path, O_RDONLY); },
      [&] { hold_open(path, O_RDWR); },
      [&] { hold_mapped(path, O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED); },
      [&] { hold_mapped(path, O_RDONLY, PROT_READ, MAP_SHARED); },
      [&] { hold_mapped(path, O_RDONLY, PROT_READ | PROT_WRITE, MAP_PRIVATE); },
  };
  for (const auto& way : ways) {
    const pid_t holder = plot.holder(way);
    const host::Removal removal = remove_one(path, at_once());
    CHECK(removal.outcome == Outcome::held);
    CHECK(exists(path));
    plot.end(holder);
  }
  CHECK(remove_one(path, at_once()).outcome == Outcome::removed);
  leaves_nothing_aside();
}

TEST_CASE("a file that another tool asks about is asked for again, and one that is held stays, however often") {
  Plot plot;
  const std::string path = plot.file(plot.own("a"));
  const host::Inventory inventory = scanned();
  const auto found = test::find_all(inventory, {path});
  REQUIRE(found.size() == 1);
  host::RemovalOptions options = at_once();
  // From its own process the kernel counts it alike, and the scan was before it.
  int asker = hold_open(path, O_RDONLY), asked = 0;
  options.rest = [&](std::int64_t) { ++asked; };
  CHECK(host::remove(inventory, found, options).front().outcome == Outcome::held);
  CHECK(asked == 4);
  CHECK(exists(path));
  options.rest = [&](std::int64_t) { ::close(std::exchange(asker, -1)); };
  CHECK(host::remove(inventory, found, options).front().outcome == Outcome::removed);
  CHECK_FALSE(exists(path));
  leaves_nothing_aside();
}

TEST_CASE("a file whose holder was seen is not asked for again, unless the holder has ended") {
  Plot plot;
  const std::string path = plot.file(plot.own("a"));
  const pid_t holder = plot.holder([&] { hold_open(path, O_RDONLY); });
  const host::Inventory inventory = scanned();
  const auto found = test::find_all(inventory, {path});
  REQUIRE(found.size() == 1);
  host::RemovalOptions options = at_once();
  int asked = 0;
  options.rest = [&](std::int64_t) { ++asked; };
  CHECK(host::remove(inventory, found, options).front().outcome == Outcome::held);
  CHECK(asked == 0);
  plot.end(holder);
  int asker = hold_open(path, O_RDONLY);
  options.rest = [&](std::int64_t) { ::close(std::exchange(asker, -1)); };
  CHECK(host::remove(inventory, found, options).front().outcome == Outcome::removed);
  leaves_nothing_aside();
}

TEST_CASE("a holder in another mount and PID namespace keeps its file") {
  if (::geteuid() != 0) SKIP_CASE("namespaces need root");
  Plot plot;
  const std::string path = plot.file(plot.own("a"));
  const support::Shared<std::atomic<bool>> entered;
  plot.holder([&] {
    const int file = hold_open(path, O_RDONLY);
    entered->store(::unshare(CLONE_NEWNS | CLONE_NEWPID) == 0);
    if (::fork() == 0) {  // the first process of the new PID namespace holds it alone
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) ::pause();
    }
    ::close(file);
  });
  const bool is_nested = entered->load();
  if (!is_nested) SKIP_CASE("this machine gives no namespaces");
  CHECK(remove_one(path, at_once()).outcome == Outcome::held);
  CHECK(exists(path));
}

TEST_CASE("a younger file of the same name, and one that has grown, are not the objects of the plan") {
  Plot plot;
  const std::string path = plot.file(plot.own("a"));
  host::Inventory inventory = scanned();
  const auto found = test::find_all(inventory, {path});
  REQUIRE(found.size() == 1);
  ::unlink(path.c_str());
  const int fd = ::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  REQUIRE(::ftruncate(fd, 4096) == 0);
  ::close(fd);
  CHECK(host::remove(inventory, found, at_once()).front().outcome == Outcome::changed);
  CHECK(exists(path));
  inventory = scanned();
  const auto again = test::find_all(inventory, {path});
  REQUIRE(::truncate(path.c_str(), 8192) == 0);
  CHECK(host::remove(inventory, again, at_once()).front().outcome == Outcome::changed);
  CHECK(exists(path));
  ::unlink(path.c_str());
  CHECK(host::remove(inventory, again, at_once()).front().outcome == Outcome::changed);
  leaves_nothing_aside();
}

TEST_CASE("a link where the file was is not followed") {
  Plot plot;
  const std::string path = plot.file(plot.own("a")), other = plot.file(plot.own("b"));
  const host::Inventory inventory = scanned();
  const auto found = test::find_all(inventory, {path});
  ::unlink(path.c_str());
  REQUIRE(::symlink(other.c_str(), path.c_str()) == 0);
  CHECK(host::remove(inventory, found, at_once()).front().outcome == Outcome::changed);
  CHECK(exists(other));
}

TEST_CASE("all names of a file go together, and none where one was not found") {
  Plot plot;
  const std::string path = plot.file(plot.own("a")), second = "/dev/shm/" + plot.own("b");
  REQUIRE(::link(path.c_str(), second.c_str()) == 0);
  const host::Removal removal = remove_one(path, at_once());
  CHECK(removal.outcome == Outcome::removed);
  CHECK_FALSE(exists(path));
  CHECK_FALSE(exists(second));

  const std::string third = plot.file(plot.own("c")), fourth = "/dev/shm/" + plot.own("d");
  const host::Inventory inventory = scanned();
  REQUIRE(::link(third.c_str(), fourth.c_str()) == 0);
  CHECK(host::remove(inventory, test::find_all(inventory, {third}), at_once()).front().outcome == Outcome::changed);
  CHECK(exists(third));
  ::unlink(fourth.c_str());
}

TEST_CASE("a SysV segment goes only while no process is attached") {
  const int shmid = ::shmget(IPC_PRIVATE, 8192, IPC_CREAT | 0600);
  REQUIRE(shmid >= 0);
  void* memory = ::shmat(shmid, nullptr, 0);
  const auto remove_it = [&] {
    const host::Inventory inventory = scanned();
    for (std::size_t i = 0; i < inventory.objects.size(); ++i)
      if (inventory.objects[i].key.sysv && inventory.objects[i].key.id == static_cast<std::uint64_t>(shmid))
        return host::remove(inventory, {i}, at_once()).front();
    return host::Removal{};
  };
  CHECK(remove_it().outcome == Outcome::held);
  ::shmdt(memory);
  CHECK(remove_it().outcome == Outcome::removed);
  CHECK(::shmget(static_cast<key_t>(shmid), 0, 0) < 0);
  CHECK_FALSE(sys::sysv_facts(shmid).has_value());
}

TEST_CASE("where the kernel gives no lease nothing goes, unless /proc is to be trusted") {
  Plot plot;
  const std::string path = plot.file(plot.own("a"));
  const host::Inventory inventory = scanned();
  const auto found = test::find_all(inventory, {path});
  fault::inject(fault::Call::lease, EINVAL, 1, -1);
  const host::Removal refused = host::remove(inventory, found, at_once()).front();
  CHECK(refused.outcome == Outcome::refused);
  CHECK(refused.reason.find("--without-lease") != std::string::npos);
  CHECK(exists(path));
  const pid_t holder = plot.holder([&] { hold_mapped(path, O_RDWR, PROT_READ, MAP_SHARED); });
  host::RemovalOptions trusting = at_once();
  trusting.without_lease = true;
  CHECK(host::remove(inventory, found, trusting).front().outcome == Outcome::held);  // the second scan sees it
  CHECK(exists(path));
  plot.end(holder);
  CHECK(host::remove(inventory, found, trusting).front().outcome == Outcome::removed);
  CHECK_FALSE(exists(path));
  fault::clear();
}

TEST_CASE("each failing call leaves a file either whole under its name or removed") {
  using fault::Call;
  for (const Call call : {Call::open, Call::fstat, Call::stat, Call::lease, Call::mkdir, Call::flock, Call::rename,
                          Call::unlink, Call::getrandom})
    for (int nth = 1; nth <= 4; ++nth) {
      Plot plot;
      const std::string path = plot.file(plot.own("a"));
      const host::Inventory inventory = scanned();
      const auto found = test::find_all(inventory, {path});
      fault::inject(call, EIO, nth);
      const host::Removal removal = host::remove(inventory, found, at_once()).front();
      fault::clear();
      CAPTURE(static_cast<int>(call));
      CAPTURE(nth);
      CHECK(exists(path) == (removal.outcome != Outcome::removed));
      if (removal.outcome != Outcome::removed) CHECK_FALSE(removal.reason.empty());
      (void)host::recover(scanned());
    }
}

TEST_CASE("a gc that is killed at any of its calls leaves a file that is whole under its name or gone after the next") {
  for (long k = 1, removed = 0; removed == 0; ++k) {
    REQUIRE(k < 2000);
    Plot plot;
    const std::string path = plot.file(plot.own("a"));
    const host::Inventory inventory = scanned();
    const auto found = test::find_all(inventory, {path});
    const auto stepped = harness::run_killed_at(k, [&](const std::function<void()>& start) {
      start();
      return host::remove(inventory, found, at_once()).front().outcome == Outcome::removed ? 0 : 1;
    });
    if (!stepped.traced) SKIP_CASE("ptrace is not to be had here");
    (void)host::recover(scanned());
    CAPTURE(k);
    if (stepped.ended) {
      CHECK(stepped.status == 0);
      ++removed;
    }
    if (exists(path)) {
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      CHECK(Plot::is_whole(fd, path));
      ::close(fd);
    }
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      if (entry.path().filename().string().starts_with(".shmbroker-gc-"))
        CHECK_FALSE(exists(entry.path().string() + "/" + path.substr(path.rfind('/') + 1)));
  }
}

namespace {

// A process that opens `path`: 0 it got the whole file and keeps it until told, 1 there is none, 2 anything else.
class Opener {
 public:
  explicit Opener(const std::string& path) {
    REQUIRE(::pipe2(told_, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(go_, O_CLOEXEC) == 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::close(go_[1]);
      const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
      struct stat facts{};
      const char answer =
          fd < 0 ? (errno == ENOENT ? '1' : '2')
                 : (::fstat(fd, &facts) == 0 && facts.st_nlink == 1 && Plot::is_whole(fd, path) ? '0' : '2');
      (void)!::write(told_[1], &answer, 1);
      char byte = 0;
      (void)!::read(go_[0], &byte, 1);
      ::_exit(0);
    }
  }
  ~Opener() {
    ::close(go_[1]);
    ::waitpid(child_, nullptr, 0);
    for (const int fd : {told_[0], told_[1], go_[0]}) ::close(fd);
  }
  int answer() {
    char byte = '9';
    (void)!::read(told_[0], &byte, 1);
    return byte - '0';
  }
  // True when it waits in open(2), or has answered.
  void let_it_come_to_open() const {
    const std::string state = "/proc/" + std::to_string(child_) + "/stat";
    for (int look = 0; look < 200; ++look) {
      auto text = sys::read_file(state.c_str());
      if (text && text->find(") S") != std::string::npos) return;
      sys::rest(100'000);
    }
  }

 private:
  pid_t child_ = -1;
  int told_[2] = {}, go_[2] = {};
};

}  // namespace

TEST_CASE("an opener that comes at any step of a removal gets the whole file, which then stays, or none, for good") {
  bool ended = false;
  for (long k = 1; !ended; ++k) {
    REQUIRE(k < 2000);
    Plot plot;
    const std::string path = plot.file(plot.own("a"));
    const host::Inventory inventory = scanned();
    const auto found = test::find_all(inventory, {path});
    const pid_t gc = ::fork();
    if (gc == 0) {
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::raise(SIGSTOP);
      (void)host::remove(inventory, found, at_once());
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(gc, &status, 0);
    if (!WIFSTOPPED(status)) SKIP_CASE("ptrace is not to be had here");
    for (long stop = 0; stop < k; ++stop) {
      ::ptrace(PTRACE_SYSCALL, gc, nullptr, nullptr);
      ::waitpid(gc, &status, 0);
      if (WIFEXITED(status)) {
        ended = true;
        break;
      }
    }
    if (ended) break;
    Opener opener(path);
    opener.let_it_come_to_open();
    ::ptrace(PTRACE_DETACH, gc, nullptr, nullptr);
    const int answer = opener.answer();
    ::waitpid(gc, &status, 0);
    CAPTURE(k);
    CHECK(answer != 2);
    CHECK(exists(path) == (answer == 0));
  }
}

TEST_CASE("lost files go and live ones stay, whichever process opens them meanwhile, round after round") {
  const char* wanted = std::getenv("SHMB_GC_ROUNDS");
  const int rounds = wanted != nullptr ? std::atoi(wanted) : 2;
  constexpr int kFiles = 60, kOpeners = 3;
  std::uint64_t opened = 0, missed = 0;
  for (int round = 0; round < rounds; ++round) {
    Plot plot;
    std::vector<std::string> lost, live;
    for (int i = 0; i < kFiles; ++i) lost.push_back(plot.file(plot.own("lost" + std::to_string(i))));
    for (int i = 0; i < kFiles; ++i) live.push_back(plot.file(plot.own("live" + std::to_string(i))));
    plot.holder([&] {
      for (int i = 0; i < kFiles; i += 2) hold_open(live[static_cast<std::size_t>(i)], O_RDONLY);
    });
    plot.holder([&] {
      for (int i = 1; i < kFiles; i += 2)
        hold_mapped(live[static_cast<std::size_t>(i)], O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED);
    });
    std::vector<std::string> all = lost;
    all.insert(all.end(), live.begin(), live.end());
    const host::Inventory inventory = scanned();
    const auto found = test::find_all(inventory, all);
    REQUIRE(found.size() == all.size());
    std::atomic<bool> stop = false, nameless = false;
    std::atomic<std::uint64_t> got = 0, none = 0;
    std::vector<std::thread> openers;
    for (int n = 0; n < kOpeners; ++n)
      openers.emplace_back([&, n] {
        for (std::size_t i = static_cast<std::size_t>(n); !stop; i = (i + 7) % lost.size()) {
          const int fd = ::open(lost[i].c_str(), O_RDWR | O_CLOEXEC);
          if (fd < 0) {
            ++none;
            continue;
          }
          struct stat facts{};
          if (::fstat(fd, &facts) != 0 || facts.st_nlink == 0 || !Plot::is_whole(fd, lost[i])) nameless = true;
          ++got;
          ::close(fd);
        }
      });
    const auto removals = host::remove(inventory, found, {.without_lease = false, .settle = 1'000'000'000});
    stop = true;
    for (std::thread& opener : openers) opener.join();
    opened += got;
    missed += none;
    CHECK_FALSE(nameless.load());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::string& path = inventory.objects[found[i]].reach;
      CHECK(exists(path) == (removals[i].outcome != Outcome::removed));
      CHECK(removals[i].outcome != Outcome::refused);
    }
    for (const std::string& path : live) CHECK(exists(path));
  }
  CHECK(opened + missed > 0);
  leaves_nothing_aside();
}
