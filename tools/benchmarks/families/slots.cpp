// SPDX-License-Identifier: Apache-2.0
// A slot of 4 KiB taken and given back, by one process alone and by two at once: the one just given back, and the
// oldest of 32 that are held. The floor is what no shared bookkeeping can do without: one locked instruction to take
// and one to give back, on a cache line nobody else uses. The peer is the allocator of Boost's managed segment.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <memory>
#include <new>
#include <optional>

#ifdef SHMB_HAVE_BOOST
#include <boost/interprocess/managed_shared_memory.hpp>
#endif

#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/crew.hpp"
#include "tools/benchmarks/kit/pool_library.hpp"

namespace shmb::bench {
namespace {

constexpr std::size_t kBytes = 4 * KiB, kHeld = 32;
constexpr std::uint32_t kSlots = 256;

struct Command {
  enum What : std::uint32_t { enter, slots, locked, boost } what;
  std::uint32_t held, stretches, in_each;
  std::uint64_t pool;
};

// `take` gives something that `give` gives back; the median time of a pair, in ns.
template <class Take, class Give>
double pairs(const Command& command, Take&& take, Give&& give) {
  std::deque<decltype(take())> held;
  for (std::uint32_t i = 0; i < command.held; ++i) held.push_back(take());
  Samples stretches;
  for (std::uint32_t i = 0; i < command.stretches; ++i)
    stretches.add(1000 / command.in_each * timed([&] {
                    for (std::uint32_t n = 0; n < command.in_each; ++n) {
                      if (command.held == 0) {
                        give(take());
                        continue;
                      }
                      give(held.front());
                      held.pop_front();
                      held.push_back(take());
                    }
                  }));
  for (auto& each : held) give(each);
  return stretches.median();
}

#ifdef SHMB_HAVE_BOOST
namespace bip = boost::interprocess;
using Segment = std::optional<bip::managed_shared_memory>;
#else
using Segment = std::optional<int>;
#endif

void serve(const std::string& socket, [[maybe_unused]] Segment& segment, int channel) {
  std::optional<PoolLibrary> pool;
  // As many lines as are held, so that this side, too, comes back to one that it has not just used.
  struct alignas(128) Line {
    std::atomic<std::uint64_t> holders{0};
  };
  auto lines = std::make_unique<Line[]>(kHeld + 1);
  std::size_t at = 0;
  for (;;) {
    const auto command = hear<Command>(channel);
    double result = 0;
    switch (command.what) {
      case Command::enter:
        if (command.pool == 0) pool.emplace(socket, PoolShape{kBytes, kSlots, 0});
        else pool.emplace(socket, command.pool);
        tell(channel, pool->id());
        continue;
      case Command::slots:
        result =
            pairs(command, [&] { return pool->acquire(kBytes); }, [&](const shmb_slot& slot) { pool->release(slot); });
        break;
      case Command::locked:
        result = pairs(
            command,
            [&] {
              Line& line = lines[command.held == 0 ? 0 : at++ % (kHeld + 1)];
              std::uint64_t nobody = 0;
              line.holders.compare_exchange_strong(nobody, 1, std::memory_order_acq_rel);
              return &line;
            },
            [&](Line* line) { line->holders.fetch_and(~std::uint64_t{1}, std::memory_order_release); });
        break;
      case Command::boost:
#ifdef SHMB_HAVE_BOOST
        result =
            pairs(command, [&] { return segment->allocate(kBytes); }, [&](void* block) { segment->deallocate(block); });
#endif
        break;
    }
    tell(channel, result);
  }
}

}  // namespace

void run_slots(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  Segment segment;
#ifdef SHMB_HAVE_BOOST
  const std::string name = fmt::format("/shmbroker-bench-{}-slots", getpid());
  bip::shared_memory_object::remove(name.c_str());
  segment.emplace(bip::create_only, name.c_str(), 2 * kSlots * kBytes);
  bip::shared_memory_object::remove(name.c_str());
#endif
  Crew crew;
  crew.add(Core::client, [&](int socket) { serve(broker.socket(), segment, socket); });
  crew.add(Core::server, [&](int socket) { serve(broker.socket(), segment, socket); });
  Command command{Command::enter, 0, 0, 0, 0};
  for (std::size_t i = 0; i < crew.size(); ++i) {
    crew.tell(i, command);
    command.pool = crew.hear<std::uint64_t>(i);
  }
  for (std::size_t held : {std::size_t{0}, kHeld})
    for (std::size_t processes : {1U, 2U}) {
      auto run = [&](Command::What what) {
        command = {what, static_cast<std::uint32_t>(held), static_cast<std::uint32_t>(bench.times(200, 2)), 1000, 0};
        for (std::size_t i = 0; i < processes; ++i) crew.tell(i, command);
        Samples each;
        for (std::size_t i = 0; i < processes; ++i) each.add(crew.hear<double>(i));
        return each.greatest();
      };
      run(Command::slots);
      Samples boost;
      Pair both = alternate(
          bench.times(7), [&] { return run(Command::slots); },
          [&] {
            if (segment) boost.add(run(Command::boost));
            return run(Command::locked);
          });
      Record record = make_record(
          fmt::format("slots.{}.{}", held == 0 ? "just_released" : "32_held", processes == 1 ? "alone" : "contended"),
          "ns", both);
      record.engine = broker.engine();
      if (segment) record.peers["boost_managed_shared_memory"] = boost.median();
      bench.record(std::move(record));
    }
}

}  // namespace shmb::bench
