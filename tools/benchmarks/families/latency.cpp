// SPDX-License-Identifier: Apache-2.0
// How late the late ones are: percentiles of 56 bytes through an spsc queue to another process, each round trip timed
// by itself. Both ends look, or use the options that nobody has set, or sleep; on cores of their own or where the
// scheduler puts them; on the machine as it is, and beside one computing process for each core. Against the same
// numbers of a bare cache line, or of a bare futex. docs/latency.md tells how to read the rows.
#include <fmt/format.h>
#include <sched.h>

#include <vector>

#include "tools/benchmarks/floors/hop_ways.hpp"

namespace shmb::bench {
namespace {

int compute() {
  for (std::uint64_t n = 0;; ++n) asm volatile("" : : "r"(n));
}

std::vector<Child> one_for_each_core() {
  cpu_set_t mine;
  must(sched_getaffinity(0, sizeof mine, &mine), "sched_getaffinity");
  std::vector<Child> all;
  while (all.size() < static_cast<std::size_t>(CPU_COUNT(&mine))) all.push_back(Child::start(Core::any, compute));
  return all;
}

struct How {
  const char* name;
  NamedWay (*ours)(const std::string& socket);
  NamedWay (*floor)();
  int round_trips;
};

constexpr How kHow[] = {
    {"spinning", [](const std::string& socket) { return inline_hop(socket, false); }, bare_line, 200'000},
    {"as_opened", usual_hop, bare_futex, 50'000},
    {"asleep", [](const std::string& socket) { return inline_hop(socket, true); }, bare_futex, 50'000}};

}  // namespace

void run_latency(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  for (const bool busy : {false, true}) {
    const std::vector<Child> load = busy ? one_for_each_core() : std::vector<Child>();
    for (const bool pinned : {true, false})
      for (const How& how : kHow) {
        std::vector<NamedWay> ways;
        ways.push_back(how.ours(broker.socket()));
        ways.push_back(how.floor());
        PingPong pair(std::move(ways), pinned ? Core::client : Core::any, pinned ? Core::server : Core::any);
        const auto timed_ones = static_cast<std::uint32_t>(bench.times(how.round_trips, 20));
        Samples late[2][3];
        const auto run = [&](std::size_t way) {
          const auto times = pair.run(way, 1, 20, timed_ones);
          late[way][0].add(times.p99);
          late[way][1].add(times.p999);
          late[way][2].add(times.p9999);
          return times.p50;
        };
        Record record =
            make_record(fmt::format("latency.{}.{}.{}", how.name, pinned ? "pinned" : "free", busy ? "busy" : "idle"),
                        "us", alternate(bench.times(3), [&] { return run(0); }, [&] { return run(1); }));
        record.engine = broker.engine();
        const char* const names[] = {"p99", "p99.9", "p99.99"};
        for (std::size_t i = 0; i < 3; ++i) {
          record.peers[names[i]] = late[0][i].median();
          record.peers[fmt::format("floor_{}", names[i])] = late[1][i].median();
        }
        bench.record(std::move(record));
      }
  }
}

}  // namespace shmb::bench
