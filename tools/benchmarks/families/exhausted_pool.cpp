// SPDX-License-Identifier: Apache-2.0
// A slot asked for where another process holds all of them: how long the refusal takes, and how long it takes to find
// the one that has just been given back. The floor is the same in a pool of 64 slots: the size must not show.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <vector>

#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/crew.hpp"
#include "tools/benchmarks/kit/pool_library.hpp"

namespace shmb::bench {
namespace {

constexpr std::size_t kBytes = 64;
constexpr std::uint32_t kSmall = 64;
constexpr double kNothing = -1;  // no slot was free

struct Command {
  enum What : std::uint32_t { make, join, hold_all, let_one_go, let_all_go, fail, find } what;
  std::uint32_t slots = 0, times = 0;
  std::uint64_t pool = 0;
};

// One process in one pool. Each command is answered by one number.
void serve_pool(const std::string& socket, int channel) {
  std::optional<PoolLibrary> pool;
  std::vector<shmb_slot> held;
  std::uint64_t next = 1;
  for (;;) {
    const auto command = hear<Command>(channel);
    double result = 0;
    shmb_slot slot;
    switch (command.what) {
      case Command::make:
        pool.emplace(socket, PoolShape{kBytes, command.slots, 0});
        result = static_cast<double>(pool->id());
        break;
      case Command::join:
        pool.emplace(socket, command.pool);
        break;
      case Command::hold_all:
        while (pool->acquire_now(kBytes, slot)) held.push_back(slot);
        break;
      case Command::let_one_go: {
        if (held.empty()) give_up("every slot was given back, and none was free");
        next = next * 6364136223846793005 + 1442695040888963407;
        std::swap(held[(next >> 33) % held.size()], held.back());
        pool->release(held.back());
        held.pop_back();
        break;
      }
      case Command::let_all_go:
        for (const shmb_slot& one : held) pool->release(one);
        held.clear();
        break;
      case Command::fail: {
        Samples each;
        for (std::uint32_t i = 0; i < command.times; ++i)
          each.add(timed([&] {
            if (pool->acquire_now(kBytes, slot)) give_up("a slot was free");
          }));
        result = each.median();
        break;
      }
      case Command::find: {
        bool found = false;
        result = timed([&] { found = pool->acquire_now(kBytes, slot); });
        if (found) held.push_back(slot);
        else result = kNothing;
        break;
      }
    }
    tell(channel, result);
  }
}

// A pool whose first process holds all slots, and a second one that wants one.
class Exhausted {
 public:
  Exhausted(const std::string& socket, std::uint32_t slots) {
    crew_.add(Core::server, [socket](int channel) { serve_pool(socket, channel); });
    crew_.add(Core::client, [socket](int channel) { serve_pool(socket, channel); });
    const auto id = static_cast<std::uint64_t>(say(0, {Command::make, slots}));
    say(1, {Command::join, 0, 0, id});
    say(0, {Command::hold_all});
  }
  double failing(std::uint32_t times) {
    say(1, {Command::hold_all});  // what is idle there
    return say(1, {Command::fail, 0, times});
  }
  // The first few that the holder gives back stay with it, idle: those are not counted.
  double finding(std::uint32_t times) {
    constexpr std::uint32_t kInEach = 8;
    Samples each;
    for (std::uint32_t found = 0; found < times;) {
      say(1, {Command::hold_all});
      for (std::uint32_t now = 0; now < kInEach && found < times;) {
        say(0, {Command::let_one_go});
        const double took = say(1, {Command::find});
        if (took == kNothing) continue;
        each.add(took);
        ++now, ++found;
      }
      say(1, {Command::let_all_go});
      say(0, {Command::hold_all});
    }
    return each.median();
  }

 private:
  double say(std::size_t who, Command command) {
    crew_.tell(who, command);
    return crew_.hear<double>(who);
  }
  Crew crew_;
};

}  // namespace

void run_exhausted_pool(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  Exhausted small(broker.socket(), kSmall);
  for (const std::uint32_t slots : {1'000U, 10'000U, 100'000U}) {
    if (bench.settings().quick && slots > 1'000) break;
    Exhausted large(broker.socket(), slots);
    const auto times = static_cast<std::uint32_t>(bench.times(300, 3));
    const auto figure = [&](const char* what, double (Exhausted::*measure)(std::uint32_t)) {
      Pair both =
          alternate(bench.times(7), [&] { return (large.*measure)(times); }, [&] { return (small.*measure)(times); });
      Record record = make_record(fmt::format("exhausted_pool.{}.{}_slots", what, slots), "us", both);
      record.engine = broker.engine();
      bench.record(std::move(record));
    };
    figure("none_free", &Exhausted::failing);
    figure("one_free", &Exhausted::finding);
  }
}

}  // namespace shmb::bench
