// SPDX-License-Identifier: Apache-2.0
// Fresh memory made, filled and read by another process, as bytes per second: from before the create until the
// reader's answer. Beside the library: the same by hand with the same population (the floor), with the 4 KiB pages a
// stock system gives, POSIX shared memory, Boost's managed segment, and the library's own recycled memory. Nobody's
// freeing runs inside another's time.
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <map>
#include <optional>

#ifdef SHMB_HAVE_BOOST
#include <boost/interprocess/managed_shared_memory.hpp>
#endif

#include "client/face/shmbroker.h"
#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/library.hpp"
#include "tools/benchmarks/kit/wire_session.hpp"

namespace shmb::bench {
namespace {

enum class Way : std::uint32_t { library, recycled, bare_huge, bare_small, posix, boost };

// The writer's message to the reader; a bare region's descriptor travels with it.
struct HandOver {
  Way way;
  std::uint32_t write;  // attach with write rights: memory that is to be recycled must never have been sealed
  std::uint64_t bytes;
  shmb_region_id id;
  char name[64];
};

std::uint64_t read_mapped(int fd, std::size_t bytes) {
  BareMap map = BareMap::map(fd, bytes, false);
  return read_all(map.data(), bytes);
}

std::uint64_t read_one(const HandOver& what, Fd fd, Library& library) {
  switch (what.way) {
    case Way::library:
    case Way::recycled: {
      shmb_attach_options options{};
      options.size = sizeof options;
      options.rights = SHMB_RIGHT_READ | (what.write != 0 ? static_cast<std::uint32_t>(SHMB_RIGHT_WRITE) : 0U);
      shmb_region* region = library.attach(what.id, options);
      std::uint64_t sum = read_all(static_cast<const std::byte*>(shmb_region_data(region)), what.bytes);
      library.release(region);
      return sum;
    }
    case Way::bare_huge:
    case Way::bare_small:
      return read_mapped(fd.get(), what.bytes);
    case Way::posix:
      return read_mapped(Fd::adopt(must(shm_open(what.name, O_RDONLY, 0), "shm_open")).get(), what.bytes);
    case Way::boost: {
#ifdef SHMB_HAVE_BOOST
      namespace bip = boost::interprocess;
      bip::managed_shared_memory segment(bip::open_only, what.name);
      return read_all(segment.find<bip::offset_ptr<std::byte>>("data").first->get(), what.bytes);
#endif
    }
  }
  return 0;
}

class Trial {
 public:
  Trial(const std::string& socket, bool warm_up)
      : channel_(Channel::make()), watcher_(WireSession::open(socket)), warm_up_(warm_up) {
    reader_ = Child::start(Core::server, [&] {
      channel_.ours.reset();
      Library library(socket);
      for (;;) {
        HandOver what;
        Fd fd = receive_fd(channel_.theirs.get(), &what, sizeof what);
        tell(channel_.theirs.get(), read_one(what, std::move(fd), library));
      }
      return 0;
    });
    channel_.theirs.reset();
    library_.emplace(socket);
  }
  Trial(Trial&&) = delete;

  // GB/s of one trial.
  double run(Way way, std::size_t bytes) {
    ++seed_;
    if (warm_up_) warm(bytes);
    double took = 0;
    switch (way) {
      case Way::library:
      case Way::recycled:
        took = through_library(way, bytes);
        break;
      case Way::bare_huge:
      case Way::bare_small:
        took = bare(way, bytes);
        break;
      case Way::posix:
        took = posix(bytes);
        break;
      case Way::boost:
        took = boost_segment(bytes);
        break;
    }
    return static_cast<double>(bytes) / took / 1e3;
  }

 private:
  // A guest's free memory goes back to its host after a while and comes back at a tenth of the speed. Each trial
  // begins with as much just freed as it needs, whoever used it before.
  void warm(std::size_t bytes) {
    for (int tries = 0; tries < 4; ++tries) {
      double took = timed([&] {
        Fd fd = bare_region(bytes);
        populate_huge(BareMap::map(fd.get(), bytes, true));
      });
      double& best = fastest_[bytes];
      if (best == 0 || took < best) best = took;
      if (tries > 0 && took < 1.5 * best) return;
    }
  }

  void hand_over(const HandOver& what, std::size_t bytes, int fd = -1) {
    send_fd(channel_.ours.get(), &what, sizeof what, fd);
    auto sum = hear<std::uint64_t>(channel_.ours.get());
    errno = 0;
    if (sum != expected(bytes)) give_up("the reader did not see what was written");
  }

  // read_all of a region filled with one byte: the two exclusive-ors cancel out, the two sums do not.
  std::uint64_t expected(std::size_t bytes) const {
    std::uint64_t word;
    memset(&word, 0x41 + seed_ % 64, sizeof word);
    std::uint64_t rows = bytes / 32;
    return (rows % 2 == 1 ? 2 * word : 0) + 2 * rows * word;
  }

  double through_library(Way way, std::size_t bytes) {
    bool recycle = way == Way::recycled;
    shmb_create_options options{};
    options.size = sizeof options;
    if (!recycle) options.flags = SHMB_CREATE_NO_RECYCLE;
    shmb_region* region = nullptr;
    double took = timed([&] {
      region = library_->create(bytes, options);
      fill(static_cast<std::byte*>(shmb_region_data(region)), bytes, seed_);
      hand_over({way, recycle ? 1U : 0U, bytes, shmb_region_get_id(region), {}}, bytes);
    });
    library_->release(region);
    // The reader's release is on its way, and big regions are closed by a thread.
    for (auto status = watcher_.status(); status.bytes > status.bytes_cached; status = watcher_.status()) usleep(500);
    return took;
  }

  double bare(Way way, std::size_t bytes) {
    BareMap map;
    Fd fd;
    return timed([&] {
      fd = bare_region(bytes);
      map = BareMap::map(fd.get(), bytes, true);
      if (way == Way::bare_huge) populate_huge(map);
      fill(map.data(), bytes, seed_);
      hand_over({way, 0, bytes, {}, {}}, bytes, fd.get());
    });
  }

  HandOver named(Way way, std::size_t bytes) const {
    HandOver what{way, 0, bytes, {}, {}};
    snprintf(what.name, sizeof what.name, "/shmbroker-bench-%d", getpid());
    return what;
  }

  double posix(std::size_t bytes) {
    HandOver what = named(Way::posix, bytes);
    BareMap map;
    Fd fd;
    double took = timed([&] {
      fd = Fd::adopt(must(shm_open(what.name, O_CREAT | O_RDWR | O_TRUNC, 0600), "shm_open"));
      must(ftruncate(fd.get(), static_cast<off_t>(bytes)), "ftruncate");
      map = BareMap::map(fd.get(), bytes, true);
      fill(map.data(), bytes, seed_);
      hand_over(what, bytes);
    });
    shm_unlink(what.name);
    return took;
  }

  double boost_segment([[maybe_unused]] std::size_t bytes) {
#ifdef SHMB_HAVE_BOOST
    namespace bip = boost::interprocess;
    HandOver what = named(Way::boost, bytes);
    bip::shared_memory_object::remove(what.name);
    std::optional<bip::managed_shared_memory> segment;
    double took = timed([&] {
      segment.emplace(bip::create_only, what.name, bytes + 1 * MiB);
      // Storage without construction: the fill is the first write, as on the other sides.
      auto* data = static_cast<std::byte*>(segment->allocate_aligned(bytes, 4096));
      segment->construct<bip::offset_ptr<std::byte>>("data")(data);
      fill(data, bytes, seed_);
      hand_over(what, bytes);
    });
    bip::shared_memory_object::remove(what.name);
    return took;
#else
    return 1;
#endif
  }

  Channel channel_;
  WireSession watcher_;
  Child reader_;
  std::optional<Library> library_;
  std::map<std::size_t, double> fastest_;
  bool warm_up_;
  int seed_ = 0;
};

bool dev_shm_has(std::size_t bytes) {
  struct statvfs facts{};
  return statvfs("/dev/shm", &facts) == 0 && facts.f_bavail * facts.f_bsize > bytes + 64 * MiB;
}

}  // namespace

void run_fresh(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  Trial trial(broker.socket(), !bench.settings().quick);
  pin(Core::client);
  for (std::size_t bytes : sizes(bench, {64 * MiB, 1 * GiB})) {
    std::map<std::string, Way> peers{{"floor_4KiB_pages", Way::bare_small}};
    if (bytes <= 256 * MiB) peers.emplace("recycled", Way::recycled);  // a shelf holds no more
    if (dev_shm_has(bytes)) {
      peers.emplace("posix_shm", Way::posix);
#ifdef SHMB_HAVE_BOOST
      peers.emplace("boost_managed_shared_memory", Way::boost);
#endif
    }
    Pair pair;
    std::map<std::string, Samples> beside;
    int rounds = bench.times(bytes >= GiB ? 3 : 5), each = bench.times(bytes >= GiB ? 3 : 5);
    for (int round = 0; round < rounds; ++round) {
      Pair some = alternate(
          each, [&] { return trial.run(Way::library, bytes); }, [&] { return trial.run(Way::bare_huge, bytes); });
      pair.ours.add(some.ours);
      pair.floor.add(some.floor);
      for (auto [name, way] : peers) {
        if (way == Way::recycled) trial.run(way, bytes);  // puts one on the shelf
        beside[name].add(trial.run(way, bytes));
      }
    }
    Record record = make_record("fresh." + size_text(bytes), "GB/s", pair, ratio_at_least(0.8));
    record.engine = broker.engine();
    for (const auto& [name, samples] : beside) record.peers[name] = samples.median();
    bench.record(std::move(record));
  }
  pin(Core::any);
}

}  // namespace shmb::bench
