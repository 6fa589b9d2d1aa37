// SPDX-License-Identifier: Apache-2.0
// The common part of all kinds of lanes, and the slow half of line lanes. See lane.hpp.
#include "client/lane/lane.hpp"

#include <algorithm>

#include "base/sys_process.hpp"

namespace shmb::client {

using pool::CellWord;
using pool::QueueKind;

LaneSender::LaneSender(Participant& participant, pool::LaneView lane, QueueKind kind, std::uint32_t queue_flags,
                       std::uint32_t queue, LetGoRegions let_go_regions, std::uint64_t start)
    : participant_(participant),
      lane_(lane),
      kind_(kind),
      expiring_((queue_flags & pool::kQueueExpiring) != 0),
      drop_oldest_((queue_flags & pool::kQueueDropOldest) != 0),
      queue_(queue),
      body_room_(lane.body_bytes() - (expiring_ ? 8 : 0)),
      readers_(participant.view().queue_waiters(queue).readers),
      next_(start),
      done_(start),
      limit_(start),
      held_(lane.cells()),
      deadlines_(expiring_ && kind == QueueKind::mpmc ? lane.cells() : 0),
      let_go_regions_(std::move(let_go_regions)) {
  participant_.senders_.push_back(this);
}

LaneSender::~LaneSender() {
  std::erase(participant_.senders_, this);
  participant_.in_flight_ -= static_cast<std::uint32_t>(holding_);
}

void LaneSender::let_go(std::uint64_t position, bool overwritten) {
  Held held = std::exchange(held_[place(position)], Held{});
  if (held.nothing()) return;
  --holding_;
  --participant_.in_flight_;
  auto drop = [&](std::uint32_t slot) {
    if (overwritten) participant_.drop_overwritten(slot);
    else participant_.drop(slot);
  };
  if (held.slot != pool::kNone) drop(held.slot);
  if (!held.list) return;
  for (const std::uint32_t slot : held.list->slots) drop(slot);
  held.list->slots.clear();
  if (!held.list->regions.empty() && let_go_regions_) let_go_regions_(std::move(held));
}

void LaneSender::done_until(std::uint64_t position) {
  if (holding_ == 0) {
    done_ = position;
    return;
  }
  while (done_ != position) {
    let_go(done_++);
    SHMB_STEP(S0_half);
  }
}

LaneSender::Room LaneSender::advance_line() {
  SHMB_STEP(S0);
  const std::uint64_t head = lane_.head().load(std::memory_order_acquire);
  SHMB_STEP(S0_done);
  if (head - done_ > next_ - done_) return Room::broken;
  done_until(head);
  if (next_ - done_ < lane_.cells()) return Room::yes;
  participant_.sleeper().expect_stream();
  return Room::full;
}

LaneSender::Room LaneSender::room_line() { return advance_line(); }

void LaneSender::reclaim() {
  if (earliest_ != INT64_MAX) expire(sys::now_monotonic());
  if (holding_ == 0) return;
  if (kind_ == QueueKind::spsc) advance_line();
  else if (kind_ == QueueKind::mpmc) reclaim_claim();
  else reclaim_broadcast();
}

std::uint64_t LaneSender::in_flight() {
  if (earliest_ != INT64_MAX) expire(sys::now_monotonic());
  if (kind_ == QueueKind::mpmc) return reclaim_claim();
  if (kind_ == QueueKind::broadcast) return reclaim_broadcast();
  advance_line();
  return next_ - done_;
}

void LaneSender::give_up_all() {
  SHMB_STEP(L3);
  while (done_ != next_) {
    let_go(done_++);
    SHMB_STEP(L3_half);
  }
  SHMB_STEP(L3_done);
}

LaneReceiver::LaneReceiver(Participant& participant, pool::LaneView lane, QueueKind kind, std::uint32_t queue_flags,
                           std::uint32_t queue, std::uint32_t from, std::uint32_t from_life, std::uint64_t start)
    : participant_(participant),
      lane_(lane),
      kind_(kind),
      expiring_((queue_flags & pool::kQueueExpiring) != 0),
      drop_oldest_((queue_flags & pool::kQueueDropOldest) != 0),
      queue_(queue),
      from_(from),
      from_life_(from_life),
      body_room_(lane.body_bytes() - (expiring_ ? 8 : 0)),
      readers_(participant.view().queue_waiters(queue).readers),
      writers_(participant.view().queue_waiters(queue).writers),
      next_(start) {}

// A line lane's cell without the next message: it holds that of the lap before, or nothing yet. A sender that is gone
// may have published between the first look and its end. So its end is followed by another look.
LaneReceiver::Look LaneReceiver::look_again(std::uint64_t word, Received& out) {
  const std::uint64_t before = CellWord::full(next_ - lane_.cells(), 0);
  auto impossible = [&] { return word != 0 && (word & kWithoutTag) != before; };
  if (impossible()) return Look::broken;
  SHMB_STEP(L1);
  const bool alive = sender_alive();
  SHMB_STEP(L1_done);
  if (alive) return Look::empty;
  pool::Cell& cell = lane_.cell(next_);
  SHMB_STEP(L2);
  word = cell.word.load(std::memory_order_acquire);
  SHMB_STEP(L2_done);
  if ((word & kWithoutTag) != CellWord::full(next_, 0)) return impossible() ? Look::broken : Look::drained;
  return copy_body(cell.body(), word, next_, out) ? Look::message : refuse(next_);
}

// The message is malformed. No receiver can have it, and it must not stay claimed.
LaneReceiver::Look LaneReceiver::refuse(std::uint64_t position) {
  done(position);
  return Look::refused;
}

std::uint64_t LaneReceiver::lag() const {
  if (kind_ == QueueKind::mpmc) return count_unclaimed();
  const std::uint64_t tail = lane_.tail().load(std::memory_order_relaxed);
  const auto waiting = static_cast<std::int64_t>(tail - next_);
  if (waiting <= 0) return 0;
  const auto most = kind_ == QueueKind::broadcast ? static_cast<std::uint64_t>(INT64_MAX) : lane_.cells();
  return std::min<std::uint64_t>(static_cast<std::uint64_t>(waiting), most);
}

}  // namespace shmb::client
