// SPDX-License-Identifier: Apache-2.0
// See pool_repair.hpp. The names D1 to D6 are those of docs/pools.md.
#include "daemon/pools/pool_repair.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace shmb::daemon {

using pool::Cell;
using pool::CellState;
using pool::CellWord;
using pool::kParticipants;
using pool::LaneView;
using pool::QueueKind;

namespace {

constexpr std::size_t kBodyWords = 7;  // a deadline and a handle: what fits into the smaller cell

// Peers may be writing the cell. So it is copied once, and only the copy is checked.
std::array<std::uint64_t, kBodyWords> copy_body(Cell& cell) {
  std::array<std::uint64_t, kBodyWords> copy;
  auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(cell.body());
  for (std::size_t i = 0; i < kBodyWords; ++i) copy[i] = words[i].load(std::memory_order_relaxed);
  return copy;
}

bool unread_in_claim(CellWord word) { return word.is(CellState::full) || word.claimed(); }

}  // namespace

bool attached(const LaneView& lane, std::uint64_t participants) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::uint64_t left = participants; left != 0; left &= left - 1) {
    const auto reader = static_cast<std::size_t>(std::countr_zero(left));
    if (lane.reader(reader).position.load(std::memory_order_acquire) != 0) return true;
  }
  return false;
}

bool all_done(const LaneView& lane) { return unread(lane, QueueKind::mpmc) == 0; }

std::uint32_t unread(const LaneView& lane, QueueKind kind) {
  std::uint32_t count = 0;
  const std::uint64_t head = lane.head().load(std::memory_order_acquire) & pool::kPositionMask;
  for (std::uint32_t i = 0; i < lane.cells(); ++i) {
    const CellWord word = CellWord::of(lane.cell(i).word.load(std::memory_order_acquire));
    // Meanwhile the reader of an spsc lane may be done with the first messages, and the sender may fill their cells
    // again.
    const bool before = kind == QueueKind::spsc && pool::position_difference(word.position, head) < 0;
    count += kind == QueueKind::mpmc ? unread_in_claim(word) : word.is(CellState::full) && !before;
  }
  return count;
}

bool unread_by(const KnownLane& lane, std::uint64_t participants) {
  if (lane.kind != QueueKind::broadcast) return unread(lane.words, lane.kind) != 0;
  for (std::uint64_t left = participants; left != 0; left &= left - 1) {
    const auto reader = static_cast<std::size_t>(std::countr_zero(left));
    const std::uint64_t place = lane.words.reader(reader).position.load(std::memory_order_acquire);
    if (place == 0) continue;
    const CellWord word = CellWord::of(lane.words.cell(place - 1).word.load(std::memory_order_acquire));
    const std::int64_t ahead = pool::position_difference(word.position, place - 1);
    // The cell is being overwritten, or its writer died while it did that. The messages in between can still be read.
    if ((word.is(CellState::full) && ahead >= 0) || (word.is(CellState::busy) && ahead > 0)) return true;
  }
  return false;
}

Repair::Repair(PoolTables& tables, std::uint32_t participant, std::uint32_t life, pool::ParticipantState as)
    : tables_(tables), view_(tables.view), participant_(participant), life_(life), as_(as) {}

void Repair::look_again() {
  again_ = true;
  if (step_ == Step::rest) state_ = State::working;
}

Repair::State Repair::run(std::size_t lines, std::int64_t monotonic, RepairFacts& facts) {
  go_on(lines, monotonic, facts);
  left_ = lines;
  return state_;
}

Repair::State Repair::go_on(std::size_t& lines, std::int64_t monotonic, RepairFacts& facts) {
  if (state_ == State::clean) return state_;
  state_ = State::working;
  while (lines > 0 || step_ == Step::declare) {
    switch (step_) {
      case Step::declare:
        declare();
        facts.wake_peers();
        step_ = Step::give_back;
        lane_ = cell_ = 0;
        in_lane_ = false;
        break;
      case Step::give_back:
        if (!give_back(lines)) return state_;
        step_ = Step::look;
        lane_ = cell_ = 0;
        in_lane_ = false;
        break;
      case Step::look:
        if (lane_ == 0 && !in_lane_) {
          again_ = keep_all_ = false;
          keep_.assign(view_.slots(), false);
        }
        if (!look(lines, monotonic, facts)) return state_;
        // No bit of the dead participant comes back. If nothing else must be kept than before, nothing has to be swept.
        if (swept_once_ && keep_all_ == swept_all_ && keep_ == swept_) {
          step_ = Step::rest;
          break;
        }
        swept_once_ = false;
        step_ = Step::sweep;
        slot_ = held_ = used_now_ = 0;
        free_in_group_ = false;
        break;
      case Step::sweep:
        if (!sweep(lines)) return state_;
        used_ = used_now_;
        swept_once_ = true;
        swept_all_ = keep_all_;
        swept_ = keep_;
        facts.wake_peers();  // D5
        step_ = Step::rest;
        break;
      case Step::rest:
        if (held_ == 0) return state_ = State::clean;
        if (!again_) return state_ = State::waiting;
        step_ = Step::look;
        lane_ = cell_ = 0;
        in_lane_ = false;
        break;
    }
  }
  return state_;
}

// D1, before any look at lanes and positions: a peer that joins or sends afterwards sees it. This step also clears the
// bits by which peers would wake the dead participant.
void Repair::declare() {
  tables_.show_participant(participant_, life_, as_);
  tables_.show_change();
  const std::uint64_t others = ~(std::uint64_t{1} << participant_);
  view_.control().slot_waiters.mask.fetch_and(others, std::memory_order_acq_rel);
  for (std::uint32_t queue = 0; queue < view_.queues(); ++queue) {
    view_.queue_waiters(queue).readers.mask.fetch_and(others, std::memory_order_acq_rel);
    view_.queue_waiters(queue).writers.mask.fetch_and(others, std::memory_order_acq_rel);
  }
  view_.wait(participant_).sleep.store(0, std::memory_order_relaxed);
}

// Takes one line for the lane itself when it is begun, and none when it is continued.
bool Repair::enter_lane(std::size_t& lines) {
  if (in_lane_) return true;
  if (lines == 0) return false;
  --lines;
  return in_lane_ = true;
}

// D2: messages that it claimed become available to others. Its places in rings are cleared, because a newcomer on this
// index must not inherit them.
bool Repair::give_back(std::size_t& lines) {
  const auto mine = static_cast<std::uint8_t>(pool::kClaimedBy + participant_);
  for (; lane_ < view_.lanes(); ++lane_, cell_ = 0, in_lane_ = false) {
    if (!enter_lane(lines)) return false;
    const KnownLane lane = known_lane(tables_, lane_);
    if (!lane) continue;
    if (lane.kind == QueueKind::broadcast) {
      lane.words.reader(participant_).position.store(0, std::memory_order_release);
      lane.words.reader(participant_).lost.store(0, std::memory_order_relaxed);
    }
    if (lane.kind != QueueKind::mpmc) continue;
    for (; cell_ < lane.words.cells(); ++cell_) {
      if (lines == 0) return false;
      --lines;
      std::atomic<std::uint64_t>& word = lane.words.cell(cell_).word;
      std::uint64_t seen = word.load(std::memory_order_acquire);
      const CellWord claimed = CellWord::of(seen);
      if (claimed.state == mine)
        word.compare_exchange_strong(seen, CellWord::full(claimed.position, claimed.tag), std::memory_order_acq_rel);
    }
  }
  return true;
}

// D3: notes the slots that are named by messages which a receiver may still take.
bool Repair::look(std::size_t& lines, std::int64_t monotonic, RepairFacts& facts) {
  for (; lane_ < view_.lanes(); ++lane_, cell_ = 0, in_lane_ = false) {
    const bool first = !in_lane_;
    if (!enter_lane(lines)) return false;
    const LaneBook& book = tables_.lanes[lane_];
    const KnownLane lane = known_lane(tables_, lane_);
    if (!lane || !book.is_from(participant_, life_)) continue;
    if (first) {
      if (facts.receivers_done(lane_)) continue;
      head_ = lane.words.head().load(std::memory_order_acquire) & pool::kPositionMask;
      serial_ = book.serial;
    } else if (book.serial != serial_) {
      continue;  // recycled since the last portion, so it was read
    }
    for (; cell_ < lane.words.cells(); ++cell_) {
      if (lines == 0) return false;
      lines -= std::min<std::size_t>(lines, 2);
      const std::uint64_t at = lane.kind == QueueKind::spsc ? (head_ + cell_) & pool::kPositionMask : cell_;
      Cell& cell = lane.words.cell(at);
      const CellWord word = CellWord::of(cell.word.load(std::memory_order_acquire));
      if (lane.kind == QueueKind::spsc && (!word.is(CellState::full) || word.position != at)) break;
      look_at(lane.words, lane.kind, lane.flags, cell, monotonic);
    }
  }
  return true;
}

void Repair::look_at(const LaneView& lane, QueueKind kind, std::uint32_t flags, Cell& cell, std::int64_t monotonic) {
  std::uint64_t seen = cell.word.load(std::memory_order_acquire);
  const CellWord word = CellWord::of(seen);
  if (kind == QueueKind::mpmc ? !unread_in_claim(word) : !word.is(CellState::full)) return;
  // An expired message, whose sender cannot take it back itself. The exchange is not retried: if it fails, a receiver
  // has claimed the message.
  if (kind == QueueKind::mpmc && word.is(CellState::full) && (flags & pool::kQueueExpiring) != 0) {
    const auto deadline = static_cast<std::int64_t>(copy_body(cell)[0]);
    const std::uint64_t done = CellWord::empty(word.position + lane.cells());
    if (deadline > 0 && deadline <= monotonic &&
        cell.word.compare_exchange_strong(seen, done, std::memory_order_acq_rel))
      return;
  }
  keep(lane, flags, cell, word.tag);
}

void Repair::keep(const LaneView&, std::uint32_t flags, Cell& cell, std::uint8_t tag) {
  switch (tag) {
    case pool::kTagSlot: {
      const auto body = copy_body(cell);
      const auto slot = static_cast<std::uint32_t>(body[(flags & pool::kQueueExpiring) != 0 ? 1 : 0]);
      if (slot < view_.slots()) keep_[slot] = true;
      else impossible_ = true;  // the cell protects nothing
      return;
    }
    // The broker does not read what a list names, so all slots of its sender stay until the list is taken.
    case pool::kTagListInline:
    case pool::kTagListInSlot:
    case pool::kTagListInRegion:
      keep_all_ = true;
      return;
    default:
      if (tag > pool::kTagMaxInline) impossible_ = true;
  }
}

// D4: clears its bit on every other slot, and counts up the groups with free slots.
bool Repair::sweep(std::size_t& lines) {
  const std::uint64_t bit = std::uint64_t{1} << participant_;
  for (; slot_ < view_.slots(); ++slot_) {
    if (lines == 0) return false;
    --lines;
    std::atomic<std::uint64_t>& holders = view_.slot(slot_).holders;
    std::uint64_t now = holders.load(std::memory_order_acquire);
    if ((now & bit) != 0) {
      if (keep_all_ || keep_[slot_]) ++held_;
      else now = holders.fetch_and(~bit, std::memory_order_acq_rel) & ~bit;
    }
    used_now_ += now != 0;
    // Also a slot that the dead participant freed right before its death without counting it. This comes before D5, so
    // that woken peers find the slot.
    free_in_group_ |= now == 0;
    const bool last_of_group = (slot_ + 1) % pool::kGroupSlots == 0 || slot_ + 1 == view_.slots();
    if (last_of_group && std::exchange(free_in_group_, false))
      view_.freed(slot_ / pool::kGroupSlots).fetch_add(1, std::memory_order_seq_cst);
  }
  return true;
}

}  // namespace shmb::daemon
