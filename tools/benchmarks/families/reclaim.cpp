// SPDX-License-Identifier: Apache-2.0
// One client that holds 64 MiB alone is killed: how long until that memory is free again? With the broker, until its
// books say so (they do after the last close has returned); without, until the kernel reports the process ended, which
// it does after it has freed what the process was the last to hold.
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/face/shmbroker.h"
#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/library.hpp"
#include "tools/benchmarks/kit/wire_session.hpp"

namespace shmb::bench {
namespace {

constexpr std::size_t kBytes = 64 * MiB;

double ours(const BrokerProcess& broker, WireSession& watcher, bool small_pages) {
  Channel channel = Channel::make();
  Child client = Child::start(Core::client, [&]() -> int {
    Library library(broker.socket());
    shmb_create_options options{};
    options.size = sizeof options;
    if (small_pages) options.flags = SHMB_CREATE_SMALL_PAGES;
    fill(static_cast<std::byte*>(shmb_region_data(library.create(kBytes, options))), kBytes, 1);
    tell(channel.theirs.get(), 1);
    for (;;) pause();
  });
  hear<int>(channel.ours.get());
  errno = 0;
  if (watcher.status().bytes < kBytes) give_up("the broker does not hold the region");
  return timed([&] {
    client.kill(SIGKILL);
    while (watcher.status().bytes > 0) usleep(20);
  });
}

double kernels_own(bool small_pages) {
  Channel channel = Channel::make();
  Child client = Child::start(Core::client, [&]() -> int {
    Fd fd = bare_region(kBytes);
    BareMap map = BareMap::map(fd.get(), kBytes, true);
    if (!small_pages) populate_huge(map);
    fill(map.data(), kBytes, 1);
    tell(channel.theirs.get(), 1);
    for (;;) pause();
  });
  hear<int>(channel.ours.get());
  Fd pidfd = Fd::adopt(must(static_cast<int>(syscall(SYS_pidfd_open, client.pid(), 0)), "pidfd_open"));
  return timed([&] {
    client.kill(SIGKILL);
    pollfd ended{pidfd.get(), POLLIN, 0};
    must(poll(&ended, 1, -1), "poll");
  });
}

}  // namespace

void run_reclaim(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  auto watcher = WireSession::open(broker.socket());
  for (bool small_pages : {false, true}) {
    Pair pair = alternate(
        bench.times(25), [&] { return ours(broker, watcher, small_pages); }, [&] { return kernels_own(small_pages); });
    Record record = make_record(small_pages ? "reclaim.64MiB.4KiB_pages" : "reclaim.64MiB", "us", pair);
    record.engine = broker.engine();
    bench.record(std::move(record));
  }
}

}  // namespace shmb::bench
