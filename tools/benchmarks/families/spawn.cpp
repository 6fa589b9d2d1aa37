// SPDX-License-Identifier: Apache-2.0
// Ranks that do nothing, started and joined; and a rank that is killed, until its parent knows and the others are gone.
// Nothing of the floors supervises anybody: what is more is the price of the two processes above the ranks.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "spawn/face/shmbroker_spawn.h"
#include "tools/benchmarks/kit/figure.hpp"
#include "tools/benchmarks/kit/library.hpp"
#include "tools/benchmarks/kit/process.hpp"

namespace shmb::bench {
namespace {

shmb_processes* start(const Settings& settings, std::uint32_t method, int count, const char* const* command) {
  shmb_spawn_options options{};
  options.size = sizeof options;
  options.method = method;
  options.flags = SHMB_SPAWN_NO_GROUP;
  options.nprocs = count;
  options.function = "nothing";
  options.command = command;
  if (method != SHMB_START_COMMAND) options.program = settings.self.c_str();
  shmb_processes* processes = nullptr;
  shmb_error error;
  must_succeed(shmb_spawn(&options, &processes, &error), error);
  return processes;
}

void join(shmb_processes* processes, std::uint32_t expected) {
  std::uint32_t state = 0;
  shmb_error error;
  must_succeed(shmb_processes_join(processes, 0, 0, &state, &error), error);
  if (state != expected) give_up("the ranks did not end as they should");
  shmb_processes_free(processes);
}

double ours(const Settings& settings, std::uint32_t method, int count) {
  const char* const command[] = {"bench-rank", method == SHMB_START_FORKSERVER ? "--end-as-forked" : nullptr, nullptr};
  return timed([&] { join(start(settings, method, count, command), SHMB_PROCESSES_SUCCEEDED); });
}

void wait_all(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) must(waitpid(pid, nullptr, 0), "waitpid");
}

double posix_spawned(const Settings& settings, int count) {
  std::string program = settings.self, argument = "--end-at-once";
  char* const arguments[] = {program.data(), argument.data(), nullptr};
  std::vector<pid_t> pids(static_cast<std::size_t>(count));
  return timed([&] {
    for (pid_t& pid : pids)
      if (posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environ) != 0) give_up("posix_spawn");
    wait_all(pids);
  });
}

double forked(int count) {
  std::vector<pid_t> pids(static_cast<std::size_t>(count));
  return timed([&] {
    for (pid_t& pid : pids) {
      pid = must(fork(), "fork");
      if (pid == 0) _exit(0);
    }
    wait_all(pids);
  });
}

constexpr int kCrew = 4;

double killed_rank(const Settings& settings) {
  const char* const command[] = {"sleep", "1000", nullptr};
  shmb_processes* processes = start(settings, SHMB_START_COMMAND, kCrew, command);
  std::int32_t pids[kCrew];
  std::size_t room = 0;
  shmb_error error;
  must_succeed(shmb_processes_pids(processes, pids, kCrew, &room, &error), error);
  usleep(20'000);
  return timed([&] {
    must(kill(pids[1], SIGKILL), "kill");
    join(processes, SHMB_PROCESSES_FAILED);
  });
}

double killed_child() {
  std::vector<pid_t> pids(kCrew);
  std::string program = "sleep", argument = "1000";
  char* const arguments[] = {program.data(), argument.data(), nullptr};
  for (pid_t& pid : pids)
    if (posix_spawnp(&pid, "sleep", nullptr, nullptr, arguments, environ) != 0) give_up("posix_spawnp");
  usleep(20'000);
  return timed([&] {
    must(kill(pids[1], SIGKILL), "kill");
    must(waitpid(pids[1], nullptr, 0), "waitpid");
    pids.erase(pids.begin() + 1);
    for (const pid_t pid : pids) must(kill(pid, SIGKILL), "kill");
    wait_all(pids);
  });
}

}  // namespace

void run_spawn(Bench& bench) {
  setenv("SHMBROKER_SPAWNER", SHMB_BENCH_SPAWNER, 1);
  const Settings& settings = bench.settings();
  for (const int count : {1, 8, 64}) {
    const int times = bench.times(15);
    Pair executed = alternate(
        times, [&] { return ours(settings, SHMB_START_SPAWN, count); }, [&] { return posix_spawned(settings, count); });
    bench.record(
        make_record("spawn." + std::to_string(count), "us", executed, count == 64 ? ratio_at_most(1.3) : Target{}));
    Pair copied =
        alternate(times, [&] { return ours(settings, SHMB_START_FORKSERVER, count); }, [&] { return forked(count); });
    bench.record(make_record("spawn.forkserver." + std::to_string(count), "us", copied,
                             count == 64 ? ratio_at_most(1.5) : Target{}));
  }
  Pair killed = alternate(bench.times(15), [&] { return killed_rank(settings); }, [] { return killed_child(); });
  bench.record(make_record("spawn.killed_rank", "us", killed));
}

}  // namespace shmb::bench
