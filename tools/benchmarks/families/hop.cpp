// SPDX-License-Identifier: Apache-2.0
// One message from process to process: 56 bytes in the queue itself, and slots from 64 bytes to 256 MiB whose contents
// are there already, so that the size must not show. Both ends looking, against a bare cache line; the reader asleep,
// against a bare futex. Ways that copy are measured at the sizes that they accept.
#include <algorithm>
#include <map>

#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/floors/hop_ways.hpp"
#include "tools/benchmarks/floors/roudi.hpp"
#include "tools/benchmarks/floors/zeromq.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"

namespace shmb::bench {
namespace {

constexpr std::size_t kLargestCopied = 1 * MiB;

// How much of one repetition: stretches, round trips in each, and those that are timed one by one.
struct Amount {
  std::uint32_t stretches, in_each, timed;
};

Amount amount(const Bench& bench, std::size_t bytes, bool asleep, bool peer) {
  if (bench.settings().quick) return {1, 20, 20};
  Amount out = asleep ? Amount{20, 20, 1000} : Amount{100, 500, 10'000};
  if (peer && bytes == kLargestCopied) return {out.stretches / 10, 10, out.timed / 100};
  if (peer) return {out.stretches / 5, out.in_each, out.timed / 5};
  return out;
}

struct Gathered {
  Samples median, p50, p99, p999;
  void add(const PingPong::Times& times, double unit) {
    median.add(times.median * unit);
    p50.add(times.p50 * unit);
    p99.add(times.p99 * unit);
    p999.add(times.p999 * unit);
  }
};

void one_figure(Bench& bench, const BrokerProcess& broker, std::size_t bytes, bool asleep) {
  const bool in_the_queue = bytes == 56;
  const double unit = asleep ? 1 : 1000;  // us, ns
  std::vector<NamedWay> sides, copying;
  sides.push_back(in_the_queue ? inline_hop(broker.socket(), asleep) : slot_hop(broker.socket(), bytes, asleep));
  sides.push_back(asleep ? bare_futex() : bare_line());
  PingPong pair(std::move(sides));
  Gathered both[2];
  const Amount some = amount(bench, bytes, asleep, false);
  auto measure = [&](std::size_t way) {
    const auto times = pair.run(way, some.stretches, some.in_each, some.timed);
    both[way].add(times, unit);
    return times.median * unit;
  };
  Pair values = alternate(bench.times(asleep ? 7 : 9), [&] { return measure(0); }, [&] { return measure(1); });

  const double bound = asleep ? 1.3 : in_the_queue ? 1.5 : 2.2;
  Record record = make_record(
      "hop." + (in_the_queue ? std::string("inline") : "slot." + size_text(bytes)) + (asleep ? ".asleep" : ".spinning"),
      asleep ? "us" : "ns", values, ratio_at_most(bound));
  record.engine = broker.engine();
  record.peers = {{"p50", both[0].p50.median()},       {"p99", both[0].p99.median()},
                  {"p99.9", both[0].p999.median()},    {"floor_p50", both[1].p50.median()},
                  {"floor_p99", both[1].p99.median()}, {"floor_p99.9", both[1].p999.median()}};

  if (in_the_queue || bytes == 4 * KiB || bytes == kLargestCopied) {
    if (posix_mqueue_takes(bytes)) copying.push_back(posix_mqueue(bytes, asleep));
    if (pipe_takes(bytes)) copying.push_back(bare_pipe(bytes, asleep));
    if (bytes <= 64 * KiB) copying.push_back(unix_seqpacket(bytes, asleep));
#ifdef SHMB_HAVE_BOOST
    copying.push_back(boost_queue(bytes, asleep));
#endif
#ifdef SHMB_HAVE_ZEROMQ
    if (asleep) copying.push_back(zeromq_hop(bytes));
#endif
    PingPong peers(std::move(copying));
    std::map<std::string, Gathered> gathered;
    const Amount less = amount(bench, bytes, asleep, true);
    for (int i = 0; i < bench.times(3); ++i) {
      Roudi roudi(!bench.settings().quick);  // each time: what its clients held when they ended is lost to it
      for (std::size_t way = 0; way < peers.size(); ++way)
        gathered[peers.name(way)].add(peers.run(way, less.stretches, less.in_each, less.timed), unit);
      if (auto times = roudi.one_way(bytes, asleep, less.stretches, less.in_each, less.timed))
        gathered["iceoryx"].add(*times, unit);
    }
    for (const auto& [name, times] : gathered) {
      record.peers[name] = times.median.median();
      record.peers[name + "_p99"] = times.p99.median();
    }
  }
  bench.record(std::move(record));
}

// The cost of competing for messages in a hop: one reader, without a competitor.
void claim_figure(Bench& bench, const BrokerProcess& broker, std::size_t bytes) {
  std::vector<NamedWay> sides;
  sides.push_back(claim_hop(broker.socket(), bytes, false));
  sides.push_back(slot_hop(broker.socket(), bytes, false));
  sides.push_back(bare_line());
  PingPong pair(std::move(sides));
  const Amount some = amount(bench, bytes, false, false);
  Samples line;
  const auto measure = [&](std::size_t way) {
    return pair.run(way, some.stretches, some.in_each, some.timed).median * 1000;
  };
  Pair values = alternate(
      bench.times(9), [&] { return measure(0); },
      [&] {
        line.add(measure(1));
        return measure(2);
      });
  Record record = make_record("hop.claim.slot." + size_text(bytes) + ".spinning", "ns", values);
  record.engine = broker.engine();
  record.peers["line_queue"] = line.median();
  bench.record(std::move(record));
}

// The reader sleeps in poll(2). The broker rings for processes of their own: they lose all their doorbells.
void doorbell_figure(Bench& bench, const BrokerProcess& broker) {
  std::vector<NamedWay> sides, beside;
  sides.push_back(doorbell_hop(broker.socket(), false));
  sides.push_back(bare_bell());
  beside.push_back(doorbell_hop(broker.socket(), true));
  PingPong pair(std::move(sides)), by_the_broker(std::move(beside));
  const Amount some = amount(bench, 56, true, false);
  Samples p99, rung, rung_p99;
  Pair values = alternate(
      bench.times(7),
      [&] {
        const auto other = by_the_broker.run(0, some.stretches, some.in_each, some.timed);
        rung.add(other.median);
        rung_p99.add(other.p99);
        const auto times = pair.run(0, some.stretches, some.in_each, some.timed);
        p99.add(times.p99);
        return times.median;
      },
      [&] { return pair.run(1, some.stretches, some.in_each, some.timed).median; });
  Record record = make_record("hop.doorbell.asleep", "us", values);
  record.engine = broker.engine();
  record.peers = {
      {"p99", p99.median()}, {"rung_by_the_broker", rung.median()}, {"rung_by_the_broker_p99", rung_p99.median()}};
  bench.record(std::move(record));
}

}  // namespace

void run_hop(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  for (bool asleep : {false, true}) {
    one_figure(bench, broker, 56, asleep);
    for (std::size_t bytes : sizes(bench, {64, 4 * KiB, 1 * MiB, 16 * MiB, 256 * MiB}))
      one_figure(bench, broker, bytes, asleep);
  }
  for (std::size_t bytes : sizes(bench, {64, 4 * KiB})) claim_figure(bench, broker, bytes);
  doorbell_figure(bench, broker);
}

}  // namespace shmb::bench
