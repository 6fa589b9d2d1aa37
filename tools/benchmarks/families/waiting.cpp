// SPDX-License-Identifier: Apache-2.0
// The cost of a reader that has nothing to read, or little: processor time per second, asleep all the time and woken a
// hundred times, beside a process that sleeps on a bare futex and is woken as often.
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <new>

#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/crew.hpp"
#include "tools/benchmarks/kit/pool_library.hpp"

namespace shmb::bench {
namespace {

constexpr int kWakesPerSecond = 100;

// Member 0 writes, member 1 reads for ever.
struct Reader {
  std::unique_ptr<Crew> crew = std::make_unique<Crew>();
  // us of processor time per second in `seconds`, with or without messages.
  double cost(double seconds, bool messages) {
    const double before = process_cpu_us(crew->pid(1));
    const double from = now_us();
    if (messages) {
      crew->tell(0, static_cast<int>(seconds * kWakesPerSecond));
      crew->hear<int>(0);
    } else {
      usleep(static_cast<useconds_t>(seconds * 1e6));
    }
    return (process_cpu_us(crew->pid(1)) - before) / ((now_us() - from) / 1e6);
  }
};

void at_intervals(int socket, const std::function<void()>& send) {
  for (;;) {
    const int count = hear<int>(socket);
    for (int i = 0; i < count; ++i) {
      usleep(1'000'000 / kWakesPerSecond);
      send();
    }
    tell(socket, count);
  }
}

Reader library_reader(const std::string& socket, std::int64_t spin) {
  QueueShape shape;
  shape.spin_ns = spin;
  Reader reader;
  reader.crew->add(Core::client, [&](int channel) {
    PoolLibrary pool(socket, PoolShape{});
    shmb_queue* queue = nullptr;
    pool.open(queue, "rare", SHMB_QUEUE_WRITER, shape);
    tell(channel, pool.id());
    const char bytes[56] = {};
    at_intervals(channel, [&] { pool.send(queue, bytes, sizeof bytes); });
  });
  const auto id = reader.crew->hear<std::uint64_t>(0);
  reader.crew->add(Core::server, [&](int channel) {
    PoolLibrary pool(socket, id);
    shmb_queue* queue = nullptr;
    pool.open(queue, "rare", SHMB_QUEUE_READER, shape);
    shmb_message* message = pool.message();
    tell(channel, id);
    for (;;) pool.receive(queue, message);
  });
  reader.crew->hear<std::uint64_t>(1);
  return reader;
}

Reader futex_reader() {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) give_up("mmap");
  auto* word = new (page) std::atomic<std::uint32_t>{};
  Reader reader;
  reader.crew->add(Core::client, [&](int channel) {
    at_intervals(channel, [&] {
      word->fetch_add(1);
      syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    });
  });
  reader.crew->add(Core::server, [&](int) {
    for (std::uint32_t seen = 0;; seen = *word)
      while (*word == seen) syscall(SYS_futex, word, FUTEX_WAIT, seen, nullptr, nullptr, 0);
  });
  munmap(page, 4096);
  return reader;
}

}  // namespace

void run_waiting(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  Reader at_once = library_reader(broker.socket(), SHMB_NO_WAIT), spinning = library_reader(broker.socket(), 0),
         bare = futex_reader();
  const double seconds = bench.settings().quick ? 0.05 : 0.5;
  usleep(100'000);  // all asleep
  Samples idle, idle_bare, with_spin;
  Pair both = alternate(
      bench.times(5),
      [&] {
        idle.add(at_once.cost(seconds, false));
        with_spin.add(spinning.cost(seconds, true));
        return at_once.cost(seconds, true);
      },
      [&] {
        idle_bare.add(bare.cost(seconds, false));
        return bare.cost(seconds, true);
      });
  Record record = make_record("waiting.100_wakes_a_second", "us/s", both);
  record.engine = broker.engine();
  record.peers = {{"idle", idle.median()},
                  {"floor_idle", idle_bare.median()},
                  {"looks_20_us_before_it_sleeps", with_spin.median()}};
  bench.record(std::move(record));
}

}  // namespace shmb::bench
