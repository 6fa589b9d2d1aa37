// SPDX-License-Identifier: Apache-2.0
// A thousand clients with ten regions each are killed at once. Ours: until the broker's books are empty. The floor:
// the same processes with the same memory of their own, connected to a bare server that waits until it has seen the
// end of each socket and of each process: the kernel's own time for these exits. Both servers are in sessions of their
// own, as a broker is on any host, so that a thousand dying processes are one party for the scheduler and not a
// thousand.
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/compat.hpp"
#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/wire_session.hpp"

namespace shmb::bench {
namespace {

constexpr std::size_t kEach = 10;

// Processes that have made their regions and wait to be killed together.
class Crowd {
 public:
  // `prepare` runs in each; what it returns lives until the end of the process.
  template <class Prepare>
  Crowd(std::size_t count, Prepare prepare) {
    int ready[2];
    must(pipe(ready), "pipe");
    for (std::size_t i = 0; i < count; ++i) {
      members_.push_back(Child::start(Core::any, [&]() -> int {
        auto held = prepare();
        must(static_cast<int>(write(ready[1], "x", 1)), "write");
        for (;;) pause();
      }));
    }
    close(ready[1]);
    std::array<char, 256> bytes;
    std::size_t arrived = 0;
    for (ssize_t got; arrived < count && (got = read(ready[0], bytes.data(), bytes.size())) > 0;)
      arrived += static_cast<std::size_t>(got);
    close(ready[0]);
    errno = 0;
    if (arrived != count) give_up("a client of the storm ended early");
  }

  // One by one: kill(2) of a process group holds the kernel's task list against the exits it causes.
  void kill_all() const {
    for (const Child& member : members_) member.kill(SIGKILL);
  }

 private:
  std::vector<Child> members_;
};

struct Held {
  WireSession session;
  Fd socket;
  std::vector<BareMap> maps;
  std::vector<Fd> fds;
};

// The work of a server itself, from the kill to the end.
class ServerTime {
 public:
  template <class Body>
  double during(pid_t server, Body body) {
    double before = process_cpu_us(server);
    double took = timed(body);
    spent_.add((process_cpu_us(server) - before) / 1e3);
    return took;
  }
  double median() const { return spent_.median(); }

 private:
  Samples spent_;
};

double ours(const BrokerProcess& broker, WireSession& watcher, std::size_t count, ServerTime& time) {
  Crowd crowd(count, [&] {
    Held held{WireSession::open(broker.socket()), {}, {}, {}};
    auto created = held.session.create(kEach, 4096);
    for (const Fd& fd : created.fds) {
      held.maps.push_back(BareMap::map(fd.get(), 4096, true));
      held.maps.back().data()[0] = std::byte{1};
    }
    return held;
  });
  auto before = watcher.status();
  errno = 0;
  if (before.regions != count * kEach) give_up("the broker does not hold what the storm made");
  return time.during(broker.pid(), [&] {
    crowd.kill_all();
    for (auto now = before; now.regions > 0 || now.leases > 0 || now.bytes > 0 || now.sessions > 1;
         now = watcher.status())
      usleep(1000);  // asking costs the broker time that it needs here
  });
}

int bare_server(int listener, std::size_t count, int report) {
  int loop = must(epoll_create1(0), "epoll_create1");
  auto watch = [&](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    must(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
  };
  watch(listener);
  std::array<epoll_event, 256> ready;
  for (std::size_t ended = 0; ended < 2 * count;) {
    int some = epoll_wait(loop, ready.data(), ready.size(), -1);
    for (int i = 0; i < some; ++i) {
      int fd = ready[static_cast<std::size_t>(i)].data.fd;
      if (fd != listener) {
        close(fd);  // the end of a socket or of a process
        ++ended;
        continue;
      }
      int client = must(accept(listener, nullptr, nullptr), "accept");
      watch(client);
      int pidfd = -1;
      socklen_t size = sizeof pidfd;
      must(getsockopt(client, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size), "SO_PEERPIDFD");
      watch(pidfd);
    }
  }
  tell(report, 1);
  for (;;) pause();  // its CPU time can be read until it is gone
}

double floor_of(const std::string& path, std::size_t count, ServerTime& time) {
  int listener = listen_at(path, 4096);
  Channel channel = Channel::make();
  Child server = Child::start(Core::any, [&] {
    setsid();
    return bare_server(listener, count, channel.theirs.get());
  });
  close(listener);
  Crowd crowd(count, [&] {
    channel.theirs.reset();
    Held held{{}, Fd::adopt(connect_to(path)), {}, {}};
    for (std::size_t i = 0; i < kEach; ++i) {
      // Kept open: without a broker the descriptor is the only handle that others can be given.
      held.fds.push_back(bare_region(4096));
      held.maps.push_back(BareMap::map(held.fds.back().get(), 4096, true));
      held.maps.back().data()[0] = std::byte{1};
    }
    return held;
  });
  channel.theirs.reset();
  return time.during(server.pid(), [&] {
    crowd.kill_all();
    hear<int>(channel.ours.get());
  });
}

std::size_t clients_that_fit() {
  // Per client: a session, a pidfd and ten regions in the broker's table.
  rlimit table{};
  getrlimit(RLIMIT_NOFILE, &table);
  return std::min<std::size_t>(1'000, (table.rlim_max - 200) / (kEach + 2));
}

}  // namespace

void run_storm(Bench& bench) {
  rlimit table{};
  getrlimit(RLIMIT_NOFILE, &table);
  table.rlim_cur = table.rlim_max;
  setrlimit(RLIMIT_NOFILE, &table);
  std::size_t count = bench.settings().quick ? 20 : clients_that_fit();
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine, {}, true);
  auto watcher = WireSession::open(broker.socket());
  TemporaryFolder folder;
  ServerTime here, there;
  Pair pair = alternate(
      bench.times(9), [&] { return ours(broker, watcher, count, here) / 1e3; },
      [&] { return floor_of(folder.path() + "/bare", count, there) / 1e3; });
  Record record = make_record("storm.killed_clients", "ms", pair, ratio_at_most(1.2));
  record.engine = broker.engine();
  record.peers = {{"clients", static_cast<double>(count)},
                  {"regions", static_cast<double>(count * kEach)},
                  {"broker_cpu_ms", here.median()},
                  {"floor_cpu_ms", there.median()}};
  bench.record(std::move(record));
}

}  // namespace shmb::bench
