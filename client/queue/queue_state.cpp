// SPDX-License-Identifier: Apache-2.0
// Following the directory. See queue_state.hpp.
#include "client/queue/queue_state.hpp"

#include <algorithm>
#include <bit>

#include "client/queue/receiver.hpp"
#include "client/queue/sender.hpp"

namespace shmb::client {

bool QueueState::read_settings() {
  const pool::QueueEntry& from = entry();
  const auto read_kind = static_cast<pool::QueueKind>(from.kind);
  const std::uint32_t read_flags = from.flags, read_cells = from.cells, read_size = from.cell_size;
  if (kind == pool::QueueKind::none) {
    if (read_kind == pool::QueueKind::none || read_kind > pool::QueueKind::broadcast ||
        !std::has_single_bit(read_cells) || (read_size != 64 && read_size != 128))
      return false;
    kind = read_kind, flags = read_flags, cells = read_cells, cell_size = read_size;
  }
  deaths = from.deaths.load(std::memory_order_acquire);
  return kind == read_kind && flags == read_flags && cells == read_cells && cell_size == read_size;
}

void QueueState::look_around() {
  seen_change = pool->change();
  pool->notice();
  const pool::Stamp stamp = pool::Stamp::of(entry().stamp.load(std::memory_order_acquire));
  if (stamp.serial != serial || stamp.state != static_cast<std::uint8_t>(pool::QueueState::open)) {
    closed = true;
    std::atomic_thread_fence(std::memory_order_seq_cst);  // see Sender::closed_meanwhile()
  }
  if (stamp.serial != serial) return;
  if (receiver != nullptr) receiver->follow();
  if (sender != nullptr) sender->follow();
  deaths = entry().deaths.load(std::memory_order_acquire);
}

bool QueueState::has_died(const Peer& peer) const {
  const pool::ParticipantEntry& participant = pool->view().participant(peer.index);
  const pool::Stamp stamp = pool::Stamp::of(participant.stamp.load(std::memory_order_acquire));
  if (stamp.serial == peer.life && stamp.state == static_cast<std::uint8_t>(pool::ParticipantState::live)) return false;
  const std::uint32_t last_death = participant.last_death.load(std::memory_order_relaxed);
  // No death of a life before the last dead one is recorded. Then any death in this queue counts.
  return last_death > peer.life ? entry().deaths.load(std::memory_order_acquire) != deaths : last_death == peer.life;
}

void QueueState::follow_peers(std::vector<Peer>& known, std::uint64_t mask, std::vector<Peer>& gone) const {
  const pool::View& view = pool->view();
  std::erase_if(known, [&](Peer& peer) {
    const pool::Stamp stamp = pool::Stamp::of(view.participant(peer.index).stamp.load(std::memory_order_acquire));
    const bool live = stamp.state == static_cast<std::uint8_t>(pool::ParticipantState::live);
    if (stamp.serial == peer.life && live && (mask >> peer.index & 1) != 0) return false;
    peer.died = has_died(peer);
    gone.push_back(peer);
    return true;
  });
  for (std::uint64_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto index = static_cast<std::uint32_t>(std::countr_zero(rest));
    const pool::Stamp stamp = pool::Stamp::of(view.participant(index).stamp.load(std::memory_order_acquire));
    if (stamp.state != static_cast<std::uint8_t>(pool::ParticipantState::live)) continue;
    const Peer peer{index, stamp.serial};
    if (std::ranges::find(known, peer) == known.end()) known.push_back(peer);
  }
}

std::optional<pool::LaneView> QueueState::lane_view(std::uint32_t lane, std::uint32_t of, pool::LaneEntry* copy) const {
  const pool::View& view = pool->view();
  if (lane >= view.lanes()) return std::nullopt;
  const pool::LaneEntry& entry = view.lane(lane);
  const std::uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
  if (pool::Stamp::of(stamp).serial != of) return std::nullopt;
  const std::uint32_t lane_cells = entry.cells, lane_cell_size = entry.cell_size;
  const std::uint64_t offset = entry.offset;
  copy->queue = entry.queue, copy->queue_serial = entry.queue_serial;
  copy->from = entry.from, copy->from_life = entry.from_life, copy->to = entry.to, copy->to_life = entry.to_life;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (pool::Stamp::of(entry.stamp.load(std::memory_order_relaxed)).serial != of) return std::nullopt;
  // Of another queue, or written by somebody who could write the directory. The participants are indices from here on.
  if (lane_cells != cells || lane_cell_size != cell_size || copy->from >= pool::kParticipants) return std::nullopt;
  if (copy->to != pool::kNone && copy->to >= pool::kParticipants) return std::nullopt;
  if (!view.lane_fits(offset, kind, lane_cells, lane_cell_size)) return std::nullopt;
  return pool::LaneView(view.lane_memory(offset), kind, lane_cells, lane_cell_size);
}

std::unexpected<Error> QueueState::broken_error(const char* what) const {
  return error(Status::broken, std::string(what) + " of queue '" + spec.name +
                                   "' is impossible: a participant has written over the pool's shared words");
}

}  // namespace shmb::client
