// SPDX-License-Identifier: Apache-2.0
// The repair of a pool on hand-made memory: each step D1 to D6 by itself, stopped after every line of work and begun
// again, with a second death in every gap, and with words in the control area that nobody writes who keeps to the
// rules.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "daemon/pools/pool_repair.hpp"

using namespace shmb;
using namespace shmb::daemon;
using pool::CellState;
using pool::CellWord;
using pool::LaneState;
using pool::ParticipantState;
using pool::QueueKind;
using pool::Stamp;

namespace {

constexpr std::uint32_t kSlotCount = 12, kCells = 4;
constexpr std::size_t kPlenty = 1 << 20;

struct FreeAligned {
  void operator()(std::byte* at) const { ::operator delete[](at, std::align_val_t(4096)); }
};
using Memory = std::unique_ptr<std::byte[], FreeAligned>;

Memory memory(std::size_t bytes) {
  auto* at = static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(4096)));
  std::memset(at, 0, bytes);
  return Memory(at);
}

// Participants 0 to 3 live; queues 0 line, 1 claim, 2 broadcast, each expiring or not.
struct Ground final : RepairFacts {
  explicit Ground(std::uint32_t flags = 0) {
    shape.slots = kSlotCount;
    shape.lanes = 8;
    shape.queues = 4;
    shape.segments = 1;
    shape.lane_bytes = 64 << 10;
    directory_bytes = pool::directory_bytes(shape);
    control_bytes = pool::control_bytes(shape);
    directory = memory(directory_bytes);
    control = memory(control_bytes);
    tables.begin(pool::lay_out(shape, 1, 2, {directory.get(), directory_bytes}, {control.get(), control_bytes}));
    for (std::uint32_t i = 0; i < 4; ++i) {
      view.participant(i).stamp = Stamp{i + 10, static_cast<std::uint8_t>(ParticipantState::live)}.word();
      if (i == 3) continue;
      QueueBook& queue = tables.queues[i];
      queue.state = pool::QueueState::open;
      queue.kind = static_cast<QueueKind>(i + 1);
      queue.serial = 1;
      queue.flags = flags;
      queue.cells = kCells;
      queue.cell_size = 64;
      tables.enter_queue(i);
    }
  }
  std::uint32_t add_lane(QueueKind kind, std::uint32_t from, std::uint32_t to = pool::kNone) {
    const std::uint32_t index = lanes++;
    LaneBook& lane = tables.lanes[index];
    lane.state = LaneState::open;
    lane.serial = index + 1;
    lane.queue = static_cast<std::uint32_t>(kind) - 1;
    lane.queue_serial = 1;
    lane.from = from;
    lane.from_life = life(from);
    lane.to = to;
    lane.cells = kCells;
    lane.cell_size = 64;
    lane.offset = tables.lane_memory + at;
    at += pool::lane_bytes(kind, kCells, 64);
    pool::prepare_lane(view.lane_memory(lane.offset), kind, kCells, 64);
    tables.enter_lane(index);
    return index;
  }
  std::uint32_t life(std::uint32_t index) { return Stamp::of(view.participant(index).stamp.load()).serial; }
  pool::LaneView words(std::uint32_t lane) { return known_lane(tables, lane).words; }
  void hold(std::uint32_t slot, std::uint32_t who) { view.slot(slot).holders.fetch_or(std::uint64_t{1} << who); }
  bool holds(std::uint32_t slot, std::uint32_t who) { return (view.slot(slot).holders.load() >> who & 1) != 0; }
  void publish(std::uint32_t lane, std::uint64_t position, std::uint32_t slot, std::uint8_t tag = pool::kTagSlot,
               std::int64_t deadline = 0, bool expiring = false) {
    pool::Cell& cell = words(lane).cell(position);
    pool::Handle handle{};
    handle.slot = slot;
    std::byte* body = cell.body();
    if (expiring) std::memcpy(std::exchange(body, body + 8), &deadline, 8);
    std::memcpy(body, &handle, sizeof handle);
    cell.word = CellWord::full(position, tag);
  }
  void claim(std::uint32_t lane, std::uint64_t position, std::uint32_t who, std::uint8_t tag = pool::kTagSlot) {
    words(lane).cell(position).word = CellWord{position, static_cast<std::uint8_t>(pool::kClaimedBy + who), tag}.word();
  }
  CellWord word(std::uint32_t lane, std::uint64_t position) {
    return CellWord::of(words(lane).cell(position).word.load());
  }
  Repair::State repair(std::uint32_t who, std::int64_t now = 1000) { return repair_of(who).run(kPlenty, now, *this); }
  Repair repair_of(std::uint32_t who, ParticipantState as = ParticipantState::dead) {
    return Repair(tables, who, life(who), as);
  }
  bool receivers_done(std::uint32_t lane) override { return done.contains(lane); }
  void wake_peers() override {
    ++wakes;
    if (at_wake) at_wake();
  }

  pool::Shape shape;
  std::size_t directory_bytes = 0, control_bytes = 0;
  Memory directory, control;
  PoolTables tables;
  const pool::View& view = tables.view;
  std::uint32_t lanes = 0;
  std::uint64_t at = 0;
  std::set<std::uint32_t> done;
  int wakes = 0;
  std::function<void()> at_wake;
};

}  // namespace

TEST_CASE("D1: the dead one is dead to all at once, and no participant tries to wake it any more") {
  Ground ground;
  ground.view.control().slot_waiters.mask = 0b1011;
  ground.view.queue_waiters(1).readers.mask = 0b10;
  ground.view.queue_waiters(3).writers.mask = 0b110;
  ground.view.wait(1).sleep = 77;
  Repair repair = ground.repair_of(1, ParticipantState::left);
  CHECK(repair.run(0, 0, ground) == Repair::State::working);
  CHECK(Stamp::of(ground.view.participant(1).stamp.load()) ==
        Stamp{11, static_cast<std::uint8_t>(ParticipantState::left)});
  CHECK(ground.view.header().change.load() == 1);
  CHECK(ground.wakes == 1);
  CHECK(ground.view.control().slot_waiters.mask.load() == 0b1001);
  CHECK(ground.view.queue_waiters(1).readers.mask.load() == 0);
  CHECK(ground.view.queue_waiters(3).writers.mask.load() == 0b100);
  CHECK(ground.view.wait(1).sleep.load() == 0);
}

TEST_CASE("D2: messages that the dead one claimed are there again, and those of others stay theirs") {
  Ground ground;
  const std::uint32_t lane = ground.add_lane(QueueKind::mpmc, 0);
  ground.claim(lane, 0, 1, 16);
  ground.claim(lane, 1, 2, 17);
  ground.publish(lane, 2, 0, 18);
  CHECK(ground.repair(1) == Repair::State::clean);
  CHECK(ground.word(lane, 0) == CellWord{0, static_cast<std::uint8_t>(CellState::full), 16});
  CHECK(ground.word(lane, 1) == CellWord{1, pool::kClaimedBy + 2, 17});
  CHECK(ground.word(lane, 2) == CellWord{2, static_cast<std::uint8_t>(CellState::full), 18});
  CHECK(ground.word(lane, 3) == CellWord{3, 0, 0});
}

TEST_CASE("D2: no newcomer inherits a place in a ring") {
  Ground ground;
  const std::uint32_t lane = ground.add_lane(QueueKind::broadcast, 0);
  ground.words(lane).reader(1).position = 5;
  ground.words(lane).reader(2).position = 6;
  ground.repair(1);
  CHECK(ground.words(lane).reader(1).position.load() == 0);
  CHECK(ground.words(lane).reader(2).position.load() == 6);
}

TEST_CASE("D3 and D4, spsc: exactly the slots of unread messages keep the dead one's bit") {
  Ground ground;
  const std::uint32_t lane = ground.add_lane(QueueKind::spsc, 1, 2);
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) ground.hold(slot, 1);
  ground.hold(9, 3);
  // Positions 4 to 6 were sent, 4 has been taken; 7 was begun and never published.
  for (std::uint64_t position : {4, 5, 6}) ground.publish(lane, position, static_cast<std::uint32_t>(position));
  ground.words(lane).head() = 5;
  Repair repair = ground.repair_of(1);
  CHECK(repair.run(kPlenty, 0, ground) == Repair::State::waiting);
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) CHECK(ground.holds(slot, 1) == (slot == 5 || slot == 6));
  CHECK(ground.holds(9, 3));
  CHECK(repair.slots_used() == 3);
  // One is taken, then the reader is through.
  ground.words(lane).head() = 6;
  repair.look_again();
  CHECK(repair.run(kPlenty, 0, ground) == Repair::State::waiting);
  CHECK_FALSE(ground.holds(5, 1));
  CHECK(ground.holds(6, 1));
  ground.done.insert(lane);
  repair.look_again();
  CHECK(repair.run(kPlenty, 0, ground) == Repair::State::clean);
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) CHECK_FALSE(ground.holds(slot, 1));
}

TEST_CASE("D4: groups in which a slot is free are counted up, also for one that the dead did not count") {
  Ground ground;
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) ground.hold(slot, 3);
  CHECK(ground.repair(1) == Repair::State::clean);
  CHECK(ground.view.freed(0).load() == 0);  // all are held by others
  SUBCASE("one that it held") {
    ground.view.slot(kSlotCount - 1).holders = 1 << 2;
    CHECK(ground.repair(2) == Repair::State::clean);
    CHECK(ground.view.freed(0).load() == 1);
  }
  SUBCASE("one that it had let go of") {
    ground.view.slot(0).holders = 0;
    CHECK(ground.repair(2) == Repair::State::clean);
    CHECK(ground.view.freed(0).load() == 1);
  }
  SUBCASE("in portions of one line") {
    ground.view.slot(5).holders = 1 << 2;
    Repair repair = ground.repair_of(2);
    while (repair.run(1, 0, ground) == Repair::State::working) {
    }
    CHECK(ground.view.freed(0).load() == 1);
  }
}

TEST_CASE("D5: peers are woken behind the sweep, also by a repair that then waits for readers") {
  Ground ground;
  const std::uint32_t theirs = ground.add_lane(QueueKind::mpmc, 0), mine = ground.add_lane(QueueKind::spsc, 1, 2);
  ground.claim(theirs, 0, 1);
  ground.publish(mine, 0, 4);
  ground.hold(4, 1);
  ground.hold(5, 1);
  bool last_saw_all = false;
  ground.at_wake = [&] {
    last_saw_all = !ground.holds(5, 1) && ground.word(theirs, 0).is(CellState::full) && ground.view.freed(0) == 1;
  };
  CHECK(ground.repair(1) == Repair::State::waiting);
  CHECK(ground.holds(4, 1));
  CHECK(last_saw_all);
}

TEST_CASE("D3, mpmc: full and claimed cells keep their slots, done ones and other senders' do not") {
  Ground ground;
  const std::uint32_t mine = ground.add_lane(QueueKind::mpmc, 1), theirs = ground.add_lane(QueueKind::mpmc, 0);
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) ground.hold(slot, 1);
  ground.publish(mine, 0, 3);
  ground.publish(mine, 1, 4);
  ground.claim(mine, 1, 2);
  ground.publish(mine, 2, 5);
  ground.words(mine).cell(2).word = CellWord::empty(2 + kCells);
  ground.publish(theirs, 0, 6);
  CHECK(ground.repair(1) == Repair::State::waiting);
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) CHECK(ground.holds(slot, 1) == (slot == 3 || slot == 4));
}

TEST_CASE("a repair that waits sweeps again only when something else is to be kept, and says what it left to others") {
  Ground ground;
  const std::uint32_t lane = ground.add_lane(QueueKind::mpmc, 1);
  for (std::uint32_t slot = 0; slot < 2; ++slot) {
    ground.hold(slot, 1);
    ground.publish(lane, slot, slot);
  }
  Repair repair = ground.repair_of(1);
  REQUIRE(repair.run(kPlenty, 0, ground) == Repair::State::waiting);
  const std::size_t first = kPlenty - repair.left();
  const int wakes = ground.wakes;
  repair.look_again();
  CHECK(repair.run(kPlenty, 0, ground) == Repair::State::waiting);
  CHECK(kPlenty - repair.left() + kSlotCount <= first);
  CHECK(ground.wakes == wakes);
  ground.words(lane).cell(1).word = CellWord::empty(1 + kCells);
  repair.look_again();
  CHECK(repair.run(kPlenty, 0, ground) == Repair::State::waiting);
  CHECK(ground.holds(0, 1));
  CHECK_FALSE(ground.holds(1, 1));
  ground.words(lane).cell(0).word = CellWord::empty(kCells);
  repair.look_again();
  CHECK(repair.run(kPlenty, 0, ground) == Repair::State::clean);
  CHECK_FALSE(ground.holds(0, 1));
}

TEST_CASE("D3, broadcast: every full cell while a reader is attached, none that was being overwritten") {
  Ground ground;
  const std::uint32_t lane = ground.add_lane(QueueKind::broadcast, 1);
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) ground.hold(slot, 1);
  for (std::uint64_t position = 0; position < 3; ++position) ground.publish(lane, position, 8);
  ground.publish(lane, 1, 7);
  ground.words(lane).cell(2).word = CellWord::busy(6);
  ground.words(lane).reader(2).position = 1;
  CHECK(attached(ground.words(lane), 0b100));
  CHECK_FALSE(attached(ground.words(lane), 0b1001));
  CHECK(ground.repair(1) == Repair::State::waiting);
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) CHECK(ground.holds(slot, 1) == (slot == 7 || slot == 8));
}

TEST_CASE("a ring has unread messages behind a cell that is being overwritten") {
  Ground ground;
  const std::uint32_t index = ground.add_lane(QueueKind::broadcast, 1);
  for (std::uint64_t position = 1; position < 4; ++position) ground.publish(index, position, 0);
  ground.words(index).cell(4).word = CellWord::busy(4);
  const KnownLane lane = known_lane(ground.tables, index);
  std::atomic<std::uint64_t>& place = lane.words.reader(2).position;
  place = 1 + 0;  // a whole lap behind
  CHECK(unread_by(lane, 0b100));
  CHECK_FALSE(unread_by(lane, 0b1000));
  place = 1 + 3;
  CHECK(unread_by(lane, 0b100));
  place = 1 + 4;  // what the writer has begun and not published
  CHECK_FALSE(unread_by(lane, 0b100));
}

TEST_CASE("an spsc lane has unread messages while the first is taken and its cell filled again") {
  Ground ground;
  const std::uint32_t index = ground.add_lane(QueueKind::spsc, 1, 2);
  for (std::uint64_t position = 1; position < 5; ++position) ground.publish(index, position, 0);
  const KnownLane lane = known_lane(ground.tables, index);
  CHECK(lane.words.head().load() == 0);  // as it was when the look began
  CHECK(unread_by(lane, 0));
  CHECK(unread(lane.words, QueueKind::spsc) == kCells);
  lane.words.head() = 4;
  CHECK(unread(lane.words, QueueKind::spsc) == 1);
  lane.words.head() = 5;
  CHECK_FALSE(unread_by(lane, 0));
}

TEST_CASE("a list keeps everything of its sender, bytes keep nothing") {
  for (std::uint8_t tag : {pool::kTagListInline, pool::kTagListInSlot, pool::kTagListInRegion}) {
    Ground ground;
    const std::uint32_t lane = ground.add_lane(QueueKind::spsc, 1, 2);
    ground.hold(2, 1);
    ground.hold(3, 1);
    ground.publish(lane, 0, 3, tag);
    CHECK(ground.repair(1) == Repair::State::waiting);
    CHECK(ground.holds(2, 1));
    CHECK(ground.holds(3, 1));
    ground.publish(lane, 0, 3, 56);
    CHECK(ground.repair(1) == Repair::State::clean);
    CHECK_FALSE(ground.holds(2, 1));
  }
}

TEST_CASE("messages of a dead sender that no reader took in time are dropped, claimed ones are not") {
  Ground ground(pool::kQueueExpiring);
  const std::uint32_t lane = ground.add_lane(QueueKind::mpmc, 1);
  for (std::uint32_t slot = 0; slot < 4; ++slot) ground.hold(slot, 1);
  ground.publish(lane, 0, 0, pool::kTagSlot, 999, true);   // over
  ground.publish(lane, 1, 1, pool::kTagSlot, 1001, true);  // not yet
  ground.publish(lane, 2, 2, pool::kTagSlot, 0, true);     // never
  ground.publish(lane, 3, 3, pool::kTagSlot, 999, true);
  ground.claim(lane, 3, 2);
  CHECK(ground.repair(1, 1000) == Repair::State::waiting);
  CHECK(ground.word(lane, 0) == CellWord{kCells, 0, 0});
  CHECK_FALSE(ground.holds(0, 1));
  for (std::uint32_t slot : {1, 2, 3}) CHECK(ground.holds(slot, 1));
  CHECK(ground.repair(1, 2000) == Repair::State::waiting);
  CHECK_FALSE(ground.holds(1, 1));
}

TEST_CASE("a slot that does not exist, and a tag that no message has, break the pool and protect nothing") {
  for (bool slot : {true, false}) {
    Ground ground;
    const std::uint32_t lane = ground.add_lane(QueueKind::spsc, 1, 2);
    ground.hold(0, 1);
    ground.publish(lane, 0, slot ? kSlotCount : 0, slot ? pool::kTagSlot : std::uint8_t{200});
    Repair repair = ground.repair_of(1);
    CHECK(repair.run(kPlenty, 0, ground) == Repair::State::clean);
    CHECK(repair.found_impossible());
    CHECK_FALSE(ground.holds(0, 1));
  }
}

namespace {

// Sender 1 with a lane of each kind, consumers 2 and 3, sender 0 with an mpmc lane, all of them holding slots.
void furnish(Ground& ground) {
  const std::uint32_t line = ground.add_lane(QueueKind::spsc, 1, 2), claim = ground.add_lane(QueueKind::mpmc, 1),
                      ring = ground.add_lane(QueueKind::broadcast, 1), other = ground.add_lane(QueueKind::mpmc, 0);
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
    ground.hold(slot, 1);
    if (slot % 3 == 0) ground.hold(slot, 2);
    if (slot % 4 == 0) ground.hold(slot, 3);
  }
  ground.publish(line, 0, 0);
  ground.publish(line, 1, 1);
  ground.publish(claim, 0, 2);
  ground.publish(claim, 1, 3);
  ground.claim(claim, 1, 2);
  ground.publish(claim, 2, 4);
  ground.claim(claim, 2, 3);
  ground.publish(ring, 0, 5);
  ground.words(ring).reader(2).position = 1;
  ground.publish(other, 0, 6);
  ground.claim(other, 0, 2);
  ground.view.control().slot_waiters.mask = 0b1110;
}

std::vector<std::uint64_t> picture(Ground& ground) {
  std::vector<std::uint64_t> out;
  for (std::uint32_t i = 0; i < kSlotCount; ++i) out.push_back(ground.view.slot(i).holders.load());
  for (std::uint32_t lane = 0; lane < ground.lanes; ++lane)
    for (std::uint64_t cell = 0; cell < kCells; ++cell) out.push_back(ground.words(lane).cell(cell).word.load());
  for (std::uint32_t i = 0; i < 4; ++i) {
    out.push_back(ground.view.participant(i).stamp.load());
    out.push_back(ground.words(2).reader(i).position.load());
  }
  out.push_back(ground.view.control().slot_waiters.mask.load());
  return out;
}

int lines_of(std::uint32_t who) {
  Ground ground;
  furnish(ground);
  Repair repair = ground.repair_of(who);
  int lines = 1;
  while (repair.run(1, 0, ground) == Repair::State::working) ++lines;
  return lines;
}

}  // namespace

TEST_CASE("stopped after any line of work and begun again from D1, the repair comes to the same") {
  for (std::uint32_t who = 0; who < 4; ++who) {
    Ground whole;
    furnish(whole);
    const Repair::State end = whole.repair(who);
    const int lines = lines_of(who);
    REQUIRE(lines > static_cast<int>(kSlotCount));
    for (int stop = 0; stop <= lines; ++stop) {
      Ground ground;
      furnish(ground);
      {
        Repair first = ground.repair_of(who);
        for (int i = 0; i < stop; ++i) first.run(1, 0, ground);
      }
      CHECK(ground.repair(who) == end);
      CHECK(picture(ground) == picture(whole));
    }
  }
}

TEST_CASE(
    "a second death in every gap of a repair, of each other participant, comes to the same as one after the other") {
  for (std::uint32_t who = 0; who < 4; ++who)
    for (std::uint32_t second = 0; second < 4; ++second) {
      if (second == who) continue;
      Ground whole;
      furnish(whole);
      whole.repair(who);
      whole.repair(second);
      whole.repair(who);  // what the second's end gave free
      const int lines = lines_of(who);
      for (int gap = 0; gap <= lines; ++gap) {
        Ground ground;
        furnish(ground);
        Repair first = ground.repair_of(who);
        for (int i = 0; i < gap; ++i) first.run(1, 0, ground);
        ground.repair(second);
        first.look_again();
        while (first.run(1, 0, ground) == Repair::State::working) {
        }
        CHECK(picture(ground) == picture(whole));
      }
    }
}

TEST_CASE("after any death: no bit of the dead is left without an unread message, none of the living is touched") {
  for (unsigned dead = 0; dead < 16; ++dead) {
    Ground ground;
    furnish(ground);
    const auto before = picture(ground);
    for (int round = 0; round < 2; ++round)
      for (std::uint32_t who = 0; who < 4; ++who)
        if ((dead >> who & 1) != 0) ground.repair(who);
    for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
      const std::uint64_t now = ground.view.slot(slot).holders.load();
      CHECK((now & ~std::uint64_t{dead}) == (before[slot] & ~std::uint64_t{dead}));
      const std::uint64_t named = slot <= 5 ? 0b10 : 0;  // of sender 1's unread messages
      CHECK((now & dead & ~named) == 0);
    }
    for (std::uint32_t lane = 0; lane < ground.lanes; ++lane)
      for (std::uint64_t cell = 0; cell < kCells; ++cell)
        if (const CellWord word = ground.word(lane, cell); word.claimed())
          CHECK((dead >> (word.state - pool::kClaimedBy) & 1) == 0);
    // Everybody is through: nothing is left of the dead at all.
    for (std::uint32_t lane = 0; lane < ground.lanes; ++lane) ground.done.insert(lane);
    for (std::uint32_t who = 0; who < 4; ++who)
      if ((dead >> who & 1) != 0) CHECK(ground.repair(who) == Repair::State::clean);
    for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) CHECK((ground.view.slot(slot).holders.load() & dead) == 0);
  }
}

TEST_CASE("with any bytes in the control area, the work is bounded and the bits of others stay") {
  std::mt19937_64 random(20260612);
  const std::uint64_t lines_at_most = 4 * (kSlotCount + 8 + 8 * kCells);
  int impossible = 0;
  for (int round = 0; round < 2000; ++round) {
    Ground ground;
    furnish(ground);
    auto* words = reinterpret_cast<std::uint64_t*>(ground.control.get());
    const std::size_t count = ground.control_bytes / 8;
    if (round % 4 == 0) {
      for (std::size_t i = 0; i < count; ++i) words[i] = random();
    } else {
      for (int i = 0; i < 200; ++i) {
        const std::uint64_t telling[] = {0, UINT64_MAX, random(), std::uint64_t{1} << (random() % 64), 0xffULL << 56};
        words[random() % count] = telling[random() % std::size(telling)];
      }
      if (round % 4 == 1)  // plausible words in the cells themselves
        for (std::uint32_t lane = 0; lane < ground.lanes; ++lane)
          for (std::uint64_t cell = 0; cell < kCells; ++cell)
            ground.words(lane).cell(cell).word =
                CellWord{random() % 8, static_cast<std::uint8_t>(random() % 70), static_cast<std::uint8_t>(random())}
                    .word();
    }
    std::vector<std::uint64_t> others;
    for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
      others.push_back(ground.view.slot(slot).holders.load() & ~std::uint64_t{0b10});
    Repair repair = ground.repair_of(1);
    std::uint64_t lines = 0;
    while (repair.run(1, 1000, ground) == Repair::State::working && lines <= lines_at_most) ++lines;
    CHECK(lines <= lines_at_most);
    impossible += repair.found_impossible();
    for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
      CHECK((ground.view.slot(slot).holders.load() & ~std::uint64_t{0b10}) == others[slot]);
  }
  CHECK(impossible > 0);
}

TEST_CASE("a hole punched into the control area reads as nothing held and nothing sent") {
  Ground ground;
  furnish(ground);
  std::memset(ground.control.get(), 0, ground.control_bytes);
  CHECK(ground.repair(1) == Repair::State::clean);
}
