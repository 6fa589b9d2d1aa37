// SPDX-License-Identifier: Apache-2.0
// At a random moment one of all the processes of a spawn is killed: the parent, the guard, the supervisor, or a rank.
// Nothing hangs, and nothing is left: no process, no daemon, no zombie, no descriptor, no region, no group, and no
// ticket for an argument, which would expire much later than anything here is waited for.
//
//   test_ranks --kills 1000 [--seed 7] -tc='*kills*'     the long form
#include <dirent.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "spawn/ranks/tree.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/proc.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/spawn/ranks.hpp"
#include "tests/support/arguments.hpp"

namespace random_kills {

using namespace shmb::test;
using namespace shmbroker;
using namespace std::chrono_literals;

constexpr int kRanks = 3;

enum Ended : int { cause_told = 0, not_started, no_failure, child_left, descriptor_left, wrong_error };

// A program that spawns and waits; what it is told, and what it has left then.
int parent(const SpawnOptions& options, const std::string& socket, Witness& witness) {
  auto session = Session::try_connect({.socket = socket, .join_group = false});
  if (!session) return wrong_error;
  auto region = session->try_create(4096, {.many_writers = true});
  if (!region) return wrong_error;
  const std::size_t before = harness::open_descriptors();
  int told = no_failure;
  {
    auto started = try_start_processes("work_for_ever", options, *region);
    witness.let_go();
    if (!started) told = not_started;
    else if (auto state = started->try_join(); !state) told = wrong_error;
    else if (*state == RanksState::failed) told = cause_told;
  }
  if (::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD) return child_left;
  if (told != no_failure && harness::open_descriptors() != before - 1) return descriptor_left;  // the witness' end
  return told;
}

// One of the processes that are there at this moment; while none is below the parent: the parent. Daemons are in
// sessions of their own: the death of one ends nothing. So is the supervisor, the one child of the guard.
pid_t victim(pid_t parent, std::uint32_t which) {
  std::vector<pid_t> all{parent};
  if (const pid_t guard = only_child(parent); guard > 0) {
    all.push_back(guard);
    auto below = shmb::spawn::descendants(guard, {});
    const pid_t supervisor = only_child(guard);
    if (below)
      for (const auto& one : *below)
        if (one.pid == supervisor || ::getsid(one.pid) == ::getsid(0)) all.push_back(one.pid);
  }
  return all[which % all.size()];
}

TEST_CASE("random kills: of parent, guard, supervisor and ranks any may die at any moment, and nothing is left") {
  const std::uint64_t rounds = support::argument("--kills", 60 / harness::kSlowdown);
  const std::uint64_t seed = support::argument("--seed", std::random_device{}());
  CAPTURE(seed);
  REQUIRE(::access(SHMB_TEST_SPAWNER, X_OK) == 0);  // without it nothing starts, and nothing is left
  std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
  const harness::BrokerFixture broker;
  std::uint64_t parents = 0, unstarted = 0, missed = 0;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const StartMethod method = kMethods[round % std::size(kMethods)];
    CAPTURE(round);
    CAPTURE(std::string(name_of(method)));
    Witness witness;
    auto options = ranks_of(method, kRanks, false);
    options.no_group = false;
    options.socket = broker.socket();
    options.grace = 100ms;
    auto program = harness::Child::run([&] { return parent(options, broker.socket(), witness); });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (round % 2 == 0 ? 8'000 : 60'000)));
    const pid_t killed = victim(program.pid(), random());
    ::kill(killed, SIGKILL);
    CAPTURE(killed == program.pid());
    // A process that had just ended may have been hit, or a daemon that was about to be one: then all live on.
    if (killed != program.pid() && !program.wait_ended(8'000)) {
      ++missed;
      const pid_t guard = only_child(program.pid()), supervisor = guard > 0 ? only_child(guard) : -1;
      if (supervisor > 0) ::kill(supervisor, SIGKILL);
    }
    CHECK(program.wait_ended(60'000));
    const int status = program.wait();
    CHECK((status == cause_told || status == not_started || status == 128 + SIGKILL));
    CHECK((status == 128 + SIGKILL) == (killed == program.pid()));
    parents += status == 128 + SIGKILL;
    unstarted += status == not_started;
    REQUIRE(witness.all_gone());
    REQUIRE(broker.books(60'000) == "");
  }
  // One in a hundred, as a rule. More of them: the death of the guard, the supervisor or the ranks ends nothing.
  CHECK(missed <= 4 + rounds / 10);
  MESSAGE(rounds << " kills: " << parents << " times the parent went, " << unstarted
                 << " times before all ranks had been started, " << missed
                 << " hit nobody whose death ends the others; no hang, nothing left");
}

}  // namespace random_kills
