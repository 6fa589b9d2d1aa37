// SPDX-License-Identifier: Apache-2.0
// Law 10: the library is a good guest: no threads, no signal handlers, no output, no exit handlers; descriptors
// close-on-exec and few; a forked child has a session of its own; no system call on the data path.
//
// To see it fail: in client/region/create.cpp, finish_create, keep the descriptor by (void)fd.release() before
//   return std::make_shared<Region>(session, facts, std::move(mapping), Fd(), KeptDescriptor::of(std::move(fd)));
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <thread>

#include "client/queue/queue.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/proc.hpp"
#include "tests/harness/ptrace_killer.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/laws/law.hpp"

using namespace laws;

namespace {

using Handlers = std::map<int, std::string>;
Handlers signal_handlers() {
  Handlers all;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action{};
    if (::sigaction(signal, nullptr, &action) != 0) continue;
    all[signal] = std::string(reinterpret_cast<const char*>(&action.sa_sigaction), sizeof action.sa_sigaction) +
                  std::to_string(action.sa_flags);
  }
  return all;
}

// Something of everything, failures too.
int use_all(const std::string& socket) {
  auto session = must(try_open(socket));
  const auto group = must(session->create_group({.name = "guest"}, soon()));
  must(session->join_group(group.token, 0, soon()));
  auto region = must(create_region(session, named("kv", 4 << 20)));
  auto small = must(create_region(session, named("small", 4096)));
  (void)must(small->make_ticket(SHMBW_RIGHT_MAP_READ, 1, 1'000'000, soon()));
  must(small->publish(soon()));
  (void)must(attach_region(session, at("small")));
  WatchSpec spec;
  spec.kind = SHMBW_WATCH_KIND_REGION;
  spec.region = region->ref();
  (void)must(session->watch(spec, soon()));
  (void)must(session->event_descriptor());
  if (attach_region(session, at("absent"))) return 20;
  if (create_region(session, named("kv", 1))) return 21;
  if (create_region(session, named("bad name", 1))) return 22;
  must(region->release(kReleaseUnname));
  must(small->release(kReleaseUnname));
  return 0;
}

}  // namespace

TEST_CASE("law 10: the library starts no thread, installs no signal handler and changes no signal mask") {
  on_each_engine([](BrokerFixture& broker) {
    auto guest = Child::run([&] {
      const Handlers before = signal_handlers();
      const auto threads = harness::numbers_in("/proc/self/task").size();
      sigset_t mask_before{}, mask_after{};  // the kernel fills in its own part only
      ::pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);
      if (const int used = use_all(broker.socket()); used != 0) return used;
      ::pthread_sigmask(SIG_SETMASK, nullptr, &mask_after);
      if (harness::numbers_in("/proc/self/task").size() != threads) return 1;
      if (signal_handlers() != before) return 2;
      return std::memcmp(&mask_before, &mask_after, sizeof mask_before) == 0 ? 0 : 3;
    });
    CHECK(guest.wait() == 0);
  });
}

TEST_CASE("law 10: a broker that closes the connection raises no SIGPIPE") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    auto region = must(create_region(session, named("", 4096)));
    auto guest = Child::run([&] {
      ::signal(SIGPIPE, SIG_DFL);
      auto own = must(try_open(broker.socket()));
      broker.kill();
      for (int i = 0; i < 5; ++i)
        if (status_of(own->ping(soon()) ? shmb::Result<int>(0) : shmb::Result<int>(std::unexpected(Error{}))) ==
            Status::ok)
          return 1;
      return 0;
    });
    CHECK(guest.wait() == 0);
    broker.kill();
  });
}

TEST_CASE("law 10: the library prints nothing, not even when everything fails") {
  on_each_engine([](BrokerFixture& broker) {
    const Fd out = Fd::adopt(::memfd_create("law10-output", MFD_CLOEXEC));
    auto guest = Child::run([&] {
      ::dup2(out.get(), 1);
      ::dup2(out.get(), 2);
      if (const int used = use_all(broker.socket()); used != 0) return used;
      auto session = must(try_open(broker.socket()));
      auto region = must(create_region(session, named("", 4 << 20)));
      {
        const harness::Injected fault(fault::Call::madvise, ENOMEM, 1, -1);
        if (create_region(session, named("", 4 << 20))) return 1;
      }
      ConnectOptions nowhere;
      nowhere.socket = "/nonexistent/socket";
      if (shmb::client::connect(nowhere)) return 2;
      auto child = Child::run([&] { return session->ping(soon()) ? 0 : 1; });
      if (child.wait() != 0) return 3;
      ::kill(broker.pid(), SIGKILL);
      if (!eventually([&] { return !session->ping(soon()); })) return 4;
      return 0;
    });
    CHECK(guest.wait() == 0);
    struct stat facts{};
    REQUIRE(::fstat(out.get(), &facts) == 0);
    CHECK(facts.st_size == 0);
    broker.kill();
  });
}

TEST_CASE("law 10: the library's code registers no exit handler, and exit() with open sessions is quick and clean") {
  on_each_engine([](BrokerFixture& broker) {
    const auto admin = open_admin(broker);
    auto guest = Child::run([&]() -> int {
      // Never destroyed: as in a program that simply ends.
      static auto* const session = new std::shared_ptr<Session>(must(try_open(broker.socket())));
      static auto* const region = new Region::Handle(must(create_region(*session, named("kv", 4096))));
      (void)region;
      ::quick_exit(7);
    });
    CHECK(guest.wait() == 7);
    CHECK(eventually([&] { return regions(admin).empty(); }));
  });
  if (output_of("nm --version").empty()) SKIP_CASE("nm is not installed");
  const std::string symbols = output_of("nm -uC '" SHMB_TEST_CORE "' 2>/dev/null");
  REQUIRE(symbols.find("shmb::") != std::string::npos);
  if (harness::kAddressSanitizer || harness::kThreadSanitizer) return;  // their code is in ours
  for (const char* name : {" atexit\n", " on_exit\n", " __cxa_atexit\n", " at_quick_exit\n", " signal\n",
                           " sigaction\n", " pthread_create\n", " std::thread::_M_start_thread(", " printf\n",
                           " puts\n", " fprintf\n", " std::cout\n", " std::cerr\n"}) {
    CAPTURE(name);
    CHECK(symbols.find(name) == std::string::npos);
  }
}

TEST_CASE("law 10: a thousand regions cost the process no descriptor, and those it has are close-on-exec") {
  on_each_engine([](BrokerFixture& broker) {
    auto guest = Child::run([&] {
      const auto inherited = harness::numbers_in("/proc/self/fd");
      const auto before = inherited.size();
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = 1 + static_cast<rlim_t>(*std::max_element(inherited.begin(), inherited.end())) + 16;
      ::setrlimit(RLIMIT_NOFILE, &limit);
      auto session = must(try_open(broker.socket()));
      std::vector<Region::Handle> all;
      for (int i = 0; i < 1000; ++i) all.push_back(must(create_region(session, named("", 4096))));
      auto large = must(create_region(session, named("", 2 << 20)));
      (void)must(session->event_descriptor());
      const auto now = harness::numbers_in("/proc/self/fd");
      if (now.size() > before + 4) return 1;  // the socket and its set, and two for events
      for (const int fd : now)
        if (std::find(inherited.begin(), inherited.end(), fd) == inherited.end() &&
            (::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0)
          return 2;
      for (auto& region : all) region->data()[0] = std::byte{1};
      return 0;
    });
    CHECK(guest.wait() == 0);
  });
}

TEST_CASE("law 10: wait(-1) sees nothing of the private broker's start, and the starter no SIGCHLD") {
  const harness::TempDir folder;
  Line told;
  auto guest = Child::run([&] {
    sigset_t child_signal, pending;
    ::sigemptyset(&child_signal);
    ::sigaddset(&child_signal, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &child_signal, nullptr);
    Places places;
    places.system_socket = folder.file("no-system-socket");
    places.runtime_dir_variable = folder.path();
    places.daemon_variable = SHMB_TEST_DAEMON;
    places.uid = ::geteuid();
    ConnectOptions options;
    options.no_group = true;
    auto session = shmb::client::connect(options, places);
    if (!session) {
      std::fprintf(stderr, "%s\n", session.error().sentence.c_str());
      return 1;
    }
    if (!(*session)->facts().started_by_us) return 2;
    const pid_t broker = (*session)->facts().broker_pid;
    int result = 0;
    if (::waitpid(-1, nullptr, WNOHANG | __WALL) != -1 || errno != ECHILD) result = 3;
    ::sigpending(&pending);
    if (::sigismember(&pending, SIGCHLD) != 0) result = 4;
    ::kill(broker, SIGTERM);  // it was started for this case alone
    if (!eventually([&] { return ::kill(broker, 0) != 0 && errno == ESRCH; })) result = 5;
    ::sigpending(&pending);
    if (::sigismember(&pending, SIGCHLD) != 0) result = 6;
    return result;
  });
  CHECK(guest.wait() == 0);
}

TEST_CASE("law 10: after fork the child has a session of its own and leases of what it still uses, no more") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    auto kept = must(create_region(session, named("kept", 4096)));
    auto dropped = must(create_region(session, named("dropped", 4096)));
    const auto parent = session->facts().session;
    auto child = Child::run([&] {
      dropped.reset();  // before its first call
      if (!session->ping(soon())) return 1;
      const auto mine = session->facts().session;
      if (mine == parent) return 2;
      std::size_t held = 0;
      for (const auto& row : leases(session)) {
        if (row.record.session != mine) continue;
        if (row.record.region.id != kept->ref().id) return 3;
        ++held;
      }
      return held == 1 ? 0 : 4;
    });
    CHECK(child.wait() == 0);
    CHECK(session->facts().session == parent);
    must(kept->release(kReleaseUnname));
    must(dropped->release(kReleaseUnname));
  });
}

TEST_CASE("law 10: the data path makes no system call") {
  if (harness::kAddressSanitizer || harness::kThreadSanitizer) SKIP_CASE("a sanitizer makes system calls of its own");
  on_each_engine([](BrokerFixture& broker) {
    const auto seen = harness::run_killed_at(0, [&](const std::function<void()>& start) {
      auto session = try_open(broker.socket());
      auto region = create_region(*session, named("kv", 4 << 20));
      auto second = attach_region(*session, at("kv", kReadWrite));
      if (!second) return 1;
      start();
      volatile std::byte* from = (*region)->data();
      volatile std::byte* to = (*second)->data();
      for (int round = 0; round < 100; ++round)
        for (std::size_t i = 0; i < (4 << 20); i += 4096) {
          from[i] = static_cast<std::byte>(round);
          if (to[i] != static_cast<std::byte>(round)) ::_exit(2);
          if ((*second)->facts().length != 4 << 20 || (*region)->bytes().empty()) ::_exit(3);
        }
      ::_exit(0);
    });
    if (!seen.traced) SKIP_CASE("ptrace is not permitted here");
    CHECK(seen.status == 0);
    REQUIRE(seen.calls.size() == 1);
    CHECK(seen.calls[0] == SYS_exit_group);
  });
}

TEST_CASE("law 10: messages between processes that are awake make no system call") {
  if (harness::kAddressSanitizer || harness::kThreadSanitizer) SKIP_CASE("a sanitizer makes system calls of its own");
  using Kind = shmb::pool::QueueKind;
  namespace client = shmb::client;
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    BrokerFixture broker;
    const auto seen = harness::run_killed_at(0, [&](const std::function<void()>& start) {
      auto session = try_open(broker.socket()), other = try_open(broker.socket());
      client::PoolSpec wish;
      wish.name = "p";
      wish.classes = {{4096, 16, 0}};
      auto pool = client::Pool::create(*session, wish, 0);
      if (!pool || !(*other)->join_group("#" + std::to_string((*pool)->group()), 0, soon())) return 1;
      client::Pool::Opening opening;
      opening.address = "p";
      auto theirs = client::Pool::open(*other, opening);
      client::QueueSpec ends;
      ends.name = "q";
      ends.kind = kind;
      ends.cells = 8;
      ends.reader = true;
      auto in = client::Queue::open(*theirs, ends);
      ends.reader = false, ends.writer = true;
      auto out = client::Queue::open(*pool, ends);
      if (!in || !out) return 2;
      client::Message message;
      const std::byte bytes[16] = {};
      // The first round takes pages and the memory of the message.
      for (int round = 0; round < 300; ++round) {
        if (round == 1) start();
        for (const bool keep : {false, true}) {
          auto slot = (*pool)->acquire(4096, client::kNoWait);
          if (!slot || !(*out)->send(*slot, client::kNoWait) || !(*pool)->release(*slot)) ::_exit(3);
          if (!(*in)->receive(message, keep, client::kNoWait) || !message.done()) ::_exit(4);
          if (!(*out)->send(bytes, client::kNoWait) || !(*in)->receive(message, keep, client::kNoWait)) ::_exit(5);
        }
      }
      ::_exit(0);
    });
    if (!seen.traced) SKIP_CASE("ptrace is not permitted here");
    CHECK(seen.status == 0);
    REQUIRE(seen.calls.size() == 1);
    CHECK(seen.calls[0] == SYS_exit_group);
  }
}

TEST_CASE("law 10: replies reach the thread that asked, whichever thread reads the socket") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 100; ++i) {
          const auto length = static_cast<std::uint64_t>(1 + t * 1000 + i);
          auto region = create_region(session, named("", length));
          if (!region || (*region)->facts().length != length) ++wrong;
          else if (attach_region(session, at("t" + std::to_string(t)))) ++wrong;
        }
      });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
  });
}
