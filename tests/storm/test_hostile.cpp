// SPDX-License-Identifier: Apache-2.0
// One participant of a pool writes nonsense over the whole control area, and over the directory. Its fellows may get
// wrong data and errors, but they read nothing that lies outside what they were given (run under ASan and UBSan), and
// come back from every call. The broker serves on, other pools and regions do not notice, and all memory is back at the
// end.
//
//   test_hostile --seconds 60 [--seeds 10] [--seed 7] [--damage 8]     the long form; 8: the directory alone
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>

#include "base/sys_futex.hpp"
#include "base/sys_process.hpp"
#include "client/queue/queue_set.hpp"
#include "client/session/connect.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/storm/crew.hpp"
#include "tests/storm/vandal.hpp"
#include "tests/support/arguments.hpp"
#include "tests/support/bystander.hpp"
#include "tests/support/shared.hpp"

using namespace shmb;
using namespace shmb::client;
using namespace storm;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kPatience = 60 * kSecond;  // of a call that has a deadline of milliseconds

void rest(std::int64_t nanoseconds) {
  const timespec time{nanoseconds / kSecond, nanoseconds % kSecond};
  ::nanosleep(&time, nullptr);
}

std::shared_ptr<Session> session_on(const std::string& socket) {
  ConnectOptions options;
  options.socket = socket;
  options.no_group = true;
  options.timeout = kAnswer;
  auto session = connect(options);
  return session ? *session : nullptr;
}

PoolSpec plan(const std::string& name) {
  PoolSpec spec;
  spec.name = name;
  spec.classes = {{256, 16, 32}, {4096, 16, 32}, {65536, 2, 4}};
  spec.lanes = 128;
  return spec;
}

std::shared_ptr<Pool> pool_on(const std::shared_ptr<Session>& session, const std::string& name) {
  REQUIRE(session);
  auto pool = Pool::create(session, plan(name), kAnswer);
  REQUIRE_MESSAGE(pool, pool.error().sentence);
  return *pool;
}

// In a child: another session of the pool's group, in the pool.
std::shared_ptr<Pool> join(const CrewPlace& place) {
  auto session = session_on(place.socket);
  if (!session || !session->join_group("#" + std::to_string(place.group), 0, Deadline::after(kAnswer))) return nullptr;
  Pool::Opening opening;
  opening.id = place.pool;
  opening.timeout = kAnswer;
  auto pool = Pool::open(session, opening);
  return pool ? *pool : nullptr;
}

QueueSpec ends(const std::string& name, pool::QueueKind kind, bool reads) {
  QueueSpec spec;
  spec.name = name;
  spec.kind = kind;
  spec.reader = reads;
  spec.writer = !reads;
  spec.cells = 16;
  return spec;
}

// Two members of a pool, watched.
class Crew {
 public:
  Crew(CrewPlace place, std::uint64_t seed) : place_(std::move(place)), seed_(seed) {
    for (std::uint32_t i = 0; i < 2; ++i) begin(i);
  }
  void begin(std::uint32_t i) {
    seen_[i] = {shared_->member[i].beats.load(), sys::now_monotonic()};
    member_[i] = harness::Child::run([&, i] { return serve(*shared_, place_, i, seed_ + i); });
  }
  void kill(std::uint32_t i) {
    member_[i]->kill();
    (void)member_[i]->wait();
  }
  bool well() {
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint64_t beats = shared_->member[i].beats.load();
      if (beats != seen_[i].first) seen_[i] = {beats, sys::now_monotonic()};
      if (member_[i]->wait_ended(0) && shared_->stop.load() == 0 && !place_.trusting) wrong_ = "a member has ended";
      if (sys::now_monotonic() - seen_[i].second > kPatience && !member_[i]->wait_ended(0))
        wrong_ = "member " + std::to_string(i) + " hangs in call " + std::to_string(shared_->member[i].doing.load());
    }
    if (shared_->failed.load() != 0) wrong_ = shared_->wrong;
    return wrong_.empty();
  }
  // "" if all was well until they had left.
  std::string end() {
    shared_->stop.store(1);
    const std::int64_t until = sys::now_monotonic() + kPatience;
    for (auto& member : member_)
      while (!member->wait_ended(10) && sys::now_monotonic() < until && well()) {
      }
    for (std::uint32_t i = 0; i < 2; ++i) {
      if (!member_[i]->wait_ended(0) && wrong_.empty())
        wrong_ =
            "member " + std::to_string(i) + " does not end: call " + std::to_string(shared_->member[i].doing.load());
      if (!member_[i]->wait_ended(0)) member_[i]->kill();
      if (const int status = member_[i]->wait(); status != 0 && wrong_.empty())
        wrong_ = "member " + std::to_string(i) + " ended with status " + std::to_string(status);
    }
    (void)well();
    return wrong_;
  }
  CrewShared& shared() { return *shared_; }

 private:
  const CrewPlace place_;
  const std::uint64_t seed_;
  support::Shared<CrewShared> shared_;
  std::array<std::optional<harness::Child>, 2> member_;
  std::array<std::pair<std::uint64_t, std::int64_t>, 2> seen_{};
  std::string wrong_;
};

constexpr int kNoDirectory = 5;

// A participant by the wire alone, which has the descriptor of the directory.
harness::RawPacket join_raw(harness::RawClient& client, const CrewPlace& place) {
  client = harness::RawClient::connect(place.socket);
  if (!client.hello().ok()) return {};
  const std::string group = "#" + std::to_string(place.group);
  shmbw_group_join member{};
  member.name_len = static_cast<std::uint16_t>(group.size());
  if (!client.call(SHMBW_OP_GROUP_JOIN, member, group).ok()) return {};
  shmbw_pool_join wish{};
  wish.pool = place.pool;
  return client.call(SHMBW_OP_POOL_JOIN, wish);
}

int destroy(const CrewPlace& place, std::uint64_t seed, Damage damage) {
  auto pool = join(place);
  if (!pool) return 0;  // broken already
  harness::RawClient raw;
  const harness::RawPacket joined = join_raw(raw, place);
  if (joined.status() == static_cast<int>(Status::broken)) return 0;
  if (!joined.ok() || joined.fds.empty()) return kNoDirectory;
  const auto directory =
      seize_directory(joined.fds.front().get(), joined.fixed<shmbw_pool_join_reply>().directory_bytes);
  if (directory.empty()) return kNoDirectory;
  // An end of its own in each queue, so that it has lanes.
  std::vector<std::unique_ptr<Queue>> queues;
  for (const bool reads : {false, true}) {
    QueueSpec spec = ends("claim", pool::QueueKind::mpmc, reads);
    spec.cell_size = 128;
    if (auto queue = Queue::open(pool, spec)) queues.push_back(std::move(*queue));
  }
  Vandal vandal(pool, directory, seed);
  std::mt19937_64 dice(seed);
  for (;;) {
    vandal.strike(damage != Damage::count ? damage
                                          : static_cast<Damage>(dice() % static_cast<unsigned>(Damage::count)));
    if (dice() % 4 == 0) rest(static_cast<std::int64_t>(dice() % 200'000));
  }
}

struct Sum {
  std::uint64_t delivered = 0, refused = 0, broken = 0;
  void add(const CrewShared& shared) {
    for (const Progress& member : shared.member)
      delivered += member.delivered, refused += member.refused, broken += member.broken;
  }
};

}  // namespace

TEST_CASE("nonsense written over a pool's memory hurts neither the broker nor other pools, and no memory") {
  const std::uint64_t seconds = support::argument("--seconds", 4), seeds = support::argument("--seeds", 1);
  const std::uint64_t first = support::argument("--seed", std::random_device{}() >> 1);
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 dice(seed);
    harness::BrokerOptions slow;
    slow.config = "hello_timeout = \"60s\"\n";
    const harness::BrokerFixture broker(slow);
    auto session = session_on(broker.socket());
    auto quiet_pool = pool_on(session, "quiet");
    Crew quiet({broker.socket(), quiet_pool->group(), quiet_pool->id(), false}, seed);
    wire_test::Bystander bystander(broker.socket());
    Sum sum;
    std::uint32_t rounds = 0, broken_pools = 0;
    const std::int64_t until = sys::now_monotonic() + static_cast<std::int64_t>(seconds) * kSecond;
    const auto kinds = static_cast<std::uint32_t>(Damage::count) + 1;  // the last: a mixture
    const auto only = static_cast<std::uint32_t>(support::argument("--damage", kinds));
    while (sys::now_monotonic() < until || rounds < kinds) {
      const auto damage = static_cast<Damage>(only < kinds ? only : rounds % kinds);
      ++rounds;
      const std::string name = damage == Damage::count ? "mixture" : damage_name(damage);
      CAPTURE(name);
      auto owner = session_on(broker.socket());
      auto pool = pool_on(owner, "battlefield");
      const CrewPlace place{broker.socket(), pool->group(), pool->id(), true};
      const std::uint64_t luck = dice();
      Crew victims(place, luck);
      harness::Child vandal = harness::Child::run([&] { return destroy(place, luck, damage); });
      const std::int64_t length =
          std::max<std::int64_t>(static_cast<std::int64_t>(seconds) * kSecond / kinds, kSecond / 4);
      const std::int64_t round_ends = sys::now_monotonic() + std::min<std::int64_t>(length, 2 * kSecond);
      bool killed = false;
      while (sys::now_monotonic() < round_ends && victims.well() && quiet.well()) {
        rest(10'000'000);
        if (killed && pool->broken()) break;  // every call fails at once from now on
        if (killed || sys::now_monotonic() < round_ends - length / 2) continue;
        killed = true;  // repair over nonsense
        if (dice() % 2 == 0) {
          victims.kill(0);
          victims.begin(0);
        } else {
          vandal.kill();
          (void)vandal.wait();
          vandal = harness::Child::run([&] { return destroy(place, luck + 1, damage); });
        }
      }
      if (dice() % 2 == 0) {  // the victims leave while it goes on, or in peace
        CHECK(victims.end() == "");
        vandal.kill();
      } else {
        vandal.kill();
        CHECK(victims.end() == "");
      }
      const int ended = vandal.wait();
      CHECK((ended == 128 + SIGKILL || ended == 0));  // 0: the second one came too late to join
      broken_pools += pool->broken();
      sum.add(victims.shared());
    }
    CHECK(bystander.goes_on());
    CHECK(bystander.wrong() == "");
    CHECK(quiet.shared().member[0].delivered.load() > 0);
    CHECK(quiet.shared().member[1].delivered.load() > 0);
    CHECK(quiet.end() == "");
    CHECK_FALSE(quiet_pool->broken());
    // A participant that left is swept in portions.
    const std::int64_t patience = sys::now_monotonic() + 10 * kSecond;
    for (std::uint32_t slot = 0; slot < quiet_pool->view().slots(); ++slot) {
      while (quiet_pool->view().slot(slot).holders.load() != 0 && sys::now_monotonic() < patience) rest(1'000'000);
      CHECK(quiet_pool->view().slot(slot).holders.load() == 0);
    }
    MESSAGE(rounds << " rounds, " << broken_pools << " pools found broken by the broker; victims: " << sum.delivered
                   << " messages, " << sum.refused << " refusals, " << sum.broken << " errors");
  }
}
