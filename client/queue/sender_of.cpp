// SPDX-License-Identifier: Apache-2.0
// The lane that an end writes, by its kind. This file has the only look at the kind of a queue that is written.
#include "client/queue/sender_of.hpp"

namespace shmb::client {

template <Lane L>
void SenderOf<L>::follow() {
  const std::uint32_t died = follow_readers();
  if constexpr (L::one_receiver) look_for_reader();
  // The place of a dead receiver in a ring is gone with it, so it is unknown how far it had read.
  if (L::ring && died != 0 && !all_drained()) give_up();
}

// The broker makes a lane for each pair of sender and receiver. The one of a receiver that is gone is given up.
template <Lane L>
void SenderOf<L>::look_for_reader() {
  const pool::View& view = state_.pool->view();
  const Participant& me = state_.me();
  if (out_.it) {
    const pool::Stamp stamp = pool::Stamp::of(view.lane(out_.lane).stamp.load(std::memory_order_acquire));
    if (stamp.serial == out_.serial && stamp.state == static_cast<std::uint8_t>(pool::LaneState::open) &&
        me.alive(out_.to, out_.to_life))
      return;
    drop_out();
  }
  for (std::uint32_t i = 0; i < view.lanes(); ++i) {
    const pool::Stamp stamp = pool::Stamp::of(view.lane(i).stamp.load(std::memory_order_acquire));
    const bool reader_gone = stamp.state == static_cast<std::uint8_t>(pool::LaneState::reader_gone);
    if (stamp.state != static_cast<std::uint8_t>(pool::LaneState::open) && !reader_gone) continue;
    pool::LaneEntry copy{};
    if (!state_.lane_view(i, stamp.serial, &copy)) continue;
    if (copy.queue != state_.index || copy.queue_serial != state_.serial) continue;
    if (copy.from != me.index() || copy.from_life != me.life()) continue;
    if (reader_gone) {  // it came and went between two looks: that lane holds nothing of this process
      state_.pool->post_finished(i, stamp.serial, SHMBW_LANE_END_SENDER);
      continue;
    }
    if (copy.to == pool::kNone || !me.alive(copy.to, copy.to_life)) continue;
    adopt(i, stamp.serial);
    return;
  }
}

template class SenderOf<SpscLane>;
template class SenderOf<MpmcLane>;
template class SenderOf<BroadcastLane>;

std::unique_ptr<Sender> Sender::of(QueueState& state) {
  switch (state.kind) {
    case pool::QueueKind::spsc:
      return std::make_unique<SenderOf<SpscLane>>(state);
    case pool::QueueKind::mpmc:
      return std::make_unique<SenderOf<MpmcLane>>(state);
    default:
      return std::make_unique<SenderOf<BroadcastLane>>(state);
  }
}

}  // namespace shmb::client
