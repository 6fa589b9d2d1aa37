// SPDX-License-Identifier: Apache-2.0
// Requests per second and their waiting times with 1, 16 and 64 sessions, on each engine, without and with a
// descriptor in the reply, against a bare server on the same engine that answers as many bytes. The load is a closed
// loop on the other core; from 16 sessions on it is as busy as the server, so the server's CPU time per message is
// given beside the rates.
#include <fmt/format.h>

#include "tools/benchmarks/floors/bare_echo.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/load.hpp"
#include "tools/benchmarks/kit/wire_session.hpp"

namespace shmb::bench {
namespace {

std::size_t constexpr kReply = sizeof(shmbw_header) + sizeof(shmbw_batch) + sizeof(shmbw_attach_reply);

// The state of one side over its repetitions, besides the rate.
struct Side {
  Samples p50, p99, cpu;
  double add(const LoadResult& result) {
    p50.add(result.p50_us);
    p99.add(result.p99_us);
    cpu.add(result.server_cpu_us);
    return result.per_second;
  }
};

void compare(Bench& bench, const BrokerProcess& broker, const std::vector<WireSession>& sessions,
             const std::vector<Fd>& bare, pid_t bare_pid, wire::Bytes request, bool descriptor) {
  std::vector<int> ours, floor;
  for (const WireSession& session : sessions) ours.push_back(session.socket());
  for (const Fd& fd : bare) floor.push_back(fd.get());
  for (std::size_t count : {std::size_t{1}, std::size_t{16}, std::size_t{64}}) {
    double seconds = bench.settings().quick ? 0.02 : 0.3;
    Side here, there;
    auto load = [&](const std::vector<int>& sockets, bool checked, pid_t server) {
      return run_load(std::span(sockets).first(count), request, descriptor, checked, seconds, server);
    };
    Pair pair = alternate(
        bench.times(9), [&] { return here.add(load(ours, true, broker.pid())) / 1e3; },
        [&] { return there.add(load(floor, false, bare_pid)) / 1e3; });
    Record record =
        make_record(fmt::format("requests.{}.{}.{}", broker.engine(), descriptor ? "descriptor" : "plain", count),
                    "k/s", pair, count == 64 && descriptor ? ratio_at_least(0.8) : Target{});
    record.engine = broker.engine();
    record.peers = {{"p50_us", here.p50.median()},        {"p99_us", here.p99.median()},
                    {"floor_p50_us", there.p50.median()}, {"floor_p99_us", there.p99.median()},
                    {"cpu_us", here.cpu.median()},        {"floor_cpu_us", there.cpu.median()}};
    bench.record(std::move(record));
  }
}

void on_engine(Bench& bench, const std::string& engine) {
  auto broker = BrokerProcess::start(bench.settings(), Core::server, engine);
  if (broker.engine() != engine) return;
  std::vector<WireSession> sessions;
  for (int i = 0; i < 64; ++i) sessions.push_back(WireSession::open(broker.socket()));
  auto region = sessions[0].create(1, 4096).regions[0];
  TemporaryFolder folder;
  for (bool descriptor : {false, true}) {
    std::string path = folder.path() + "/echo";
    Child server = start_bare_echo(engine, path, kReply, descriptor);
    std::vector<Fd> bare;
    for (int i = 0; i < 64; ++i) bare.push_back(Fd::adopt(connect_to(path)));
    auto request = attach_request(region, descriptor);
    compare(bench, broker, sessions, bare, server.pid(), request, descriptor);
  }
}

}  // namespace

void run_requests(Bench& bench) {
  pin(Core::client);
  on_engine(bench, "epoll");
#ifdef SHMB_HAVE_URING
  on_engine(bench, "io_uring");
#endif
  pin(Core::any);
}

}  // namespace shmb::bench
