// SPDX-License-Identifier: Apache-2.0
// Queues and their lanes. A lane belongs to one life of each of its ends. Its memory is given out again when its sender
// is gone or has finished, and no process can receive from it any more (D7). It is zeroed before that.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "daemon/pools/pool_tables.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

struct Pools;
class Session;
struct Pool;

// Memory of a lane that is being made. Its cells are written in portions, in turns of the session that opens the queue
// (law 8). Meanwhile no other lane of the pool is made, so no memory has to be reserved.
struct LaneInMaking {
  std::uint64_t session = 0;  // the session that opens the queue; 0: no lane is being made
  std::uint64_t offset = 0;
  pool::QueueKind kind = pool::QueueKind::spsc;
  std::uint32_t cells = 0, cell_size = 0;
  std::uint32_t ready = 0;  // cells
  bool same(const LaneInMaking& other) const {
    return session == other.session && offset == other.offset && kind == other.kind && cells == other.cells &&
           cell_size == other.cell_size;
  }
};
// Does a portion of what the open needs. True: the rest, if any, is small enough for the open itself.
bool make_lane_ready(Session& session, Pool& pool, std::uint32_t participant, const shmbw_queue_open& wish,
                     std::string_view name);

struct OpenedQueue {
  std::uint32_t queue = 0, serial = 0;
  std::uint32_t lane = pool::kNone, lane_serial = 0;
};
Result<OpenedQueue> open_queue(Pools& pools, Pool& pool, std::uint32_t participant, const shmbw_queue_open& wish,
                               std::string_view name);
struct EndsLeft {
  std::uint32_t readers = 0, writers = 0;
};
Result<EndsLeft> close_queue(Pools& pools, Pool& pool, std::uint32_t participant, const shmbw_queue_close& wish);
void close_queues(Pool& pool);  // all of them, for all participants
// The participant is dead or has left.
void drop_ends(Pool& pool, std::uint32_t participant, bool died);
// False: the participant is no end of that lane, or has said so before.
bool lane_finished(Pool& pool, std::uint32_t participant, const shmbw_lane_finished& wish);
Result<void> hold_region(Pools& pools, Session& session, Pool& pool, std::uint32_t participant,
                         const shmbw_queue_hold& wish);
// Gives back lanes that both ends have left, and removed queues without ends. True: something changed.
bool settle_lanes(Pools& pools, Pool& pool);
void drop_lanes(Pools& pools, Pool& pool);  // at the pool's end
// Drops the holds on regions without any lease that no message of the lane can name (idle_holds.hpp). Returns how many
// cache lines it looked at. `waits`: such regions exist, and so do unread messages.
std::size_t drop_idle_holds(Pools& pools, Pool& pool, std::uint32_t lane, bool& waits);
bool lane_received(Pool& pool, std::uint32_t lane);  // no process can take a message from it any more
std::uint32_t unread_lanes(Pool& pool, std::uint32_t participant);

// First fit over the ranges that the lane table shows as used, so that no other record is needed. nullopt: no gap is so
// large.
std::optional<std::uint64_t> find_lane_memory(const PoolTables& tables, std::uint64_t bytes);
std::uint64_t lane_memory_used(const PoolTables& tables);

}  // namespace shmb::daemon
