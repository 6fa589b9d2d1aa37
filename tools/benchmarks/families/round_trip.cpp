// SPDX-License-Identifier: Apache-2.0
// How long a caller waits for a region: create and attach at four sizes through the library, against a bare exchange
// of one packet each way with one descriptor and the same calls on memory. Both servers block on one core, both
// clients on the other. Releases and their replies are outside the measured time.
#include <fmt/format.h>

#include "client/face/shmbroker.h"
#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/library.hpp"

namespace shmb::bench {
namespace {

struct Ask {
  enum What : std::uint64_t { prepare, create, attach, attach_read_only, done } what;
  std::uint64_t bytes;
};

// Never written or read again: only that the first page can be used at once.
volatile std::byte touched;

class BareServer {
 public:
  BareServer() : channel_(Channel::make()) {
    child_ = Child::start(Core::server, [this] {
      channel_.ours.reset();
      return serve(channel_.theirs.get());
    });
    channel_.theirs.reset();
  }

  void prepare(std::size_t bytes) { round(Ask::prepare, bytes); }

  double create(std::size_t bytes, bool populated) {
    BareMap map;
    double took = timed([&] {
      Fd fd = round(Ask::create, bytes);
      map = BareMap::map(fd.get(), bytes, true);
      fd.reset();
      if (populated) populate(map);
      map.data()[0] = std::byte{1};
    });
    map.reset();
    round(Ask::done, 0);
    return took;
  }

  double attach(std::size_t bytes, bool write) {
    BareMap map;
    double took = timed([&] {
      Fd fd = round(write ? Ask::attach : Ask::attach_read_only, bytes);
      map = BareMap::map(fd.get(), bytes, write);
      fd.reset();
      map_existing(map);
      touched = map.data()[0];
    });
    map.reset();
    round(Ask::done, 0);
    return took;
  }

 private:
  Fd round(Ask::What what, std::size_t bytes) {
    tell(channel_.ours.get(), Ask{what, bytes});
    Ask answer;
    return receive_fd(channel_.ours.get(), &answer, sizeof answer);
  }

  static int serve(int socket) {
    Fd existing, held;
    for (;;) {
      auto ask = hear<Ask>(socket);
      int fd = -1;
      switch (ask.what) {
        case Ask::prepare: {
          existing = bare_region(ask.bytes);
          BareMap map = BareMap::map(existing.get(), ask.bytes, true);
          populate(map);
          break;
        }
        case Ask::create:
          held = bare_region(ask.bytes);
          fd = held.get();
          break;
        case Ask::attach:
          fd = existing.get();
          break;
        case Ask::attach_read_only:
          held = reopen_read_only(existing.get());
          fd = held.get();
          break;
        case Ask::done:
          held.reset();
          break;
      }
      send_fd(socket, &ask, sizeof ask, fd);
    }
  }

  Channel channel_;
  Child child_;
};

double create(Library& library, std::size_t bytes, bool populated) {
  shmb_create_options options{};
  options.size = sizeof options;
  options.flags = SHMB_CREATE_NO_RECYCLE | (populated ? 0U : static_cast<std::uint32_t>(SHMB_CREATE_NO_POPULATE));
  shmb_region* region = nullptr;
  double took = timed([&] {
    region = library.create(bytes, options);
    *static_cast<std::byte*>(shmb_region_data(region)) = std::byte{1};
  });
  library.release(region);
  library.ping();
  return took;
}

double attach(Library& library, const shmb_region_id& id, bool write) {
  shmb_attach_options options{};
  options.size = sizeof options;
  options.rights = SHMB_RIGHT_READ | (write ? static_cast<std::uint32_t>(SHMB_RIGHT_WRITE) : 0U);
  shmb_region* region = nullptr;
  double took = timed([&] {
    region = library.attach(id, options);
    touched = *static_cast<const std::byte*>(shmb_region_data(region));
  });
  library.release(region);
  library.ping();
  return took;
}

// A repetition is a block of round trips on one side, then as many on the other; its value is their median.
void compare(Bench& bench, const std::string& name, const std::string& engine, int block,
             const std::function<double()>& ours, const std::function<double()>& floor) {
  Samples all_ours, all_floor;
  auto median_of = [&](const std::function<double()>& one, Samples& all) {
    Samples samples;
    for (int i = 0; i < block; ++i) samples.add(one());
    all.add(samples);
    return samples.median();
  };
  Pair pair = alternate(
      bench.times(15), [&] { return median_of(ours, all_ours); }, [&] { return median_of(floor, all_floor); });
  Record record = make_record(name, "us", pair, ratio_at_most(1.5));
  record.engine = engine;
  record.peers = {{"p99", all_ours.percentile(0.99)}, {"floor_p99", all_floor.percentile(0.99)}};
  bench.record(std::move(record));
}

}  // namespace

void run_round_trip(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::server, bench.settings().engine);
  BareServer server;
  pin(Core::client);
  Library library(broker.socket());
  Library other(broker.socket());
  for (std::size_t bytes : sizes(bench, {4 * KiB, 1 * MiB, 64 * MiB, 1 * GiB})) {
    std::string size = size_text(bytes);
    // Where the memory is most of the time, fewer round trips tell as much.
    int block = bench.times(bytes >= 64 * MiB ? 50 : 200, 5);
    compare(
        bench, "create." + size, broker.engine(), block, [&] { return create(library, bytes, false); },
        [&] { return server.create(bytes, false); });
    if (bytes < 64 * MiB)  // from there on it is all population: family fresh
      compare(
          bench, "create_populated." + size, broker.engine(), block, [&] { return create(library, bytes, true); },
          [&] { return server.create(bytes, true); });
    server.prepare(bytes);
    shmb_create_options options{};
    options.size = sizeof options;
    options.flags = SHMB_CREATE_NO_RECYCLE;
    shmb_region* region = library.create(bytes, options);
    shmb_region_id id = shmb_region_get_id(region);
    for (bool write : {true, false})  // in this order: the first read-only grant closes writing for ever
      compare(
          bench, (write ? "attach." : "attach_read_only.") + size, broker.engine(), block,
          [&] { return attach(other, id, write); }, [&] { return server.attach(bytes, write); });
    library.release(region);
  }
  pin(Core::any);
}

}  // namespace shmb::bench
