// SPDX-License-Identifier: Apache-2.0
// The parent, the guard or the supervisor dies first, at any moment. Then nothing of the ranks is left, and a living
// parent gets an error. The numbers in the names are those of docs/conformance.md.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "base/sys_socket.hpp"
#include "spawn/ranks/tree.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/spawn/ranks.hpp"

using namespace shmb::test;
using namespace shmbroker;
using namespace std::chrono_literals;

namespace {

enum class Victim { parent, guard, supervisor, both };
constexpr Victim kVictims[] = {Victim::parent, Victim::guard, Victim::supervisor};

// The guard is the one child of a process that spawns; the supervisor is the one child of a guard.
void kill_one(Victim victim, pid_t parent) {
  if (victim == Victim::parent) {
    ::kill(parent, SIGKILL);
    return;
  }
  const pid_t guard = only_child(parent);
  if (guard <= 0) return;
  const pid_t supervisor = only_child(guard);
  if (victim != Victim::guard && supervisor > 0) ::kill(supervisor, SIGKILL);
  if (victim != Victim::supervisor) ::kill(guard, SIGKILL);
}

// A parent of its own: spawns, says so like its ranks, and ends with what join told it. Its ranks may run before it has
// heard of them: a supervisor that is killed then had started none, as far as the parent can know.
enum Told : int { good = 0, supervisor_lost = 10, rank_failed, could_not_start, something_else };
harness::Child parent_of(const SpawnOptions& options, const std::string& function, Witness& witness, bool stubborn) {
  return harness::Child::run([&]() -> int {
    try {
      auto started = function == "stay" ? try_start_processes(function, options, stubborn, true)
                                        : try_start_processes(function, options);
      if (started) (void)!::write(witness.inherited(), "r", 1);
      witness.let_go();
      if (!started) return could_not_start;
      if (static_cast<int>(started->pids().size()) != options.nprocs) return something_else;
      return started->join() ? good : something_else;
    } catch (const ProcessExitedException&) {
      return rank_failed;
    } catch (const ProcessException& lost) {
      return lost.failure().kind == FailureKind::supervisor_lost && !std::string(lost.what()).empty() ? supervisor_lost
                                                                                                      : something_else;
    }
  });
}

SpawnOptions quick(StartMethod method, int nprocs, const Witness& witness) {
  auto options = ranks_of(method, nprocs, false);
  options.environment = {witness.ready_variable()};
  options.grace = 100ms;
  return options;
}

}  // namespace

TEST_CASE("47: SIGKILL of the parent, the guard or the supervisor ends ranks that sleep, spin or refuse, and daemons") {
  for (const StartMethod method : kMethods)
    for (const Victim victim : kVictims)
      for (const char* function : {"stay", "spin"}) {
        CAPTURE(name_of(method));
        CAPTURE(static_cast<int>(victim));
        CAPTURE(function);
        Witness witness;
        auto parent = parent_of(quick(method, 2, witness), function, witness, true);
        REQUIRE(witness.wait_ready(3));
        kill_one(victim, parent.pid());
        CHECK(parent.wait() == (victim == Victim::parent ? 128 + SIGKILL : supervisor_lost));
        CHECK(witness.all_gone());
      }
}

TEST_CASE("SIGKILL of the parent, alone or with guard or supervisor, leaves no ticket and no region of arguments") {
  const harness::BrokerFixture broker;
  REQUIRE(broker.running());
  const std::vector<Victim> orders[] = {{Victim::parent},
                                        {Victim::guard, Victim::parent},
                                        {Victim::supervisor, Victim::parent},
                                        {Victim::parent, Victim::guard},
                                        {Victim::parent, Victim::supervisor}};
  for (const StartMethod method : kMethods)
    for (const auto& order : orders) {
      CAPTURE(std::string(name_of(method)));
      CAPTURE(&order - orders);
      Witness witness;
      auto options = quick(method, 3, witness);
      options.no_group = false;
      options.socket = broker.socket();
      auto parent = harness::Child::run([&]() -> int {
        auto session = Session::connect({.socket = broker.socket()});
        std::optional<Region> taken = session.create(4096, {.many_writers = true});
        std::optional<Region> untaken = session.create(4096, {.many_writers = true});
        auto started = start_processes("stay_with_regions", options, *taken, 0, *untaken);
        taken.reset();
        untaken.reset();
        (void)!::write(witness.inherited(), "r", 1);
        for (;;) ::pause();  // neither joins nor revokes
      });
      REQUIRE(witness.wait_ready(2));  // the parent and rank 0
      const std::string before = broker.books(0);
      CHECK(before.find("tickets") != std::string::npos);
      const pid_t guard = only_child(parent.pid()), supervisor = only_child(guard);
      REQUIRE((guard > 0 && supervisor > 0));
      for (const Victim victim : order)
        ::kill(victim == Victim::parent ? parent.pid() : victim == Victim::guard ? guard : supervisor, SIGKILL);
      CHECK(parent.wait() == 128 + SIGKILL);
      CHECK(witness.all_gone());
      CHECK(broker.books(60'000) == "");
    }
}

TEST_CASE("SIGKILL of any process leaves no ticket and no region of a broadcast that a rank has not taken") {
  const harness::BrokerFixture broker;
  REQUIRE(broker.running());
  for (const StartMethod method : kMethods)
    for (const Victim victim : {Victim::parent, Victim::guard, Victim::supervisor, Victim::both}) {
      CAPTURE(std::string(name_of(method)));
      CAPTURE(static_cast<int>(victim));
      Witness witness;
      auto options = quick(method, 2, witness);
      options.no_group = false;
      options.socket = broker.socket();
      auto parent = parent_of(options, "lend_in_vain", witness, false);
      REQUIRE(witness.wait_ready(2));  // the parent and rank 1
      CHECK(broker.books(0).find("tickets") != std::string::npos);
      kill_one(victim, parent.pid());
      CHECK(parent.wait() == (victim == Victim::parent ? 128 + SIGKILL : supervisor_lost));
      CHECK(witness.all_gone());
      CHECK(broker.books(60'000) == "");
    }
}

TEST_CASE("SIGKILL of the parent leaves no region that ranks have given it as results, before join and after") {
  const harness::BrokerFixture broker;
  REQUIRE(broker.running());
  for (const StartMethod method : kMethods)
    for (const bool joined : {false, true}) {
      CAPTURE(std::string(name_of(method)));
      CAPTURE(joined);
      Witness witness;
      auto options = quick(method, 2, witness);
      options.no_group = false;
      options.socket = broker.socket();
      auto parent = harness::Child::run([&]() -> int {
        auto context =
            joined ? start_processes("give_region", options, 4096) : start_processes("give_while_one_stays", options);
        if (joined && !context.join()) return 1;
        (void)!::write(witness.inherited(), "r", 1);
        for (;;) ::pause();  // takes none
      });
      REQUIRE(witness.wait_ready(joined ? 1 : 2));  // and rank 1, when rank 0 has ended
      const std::string before = broker.books(0);
      CHECK(before.find("tickets") != std::string::npos);
      ::kill(parent.pid(), SIGKILL);
      CHECK(parent.wait() == 128 + SIGKILL);
      CHECK(witness.all_gone());
      CHECK(broker.books(60'000) == "");
    }
}

TEST_CASE("a broker that a rank has started serves others: it outlives ranks without a group, however they end") {
  for (const StartMethod method : kMethods)
    for (const bool fail : {false, true}) {
      CAPTURE(name_of(method));
      CAPTURE(fail);
      const harness::TempDir runtime;
      const std::string socket = runtime.file("shmbroker/socket");
      auto options = ranks_of(method, 2, false);
      options.environment = {"XDG_RUNTIME_DIR=" + runtime.path(), "SHMBROKER_DAEMON=" SHMB_TEST_DAEMON,
                             "SHMBROKER_SOCKET="};
      options.grace = 100ms;
      auto context = start_processes("start_a_broker", options, fail);
      if (fail) CHECK_THROWS_AS(context.join(), ProcessRaisedException);
      else CHECK(context.join());
      auto found = shmb::sys::seqpacket_socket(true);
      REQUIRE(found);
      CHECK(shmb::sys::connect_path(found->get(), socket));
      auto broker = shmb::sys::peer_credentials(found->get());
      REQUIRE((broker && broker->pid > 0));
      ::kill(static_cast<pid_t>(broker->pid), SIGTERM);
      char byte;
      while (::recv(found->get(), &byte, 1, MSG_DONTWAIT) != 0) ::usleep(5000);
    }
}

TEST_CASE("the destructor ends daemon ranks also where their supervisor is stopped") {
  Witness witness;
  auto options = quick(StartMethod::spawn, 2, witness);
  options.daemon = true;
  {
    auto context = start_processes("stay", options, false, true);
    REQUIRE(witness.wait_ready(2));
    const pid_t supervisor = only_child(only_child(::getpid()));
    REQUIRE(supervisor > 0);
    harness::stop(supervisor);
  }
  witness.let_go();
  CHECK(witness.all_gone());
}

TEST_CASE("an exception of a forked rank through the C entry ends that rank, and no copy of the program goes on") {
  Witness witness;
  auto parent = harness::Child::run([&]() -> int {
    witness.let_go();
    shmb_spawn_options options{};
    options.size = sizeof options;
    options.method = SHMB_START_FORK;
    options.flags = SHMB_SPAWN_NO_GROUP;
    options.nprocs = 1;
    options.entry = [](void*) -> int {
      (void)::freopen("/dev/null", "w", stderr);
      throw 5;
    };
    shmb_processes* processes = nullptr;
    const pid_t self = ::getpid();
    if (shmb_spawn(&options, &processes, nullptr) != SHMB_OK) return ::getpid() == self ? 1 : 2;
    std::uint32_t state = 0;
    shmb_failure failure{};
    failure.size = sizeof failure;
    const bool told = shmb_processes_join(processes, 0, 0, &state, nullptr) == SHMB_OK &&
                      shmb_processes_failure(processes, 0, &failure, nullptr) == SHMB_OK;
    const int signal = told ? failure.signal : -1;
    shmb_processes_free(processes);
    return signal == SIGABRT ? 0 : 3;
  });
  CHECK(parent.wait() == 0);
  CHECK(witness.all_gone());
}

TEST_CASE("the failure of ranks whose supervisor was killed names the supervisor") {
  auto parent = harness::Child::run([] {
    auto started = try_start_processes("spin", ranks_of(StartMethod::spawn, 2, false));
    const pid_t supervisor = only_child(only_child(::getpid()));
    if (!started || supervisor <= 0) return 2;
    ::kill(supervisor, SIGKILL);
    try {
      (void)started->join();
    } catch (const ProcessException& lost) {
      return lost.failure().kind == FailureKind::supervisor_lost && lost.failure().pid == supervisor ? 0 : 1;
    }
    return 3;
  });
  CHECK(parent.wait() == 0);
}

// Whether the second one had begun to end the tree before its own death cannot be told from here, and need not.
TEST_CASE(
    "guard and supervisor killed at once: the ranks end by their parent-death signal, and the parent hears of it") {
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    Witness witness;
    auto parent = parent_of(quick(method, 2, witness), "spin", witness, false);
    REQUIRE(witness.wait_ready(3));
    kill_one(Victim::both, parent.pid());
    CHECK(parent.wait() == supervisor_lost);
    CHECK(witness.all_gone());
  }
}

TEST_CASE("47: the same at random moments while the ranks start") {
  const unsigned seed = std::random_device()();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const int rounds = 90 / harness::kSlowdown;
  for (int round = 0; round < rounds; ++round) {
    const StartMethod method = kMethods[round % 3];
    const Victim victim = kVictims[(round / 3) % 3];
    CAPTURE(name_of(method));
    CAPTURE(static_cast<int>(victim));
    Witness witness;
    auto parent = parent_of(quick(method, 3, witness), "stay", witness, true);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 12'000));
    kill_one(victim, parent.pid());
    if (victim == Victim::parent) {
      CHECK(parent.wait() == 128 + SIGKILL);
    } else {
      // Too early, and there was nobody to kill yet: then the parent has to go after all.
      const bool told = parent.wait_ended(500);
      if (!told) parent.kill();
      const int status = parent.wait();
      CHECK((status == supervisor_lost || status == could_not_start || (!told && status == 128 + SIGKILL)));
    }
    REQUIRE(witness.all_gone());
  }
}

TEST_CASE("47: a parent that ends normally without joining takes its ranks along, daemonic or not") {
  for (const StartMethod method : kMethods)
    for (const bool daemon : {false, true}) {
      CAPTURE(name_of(method));
      Witness witness;
      auto options = quick(method, 2, witness);
      options.daemon = daemon;
      auto parent = harness::Child::run([&]() -> int {
        auto started = try_start_processes("stay", options, true, true);
        witness.let_go();
        if (!started) return 1;
        new ProcessContext(std::move(*started));  // never destroyed, as in a program that simply ends
        return 0;
      });
      CHECK(parent.wait() == 0);
      CHECK(witness.all_gone());
    }
}

TEST_CASE("39: a rank that dies takes what it has spawned along, daemons too") {
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    Witness witness;
    auto context = spawn("nested", quick(method, 1, witness), std::string(SHMB_TEST_RANKS));
    REQUIRE(witness.wait_ready(2));
    ::kill(context.pids()[0], SIGTERM);
    CHECK_THROWS_WITH_AS(context.join(), "rank 0 terminated with signal SIGTERM", ProcessExitedException);
    CHECK(witness.all_gone());
  }
}

TEST_CASE("48: ranks that were started from a thread outlive it") {
  for (const StartMethod method : kMethods) {
    CAPTURE(name_of(method));
    std::optional<ProcessContext> context;
    std::thread([&] { context.emplace(spawn("raise_error", ranks_of(method, 2, false), 9, 0, 200)); }).join();
    CHECK_FALSE(context->join(1ms));
    CHECK(context->join());
  }
}

TEST_CASE("processes that ranks leave behind when they have ended well end before join returns") {
  Witness witness;
  auto options = quick(StartMethod::spawn, 1, witness);
  options.start_method = StartMethod::spawn;
  auto parent = harness::Child::run([&]() -> int {
    SpawnOptions command = options;
    command.program.clear();
    command.command = {"sh", "-c", "(setsid sleep 1000 &) ; exit 0"};
    command.join = true;
    (void)spawn_command(command);
    return 0;
  });
  CHECK(parent.wait() == 0);
  CHECK(witness.all_gone());
}
