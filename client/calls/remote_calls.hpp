// SPDX-License-Identifier: Apache-2.0
// The requests of a worker to the broker: to join a world, and to book references and their forks. The broker has the
// only table of references. So an answer means that the reference is booked for every worker. The order of messages
// between workers means nothing.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/session/session.hpp"

namespace shmb::client {

// With its uid, `port` is the world's name: that the host of the address is this one is for the caller to check.
struct WorldRequest {
  std::uint32_t port = 0, rank = 0, world_size = 0;
  std::string address, name;  // as the user wrote it; the worker's
};
struct WorldPlace {
  std::uint64_t world = 0, group = 0, pool = 0;  // pool 0: the world has none yet
  std::uint32_t present = 0, flags = 0;          // shmbw_world_state_flags
  std::uint32_t life = 0;                        // of the caller: no two that ever joined this world have the same
};
struct WorldLeft {
  std::uint32_t present = 0, forks = 0;
};
Result<WorldPlace> join_world(Session& session, const WorldRequest& wish, Deadline deadline);
Result<WorldLeft> leave_world(Session& session, std::uint64_t world, Deadline deadline);
// Names the pool of the world. Returns the pool that the world has: the first one that a worker named.
Result<std::uint64_t> tell_world_pool(Session& session, std::uint64_t world, std::uint64_t pool, Deadline deadline);

inline constexpr std::uint32_t kOwnFork = 0xffff'ffff;
inline constexpr std::size_t kMaxReferenceError = 400, kMaxWorkerName = 127;

struct RefRequest {
  std::uint32_t owner = 0;
  std::uint32_t user = kOwnFork;  // or the rank to which the first fork is on its way: only the owner may say so
  shmbw_ref_state state = SHMBW_REF_STATE_REGISTERED;
  std::uint64_t counter = 0;  // not 0: that of a reference of the caller's own that the table has forgotten
  bool tell = false;          // ref_changed events for this worker's fork
  std::uint32_t owner_life = 0, user_life = 0;  // 0: any life; else worker_gone if the place has another one
};
struct RefMade {
  RefId reference, fork;
};
Result<RefMade> create_reference(Session& session, std::uint64_t world, const RefRequest& wish, Deadline deadline);

struct ForkRequest {
  RefId reference;
  std::uint32_t user = 0, user_life = 0;
};
// All or none, in the order of the wishes.
Result<std::vector<RefId>> fork_references(Session& session, std::uint64_t world, std::span<const ForkRequest> wishes,
                                           Deadline deadline);

struct RefTaken {
  RefId reference;
  std::uint32_t owner = 0, owner_life = 0;
  shmbw_ref_state state = SHMBW_REF_STATE_NONE;
};
Result<std::vector<Result<RefTaken>>> take_forks(Session& session, std::uint64_t world, std::span<const RefId> forks,
                                                 bool tell, Deadline deadline);
// Sent without waiting for an answer.
Result<void> release_forks(Session& session, std::uint64_t world, std::span<const RefId> forks, Deadline deadline);

// The state that stands. `why` goes with failed, and is cut to kMaxReferenceError.
Result<shmbw_ref_state> settle_reference(Session& session, std::uint64_t world, RefId reference, shmbw_ref_state state,
                                         std::string_view why, Deadline deadline);
struct RefFacts {
  shmbw_ref_state state = SHMBW_REF_STATE_NONE;
  std::uint32_t owner = 0, users = 0, in_flight = 0;
  std::int64_t created = 0;
  std::string error;
};
Result<RefFacts> ask_reference(Session& session, std::uint64_t world, RefId reference, bool tell, Deadline deadline);

}  // namespace shmb::client
