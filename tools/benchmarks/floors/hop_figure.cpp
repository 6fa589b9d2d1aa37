// SPDX-License-Identifier: Apache-2.0
// A figure of three ways in one run: the measured one and its floor by turns, and with each turn the one beside them.
#include <algorithm>

#include "tools/benchmarks/floors/hop_ways.hpp"

namespace shmb::bench {

void record_hop(Bench& bench, const BrokerProcess& broker, HopFigure figure) {
  const std::string beside = figure.beside.name;
  std::vector<NamedWay> ways;
  ways.push_back(std::move(figure.way));
  ways.push_back(std::move(figure.floor));
  ways.push_back(std::move(figure.beside));
  PingPong pair(std::move(ways), figure.client, figure.server);
  const bool quick = bench.settings().quick;
  const auto run = [&](std::size_t way, std::uint32_t part) {
    const auto some = [&](std::uint32_t full, std::uint32_t least) {
      return std::max<std::uint32_t>((quick ? least : full) / part, 1);
    };
    return pair.run(way, some(20, 1), some(figure.in_each, 20), some(figure.timed_ones, 20));
  };
  Samples third, p99;
  Pair values = alternate(
      bench.times(7),
      [&] {
        third.add(run(2, figure.beside_part).median);
        const auto times = run(0, 1);
        p99.add(times.p99);
        return times.median;
      },
      [&] { return run(1, 1).median; });
  Record record = make_record(std::move(figure.name), "us", values, figure.target);
  record.engine = broker.engine();
  record.peers = {{"p99", p99.median()}, {beside, third.median()}};
  bench.record(std::move(record));
}

}  // namespace shmb::bench
