// SPDX-License-Identifier: Apache-2.0
// The common part of all kinds of lanes. See lane.hpp.
#include "client/lane/lane.hpp"

#include <algorithm>

namespace shmb::client {

LaneSender::LaneSender(Participant& participant, pool::LaneView lane, std::uint32_t queue_flags, std::uint32_t queue,
                       LetGoRegions let_go_regions, std::uint64_t start)
    : participant_(participant),
      lane_(lane),
      expiring_((queue_flags & pool::kQueueExpiring) != 0),
      drop_oldest_((queue_flags & pool::kQueueDropOldest) != 0),
      queue_(queue),
      body_room_(lane.body_bytes() - (expiring_ ? 8 : 0)),
      readers_(participant.view().queue_waiters(queue).readers),
      next_(start),
      done_(start),
      held_(lane.cells()),
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

void LaneSender::give_up_all() {
  SHMB_STEP(L3);
  while (done_ != next_) {
    let_go(done_++);
    SHMB_STEP(L3_half);
  }
  SHMB_STEP(L3_done);
}

LaneReceiver::LaneReceiver(Participant& participant, pool::LaneView lane, std::uint32_t queue_flags,
                           std::uint32_t queue, std::uint32_t from, std::uint32_t from_life)
    : participant_(participant),
      lane_(lane),
      expiring_((queue_flags & pool::kQueueExpiring) != 0),
      drop_oldest_((queue_flags & pool::kQueueDropOldest) != 0),
      queue_(queue),
      from_(from),
      from_life_(from_life),
      body_room_(lane.body_bytes() - (expiring_ ? 8 : 0)),
      readers_(participant.view().queue_waiters(queue).readers),
      writers_(participant.view().queue_waiters(queue).writers) {}

std::uint64_t LaneReceiver::waiting(std::uint64_t next, std::uint64_t most) const {
  const auto messages = static_cast<std::int64_t>(lane_.tail().load(std::memory_order_relaxed) - next);
  return messages <= 0 ? 0 : std::min(static_cast<std::uint64_t>(messages), most);
}

}  // namespace shmb::client
