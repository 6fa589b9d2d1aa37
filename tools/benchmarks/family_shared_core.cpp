// SPDX-License-Identifier: Apache-2.0
// One message from process to process where both share one core, with the usual options: who looks instead of sleeping
// keeps the peer from its processor. Against a bare futex between two processes on that core.
#include "tools/benchmarks/broker_process.hpp"
#include "tools/benchmarks/hop_ways.hpp"

namespace shmb::bench {

void run_shared_core(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  std::vector<NamedWay> ways;
  ways.push_back(usual_hop(broker.socket()));
  ways.push_back(bare_futex());
  ways.push_back(inline_hop(broker.socket(), true));
  PingPong pair(std::move(ways), Core::client, Core::client);
  const bool quick = bench.settings().quick;
  const std::uint32_t stretches = quick ? 1 : 20, in_each = quick ? 20 : 1000, timed_ones = quick ? 20 : 2000;
  Samples asleep, p99;
  Pair values = alternate(
      bench.times(7),
      [&] {
        asleep.add(pair.run(2, stretches, in_each, timed_ones).median);
        const auto times = pair.run(0, stretches, in_each, timed_ones);
        p99.add(times.p99);
        return times.median;
      },
      [&] { return pair.run(1, stretches, in_each, timed_ones).median; });
  Record record = make_record("shared_core.inline", "us", values);
  record.engine = broker.engine();
  record.peers = {{"p99", p99.median()}, {"asleep at once", asleep.median()}};
  bench.record(std::move(record));
}

}  // namespace shmb::bench
