// SPDX-License-Identifier: Apache-2.0
// The cost of the broker itself: resident memory idle, and bytes of its own user space per region and per remote
// reference. Beside it are what the kernel keeps for a process that waits and for a memfd, and what a bare table takes.
//
// An engine's receive buffers get their pages when a request first arrives in them. They are a fixed cost of the
// broker, so they are all used before anything is counted per item. Their size stands beside the idle figure.
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/wire_session.hpp"

namespace shmb::bench {
namespace {

constexpr double kMiB = 1048576;

// A map with as little in it as a table of references can do with: two ids, owner, user, state, age.
double bare_bytes_per_reference(std::size_t count) {
  struct Bare {
    std::uint64_t fork, created;
    std::uint32_t owner, user, state, fork_creator;
  };
  std::map<std::pair<std::uint64_t, std::uint32_t>, Bare> table;
  const std::size_t before = mallinfo2().uordblks;
  for (std::size_t i = 0; i < count; ++i) table.try_emplace({i, 0U}, Bare{i, i, 0, 0, 0, 0});
  return std::max(1.0, static_cast<double>(mallinfo2().uordblks - before) / static_cast<double>(count));
}

void raise_descriptor_limit() {
  rlimit table{};
  getrlimit(RLIMIT_NOFILE, &table);
  table.rlim_cur = table.rlim_max;
  setrlimit(RLIMIT_NOFILE, &table);
}

std::size_t regions_that_fit() {
  rlimit table{};
  getrlimit(RLIMIT_NOFILE, &table);
  return std::min<std::size_t>(10'000, table.rlim_max / 2);
}

}  // namespace

void run_memory(Bench& bench) {
  raise_descriptor_limit();
  std::size_t count = bench.settings().quick ? 1'000 : regions_that_fit();
  constexpr std::size_t kReferences = 10'000;
  Pair idle, per_region, per_reference;
  std::string engine;
  Samples with_all, left_over, with_buffers;
  for (int i = 0; i < bench.times(5); ++i) {
    auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
    engine = broker.engine();
    idle.ours.add(static_cast<double>(memory_of(broker.pid(), Memory::resident)) / kMiB);
    // The same libraries, waiting.
    int ready[2];
    must(pipe(ready), "pipe");
    Child waiting = Child::execute(Core::any, bench.settings().self, {"--wait-for-memory-floor"}, ready[1]);
    close(ready[1]);
    char byte;
    must(static_cast<int>(read(ready[0], &byte, 1)), "read");
    close(ready[0]);
    idle.floor.add(static_cast<double>(memory_of(waiting.pid(), Memory::resident)) / kMiB);

    auto session = WireSession::open(broker.socket());
    session.use_receive_buffers();
    with_buffers.add(static_cast<double>(memory_of(broker.pid(), Memory::resident)) / kMiB);
    // Also the pages of the books, which are shared memory.
    double before = static_cast<double>(memory_of(broker.pid(), Memory::resident));
    std::vector<shmbw_region_ref> regions;
    while (regions.size() < count) {
      auto some = session.create(std::min<std::size_t>(SHMBW_MAX_BATCH, count - regions.size()), 4096);
      regions.insert(regions.end(), some.regions.begin(), some.regions.end());
    }
    double after = static_cast<double>(memory_of(broker.pid(), Memory::resident));
    per_region.ours.add((after - before) / static_cast<double>(count));
    with_all.add(static_cast<double>(memory_of(broker.pid(), Memory::resident)) / kMiB);
    session.release(regions);
    left_over.add((static_cast<double>(memory_of(broker.pid(), Memory::resident)) - before) / kMiB);
    per_region.floor.add(bare_bytes_per_region(count));

    // A broker of its own: in the first one the memory of the regions is free for them.
    auto table = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
    auto worker = WireSession::open(table.socket());
    worker.use_receive_buffers();
    worker.join_world(29500);
    worker.create_references(1'000);
    before = static_cast<double>(memory_of(table.pid(), Memory::anonymous));
    worker.create_references(kReferences);
    after = static_cast<double>(memory_of(table.pid(), Memory::anonymous));
    per_reference.ours.add((after - before) / kReferences);
    per_reference.floor.add(bare_bytes_per_reference(kReferences));
  }
  Record at_rest = make_record("memory.idle", "MiB", idle, value_at_most(4.5));
  at_rest.engine = engine;
  at_rest.peers = {{"with_receive_buffers_MiB", with_buffers.median()}};
  bench.record(std::move(at_rest));
  Record each = make_record("memory.per_region", "B", per_region, value_at_most(768));
  each.engine = engine;
  each.peers = {{"regions", static_cast<double>(count)},
                {"rss_with_all_MiB", with_all.median()},
                {"left_after_release_MiB", left_over.median()}};
  bench.record(std::move(each));
  Record reference = make_record("memory.per_reference", "B", per_reference, value_at_most(288));
  reference.engine = engine;
  reference.peers = {{"references", static_cast<double>(kReferences)}};
  bench.record(std::move(reference));
}

}  // namespace shmb::bench
