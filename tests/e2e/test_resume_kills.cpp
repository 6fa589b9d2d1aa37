// SPDX-License-Identifier: Apache-2.0
// Sessions that outlive their broker: it is killed under its keepers, and no client notices anything but the time. The
// clients know what they must have. In the short form some tens of brokers are killed. SHMBROKER_RESUME_KILLS=1000 is
// the long form, of some minutes.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/kept_daemon.hpp"
#include "tests/e2e/support.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/stopped.hpp"

using namespace e2e;

namespace {

int kills() {
  const char* asked = std::getenv("SHMBROKER_RESUME_KILLS");
  return asked != nullptr ? std::atoi(asked) : 40;
}

shmbw_status_reply books_of(BrokerFixture& broker) {
  auto admin = harness::RawClient::connect(broker.admin());
  REQUIRE(admin.hello().ok());
  const auto answer = admin.status();
  REQUIRE(answer.ok());
  return answer.fixed<shmbw_status_reply>();
}

constexpr int kClients = 4;
constexpr std::size_t kMostRegions = 12;

// What one client has, by its own account.
struct Account {
  std::atomic<std::uint64_t> rounds{0}, regions{0}, tickets{0}, watches{0};
  std::atomic<bool> waits{false};
};
struct Stage {
  std::array<Account, kClients> accounts;
  std::atomic<bool> pause{false}, stop{false};

  std::uint64_t rounds() const {
    std::uint64_t sum = 0;
    for (const Account& each : accounts) sum += each.rounds;
    return sum;
  }
};

// Does what a program does with regions, one call after the other. Each call must succeed, and what it has must be what
// it was given: bytes, identities, names, uses of tickets.
class Player {
 public:
  Player(const World& world, int index)
      : index_(index), random_(static_cast<unsigned>(index) + 1), session_(world.connect()) {
    const auto group = session_.create_group({.name = group_of(index)});
    session_.join(group_of(index));
    own_.push_back({session_.create(8 * KiB, {.name = "shared"}), seed_of(index), "shared", {}});
    fill(own_.front().region.bytes(), own_.front().seed);
    static_cast<void>(group);
  }
  void step();
  void end();
  // Whether the others have what this one attaches.
  bool all_are_there() const {
    for (int each = 0; each < kClients; ++each)
      if (!session_.try_stat(group_of(each) + "/shared")) return false;
    return true;
  }
  void tell(Account& account) const {
    account.regions = own_.size();
    account.tickets = tickets_.size();
    account.watches = 0;
    for (const Own& each : own_) account.watches += each.watch ? 1 : 0;
  }

 private:
  struct Own {
    Region region;
    std::uint64_t seed;
    std::string name;
    std::optional<shmbroker::WatchId> watch;
  };
  struct Given {
    Ticket ticket;
    RegionId region;
    std::uint64_t seed;
    int uses;
  };
  static std::string group_of(int index) { return "g" + std::to_string(index); }
  static std::uint64_t seed_of(int index) { return 1000 + static_cast<std::uint64_t>(index); }
  std::size_t pick(std::size_t below) { return random_() % below; }
  void create();
  void release(std::size_t at);
  void use_ticket();

  int index_;
  std::mt19937 random_;
  Session session_;
  std::vector<Own> own_;
  std::vector<Given> tickets_;
  std::uint64_t last_ = 0;
};

// Tickets would outlive their maker.
void Player::end() {
  for (const Given& each : tickets_) NEED_STATUS(session_.try_revoke(each.ticket), ok);
}

void Player::create() {
  const std::uint64_t seed = seed_of(index_) * 1'000'000 + ++last_;
  const std::string name = pick(2) == 0 ? "n" + std::to_string(last_) : "";
  auto made = session_.try_create((1 + pick(4)) * 4 * KiB, {.name = name});
  NEED_STATUS(made, ok);
  own_.push_back({std::move(*made), seed, name, {}});
  fill(own_.back().region.bytes(), seed);
}

// With its tickets, so that the region is gone afterwards.
void Player::release(std::size_t at) {
  Own& gone = own_[at];
  const RegionId id = gone.region.id();
  for (std::size_t i = tickets_.size(); i-- > 0;)
    if (tickets_[i].region == id) {
      NEED_STATUS(session_.try_revoke(tickets_[i].ticket), ok);
      tickets_.erase(tickets_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  if (gone.watch) NEED_STATUS(session_.try_unwatch(*gone.watch), ok);
  NEED(holds(gone.region.bytes(), gone.seed));
  NEED_STATUS(gone.region.try_release(!gone.name.empty()), ok);
  if (at + 1 != own_.size()) gone = std::move(own_.back());
  own_.pop_back();
}

void Player::use_ticket() {
  const std::size_t at = pick(tickets_.size());
  const auto region = session_.try_attach(tickets_[at].ticket);
  NEED_STATUS(region, ok);
  NEED(region->id() == tickets_[at].region);
  NEED(holds(region->bytes(), tickets_[at].seed));
  if (--tickets_[at].uses == 0) tickets_.erase(tickets_.begin() + static_cast<std::ptrdiff_t>(at));
}

void Player::step() {
  const std::size_t at = pick(own_.size());
  Own& own = own_[at];
  switch (pick(8)) {
    case 0:
    case 1:
      if (own_.size() < kMostRegions) create();
      break;
    case 2:
      if (at != 0) release(at);
      break;
    case 3: {
      const int uses = 1 + static_cast<int>(pick(3));
      auto ticket = own.region.try_ticket(Rights::read, static_cast<std::uint32_t>(uses));
      NEED_STATUS(ticket, ok);
      tickets_.push_back({std::move(*ticket), own.region.id(), own.seed, uses});
      break;
    }
    case 4:
      if (!tickets_.empty()) use_ticket();
      break;
    case 5: {
      const int other = static_cast<int>(pick(kClients));
      const auto region = session_.try_attach(group_of(other) + "/shared");
      NEED_STATUS(region, ok);
      NEED(holds(region->bytes(), seed_of(other)));
      break;
    }
    case 6: {
      if (own.watch) {
        NEED_STATUS(session_.try_unwatch(*std::exchange(own.watch, {})), ok);
        break;
      }
      auto watch = session_.try_watch(own.region.id());
      NEED_STATUS(watch, ok);
      own.watch = watch->id;
      break;
    }
    default: {
      const auto found = session_.try_stat(own.region.id());
      NEED_STATUS(found, ok);
      NEED(RegionId::from_c(found->id) == own.region.id());
      if (own.name.empty()) break;
      const auto named = session_.try_attach(own.name);
      NEED_STATUS(named, ok);
      NEED(named->id() == own.region.id());
      NEED(holds(named->bytes(), own.seed));
    }
  }
}

void play(const World& world, Stage& stage, int index) {
  Player player(world, index);
  Account& account = stage.accounts[static_cast<std::size_t>(index)];
  NEED(eventually([&] { return player.all_are_there(); }));
  for (; !stage.stop; ++account.rounds) {
    player.step();
    player.tell(account);
    if (!stage.pause) continue;
    account.waits = true;
    while (stage.pause && !stage.stop) ::usleep(500);
    account.waits = false;
  }
  player.end();
  // All have what they attach until the last one has stopped.
  account.waits = true;
  NEED(eventually(
      [&] { return std::ranges::all_of(stage.accounts, [](const Account& each) { return each.waits.load(); }); }));
}

// The books say what the clients say.
void compare(BrokerFixture& broker, Stage& stage, const std::vector<Child>& clients) {
  stage.pause = true;
  REQUIRE(eventually([&] {
    for (const Child& client : clients)
      if (client.wait_ended(0)) return true;
    return std::ranges::all_of(stage.accounts, [](const Account& each) { return each.waits.load(); });
  }));
  std::uint64_t regions = 0, tickets = 0, watches = 0;
  for (const Account& each : stage.accounts) {
    regions += each.regions;
    tickets += each.tickets;
    watches += each.watches;
  }
  shmbw_status_reply books{};
  // A release is one way, and a session that the admin had is still being forgotten.
  CHECK(eventually([&] {
    books = books_of(broker);
    return books.regions == regions && books.sessions == kClients + 1;
  }));
  CHECK(books.regions == regions);
  CHECK(books.tickets == tickets);
  CHECK(books.watches == watches);
  CHECK(books.sessions == kClients + 1);
  CHECK(books.groups == kClients);
  stage.pause = false;
}

}  // namespace

TEST_CASE("a session has its regions, names, tickets, watches and group with the next broker, and no call fails") {
  NEEDS_KEEPERS();
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    World world(with_keepers(engine));
    const Processes processes(world.broker());
    const Session session = world.connect(), other = world.connect();
    session.create_group({.name = "job"});
    session.join("job");
    Region region = session.create(40 * KiB, {.name = "weights"});
    fill(region.bytes(), 3);
    const Ticket ticket = region.ticket(Rights::read, 3);
    const auto name = other.watch_name("job/later");
    const auto gone = other.watch(region.id(), SHMB_EVENT_BIT_GONE);
    pid_t broker = 0;
    const auto kill = [&] {
      broker = processes.await_broker(broker);
      ::kill(broker, SIGKILL);
    };
    for (int each = 0; each < 3; ++each) {
      kill();
      const auto again = session.try_attach(region.id());
      REQUIRE_MESSAGE(again, sentence_of(again));
      CHECK(holds(again->bytes(), 3));
      const auto by_ticket = other.try_attach(ticket);
      REQUIRE_MESSAGE(by_ticket, sentence_of(by_ticket));
      CHECK(by_ticket->id() == region.id());
      CHECK(other.try_attach("job/weights"));
      CHECK(status_of(session.try_create(4096)) == Status::ok);
    }
    CHECK(status_of(other.try_attach(ticket)) == Status::not_found);  // no use more, none less
    CHECK(status_of(other.try_next_event(Timeout::no_wait())) == Status::deadline);
    const Region later = session.create(4096, {.name = "later"});
    auto event = other.next_event();
    CHECK(event.kind == shmbroker::EventKind::name_appeared);
    CHECK(event.watch == name.id);
    CHECK(event.sequence == 1);
    kill();
    // Events may have been on their way, so a gap tells to look again.
    event = other.next_event();
    CHECK(event.kind == shmbroker::EventKind::gap);
    CHECK(event.sequence == 1);
    region.release(true);
    event = other.next_event();
    CHECK(event.kind == shmbroker::EventKind::region_gone);
    CHECK(event.watch == gone.id);
    CHECK(event.sequence == 2);
    other.unwatch(name.id);
    const auto books = books_of(world.broker());
    CHECK(books.sessions == 3);
    CHECK(books.watches == 0);
  }
}

TEST_CASE("the broker is killed again and again under load: no client sees an error, and the books are right") {
  NEEDS_KEEPERS();
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    World world(with_keepers(engine));
    const Processes processes(world.broker());
    Shared<Stage> stage;
    std::vector<Child> clients;
    for (int each = 0; each < kClients; ++each) clients.push_back(actor([&, each] { play(world, *stage, each); }));
    REQUIRE(eventually(
        [&] { return std::ranges::all_of(stage->accounts, [](const Account& each) { return each.rounds > 0; }); }));
    pid_t broker = 0;
    const int times = std::max(8, kills() / harness::kSlowdown);
    for (int each = 0; each < times; ++each) {
      broker = processes.await_broker(broker);
      if (each % 8 == 0) {
        std::array<std::uint64_t, kClients> before;
        for (int i = 0; i < kClients; ++i) before[i] = stage->accounts[i].rounds;
        REQUIRE(eventually([&] {
          for (int i = 0; i < kClients; ++i)
            if (stage->accounts[i].rounds == before[i] && !clients[i].wait_ended(0)) return false;
          return true;
        }));
      } else if (each % 2 == 0) {
        const std::uint64_t before = stage->rounds();
        REQUIRE(eventually([&] { return stage->rounds() > before + each % 30; }));
      }
      ::usleep(static_cast<unsigned>(each % 23) * 100);
      ::kill(broker, SIGKILL);
      if (each % 10 == 9) compare(world.broker(), *stage, clients);
    }
    compare(world.broker(), *stage, clients);
    stage->stop = true;
    for (Child& client : clients) CHECK(client.wait() == 0);
    MESSAGE(engine << ": " << times << " brokers killed, " << stage->rounds() << " rounds of work, no error");
    CHECK(eventually([&] { return world.broker().descriptors() < 40; }));
    CHECK(world.broker().log().find("own bug") == std::string::npos);
  }
}

TEST_CASE("a session goes on when a broker has been killed at each call of its start, and of its first requests") {
  NEEDS_KEEPERS();
  const int kLives = kills() < 200 ? 320 : 800;
  const Timeout patience = std::chrono::minutes(2);  // the first call waits for all that die as they begin
  World world(with_keepers("auto", "die_each=" + std::to_string(kLives) + ":1"));  // the first one serves
  const Processes processes(world.broker());
  const Session session = world.connect();
  const Region region = session.create(40 * KiB, {.name = "weights"});
  fill(region.bytes(), 5);
  ::kill(processes.await_broker(), SIGKILL);
  // A broker that lives for so many rounds has made more than kLives calls, so it is none of those that die.
  std::deque<Region> held;
  pid_t broker = 0;
  for (int round = 0, alive = 0; alive < 60; ++round) {
    held.push_back(session.create(4096, {.timeout = patience}));
    fill(held.back().bytes(), static_cast<std::uint64_t>(round));
    const auto found = session.try_attach(region.id(), {.timeout = patience});
    REQUIRE_MESSAGE(found, sentence_of(found));
    REQUIRE(holds(found->bytes(), 5));
    if (held.size() > 20) {
      REQUIRE(holds(held.front().bytes(), static_cast<std::uint64_t>(round) - 20));
      held.pop_front();
    }
    const pid_t now = processes.await_broker();
    alive = now == std::exchange(broker, now) ? alive + 1 : 0;
  }
  CHECK(eventually([&] { return books_of(world.broker()).regions == held.size() + 1; }));
  CHECK(world.broker().log().find("own bug") == std::string::npos);
  CHECK(world.broker().log().find("is lost") == std::string::npos);
}

TEST_CASE("a process that dies while there is no broker is reclaimed by the next one") {
  NEEDS_KEEPERS();
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    World world(with_keepers(engine));
    const Processes processes(world.broker());
    const Gate made;
    Child client = actor([&] {
      const Session session = world.connect();
      const Region region = session.create(4096);
      made.open();
      for (;;) ::pause();
    });
    REQUIRE(made.wait());
    const Session other = world.connect();
    const auto region = other.create(4096);
    const pid_t broker = processes.await_broker();
    harness::stop(world.broker().pid());
    ::kill(broker, SIGKILL);
    client.kill();
    client.wait();
    ::kill(world.broker().pid(), SIGCONT);
    CHECK(eventually([&] {
      const auto books = books_of(world.broker());
      return books.regions == 1 && books.sessions == 2;
    }));
    CHECK(other.try_attach(region.id()));
  }
}

TEST_CASE("a session without the feature ends with its broker, and others go on") {
  NEEDS_KEEPERS();
  World world(with_keepers());
  const Processes processes(world.broker());
  const Session session = world.connect();
  const Region region = session.create(4096);
  auto raw = harness::RawClient::connect(world.socket());
  REQUIRE(raw.hello().ok());
  REQUIRE(raw.create(4096).ok());
  ::kill(processes.await_broker(), SIGKILL);
  CHECK(raw.receive().kind == harness::RawPacket::Kind::end_of_file);
  CHECK(session.try_attach(region.id()));
  CHECK(eventually([&] { return books_of(world.broker()).regions == 1; }));
}

TEST_CASE("a forked child, and a process that connects, are served though brokers die as they begin") {
  NEEDS_KEEPERS();
  World world(with_keepers());
  const Processes processes(world.broker());
  const Session session = world.connect();
  const Region region = session.create(4096);
  fill(region.bytes(), 8);
  // A broker that is killed before it has served the message that the region is ready makes others wait until this
  // session calls again (docs/keepers.md, Limits to know). The answer comes behind that message.
  REQUIRE(session.try_ping());
  pid_t broker = 0;
  for (int each = 0; each < 10; ++each) {
    std::vector<Child> children;
    children.push_back(actor([&] {
      const auto found = session.try_attach(region.id());  // a session of its own, that follows this one
      NEED_STATUS(found, ok);
      NEED(holds(found->bytes(), 8));
    }));
    children.push_back(actor([&] { NEED_STATUS(world.connect().try_create(4096), ok); }));
    for (int more = 0; more < 3; ++more) {
      broker = processes.await_broker(broker);
      ::usleep(static_cast<unsigned>(each * 4 + more) * 250);
      ::kill(broker, SIGKILL);
    }
    for (Child& child : children) CHECK(child.wait() == 0);
    CHECK(session.try_attach(region.id()));
  }
}
