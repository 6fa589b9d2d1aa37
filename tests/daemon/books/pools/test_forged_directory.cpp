// SPDX-License-Identifier: Apache-2.0
// A process that managed to write a pool's directory, against a broker that only writes it. Two worlds get the same
// requests and the same deaths. In one of them all bytes of the directory are forged, as the broker itself has it
// mapped. Each reply, each row of each listing and each byte of the control area must be the same in both.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "base/sys_memory.hpp"
#include "tests/daemon/books/pool_client.hpp"

using namespace shmb;
using namespace shmb::daemon::test;
using pool::QueueKind;

namespace {

// The mapping of that file which can be written: the broker's, in this process.
std::span<std::byte> writable_mapping(int fd) {
  const std::uint64_t inode = sys::file_facts(fd)->inode;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, rights, offset, device;
    std::uint64_t number = 0;
    words >> range >> rights >> offset >> device >> number;
    if (number != inode || rights != "rw-s") continue;
    const std::uintptr_t begin = std::stoull(range, nullptr, 16);
    const std::uintptr_t end = std::stoull(range.substr(range.find('-') + 1), nullptr, 16);
    return {reinterpret_cast<std::byte*>(begin), end - begin};
  }
  FAIL("the broker has no mapping of the directory that can be written");
  return {};
}

// Nonsense, and numbers that an index, an offset or a state could be.
void forge(std::span<std::byte> directory, std::mt19937_64& random) {
  const std::uint64_t telling[] = {0, UINT64_MAX, random(), random() % 64, random() % 8 << 8 | random() % 5};
  const bool one_kind = random() % 2 == 0;
  const std::uint64_t kind = random();
  for (std::size_t at = 0; at + 8 <= directory.size(); at += 8) {
    const std::uint64_t word = telling[(one_kind ? kind : random()) % std::size(telling)];
    std::memcpy(directory.data() + at, &word, sizeof word);
  }
}

// Another process that forges without a pause, also in the middle of a request.
class Forger {
 public:
  explicit Forger(std::span<std::byte> directory) : pid_(::fork()) {
    REQUIRE(pid_ >= 0);
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (std::uint64_t word = 1;; word = word * 0x9e37'79b9'7f4a'7c15 + 1) {
      const std::uint64_t stored = word >> 62 == 0 ? word >> 58 : word;
      for (std::size_t at = 0; at + 8 <= directory.size(); at += 8)
        std::memcpy(directory.data() + at, &stored, sizeof stored);
    }
  }
  Forger(const Forger&) = delete;
  Forger& operator=(const Forger&) = delete;
  ~Forger() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

struct Side {
  Side() {
    keeper.make_group({.name = "job"});
    keeper.join("job");
    at = map_pool(
        pool_create(keeper, {.name = "frames", .slots = 64, .lanes = 12, .queues = 6, .lane_bytes = 32 << 10}));
    const auto region = keeper.create({.length = 1 << 20, .flags = SHMBW_CREATE_MANY_WRITERS});
    REQUIRE(pool_segment(keeper, at.pool, region.ref(), 4096, 64).status() == Status::ok);
    directory = writable_mapping(at.directory_fd.get());
  }
  std::vector<std::byte> listing(std::uint32_t table) {
    shmbw_list wish{};
    wish.table = table;
    return admin.list(wish).bytes;
  }
  bool same_words(const Side& other) const {
    return std::memcmp(at.control.data(), other.at.control.data(), at.control.size()) == 0;
  }

  World world{{}, {}, false};  // without comparisons of the records: other tests have them, and they take time
  Client admin = world.admin(), keeper = world.client();
  std::map<int, Client> others;
  PoolClient at;
  std::span<std::byte> directory;
};

struct Lane {
  std::uint32_t index = 0, serial = 0, from = 0, cells = 0, cell_size = 0;
  std::uint64_t offset = 0;
  QueueKind kind = QueueKind::none;
};

// The same in both worlds, by the directory of the honest one.
class Pair {
 public:
  Pair(std::uint64_t seed, bool all_the_time) : random_(seed), forgeries_(seed + 1) {
    if (all_the_time) forger_.emplace(forged_.directory);
  }

  template <class Body>
  void both(Body body) {
    const std::vector<std::byte> wanted = body(honest_);
    forge(forged_.directory, forgeries_);
    CHECK(body(forged_) == wanted);
    CHECK(forged_.same_words(honest_));
  }

  void compare_listings() {
    for (const std::uint32_t table : {SHMBW_TABLE_POOLS, SHMBW_TABLE_QUEUES, SHMBW_TABLE_PARTICIPANTS,
                                      SHMBW_TABLE_REGIONS, SHMBW_TABLE_GROUPS, SHMBW_TABLE_LEASES, SHMBW_TABLE_UIDS}) {
      CAPTURE(table);
      both([&](Side& side) { return side.listing(table); });
    }
  }

  void step() {
    static constexpr int kSteps = 12;
    const std::uint64_t pool = honest_.at.pool;
    const std::uint64_t which = random_() % kSteps;
    CAPTURE(which);
    if (honest_.others.size() < 2 || which == 0) return join();
    auto at = honest_.others.begin();
    std::advance(at, random_() % honest_.others.size());
    const int who = at->first;
    switch (which) {
      case 1: {  // the end of a process
        both([&](Side& side) {
          side.others.at(who).die();
          side.others.erase(who);
          return std::vector<std::byte>{};
        });
        return;
      }
      case 2: {
        both([&](Side& side) {
          const auto reply = pool_leave(side.others.at(who), pool).bytes;
          side.others.erase(who);
          return reply;
        });
        return;
      }
      case 3:
        both([&](Side& side) {
          side.world.advance(kSecond);
          return std::vector<std::byte>{};
        });
        return;
      case 4:
        return close(who);
      case 5: {
        const std::optional<Lane> lane = some_lane();
        if (!lane) return;
        const std::uint32_t end = random_() % 2 == 0 ? SHMBW_LANE_END_SENDER : SHMBW_LANE_END_RECEIVER;
        both([&](Side& side) {
          for (auto& [number, client] : side.others) lane_finished(client, pool, lane->index, lane->serial, end);
          return std::vector<std::byte>{};
        });
        return;
      }
      case 6: {
        const std::optional<Lane> lane = some_lane();
        if (!lane) return;
        both([&](Side& side) {
          std::vector<std::byte> out;
          for (auto& [number, client] : side.others) {
            const Created region = client.create({.length = 4096});
            REQUIRE(region.status == Status::ok);
            const Status held = queue_hold(client, pool, lane->index, lane->serial, region.ref());
            out.push_back(static_cast<std::byte>(held));
            client.release(region.ref());
          }
          return out;
        });
        return;
      }
      case 7:
      case 8:
        return send();
      default:
        return open(who);
    }
  }

 private:
  void join() {
    const int number = next_++;
    const std::uint32_t flags = random_() % 8 == 0 ? SHMBW_POOL_READ_ONLY : 0;
    both([&](Side& side) {
      Client& client = side.others.emplace(number, side.world.client()).first->second;
      client.join("job");
      Packet& reply = pool_join(client, side.at.pool, flags);
      REQUIRE(reply.status() == Status::ok);
      return reply.bytes;
    });
  }
  void open(int who) {
    const std::string name(1, static_cast<char>('a' + random_() % 6));
    QueueRequest wish;
    wish.kind = static_cast<std::uint32_t>(1 + random_() % 3);
    if (random_() % 4 != 0) wish.kind = 1 + static_cast<std::uint32_t>(name[0] - 'a') / 2;
    wish.flags = random_() % 2 == 0 ? SHMBW_QUEUE_OPEN_READER : SHMBW_QUEUE_OPEN_WRITER;
    both([&](Side& side) { return queue_open(side.others.at(who), side.at.pool, name, wish).bytes; });
  }
  void close(int who) {
    const auto queue = static_cast<std::uint32_t>(random_() % 6);
    const std::uint32_t serial = pool::Stamp::of(honest_.at.view.queue(queue).stamp.load()).serial;
    static constexpr std::uint32_t kFlags[] = {SHMBW_QUEUE_CLOSE_READER, SHMBW_QUEUE_CLOSE_WRITER,
                                               SHMBW_QUEUE_CLOSE_ALL, SHMBW_QUEUE_CLOSE_REMOVE};
    const std::uint32_t flags = kFlags[random_() % std::size(kFlags)];
    both([&](Side& side) {
      const shmbw_queue_close wish{side.at.pool, queue, serial, flags, 0};
      return side.others.at(who).call(SHMBW_OP_QUEUE_CLOSE, wish).bytes;
    });
  }
  // A message that names a slot of its sender, or the end of one that was there.
  void send() {
    const std::optional<Lane> lane = some_lane();
    if (!lane) return;
    std::uint64_t& next = sent_[lane->serial];
    const std::uint64_t position = next % lane->cells;
    const auto slot = static_cast<std::uint32_t>(random_() % 64);
    const bool take = next >= 4;
    if (!take) ++next;
    both([&](Side& side) {
      const pool::LaneView words(side.at.view.lane_memory(lane->offset), lane->kind, lane->cells, lane->cell_size);
      if (take) {
        for (std::uint64_t cell = 0; cell < lane->cells; ++cell)
          words.cell(cell).word = pool::CellWord::empty(cell + lane->cells);
        words.head() = lane->cells;
      } else {
        side.at.view.slot(slot).holders.fetch_or(std::uint64_t{1} << lane->from);
        publish_slot(words, position, slot);
      }
      return std::vector<std::byte>{};
    });
  }
  std::optional<Lane> some_lane() {
    const pool::View& view = honest_.at.view;
    std::vector<Lane> all;
    for (std::uint32_t i = 0; i < view.lanes(); ++i) {
      if (lane_state(view, i) == pool::LaneState::free) continue;
      const pool::LaneEntry& entry = view.lane(i);
      all.push_back({i, pool::Stamp::of(entry.stamp.load()).serial, entry.from, entry.cells, entry.cell_size,
                     entry.offset, static_cast<QueueKind>(view.queue(entry.queue).kind)});
    }
    if (all.empty()) return std::nullopt;
    return all[random_() % all.size()];
  }

  std::mt19937_64 random_, forgeries_;
  Side honest_, forged_;
  std::optional<Forger> forger_;
  int next_ = 0;
  std::map<std::uint32_t, std::uint64_t> sent_;  // by the serial of a lane
};

}  // namespace

TEST_CASE("what stands in a directory decides nothing: joins, queues, repairs, counts and charges are the same") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    Pair pair(seed, false);
    for (int i = 0; i < 200; ++i) pair.step();
    pair.compare_listings();
  }
}

TEST_CASE("so they are when another process writes into the directory all the time") {
  Pair pair(77, true);
  for (int i = 0; i < 400; ++i) pair.step();
  pair.compare_listings();
}
