// SPDX-License-Identifier: Apache-2.0
// The cost of one user's floods for others: a bystander's create, beside two processes that ask the broker for one
// thing as fast as they can, against the same create beside two processes that only compute. The bystander is another
// user's, or the flood's own. Only root can measure the first: it needs a system broker.
#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "proto/pool_layout.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/wire_session.hpp"

namespace shmb::bench {
namespace {

constexpr unsigned kBroker = 65534, kBystander = 64001, kStranger = 64002;
constexpr std::size_t kFlooders = 2;

void become(std::optional<unsigned> uid) {
  if (!uid) return;
  must(setresuid(*uid, *uid, *uid), "setresuid");
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // forgotten with the change of uid
}

bool told(int socket) {
  pollfd entry{socket, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

// One unit of a flood; made in the process that floods.
using Unit = std::function<void()>;

Unit connects(const std::string& path) {
  return [path] { close(connect_to(path)); };
}
Unit sessions(const std::string& path) {
  return [path] { (void)WireSession::open(path); };
}

Unit pools(const std::string& path) {
  auto session = std::make_shared<WireSession>(WireSession::open(path));
  return [session] {
    constexpr std::uint32_t kCells = 65'536, kCell = 128;
    shmbw_pool_create pool{};
    pool.lane_bytes = pool::lane_bytes(pool::QueueKind::mpmc, kCells, kCell);
    const auto made = session->ask<shmbw_pool_create_reply>(SHMBW_OP_POOL_CREATE, pool);
    shmbw_queue_open queue{};
    queue.pool = made.pool;
    queue.kind = SHMBW_QUEUE_KIND_MPMC;
    queue.flags = SHMBW_QUEUE_OPEN_WRITER;
    queue.cells = kCells;
    queue.cell_size = kCell;
    queue.name_len = 1;
    session->ask<shmbw_queue_open_reply>(SHMBW_OP_QUEUE_OPEN, queue, "q");
    session->ask<shmbw_pool_leave_reply>(SHMBW_OP_POOL_LEAVE, shmbw_pool_leave{made.pool, 0, 0});
  };
}

Unit lists(const std::string& path) {
  auto session = std::make_shared<WireSession>(WireSession::open(path));
  // Beside a bystander's user this one has a third of the table in system mode, for both processes together.
  for (int i = 0; i < 10; ++i) session->create(SHMBW_MAX_BATCH, 4096);
  return [session] {
    shmbw_list wish{};
    wish.table = SHMBW_TABLE_REGIONS;
    session->ask<shmbw_list_reply>(SHMBW_OP_LIST, wish);
  };
}

Unit creates(const std::string& path) {
  auto session = std::make_shared<WireSession>(WireSession::open(path));
  return [session] { session->release(session->create(SHMBW_MAX_BATCH, 4096).regions); };
}

Unit tickets(const std::string& path) {
  auto session = std::make_shared<WireSession>(WireSession::open(path));
  auto region = std::make_shared<WireSession::Created>(session->create(1, 4096));
  return [session, region] {
    shmbw_ticket_create wish{};
    wish.region = region->regions[0];
    wish.rights = SHMBW_RIGHT_MAP_READ;
    const auto made = session->ask<shmbw_ticket_create_reply>(SHMBW_OP_TICKET_CREATE, wish);
    shmbw_ticket_revoke revoke{};
    std::copy(std::begin(made.ticket), std::end(made.ticket), revoke.ticket);
    session->ask<shmbw_ticket_revoke_reply>(SHMBW_OP_TICKET_REVOKE, revoke);
  };
}

// Each unit ends a region that 512 subscriptions of sessions watch that read nothing.
Unit watches(const std::string& path) {
  auto session = std::make_shared<WireSession>(WireSession::open(path));
  auto watcher = std::make_shared<WireSession>(WireSession::open(path));
  return [session, watcher] {
    const auto made = session->create(1, 4096);
    shmbw_watch wish{};
    wish.kind = SHMBW_WATCH_KIND_REGION;
    wish.events = SHMBW_WATCH_EVENT_GONE;
    wish.region = made.regions[0];
    for (int i = 0; i < 512; ++i) watcher->ask<shmbw_watch_reply>(SHMBW_OP_WATCH, wish);
    session->release(made.regions);
  };
}

struct Kind {
  const char* name;
  Unit (*make)(const std::string&);
};
constexpr Kind kKinds[] = {{"connects", connects}, {"sessions", sessions}, {"pools", pools},    {"lists", lists},
                           {"creates", creates},   {"tickets", tickets},   {"watches", watches}};

// Processes that do one thing from a byte of the bench's to the next one.
class Herd {
 public:
  explicit Herd(const std::function<Unit()>& make, std::optional<unsigned> uid = {}) {
    for (std::size_t i = 0; i < kFlooders; ++i) {
      channels_.push_back(Channel::make());
      const int socket = channels_.back().theirs.get();
      children_.push_back(Child::start(Core::any, [&]() -> int {
        for (Channel& each : channels_) each.ours.reset();
        become(uid);
        const Unit unit = make();
        tell(socket, true);
        for (;;) {
          hear<bool>(socket);
          while (!told(socket)) unit();
          hear<bool>(socket);
          tell(socket, true);
        }
      }));
      channels_.back().theirs.reset();
    }
    wait();
  }
  void go() {
    for (Channel& each : channels_) tell(each.ours.get(), true);
    usleep(20'000);
  }
  void stop() {
    for (Channel& each : channels_) tell(each.ours.get(), true);
    wait();
  }

 private:
  void wait() {
    for (Channel& each : channels_) hear<bool>(each.ours.get());
  }
  std::vector<Channel> channels_;
  std::vector<Child> children_;
};

Unit compute() {
  return [] {
    static volatile unsigned sum = 0;
    for (unsigned i = 0; i < 10'000; ++i) sum = sum + i;
  };
}

class Bystander {
 public:
  Bystander(const std::string& path, std::optional<unsigned> uid) : channel_(Channel::make()) {
    child_ = Child::start(Core::any, [&, uid]() -> int {
      channel_.ours.reset();
      become(uid);
      WireSession session = WireSession::open(path);
      const int socket = channel_.theirs.get();
      tell(socket, true);
      for (;;) {
        const auto count = hear<int>(socket);
        Samples all;
        for (int i = 0; i < count; ++i) {
          WireSession::Created made;
          all.add(timed([&] { made = session.create(1, 4096); }));
          session.release(made.regions);
          usleep(200);
        }
        tell(socket, std::pair(all.median(), all.percentile(0.99)));
      }
    });
    channel_.theirs.reset();
    hear<bool>(channel_.ours.get());
  }
  std::pair<double, double> create(int count) {
    tell(channel_.ours.get(), count);
    return hear<std::pair<double, double>>(channel_.ours.get());
  }

 private:
  Channel channel_;
  Child child_;
};

void on_engine(Bench& bench, const std::string& engine, bool system) {
  auto broker = system ? BrokerProcess::start_system(bench.settings(), Core::any, engine, kBroker)
                       : BrokerProcess::start(bench.settings(), Core::any, engine);
  if (broker.engine() != engine) return;
  const auto bystander_uid = system ? std::optional(kBystander) : std::nullopt;
  Bystander bystander(broker.socket(), bystander_uid);
  Herd computing(compute);
  const int count = bench.times(400, 20);
  for (const Kind& kind : kKinds) {
    Herd flood([&] { return kind.make(broker.socket()); }, system ? std::optional(kStranger) : std::nullopt);
    Samples worst, floor_worst;
    auto beside = [&](Herd& herd, Samples& p99) {
      herd.go();
      const auto [median, high] = bystander.create(count);
      herd.stop();
      p99.add(high);
      return median;
    };
    Pair pair =
        alternate(bench.times(5), [&] { return beside(flood, worst); }, [&] { return beside(computing, floor_worst); });
    Record record = make_record(fmt::format("floods.{}.{}.{}", kind.name, system ? "other_user" : "same_user", engine),
                                "us", pair, ratio_at_most(system ? 2 : 5));
    record.engine = engine;
    record.peers = {{"p99_us", worst.median()}, {"floor_p99_us", floor_worst.median()}};
    bench.record(std::move(record));
  }
}

}  // namespace

void run_floods(Bench& bench) {
  for (const char* engine : {
           "epoll",
#ifdef SHMB_HAVE_URING
           "io_uring",
#endif
       }) {
    on_engine(bench, engine, false);
    if (geteuid() == 0) on_engine(bench, engine, true);
  }
}

}  // namespace shmb::bench
