// SPDX-License-Identifier: Apache-2.0
// The storm: eight processes in a pool send and receive in all forms while they are killed, stopped and started again
// at random. At the end every slot is free, every message of the living and of the dead was delivered once and whole,
// in its writer's order, and the broker's books are empty.
//
//   test_storm --deaths 10000 [--seed 7]     the long form
//
// To see it fail (each was done by hand, with --deaths 300), break one line:
//   client/lane/mpmc.hpp, MpmcReceiver::mark_done: an mpmc lane's cell is full again, not empty, at each 20th position
//     -> "message 20 of stream 6 comes again and again";
//   daemon/pools/pool_repair.cpp, Repair::give_back: no D2 -> "the storm does not come to rest";
//   daemon/pools/pool_repair.cpp, Repair::sweep: no D4 for each 16th slot -> "slot 7 held by mask 512".
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <span>
#include <thread>

#include "base/sys_process.hpp"
#include "client/session/connect.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/storm/content.hpp"
#include "tests/storm/topology.hpp"
#include "tests/storm/worker.hpp"
#include "tests/support/arguments.hpp"
#include "tests/support/session.hpp"
#include "tests/support/shared.hpp"

using namespace storm;

namespace {

constexpr std::int64_t kPatience = 60'000'000'000;  // of a process that gets no further, before it counts as hung

class Storm {
 public:
  Storm(Ledger& ledger, Place place, std::uint64_t seed) : ledger_(ledger), place_(std::move(place)), dice_(seed) {
    for (std::uint32_t i = 0; i < kWorkers; ++i) begin_life(i);
  }

  std::uint64_t deaths() const { return deaths_; }
  std::uint64_t leaves() const { return leaves_; }
  std::uint64_t stops() const { return stops_; }

  // Until so many have been killed, or something is wrong.
  void rage(std::uint64_t deaths) {
    while (deaths_ < deaths && !ledger_.bad()) {
      sleep(std::int64_t{1'000} * static_cast<std::int64_t>(roll(one_in(10) ? 20'000 : 3'000)));
      const auto victim = static_cast<std::uint32_t>(roll(kWorkers));
      switch (roll(12)) {
        case 0:
          stop(victim);
          break;
        case 1:  // two at once
          kill(victim);
          kill(static_cast<std::uint32_t>(roll(kWorkers)));
          break;
        default:
          kill(victim);
      }
      tend();
    }
    for (std::uint32_t i = 0; i < kWorkers; ++i) go_on(i);
    // The last ones are spared until something has come through each queue: on a busy machine few before them may have
    // lived that long.
    const std::int64_t until = now() + kPatience;
    const auto has_come = [](const std::atomic<std::uint64_t>& received) { return received.load() > 0; };
    while (!std::ranges::all_of(std::span(ledger_.received).first(queue_count), has_come) && now() < until &&
           !ledger_.bad()) {
      sleep(10'000'000);
      tend();
    }
  }

  // Nobody is killed any more: what is under way arrives.
  bool come_to_rest(const shmb::pool::View& view) {
    ledger_.stop_sending.store(1);
    const std::int64_t until = now() + kPatience;
    int quiet = 0;
    std::uint64_t before = 0;
    while (quiet < 20 && !ledger_.bad()) {
      sleep(10'000'000);
      tend();
      if (now() > until) return fail("the storm does not come to rest: " + states(view));
      std::uint64_t received = 0;
      for (std::uint32_t q = 0; q < queue_count; ++q) received += ledger_.received[q].load();
      bool idle = received == before;
      before = received;
      for (std::uint32_t i = 0; i < kWorkers; ++i) idle = idle && lives_[i] && ledger_.workers[i].idle.load() > 20;
      for (std::size_t i = 0; i < shmb::pool::kParticipants; ++i) {
        const auto state =
            static_cast<shmb::pool::ParticipantState>(shmb::pool::Stamp::of(view.participant(i).stamp.load()).state);
        idle = idle && (state == shmb::pool::ParticipantState::free || state == shmb::pool::ParticipantState::live);
      }
      quiet = idle ? quiet + 1 : 0;
    }
    ledger_.leave.store(1);
    for (std::uint32_t i = 0; i < kWorkers; ++i) {
      if (!lives_[i]) continue;
      const int status = lives_[i]->wait();
      if (status != 0) fail("process " + std::to_string(i) + " ended with status " + std::to_string(status));
      over(i, false);
    }
    return !ledger_.bad();
  }

 private:
  std::uint64_t roll(std::uint64_t below) { return dice_() % below; }
  bool one_in(std::uint64_t n) { return roll(n) == 0; }
  static std::int64_t now() { return shmb::sys::now_monotonic(); }
  static void sleep(std::int64_t nanoseconds) {
    const timespec time{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
    ::nanosleep(&time, nullptr);
  }
  bool fail(const std::string& what) {
    ledger_.fail(what);
    return false;
  }

  void begin_life(std::uint32_t i) {
    Worker& worker = ledger_.workers[i];
    worker.lives.fetch_add(1);
    worker.receiving.store(0);
    worker.in_hand.store(0);
    worker.idle.store(0);
    for (auto& stream : worker.stream) stream.store(0);
    seen_[i] = {worker.beats.load(), now()};
    const std::uint64_t seed = dice_();
    lives_[i] = harness::Child::run([&] { return live(ledger_, place_, i, seed); });
  }

  void kill(std::uint32_t i) {
    if (!lives_[i]) return;
    lives_[i]->kill();
    const int status = lives_[i]->wait();
    stopped_until_[i] = 0;
    if (status == 128 + SIGKILL) ++deaths_;
    else if (status != 0) fail("process " + std::to_string(i) + " ended with status " + std::to_string(status));
    over(i, status != 0);
    if (one_in(8)) born_at_[i] = now() + static_cast<std::int64_t>(roll(30'000'000));  // a while without it
    else begin_life(i);
  }

  void stop(std::uint32_t i) {
    if (!lives_[i] || stopped_until_[i] != 0) return;
    lives_[i]->kill(SIGSTOP);
    ++stops_;
    stopped_until_[i] = now() + static_cast<std::int64_t>(roll(40'000'000));
  }
  void go_on(std::uint32_t i) {
    if (lives_[i] && stopped_until_[i] != 0) lives_[i]->kill(SIGCONT);
    stopped_until_[i] = 0;
    seen_[i].second = now();
  }

  // Its sent messages are final, and messages that it may have had are allowed for.
  void over(std::uint32_t i, bool died) {
    Worker& worker = ledger_.workers[i];
    lives_[i].reset();
    for (auto& stream : worker.stream)
      if (const std::uint32_t number = stream.exchange(0); number != 0) ledger_.stream[number - 1].ended.store(1);
    for (const std::uint32_t queue : kRoles[i].reads) ++ledger_.ends_of_readers[queue];
    if (!died) {
      ++leaves_;
      return;
    }
    const std::uint32_t queue = worker.receiving.load();
    if (queue != 0) ++ledger_.may_miss[queue - 1];
    if (const std::uint64_t ident = worker.in_hand.load(); ident != 0) ledger_.allow_repeat(Ident::of(ident));
  }

  // Those who left, those who are due, those who hang.
  void tend() {
    for (std::uint32_t i = 0; i < kWorkers; ++i) {
      if (!lives_[i]) {
        if (now() >= born_at_[i]) begin_life(i);
        continue;
      }
      if (stopped_until_[i] != 0) {
        if (now() >= stopped_until_[i]) go_on(i);
        continue;
      }
      if (lives_[i]->wait_ended(0)) {
        const int status = lives_[i]->wait();
        if (status != 0) fail("process " + std::to_string(i) + " ended with status " + std::to_string(status));
        over(i, false);
        begin_life(i);
        continue;
      }
      const std::uint64_t beats = ledger_.workers[i].beats.load();
      if (beats != seen_[i].first) seen_[i] = {beats, now()};
      else if (now() - seen_[i].second > kPatience)
        fail("process " + std::to_string(i) + " hangs while " + doing_name(ledger_.workers[i].doing.load()));
    }
  }

  std::string states(const shmb::pool::View& view) {
    std::string text;
    for (std::uint32_t i = 0; i < kWorkers; ++i)
      text += "process " + std::to_string(i) + (lives_[i] ? "" : " (none)") + " " +
              doing_name(ledger_.workers[i].doing.load()) + ", idle " + std::to_string(ledger_.workers[i].idle.load()) +
              "; ";
    for (std::size_t i = 0; i < shmb::pool::kParticipants; ++i) {
      const auto stamp = shmb::pool::Stamp::of(view.participant(i).stamp.load());
      if (stamp.state > static_cast<std::uint8_t>(shmb::pool::ParticipantState::live))
        text += "participant " + std::to_string(i) + " in state " + std::to_string(stamp.state) + "; ";
    }
    return text;
  }

  Ledger& ledger_;
  const Place place_;
  std::mt19937_64 dice_;
  std::array<std::optional<harness::Child>, kWorkers> lives_;
  std::array<std::int64_t, kWorkers> stopped_until_{}, born_at_{};
  std::array<std::pair<std::uint64_t, std::int64_t>, kWorkers> seen_{};
  std::uint64_t deaths_ = 0, leaves_ = 0, stops_ = 0;
};

struct Delivered {
  std::uint64_t repeats = 0;   // came again after a death or a give-back
  std::uint64_t in_hands = 0;  // taken by somebody who died before it could note them
  std::uint64_t may_miss = 0;  // so many died while they received
};

Delivered check_delivered(Ledger& ledger) {
  Delivered all;
  std::array<std::uint64_t, queue_count> missing{};
  const std::uint32_t streams = ledger.streams.load();
  for (std::uint32_t number = 0; number < streams; ++number) {
    const Stream& stream = ledger.stream[number];
    const std::uint32_t queue = stream.queue.load();
    if (queue == 0 || kQueues[queue - 1].kind != Kind::mpmc) continue;
    for (std::uint32_t k = 1; k <= stream.attempted.load(); ++k) {
      const std::uint16_t takings = stream.takings[k].load();
      const unsigned taken = takings & kMostTaken, may_repeat = takings / kMayRepeat;
      if (taken == 0) {
        missing[queue - 1] += k <= stream.sent.load();
        continue;
      }
      all.repeats += taken - 1;
      CHECK_MESSAGE(taken - 1 <= may_repeat, queue_name(queue - 1) << ": message " << k << " of stream " << number
                                                                   << " was delivered " << taken << " times, and "
                                                                   << may_repeat << " times it may have come again");
    }
  }
  for (std::uint32_t q = 0; q < queue_count; ++q) {
    all.in_hands += missing[q];
    all.may_miss += kQueues[q].kind == Kind::mpmc ? ledger.may_miss[q] : 0;
    CAPTURE(queue_name(q));
    CHECK(missing[q] <= ledger.may_miss[q]);
    CHECK(ledger.late[q].load() <= ledger.ends_of_readers[q] + ledger.given_back[q].load());
    CHECK(ledger.received[q].load() > 0);
  }
  return all;
}

}  // namespace

TEST_CASE("a storm of deaths loses no slot, and no message is lost, torn, or delivered twice") {
  const std::uint64_t deaths = support::argument("--deaths", 200 / harness::kSlowdown);
  const std::uint64_t seed = support::argument("--seed", std::random_device{}());
  CAPTURE(seed);
  const harness::BrokerFixture broker;
  const support::Shared<Ledger> shared{support::Zeros()};
  Ledger& ledger = *shared;
  const auto pool = support::must(shmb::client::Pool::create(support::open(broker), pool_plan(), 0));
  const shmb::pool::View& view = pool->view();

  const std::int64_t began = shmb::sys::now_monotonic();
  Storm storm(ledger, {broker.socket(), pool->group(), pool->id()}, seed);
  storm.rage(deaths);
  storm.come_to_rest(view);
  REQUIRE_MESSAGE(!ledger.bad(), ledger.wrong);

  // The last repairs run when their processes are gone already.
  auto left = [&] {
    std::string text;
    for (std::uint32_t slot = 0; slot < view.slots(); ++slot)
      if (const std::uint64_t mask = view.slot(slot).holders.load())
        text += "slot " + std::to_string(slot) + " held by mask " + std::to_string(mask) + "; ";
    for (std::uint32_t i = 0; i < shmb::pool::kParticipants; ++i)
      if (i != pool->me().index() && shmb::pool::Stamp::of(view.participant(i).stamp.load()).state != 0)
        text += "participant " + std::to_string(i) + "; ";
    for (std::uint32_t i = 0; i < view.lanes(); ++i)
      if (shmb::pool::Stamp::of(view.lane(i).stamp.load()).state != 0) text += "lane " + std::to_string(i) + "; ";
    return text;
  };
  for (int waited = 0; waited < 10'000 && !left().empty(); ++waited) ::usleep(1000);
  CHECK(left() == "");
  CHECK(pool->facts()->slots_used == 0);
  const Delivered delivered = check_delivered(ledger);

  std::uint64_t sent = 0, received = 0;
  for (std::uint32_t q = 0; q < queue_count; ++q) sent += ledger.sent[q].load(), received += ledger.received[q].load();
  MESSAGE(storm.deaths() << " deaths, " << storm.leaves() << " leaves, " << storm.stops() << " stops in "
                         << (shmb::sys::now_monotonic() - began) / 1'000'000 << " ms; " << sent << " messages sent, "
                         << received << " received (" << ledger.twice.load() << " slots twice, "
                         << ledger.forwarded.load() << " forwarded, " << ledger.lists.load() << " lists, "
                         << ledger.regions.load() << " with regions, " << ledger.lost[drops].load() << " overwritten), "
                         << delivered.repeats << " came again after a death or a give-back, " << delivered.in_hands
                         << " were in the hands of who died (of " << delivered.may_miss
                         << " who died while they received)");
}
