// SPDX-License-Identifier: Apache-2.0
// Keepers and brokers without a daemon: the broker is a function of the test. One case after the other takes away each
// of the three processes, and each pair. The real daemon with keepers is in tests/e2e/test_keepers.cpp.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/fault.hpp"
#include "daemon/keep/keeper.hpp"
#include "daemon/keep/leftovers.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/proc.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/harness/stuck_file.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/support/shared.hpp"
#include "tests/support/until.hpp"

namespace keep = shmb::daemon::keep;
using harness::Child;
using support::eventually;
using support::Shared;

namespace {

constexpr std::int64_t kMilli = 1'000'000;

struct Seen {
  std::atomic<pid_t> broker{0};  // that lives now, or lived last
  std::atomic<std::uint32_t> brokers{0};
  std::atomic<int> word{0};  // for the case
};

// The third field of /proc/PID/stat and the parent; 0: no such process.
char state_of(pid_t pid) {
  const std::string text = harness::contents("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t end = text.rfind(')');
  return end == text.npos ? '\0' : text[end + 2];
}
bool alive(pid_t pid) {
  const char state = state_of(pid);
  return state != '\0' && state != 'Z' && state != 'X';
}
pid_t parent_of(pid_t pid) {
  const std::string text = harness::contents("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t end = text.rfind(')');
  return end == text.npos ? 0 : std::atoi(text.c_str() + end + 4);
}
std::string name_of(pid_t pid) { return harness::contents("/proc/" + std::to_string(pid) + "/comm"); }

// SIGTERM is blocked in a new broker.
int wait_until_told(const keep::Life& life) {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  ::sigaddset(&wanted, SIGTERM);
  int signal = 0;
  ::sigwait(&wanted, &signal);
  life.ended();
  return 0;
}

int serve_until_told(const keep::Life& life) {
  life.served();
  ++life.board->beat;  // it waits
  return wait_until_told(life);
}

class Family {
 public:
  using Body = std::function<int(const keep::Life&, Seen&)>;
  explicit Family(Body body = {}, keep::Keep keep = {}, const std::function<void()>& before = {})
      : main_(Child::run([&] {
          if (before) before();
          auto life = keep::keep_broker(keep);
          if (!life) return 99;
          seen_->broker = ::getpid();
          ++seen_->brokers;
          return body ? body(*life, *seen_) : serve_until_told(*life);
        })) {}
  ~Family() {
    // A stopped keeper starts nothing, and is no dead one.
    const pid_t main = main_pid();
    if (!alive(main)) return;
    ::kill(main, SIGSTOP);
    while (!harness::is_stopped(main)) ::usleep(200);  // it may be starting one just now
    for (bool some = true; some;) {
      some = false;
      for (int pid : harness::numbers_in("/proc"))
        if (parent_of(pid) == main && alive(pid)) some = ::kill(pid, SIGKILL) == 0;
    }
    if (seen_->broker > 1 && alive(seen_->broker)) ::kill(seen_->broker, SIGKILL);  // perhaps no child of this keeper
    ::kill(main, SIGKILL);
  }
  Seen& seen() { return *seen_; }
  Child& started() { return main_; }
  // The main keeper now: a second one that took over has become it.
  pid_t main_pid() const { return heir_ != 0 ? heir_ : main_.pid(); }
  pid_t second() const {
    for (int pid : harness::numbers_in("/proc"))
      if (parent_of(pid) == main_pid() && name_of(pid) == "shmb-keeper\n" && alive(pid)) return pid;
    return 0;
  }
  pid_t await_second() const {
    pid_t found = 0;
    REQUIRE(eventually([&] { return (found = second()) != 0; }));
    return found;
  }
  void takes_over(pid_t heir) { heir_ = heir; }
  pid_t await_broker(std::uint32_t number) const {
    REQUIRE(eventually([&] { return seen_->brokers >= number && alive(seen_->broker); }));
    return seen_->broker;
  }
  // All three are there: (main, second, broker).
  struct Three {
    pid_t main, second, broker;
  };
  Three whole(std::uint32_t brokers = 1) const { return {main_pid(), await_second(), await_broker(brokers)}; }

 private:
  Shared<Seen> seen_;
  Child main_;
  pid_t heir_ = 0;
};

}  // namespace

#define NEEDS_KEEPERS()                                                             \
  do {                                                                              \
    if (std::string why = keep::no_keepers(); !why.empty()) SKIP_CASE(why.c_str()); \
  } while (false)

TEST_CASE("a broker that is killed is replaced by the next one, again and again") {
  NEEDS_KEEPERS();
  Family family;
  const pid_t second = family.await_second();
  constexpr std::uint32_t kKills = 30;
  for (std::uint32_t each = 1; each <= kKills; ++each) {
    const pid_t broker = family.await_broker(each);
    CHECK(parent_of(broker) == family.main_pid());
    ::kill(broker, SIGKILL);
  }
  family.await_broker(kKills + 1);
  CHECK(family.second() == second);
  family.started().kill(SIGTERM);
  CHECK(family.started().wait() == 0);
}

TEST_CASE("each keeper that is killed is replaced, and the broker does not notice") {
  NEEDS_KEEPERS();
  Family family;
  auto three = family.whole();
  ::kill(three.second, SIGKILL);
  REQUIRE(eventually([&] { return !alive(three.second) && family.second() != 0; }));
  for (int each = 0; each < 5; ++each) {
    three = family.whole();
    ::kill(three.main, SIGKILL);
    if (each == 0) family.started().wait();
    family.takes_over(three.second);
    CHECK(family.whole().broker == three.broker);
    CHECK(family.seen().brokers == 1);
  }
  // The broker is no child of this keeper: its word alone tells of its end.
  three = family.whole();
  CHECK(parent_of(three.broker) != three.main);
  ::kill(three.broker, SIGKILL);
  CHECK(family.whole(2).broker != three.broker);
}

TEST_CASE("of any two that are killed at once, what is left goes on") {
  NEEDS_KEEPERS();
  SUBCASE("main keeper and broker") {
    Family family;
    const auto three = family.whole();
    ::kill(three.main, SIGKILL);
    ::kill(three.broker, SIGKILL);
    family.started().wait();
    family.takes_over(three.second);
    CHECK(family.whole(2).broker != three.broker);
  }
  SUBCASE("second keeper and broker") {
    Family family;
    const auto three = family.whole();
    ::kill(three.broker, SIGKILL);
    ::kill(three.second, SIGKILL);
    REQUIRE(eventually([&] { return !alive(three.second); }));
    CHECK(family.whole(2).main == three.main);
  }
  SUBCASE("both keepers: the broker serves on, and ends in order") {
    Family family;
    const auto three = family.whole();
    ::kill(three.second, SIGSTOP);  // else it could take over between the two
    ::kill(three.main, SIGKILL);
    ::kill(three.second, SIGKILL);
    REQUIRE(eventually([&] { return !alive(three.second) && !alive(three.main); }));
    CHECK(alive(three.broker));
    ::kill(three.broker, SIGTERM);
    CHECK(eventually([&] { return !alive(three.broker); }));
  }
  SUBCASE("all three: nothing is left") {
    Family family;
    const auto three = family.whole();
    ::kill(three.second, SIGSTOP);
    for (pid_t each : {three.main, three.broker, three.second}) ::kill(each, SIGKILL);
    CHECK(eventually([&] { return !alive(three.main) && !alive(three.second) && !alive(three.broker); }));
    CHECK(family.seen().brokers == 1);
  }
}

TEST_CASE("a keeper that is killed while the broker dies all the time leaves no gap and no second broker") {
  NEEDS_KEEPERS();
  Family family([](const keep::Life& life, Seen& seen) {
    // Two brokers at once would meet in this word.
    if (seen.word.exchange(1) != 0) seen.word = 1000;
    life.served();
    ++life.board->beat;
    ::usleep(2000);
    if (seen.word == 1) seen.word = 0;
    return ::kill(::getpid(), SIGKILL);
  });
  for (int each = 0; each < 20; ++each) {
    const pid_t second = family.await_second(), main = family.main_pid();
    ::usleep(static_cast<unsigned>(each) * 700);
    ::kill(main, SIGKILL);
    if (each == 0) family.started().wait();
    family.takes_over(second);
    const std::uint32_t before = family.seen().brokers;
    REQUIRE(eventually([&] { return family.seen().brokers > before + 1; }));
  }
  CHECK(family.seen().word < 2);
}

TEST_CASE("SIGTERM to any of the three ends all of them in order") {
  NEEDS_KEEPERS();
  for (int which = 0; which < 3; ++which) {
    CAPTURE(which);
    Family family;
    const auto three = family.whole();
    ::kill(which == 0 ? three.main : which == 1 ? three.second : three.broker, SIGTERM);
    CHECK(family.started().wait() == 0);
    CHECK(!alive(three.second));
    CHECK(!alive(three.broker));
    CHECK(family.seen().brokers == 1);
  }
}

TEST_CASE("once the end was asked for, no keeper starts another broker, also not one that takes over") {
  NEEDS_KEEPERS();
  harness::TempDir folder;
  const std::string file = folder.file("socket");
  ::close(::open(file.c_str(), O_CREAT | O_WRONLY, 0600));
  keep::Keep keep;
  keep.sockets = {file, ""};
  Family family(
      [](const keep::Life& life, Seen& seen) {
        if (life.before > 0) return serve_until_told(life);
        life.served();
        ++life.board->beat;
        (void)wait_until_told(life);
        life.board->ended = 0;  // it is not at its end yet
        seen.word = 1;
        for (;;) ::pause();
      },
      keep);
  const auto three = family.whole();
  ::kill(three.main, SIGTERM);
  REQUIRE(eventually([&] { return family.seen().word == 1; }));
  ::kill(three.main, SIGKILL);
  family.started().wait();
  ::kill(three.broker, SIGKILL);
  CHECK(eventually([&] { return !alive(three.second) || family.seen().brokers > 1; }));
  CHECK(family.seen().brokers == 1);
  CHECK(::access(file.c_str(), F_OK) != 0);
  family.takes_over(three.second);
}

TEST_CASE("SIGTERM while no broker lives removes the socket files and ends with 0") {
  NEEDS_KEEPERS();
  harness::TempDir folder;
  const std::string file = folder.file("socket");
  ::close(::open(file.c_str(), O_CREAT | O_WRONLY, 0600));
  keep::Keep keep;
  keep.sockets = {file, ""};
  Family family(
      [](const keep::Life& life, Seen&) {
        life.served();
        return 1;  // at once: the pauses grow to a second
      },
      keep);
  family.await_second();
  REQUIRE(eventually([&] { return family.seen().brokers >= 8; }));
  family.started().kill(SIGTERM);
  CHECK(family.started().wait() == 0);
  CHECK(::access(file.c_str(), F_OK) != 0);
}

TEST_CASE("a broker that fails before one has served ends the keepers with its status; later it is replaced") {
  NEEDS_KEEPERS();
  Family never([](const keep::Life&, Seen&) { return 7; });
  CHECK(never.started().wait() == 7);
  CHECK(never.seen().brokers == 1);
  Family later([](const keep::Life& life, Seen& seen) {
    if (life.before == 0) {
      life.served();
      return 1;
    }
    seen.word = life.last == "ended with status 1" ? 1 : 2;
    return serve_until_told(life);
  });
  later.await_broker(2);
  CHECK(eventually([&] { return later.seen().word == 1; }));
  Family last([](const keep::Life& life, Seen&) {
    life.served();
    return keep::kCannotGoOn;
  });
  CHECK(last.started().wait() == 1);
}

TEST_CASE("a broker that dies by a fault before one has served ends the keepers with the signal's status") {
  NEEDS_KEEPERS();
  Family never([](const keep::Life&, Seen&) {
    ::signal(SIGABRT, SIG_DFL);
    return ::raise(SIGABRT);
  });
  CHECK(eventually([&] { return !alive(never.main_pid()) || never.seen().brokers > 3; }));
  CHECK(never.seen().brokers == 1);
  if (!alive(never.main_pid())) CHECK(never.started().wait() == 128 + SIGABRT);
  // SIGKILL comes from outside: such a broker is replaced, also before it has served.
  Family killed(
      [](const keep::Life& life, Seen&) { return life.before < 3 ? ::raise(SIGKILL) : serve_until_told(life); });
  killed.await_broker(4);
}

TEST_CASE("signals that the broker does not take kill none of the three") {
  NEEDS_KEEPERS();
  Family family;
  const auto three = family.whole();
  for (int signal : {SIGUSR1, SIGUSR2})
    for (pid_t each : {three.main, three.second, three.broker}) ::kill(each, signal);
  // Once the main keeper has done something else, it has taken them too.
  ::kill(three.second, SIGKILL);
  pid_t next = 0;
  REQUIRE(eventually([&] { return (next = family.second()) != 0 && next != three.second; }));
  CHECK(alive(three.main));
  CHECK(alive(three.broker));
  CHECK(family.seen().brokers == 1);
}

TEST_CASE("a broker hears how the one before it ended") {
  NEEDS_KEEPERS();
  Family family([](const keep::Life& life, Seen& seen) {
    life.served();
    if (life.before == 0) return ::raise(SIGKILL);
    seen.word = life.last.find("signal 9") != std::string::npos ? 1 : 2;
    return serve_until_told(life);
  });
  CHECK(eventually([&] { return family.seen().word == 1; }));
}

TEST_CASE("a broker at work whose beat stands still is killed; one that waits or is stopped is not") {
  NEEDS_KEEPERS();
  keep::Keep keep;
  keep.hang = 1000 * kMilli;
  Family hangs(
      [](const keep::Life& life, Seen& seen) {
        life.served();
        if (seen.word != 0) return serve_until_told(life);
        seen.word = 1;
        for (;;) ::pause();
      },
      keep);
  // On a busy host a broker may be killed before its first step.
  Family rests(
      [](const keep::Life& life, Seen& seen) {
        ++life.board->beat;
        seen.word = ::getpid();
        return wait_until_told(life);
      },
      keep);
  Family works(
      [](const keep::Life& life, Seen&) {
        life.served();
        for (;; life.board->beat += 2) ::usleep(1000);
        return 0;
      },
      keep);
  REQUIRE(eventually([&] { return rests.seen().word != 0; }));
  const pid_t resting = rests.seen().word;
  pid_t stopped = 0;
  REQUIRE(eventually([&] {
    ::kill(stopped = works.await_broker(1), SIGSTOP);
    return state_of(stopped) == 'T';
  }));
  CHECK(eventually([&] { return hangs.seen().word == 1 && hangs.seen().brokers >= 2; }));
  ::usleep(3'000'000);
  CHECK(alive(resting));
  CHECK(state_of(stopped) == 'T');
  ::kill(stopped, SIGCONT);
}

TEST_CASE("a stopped keeper is no dead one, and the other one waits for it") {
  NEEDS_KEEPERS();
  Family family;
  const auto three = family.whole();
  ::kill(three.main, SIGSTOP);
  ::kill(three.broker, SIGKILL);
  ::usleep(100'000);
  CHECK(family.seen().brokers == 1);
  ::kill(three.main, SIGCONT);
  CHECK(family.await_broker(2) != three.broker);
  ::kill(three.second, SIGSTOP);
  ::kill(family.await_broker(2), SIGKILL);
  family.await_broker(3);
  ::kill(three.second, SIGCONT);
  CHECK(family.second() == three.second);
}

TEST_CASE("a clone that fails is tried again, but the first one for a broker is an error of the start") {
  NEEDS_KEEPERS();
  SUBCASE("of the second keeper") {
    Family family({}, {}, [] { shmb::fault::inject(shmb::fault::Call::clone, EAGAIN, 1, 1); });
    family.whole();
  }
  SUBCASE("of the first broker") {
    Family family({}, {}, [] { shmb::fault::inject(shmb::fault::Call::clone, EAGAIN, 2, 1); });
    CHECK(eventually([&] { return !alive(family.main_pid()) || family.seen().brokers > 0; }));
    CHECK(family.seen().brokers == 0);
    CHECK(family.second() == 0);
    if (!alive(family.main_pid())) CHECK(family.started().wait() == 99);
  }
  SUBCASE("of a later broker") {
    Family family({}, {}, [] { shmb::fault::inject(shmb::fault::Call::clone, EAGAIN, 3, 4); });
    const auto three = family.whole();
    ::kill(three.broker, SIGKILL);
    CHECK(family.whole(2).broker != three.broker);
  }
}

TEST_CASE("a broker that closes every descriptor, each twice, harms no keeper") {
  NEEDS_KEEPERS();
  Family family([](const keep::Life& life, Seen&) {
    life.served();
    if (life.before > 0) return serve_until_told(life);
    for (int round = 0; round < 2; ++round)
      for (int number = 0; number < 1024; ++number) ::close(number);
    return ::raise(SIGKILL);
  });
  const auto three = family.whole(2);
  ::kill(three.main, SIGKILL);
  family.started().wait();
  family.takes_over(three.second);
  CHECK(family.whole(2).broker == three.broker);
}

TEST_CASE("what a dead broker left open is closed by the next one, and nothing else") {
  NEEDS_KEEPERS();
  int ends[2], kept[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, kept) == 0);
  Shared<std::atomic<std::size_t>> found;
  harness::TempDir folder;
  const std::string place = folder.file("s");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  place.copy(address.sun_path, sizeof address.sun_path - 1);
  const auto at = reinterpret_cast<const sockaddr*>(&address);
  ends[0] = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  REQUIRE(::bind(ends[0], at, sizeof address) == 0);
  REQUIRE(::listen(ends[0], 8) == 0);
  std::vector<keep::Known> known;
  Family family(
      [&](const keep::Life& life, Seen& seen) {
        keep::Leftovers left(known);
        if (life.before == 0) {
          *found = left.count();
          (void)::accept4(ends[0], nullptr, nullptr, SOCK_CLOEXEC);
          const int copy = ::fcntl(ends[0], F_DUPFD_CLOEXEC, 3);  // not to be shut down
          (void)::memfd_create("left", MFD_CLOEXEC);
          int pipe[2];
          (void)::pipe2(pipe, O_CLOEXEC);
          ::close(kept[1]);  // of the keepers, closed once too often, and used again
          (void)::fcntl(copy, F_DUPFD_CLOEXEC, kept[1]);
          life.served();
          return ::raise(SIGKILL);
        }
        *found = left.count();
        seen.word = (left.lost(kept[1]) ? 1 : 0) | (left.lost(ends[0]) ? 2 : 0) | (left.lost(kept[0]) ? 4 : 0);
        left.close();
        return serve_until_told(life);
      },
      {}, [&] { known = keep::open_now(); });
  const int client = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  REQUIRE(::connect(client, at, sizeof address) == 0);
  char byte;
  CHECK(::recv(client, &byte, 1, 0) == 0);  // end of file
  family.await_broker(2);
  CHECK(*found == 6);  // the connection, the copy, the memory, two ends of a pipe, the number of the keepers
  CHECK(family.seen().word == 1);
  CHECK(eventually([&] {
    return harness::numbers_in("/proc/" + std::to_string(family.main_pid()) + "/fd").size() <= known.size() + 40;
  }));
  // The listening socket still listens.
  const int again = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  CHECK(::connect(again, at, sizeof address) == 0);
  for (int each : {client, again, ends[0], kept[0], kept[1]}) ::close(each);
}

TEST_CASE("a dead broker of which a thread sleeps in the kernel for ever does not hold up the next one") {
  NEEDS_KEEPERS();
  harness::StuckFile stuck;
  if (!stuck.there()) SKIP_CASE("needs to mount a FUSE file system");
  Family family([&](const keep::Life& life, Seen&) {
    if (life.before == 0) {
      const int file = ::open(stuck.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (file < 0) return 98;
      std::thread([file] { ::close(file); }).detach();
    }
    return serve_until_told(life);
  });
  const pid_t first = family.await_broker(1);
  REQUIRE(eventually([&] { return stuck.flushes() == 1; }));
  ::kill(first, SIGKILL);
  CHECK(family.await_broker(2) != first);
  CHECK(state_of(first) == 'Z');  // its main thread. The other one is still there
  CHECK(harness::numbers_in("/proc/" + std::to_string(first) + "/task").size() == 2);
  stuck.release();
  CHECK(eventually([&] { return state_of(first) == '\0'; }));  // reaped
  CHECK(family.seen().brokers == 2);
}

TEST_CASE("a file of a client whose close waits for ever holds up neither the next broker nor other leftovers") {
  NEEDS_KEEPERS();
  harness::StuckFile stuck;
  if (!stuck.there()) SKIP_CASE("needs to mount a FUSE file system");
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  std::vector<keep::Known> known;
  Family family(
      [&](const keep::Life& life, Seen&) {
        if (life.before == 0) {
          (void)::open(stuck.path().c_str(), O_RDONLY | O_CLOEXEC);
          (void)::memfd_create("left", MFD_CLOEXEC);
          (void)::fcntl(ends[1], F_DUPFD_CLOEXEC, 3);
          ::close(ends[1]);
          life.served();
          return ::raise(SIGKILL);
        }
        keep::Leftovers left(known);
        left.close();
        return serve_until_told(life);
      },
      {}, [&] { known = keep::open_now(); });
  ::close(ends[1]);
  char byte;
  CHECK(::recv(ends[0], &byte, 1, 0) == 0);
  REQUIRE(eventually([&] { return stuck.flushes() == 1; }));
  family.await_broker(2);
  CHECK(eventually([&] {
    const std::string folder = "/proc/" + std::to_string(family.main_pid()) + "/fd";
    char target[64] = {};
    for (int number : harness::numbers_in(folder))
      if (::readlink((folder + "/" + std::to_string(number)).c_str(), target, sizeof target - 1) > 0 &&
          std::string(target).starts_with("/memfd:left"))
        return false;
    return true;
  }));
  stuck.release();
  ::close(ends[0]);
}

TEST_CASE("a doorbell of a client goes on where a copy of it is left over") {
  const std::vector<keep::Known> known = keep::open_now();
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  const int copy = ::fcntl(pair[0], F_DUPFD_CLOEXEC, 3);
  keep::Leftovers left(known);
  CHECK(left.count() == 3);
  left.spare({std::min(pair[0], pair[1]), std::max(pair[0], pair[1])});
  left.close();
  CHECK(eventually([&] { return ::fcntl(copy, F_GETFD) < 0; }));
  char byte = 'x';
  CHECK(::send(pair[1], &byte, 1, MSG_NOSIGNAL) == 1);
  CHECK(::recv(pair[0], &byte, 1, MSG_DONTWAIT) == 1);
  ::close(pair[0]);
  ::close(pair[1]);
}

TEST_CASE("the service manager hears of a keeper that takes over") {
  NEEDS_KEEPERS();
  harness::TempDir folder;
  keep::Keep keep;
  keep.notify = folder.file("notify");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  keep.notify.copy(address.sun_path, sizeof address.sun_path - 1);
  const int manager = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  REQUIRE(::bind(manager, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  Family family({}, keep);
  const auto three = family.whole();
  ::kill(three.main, SIGKILL);
  family.started().wait();
  family.takes_over(three.second);
  char text[64] = {};
  REQUIRE(::recv(manager, text, sizeof text - 1, 0) > 0);
  CHECK(std::string(text) == "MAINPID=" + std::to_string(three.second) + "\n");
  ::close(manager);
}

TEST_CASE(
    "the books are given up after three brokers that began from them and died by their own fault, and not by kills") {
  keep::Board board;
  board.books = 7;
  const auto life = [&](bool at_fault) { return keep::Life{&board, 1, "died", at_fault}; };
  CHECK(keep::Life{&board, 0, "", false}.last_books() == -1);
  for (int kill = 0; kill < 10; ++kill) CHECK(life(false).last_books() == 7);
  for (int fault = 0; fault < 2; ++fault) CHECK(life(true).last_books() == 7);
  CHECK(life(true).last_books() == -1);
  CHECK(life(false).last_books() == 7);
  for (int fault = 0; fault < 10; ++fault) {
    CHECK(life(true).last_books() == 7);
    life(true).served();
  }
}
