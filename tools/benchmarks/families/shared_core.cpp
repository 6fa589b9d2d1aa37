// SPDX-License-Identifier: Apache-2.0
// One message from process to process where both share one core, with the usual options: a process that looks instead
// of sleeping keeps the peer from its processor. Against a bare futex between two processes on that core.
#include "tools/benchmarks/floors/hop_ways.hpp"

namespace shmb::bench {

void run_shared_core(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  NamedWay asleep = inline_hop(broker.socket(), true);
  asleep.name = "asleep at once";
  record_hop(bench, broker,
             {.name = "shared_core.inline",
              .way = usual_hop(broker.socket()),
              .floor = bare_futex(),
              .beside = std::move(asleep),
              .server = Core::client});
}

}  // namespace shmb::bench
