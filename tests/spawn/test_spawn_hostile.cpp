// SPDX-License-Identifier: Apache-2.0
// Hosts, readers and ranks that make it hard: nothing may hang, die or grow for them. Processes whose own state has to
// be spoilt (descriptors, output, signal mask) are children of the test.
#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "spawn/ranks/store.hpp"
#include "spawn/ranks/tree.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/spawn/ranks.hpp"

using namespace shmb::test;
using namespace shmbroker;
using namespace std::chrono_literals;

namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

SpawnOptions command_of(std::vector<std::string> command, int nprocs) {
  auto options = ranks_of(StartMethod::spawn, nprocs);
  options.program.clear();
  options.command = std::move(command);
  return options;
}

// 0: the body succeeded. Its exceptions are printed, because doctest does not see them.
harness::Child child_of(const std::function<bool()>& body) {
  return harness::Child::run([&]() -> int {
    try {
      return body() ? 0 : 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 2;
    }
  });
}

constexpr int kLines = 1000;  // 100 bytes each: more than a pipe has room for

// A sibling that is forked at the very moment of our fork has copies of both ends of the new socket.
pid_t holder = 0;
bool hold = false;
void fork_a_holder() {
  if (!hold) return;
  hold = false;
  holder = ::_Fork();
  if (holder != 0) return;
  for (;;) ::pause();
}
[[maybe_unused]] const int at_fork = ::pthread_atfork(fork_a_holder, nullptr, nullptr);

}  // namespace

TEST_CASE("commands are ranks that may ask each other, and spawn_child in one says that it has no function") {
  CHECK(spawn_command(command_of({SHMB_TEST_RANKS, "command"}, 3)).join());
}

TEST_CASE("the output of ranks arrives whole, for every start method and way of output") {
  for (const StartMethod method : kMethods)
    for (const Stdio stdio : {Stdio::inherit, Stdio::null, Stdio::files, Stdio::prefix}) {
      CAPTURE(name_of(method));
      CAPTURE(static_cast<int>(stdio));
      const harness::TempDir folder;
      const std::string own = folder.file("own"), log = folder.file("log");
      auto parent = child_of([&] {
        ::dup2(::open(own.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666), 1);
        auto options = ranks_of(method, 2);
        options.stdio = stdio, options.stdio_path = log;
        return spawn("print_lines", options, kLines).join();
      });
      CHECK(parent.wait() == 0);
      const std::string printed = text_of(own);
      if (stdio == Stdio::inherit) CHECK(count(printed, "\n") == 2 * kLines);
      if (stdio == Stdio::null || stdio == Stdio::files) CHECK(printed.empty());
      for (int rank = 0; rank < 2; ++rank) {
        const std::string number = std::to_string(rank);
        if (stdio == Stdio::files) CHECK(count(text_of(log + "." + number + ".out"), "line of " + number) == kLines);
        if (stdio == Stdio::prefix) CHECK(count(printed, "[rank " + number + "] line of " + number) == kLines);
      }
    }
}

TEST_CASE("a last line without an end is a line of its rank, also where ranks count from another shard on") {
  const harness::TempDir folder;
  for (int round = 0; round < 10; ++round) {
    const std::string own = folder.file("own" + std::to_string(round));
    auto parent = child_of([&] {
      ::dup2(::open(own.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666), 1);
      auto options = command_of({"sh", "-c", "printf 'a\\nb\\nc\\nend'"}, 2);
      options.stdio = Stdio::prefix, options.shards = 2, options.shard = 1, options.master_port = 12345;
      return spawn_command(options).join();
    });
    REQUIRE(parent.wait() == 0);
    const std::string printed = text_of(own);
    CHECK(count(printed, "[rank 2] ") == 4);
    CHECK(count(printed, "[rank 3] end\n") == 1);
    CHECK(count(printed, "[rank ") == 8);
  }
}

TEST_CASE("a forked rank prints its own and not again what its parent had begun") {
  const harness::TempDir folder;
  const std::string own = folder.file("own");
  auto parent = child_of([&] {
    ::dup2(::open(own.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666), 1);
    std::printf("begun ");
    const bool good = spawn("print_lines", ranks_of(StartMethod::fork, 2), 1).join();
    std::fflush(stdout);
    return good;
  });
  CHECK(parent.wait() == 0);
  CHECK(count(text_of(own), "begun ") == 1);
  CHECK(count(text_of(own), "line of ") == 2);
}

TEST_CASE("a reader of the output that has gone, or that reads nothing, delays no rank") {
  for (const bool gone : {true, false}) {
    CAPTURE(gone);
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    shmb::Fd reader = shmb::Fd::adopt(ends[0]), writer = shmb::Fd::adopt(ends[1]);
    auto parent = child_of([&] {
      if (gone) reader.reset();
      ::dup2(writer.get(), 1);
      auto options = ranks_of(StartMethod::spawn, 1);
      options.stdio = Stdio::prefix;
      return spawn("print_lines", options, 3 * kLines).join();
    });
    if (gone) reader.reset();
    CHECK(parent.wait() == 0);
  }
}

TEST_CASE("fork needs no command, and arguments of any start method may be long") {
  const std::string text(20 << 20, 'x');
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    auto options = ranks_of(method, 1);
    if (method == StartMethod::fork) options.program.clear(), options.command.clear();
    CHECK(spawn("twice", options, 10, text).result<int>(0) == 20 + static_cast<int>(text.size()));
  }
}

TEST_CASE("a rank cannot fill the calls and values that wait, and a late wait is answered") {
  using shmb::spawn::Op;
  std::map<shmb::Status, int> answers;
  shmb::spawn::Store store(
      3, 0, [&](std::int32_t, std::uint64_t, shmb::Status status, const std::string&) { ++answers[status]; });
  const auto come = [&](Op op, const std::string& name, const std::string& value) {
    const std::int32_t root = 0;
    std::uint64_t size = name.size();
    std::string payload(reinterpret_cast<const char*>(&size), sizeof size);
    payload += name;
    if (op != Op::wait) {
      payload.append(reinterpret_cast<const char*>(&root), sizeof root);
      size = value.size();
      payload.append(reinterpret_cast<const char*>(&size), sizeof size);
      payload += value;
    }
    static std::uint64_t tag = 0;
    store.request(0, shmb::spawn::Frame{op, 0, ++tag, payload});
  };
  for (int i = 0; i < 2000; ++i) come(Op::barrier, std::to_string(i), std::string(1 << 20, 'v'));  // values unused
  CHECK(answers[shmb::Status::limit] == 2000 - 1024);
  CHECK(answers.size() == 1);
  store.gone(1, "has ended");
  CHECK(answers[shmb::Status::peer_gone] == 1024);
  store.gone(2, "has ended");
  come(Op::wait, "key", "");
  CHECK(answers[shmb::Status::peer_gone] == 1025);
  shmb::spawn::Store values(
      2, 0, [&](std::int32_t, std::uint64_t, shmb::Status status, const std::string&) { ++answers[status]; });
  answers.clear();
  const std::uint64_t zero = 0, size = 1 << 20;
  std::string payload(reinterpret_cast<const char*>(&zero), sizeof zero);
  payload.append(4, '\0').append(reinterpret_cast<const char*>(&size), sizeof size).append(size, 'v');
  for (std::uint64_t i = 0; i < 40; ++i) values.request(0, {Op::broadcast, 0, i, payload});
  CHECK(answers[shmb::Status::limit] == 8);
}

TEST_CASE("a rank that does not read its answers is not asked for more") {
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  shmb::spawn::Link link(shmb::Fd::adopt(pair[0]));
  const shmb::Fd rank = shmb::Fd::adopt(pair[1]);
  const std::string answer(1 << 20, 'v');
  int taken = 0;
  for (; link.takes() && taken < 100; ++taken) link.send(shmb::spawn::Op::reply, 1, answer);
  CHECK(taken < 20);
  link.hang_up();
  CHECK(link.takes());
}

TEST_CASE("a program that spawns before spawn_child is refused in its ranks, which would do the same again") {
  auto options = ranks_of(StartMethod::spawn, 1);
  options.command = {"ranks", "recursive"};
  CHECK_THROWS_WITH_AS(spawn("nothing", options), "rank 0 terminated with exit code 42", ProcessExitedException);
  CHECK(std::string(try_start_processes("", ranks_of(StartMethod::spawn, 1)).error().what()) ==
        "no function was named for the ranks to run");
}

TEST_CASE("shards that cannot meet are refused") {
  auto options = ranks_of(StartMethod::spawn, 1);
  options.shards = 2;
  CHECK(std::string(try_start_processes("nothing", options).error().what()).find("MASTER_PORT") != std::string::npos);
}

TEST_CASE("a stranger that holds the far end of the socket does not keep join") {
  auto options = ranks_of(StartMethod::fork, 1, false);
  hold = true;
  auto context = spawn("nothing", options);
  REQUIRE(holder > 0);
  CHECK(context.join());
  CHECK(::kill(holder, SIGKILL) == 0);
  CHECK(::waitpid(holder, nullptr, 0) == holder);
}

TEST_CASE("a guard that does nothing, or is stopped, is not waited for") {
  const harness::TempDir folder;
  const std::string program = folder.file("spawner");
  std::ofstream(program) << "#!/bin/sh\nexec sleep 100000\n";
  REQUIRE(::chmod(program.c_str(), 0755) == 0);
  auto options = ranks_of(StartMethod::spawn, 1, false);
  options.timeout = 50ms;
  ::setenv("SHMBROKER_SPAWNER", program.c_str(), 1);
  CHECK(try_start_processes("nothing", options).error().status() == Status::deadline);
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    auto parent = child_of([&] {
      ::setsid();  // as in the next case
      auto context = spawn("raise_error", ranks_of(method, 1, false), 9, 0, 200);
      const pid_t guard = only_child(::getpid());
      return guard > 0 && ::kill(guard, SIGSTOP) == 0 && context.join();
    });
    CHECK(parent.wait() == 0);
  }
}

// A process group is newly orphaned when the last of its members ends whose parent is in another group of the session
// (setpgid(2)). If a member is stopped then, the kernel sends SIGHUP to all of them. The group of a service's program
// has no shell, and no rank may become its last such member.
TEST_CASE("a process beside the ranks is stopped: their end brings no SIGHUP to the program of a service") {
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    auto parent = child_of([&] {
      ::setsid();
      const pid_t beside = ::fork();
      if (beside == 0)
        for (;;) ::pause();
      harness::stop(beside);
      const auto context = spawn("nothing", ranks_of(method, 2));
      return ::kill(beside, SIGKILL) == 0 && ::waitpid(beside, nullptr, 0) == beside;
    });
    CHECK(parent.wait() == 0);
  }
}

TEST_CASE("the supervisor is stopped and the parent dies: the ranks end all the same") {
  Witness witness;
  auto options = ranks_of(StartMethod::spawn, 1, false);
  options.environment = {witness.ready_variable()};
  options.grace = 100ms;
  auto parent = child_of([&] {
    auto context = spawn("stay", options, false, false);
    witness.let_go();
    return context.join();
  });
  REQUIRE(witness.wait_ready(1));
  harness::stop(only_child(only_child(parent.pid())));
  parent.kill();
  CHECK(parent.wait() == 128 + SIGKILL);
  CHECK(witness.all_gone());
}

TEST_CASE("a child that a rank forks while its threads ask gets the error that it is no rank") {
  CHECK(spawn("fork_while_asking", ranks_of(StartMethod::spawn, 1)).join());
}

TEST_CASE("a parent without a free descriptor hears what became of its ranks") {
  for (const bool good : {true, false}) {
    CAPTURE(good);
    auto parent = child_of([&] {
      auto context = spawn("raise_long", ranks_of(StartMethod::spawn, 1, false), good ? -300 : 30'000);
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = 64;
      ::setrlimit(RLIMIT_NOFILE, &limit);
      while (::dup(0) >= 0) {
      }
      const auto state = *context.try_join();
      if (good) return state == RanksState::succeeded;
      return state == RanksState::failed && context.failures().at(0).kind == FailureKind::raised &&
             context.failures()[0].text.starts_with("begin") && context.failures()[0].cut;
    });
    CHECK(parent.wait() == 0);
  }
}

TEST_CASE("the signals that the spawning thread has blocked are not blocked in ranks") {
  sigset_t term, former;
  ::sigemptyset(&term);
  ::sigaddset(&term, SIGTERM);
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    Witness witness;
    auto options = ranks_of(method, 1, false);
    options.environment = {witness.ready_variable()};
    options.grace = 3s;
    REQUIRE(::pthread_sigmask(SIG_BLOCK, &term, &former) == 0);
    auto context = spawn("stay", options, false, false);
    REQUIRE(::pthread_sigmask(SIG_SETMASK, &former, nullptr) == 0);
    REQUIRE(witness.wait_ready(1));
    context.end();
    CHECK(*context.try_join() == RanksState::failed);
    REQUIRE(context.failures().size() == 1);
    CHECK(context.failures()[0].signal == SIGTERM);
  }
}

TEST_CASE("times that never end are no times that have passed") {
  Witness witness;
  auto options = ranks_of(StartMethod::spawn, 2, false);
  options.environment = {witness.ready_variable()};
  options.start_timeout = options.grace = std::chrono::nanoseconds::max();
  auto context = spawn("leave_late", options);
  REQUIRE(witness.wait_ready(2));
  ::kill(context.pids()[0], SIGKILL);
  CHECK(*context.try_join() == RanksState::failed);
  REQUIRE(context.failures().size() == 2);
  CHECK(context.failures()[1].exit_code == 5);
}

TEST_CASE("ranks get the parent's limit of open files, and a limit that is too small is refused") {
  auto parent = child_of([] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 40;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    auto options = command_of({"sh", "-c", "test $(ulimit -S -n) = 40"}, 12);
    options.stdio = Stdio::prefix;
    if (!spawn_command(options).join()) return false;
    limit.rlim_max = 64;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    options.nprocs = 100;
    auto refused = try_spawn_command(options);
    return !refused && std::string(refused.error().what()).starts_with("100 ranks need ");
  });
  CHECK(parent.wait() == 0);
}

TEST_CASE("a parent whose standard descriptors are closed can spawn, and nothing of ours takes their numbers") {
  auto parent = child_of([] {
    for (int fd = 0; fd < 3; ++fd) ::close(fd);
    auto options = ranks_of(StartMethod::spawn, 1);
    options.stdio = Stdio::prefix;
    return spawn("print_lines", options, 3).join();
  });
  CHECK(parent.wait() == 0);
}

TEST_CASE(
    "the end of file that ranks make by closing what they have inherited comes, though guard and supervisor live") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const shmb::Fd reader = shmb::Fd::adopt(ends[0]);
  shmb::Fd writer = shmb::Fd::adopt(ends[1]), inherited = shmb::Fd::adopt(::dup3(ends[1], 9, 0));
  REQUIRE(inherited.get() == 9);
  auto options = command_of({"sh", "-c", "exec 9>&-; exec sleep 100000"}, 2);
  options.join = false;
  auto context = spawn_command(options);
  writer.reset();
  inherited.reset();
  pollfd wait{reader.get(), POLLIN, 0};
  CHECK(::poll(&wait, 1, 30'000) == 1);
  context.end(true);
  CHECK(*context.try_join() == RanksState::failed);
}

TEST_CASE("bare bytes that a program in another language broadcasts are no value, and the error says so") {
  CHECK(spawn("broadcast_bare", ranks_of(StartMethod::spawn, 2)).join());
}
