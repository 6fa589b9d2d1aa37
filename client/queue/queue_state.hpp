// SPDX-License-Identifier: Apache-2.0
// The common knowledge of the two ends of one handle about their queue: its place in the pool's directory, its
// settings, and what the last look at the directory has shown.
//
// The directory, which only the broker writes, says which queues, participants and lanes there are. When its change
// word moves, both ends look again (look_around). An end that only sends must look as a reader too: a lane of a writer
// that is gone is free only once each reader is through with it.
//
// The lock of the pool's participant must be held for all functions, except before the queue is open.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/queue/pool.hpp"
#include "client/queue/queue_spec.hpp"

namespace shmb::client {

class Sender;
class Receiver;

struct QueueState {
  QueueState(std::shared_ptr<Pool> of, QueueSpec wanted) : pool(std::move(of)), spec(std::move(wanted)) {}
  QueueState(const QueueState&) = delete;
  QueueState& operator=(const QueueState&) = delete;

  // One life of a participant that has an end of the queue open.
  struct Peer {
    std::uint32_t index, life;
    bool died = false;
    friend bool operator==(const Peer& a, const Peer& b) { return a.index == b.index && a.life == b.life; }
  };

  const std::shared_ptr<Pool> pool;
  const QueueSpec spec;
  std::atomic<std::uint64_t> incarnation = 0;  // of the pool, when the ends were opened
  std::uint32_t index = 0, serial = 0, flags = 0, cells = 0, cell_size = 64;
  pool::QueueKind kind = pool::QueueKind::none;
  std::uint32_t seen_change = 0, deaths = 0;  // at the last look around
  bool closed = false;
  Sender* sender = nullptr;  // null: this handle does not write
  Receiver* receiver = nullptr;

  Participant& me() const { return pool->me(); }
  bool has(std::uint32_t flag) const { return (flags & flag) != 0; }
  bool at_least_once() const { return has(pool::kQueueAtLeastOnce); }
  bool drops_oldest() const { return has(pool::kQueueDropOldest); }
  std::uint32_t body_room() const { return cell_size - 8 - (has(pool::kQueueExpiring) ? 8 : 0); }
  pool::QueueEntry& entry() const { return pool->view().queue(index); }
  pool::Waiters& readers() const { return pool->view().queue_waiters(index).readers; }
  pool::Waiters& writers() const { return pool->view().queue_waiters(index).writers; }
  void set_spin() const { me().sleeper().set_spin(spec.spin, spec.spin_always); }
  // No fork since the ends were opened. It costs two loads.
  bool as_opened() const { return !pool->is_fresh_child() && incarnation == pool->incarnation(); }

  // Takes kind, flags, cells and their size from the directory. Once taken they stay: the ends were made for them.
  // False: they are impossible, or others by now.
  bool read_settings();
  bool changed() const { return seen_change != pool->change(); }
  void look_around();
  void look_if_changed() {
    if (changed()) look_around();
  }
  // The queue itself is open, by the directory of this moment.
  bool is_open() const {
    const pool::Stamp stamp = pool::Stamp::of(entry().stamp.load(std::memory_order_acquire));
    return stamp.serial == serial && stamp.state == static_cast<std::uint8_t>(pool::QueueState::open);
  }
  // The peer is gone, and did not leave in order.
  bool has_died(const Peer& peer) const;
  // `known` becomes the live participants of the mask. Those that are not among them any more are added to `gone`.
  void follow_peers(std::vector<Peer>& known, std::uint64_t mask, std::vector<Peer>& gone) const;
  // A lane that the directory has under this serial, and its entry. nullopt: it has another one by now.
  std::optional<pool::LaneView> lane_view(std::uint32_t lane, std::uint32_t serial, pool::LaneEntry* copy) const;
  std::unexpected<Error> broken_error(const char* what) const;
};

}  // namespace shmb::client
