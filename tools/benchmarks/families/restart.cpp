// SPDX-License-Identifier: Apache-2.0
// The death of a broker that has keepers: from SIGKILL until the next one has served a client, and what broker and
// keepers take together. 1,000 clients hold 10 named and kept regions each. The floor is a bare clone that has as many
// descriptors, closes as many, and reads as many bytes of records (floors/bare_restart.cpp).
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/floors/bare_restart.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/wire_session.hpp"

namespace shmb::bench {
namespace {

constexpr double kMiB = 1048576;
constexpr useconds_t kLivedWell = 1'100'000;  // us after which keepers replace a broker without a pause
// Of each client: its session and its group. Of each region: itself, its name, the lease of its client.
constexpr int kBytesPerClient = 200 + 192, kBytesPerRegion = 96 + 136 + 56;

struct Size {
  std::size_t clients = 0, regions_each = 10;
  std::size_t regions() const { return clients * regions_each; }
};

void raise_descriptor_limit() {
  rlimit table{};
  getrlimit(RLIMIT_NOFILE, &table);
  table.rlim_cur = table.rlim_max;
  setrlimit(RLIMIT_NOFILE, &table);
}

// The broker has a descriptor for each region and two for each client.
Size size_that_fits(const Bench& bench) {
  rlimit table{};
  getrlimit(RLIMIT_NOFILE, &table);
  const std::size_t clients = bench.settings().quick ? 20 : 1'000;
  return {std::min<std::size_t>(clients, table.rlim_max / 16)};
}

double kill_to_served(const BrokerProcess& broker, pid_t serving) {
  return timed([&] {
    must(kill(serving, SIGKILL), "kill");
    WireSession::open(broker.socket()).status();
  });
}

struct Restarted {
  double with_clients = 0, with_kept_only = 0;
};

Restarted ours(const Bench& bench, Size size, std::string& engine) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine, {"--keep"});
  engine = broker.engine();
  std::vector<WireSession> clients;
  for (std::size_t i = 0; i < size.clients; ++i) {
    clients.push_back(WireSession::open(broker.socket()));
    clients.back().create_kept(size.regions_each, 4096, fmt::format("client-{}.", i));
  }
  const auto check = [&] {
    const auto now = WireSession::open(broker.socket()).status();
    errno = 0;
    if (now.regions != size.regions()) give_up(fmt::format("{} regions are left", now.regions));
    return static_cast<pid_t>(now.pid);
  };
  Restarted out;
  pid_t serving = check();
  usleep(kLivedWell);
  out.with_clients = kill_to_served(broker, serving);
  serving = check();
  usleep(kLivedWell);
  out.with_kept_only = kill_to_served(broker, serving);
  check();
  broker.end();
  return out;
}

pid_t ask_for_pid(int socket) {
  char byte = 1;
  must(static_cast<int>(send(socket, &byte, 1, MSG_NOSIGNAL)), "send");
  pid_t pid = 0;
  must(static_cast<int>(recv(socket, &pid, sizeof pid, 0)), "recv");
  return pid;
}

struct BareKeeper {
  TemporaryFolder folder;
  std::string socket = folder.path() + "/socket";
  Child keeper;
  explicit BareKeeper(const Bench& bench, Size size) {
    const int bytes =
        static_cast<int>(size.clients) * kBytesPerClient + static_cast<int>(size.regions()) * kBytesPerRegion;
    keeper = Child::execute(
        Core::any, bench.settings().self,
        {kBareKeeper, socket, std::to_string(size.clients), std::to_string(size.regions()), std::to_string(bytes)},
        STDERR_FILENO);
    while (!std::filesystem::exists(socket)) usleep(1000);
  }
};

double bare(const Bench& bench, Size size) {
  const BareKeeper bare(bench, size);
  // It serves once its descriptors are there.
  const pid_t serving = ask_for_pid(Fd::adopt(connect_to(bare.socket)).get());
  usleep(100'000);
  return timed([&] {
    must(kill(serving, SIGKILL), "kill");
    const Fd client = Fd::adopt(connect_to(bare.socket));
    ask_for_pid(client.get());
    ask_for_pid(client.get());
  });
}

// That process and its children, as keepers and broker are. nullopt: the kernel does not tell it to this user.
std::optional<double> proportional_memory(pid_t main) {
  double sum = 0;
  std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", main));
  std::vector<pid_t> all{main};
  for (pid_t child; children >> child;) all.push_back(child);
  for (const pid_t pid : all) {
    const auto bytes = proportional_memory_of(pid);
    if (!bytes) return std::nullopt;
    sum += static_cast<double>(*bytes);
  }
  return all.size() == 3 ? std::optional(sum) : std::nullopt;
}

void record_memory(Bench& bench) {
  Pair idle, unnamed, named;
  std::string engine;
  const std::size_t count = bench.settings().quick ? 1'000 : 10'000;
  for (int i = 0; i < bench.times(5); ++i) {
    {
      const BareKeeper floor(bench, {});
      (void)ask_for_pid(Fd::adopt(connect_to(floor.socket)).get());
      if (const auto bytes = proportional_memory(floor.keeper.pid())) idle.floor.add(*bytes / kMiB);
    }
    for (const bool with_names : {false, true}) {
      auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine, {"--keep"});
      engine = broker.engine();
      const auto at_rest = proportional_memory(broker.pid());
      if (!at_rest || idle.floor.empty()) {
        broker.end();
        fmt::print(
            "restart.idle, restart.per_region left out: only root is told what the keepers and the broker take\n");
        return;
      }
      if (!with_names) idle.ours.add(*at_rest / kMiB);
      auto session = WireSession::open(broker.socket());
      session.use_receive_buffers();
      const auto before = proportional_memory(broker.pid());
      for (std::size_t made = 0; made < count; made += SHMBW_MAX_BATCH) {
        const std::size_t some = std::min<std::size_t>(SHMBW_MAX_BATCH, count - made);
        if (with_names) session.create_kept(some, 4096, fmt::format("kept-{}.", made));
        else session.create(some, 4096);
      }
      const auto after = proportional_memory(broker.pid());
      if (!before || !after) give_up("a keeper has ended");
      Pair& pair = with_names ? named : unnamed;
      pair.ours.add((*after - *before) / static_cast<double>(count));
      pair.floor.add(bare_bytes_per_region(count));
      broker.end();
    }
  }
  Record at_rest = make_record("restart.idle", "MiB", idle, value_at_most(6));
  at_rest.engine = engine;
  bench.record(std::move(at_rest));
  for (const bool with_names : {false, true}) {
    Record each = make_record(with_names ? "restart.per_region.named" : "restart.per_region", "B",
                              with_names ? named : unnamed, value_at_most(with_names ? 1'000 : 768));
    each.engine = engine;
    each.peers = {{"regions", static_cast<double>(count)}};
    bench.record(std::move(each));
  }
}

}  // namespace

void run_restart(Bench& bench) {
  raise_descriptor_limit();
  const Size size = size_that_fits(bench);
  Samples kept_only;
  std::string engine;
  const Pair pair = alternate(
      bench.times(7),
      [&] {
        const Restarted restarted = ours(bench, size, engine);
        kept_only.add(restarted.with_kept_only);
        return restarted.with_clients;
      },
      [&] { return bare(bench, size); });
  Record next = make_record("restart.next_request", "us", pair, ratio_at_most(2));
  next.engine = engine;
  next.peers = {{"clients", static_cast<double>(size.clients)},
                {"regions", static_cast<double>(size.regions())},
                {"kept_regions_alone_us", kept_only.median()}};
  bench.record(std::move(next));
  record_memory(bench);
}

}  // namespace shmb::bench
