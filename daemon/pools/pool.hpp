// SPDX-License-Identifier: Apache-2.0
// A pool: a directory that only the broker writes, a control area that participants and broker change word by word, and
// regions cut into slots. It belongs to a group. At birth it costs two of the group's regions and its bytes. Its
// participants hold it, and so does its name, until the group has ended and the keep is over. After the end of its
// group every call in it fails. An index is given out again only when no word of the control area names its last life.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "base/mapping.hpp"
#include "base/result.hpp"
#include "daemon/books/booked.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/list.hpp"
#include "daemon/kit/timers.hpp"
#include "daemon/ledger/region.hpp"
#include "daemon/pools/pool_repair.hpp"
#include "daemon/pools/pool_tables.hpp"
#include "daemon/pools/queue.hpp"
#include "proto/names.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::daemon {

struct Pool;
struct Pools;
class Session;
struct Group;

struct Participant : books::Booked<Participant> {
  Pool* pool = nullptr;
  pool::ParticipantState state = pool::ParticipantState::free;
  bool read_only = false;
  bool has_doorbell() const { return static_cast<bool>(doorbell); }
  std::uint32_t life = 0;
  Session* session = nullptr;  // null: dead or left
  std::uint32_t uid = 0, pid = 0;
  std::uint64_t serial = 0;  // cursor of LIST, never reused
  Fd doorbell;
  std::uint32_t doorbell_of = 0;  // the uid that sent it
  std::unique_ptr<Repair> repair;
};

// Entered once, and never taken away while the pool lives.
struct Segment {
  Region* region = nullptr;
  std::uint64_t slot_size = 0;
  std::uint32_t first_slot = 0, slots = 0, slots_limit = 0;
  std::uint32_t place = books::kNowhere;  // of its record
};

// The timer repairs.
struct Pool final : Timer, Hook<Pool, OfGroup>, RepairFacts, PoolTables, books::Booked<Pool> {
  Pool(Pools& pools, std::uint64_t id, Group& group);
  ~Pool();
  void on_timer(std::int64_t now) override;
  bool receivers_done(std::uint32_t lane) override;
  void wake_peers() override;
  void wake_sleepers();
  void tell_peers();  // those with a doorbell
  std::string text() const { return name.empty() ? names::id_text(id) : "'" + name + "'"; }
  std::uint64_t live() const;   // participants, one bit each
  std::uint64_t bytes() const;  // with its segments

  Pools& pools;
  std::uint64_t id;
  Group* group;
  std::string name;  // empty: unnamed
  bool name_with_holders = false;
  std::int64_t created = 0, keep = 0;
  std::uint64_t lane_bytes = 0;
  std::uint32_t owner_uid = 0;
  Fd directory, control;
  Mapping directory_map, control_map;
  Charge regions_charge, bytes_charge, name_charge;
  std::array<Participant, pool::kParticipants> participants;
  LaneInMaking making;
  std::vector<Segment> segments;
  std::uint32_t slots = 0, last_lane_serial = 0, slots_used = 0, slots_high = 0, deaths = 0;
  std::int64_t retry = 0, look_at = 0;  // the pause, and the time of the next look of waiting repairs
  bool look_again = false;              // or at once: something has changed for them
};

struct PoolArea {
  Fd fd;
  Mapping map;
};
struct PoolParts {
  std::uint64_t id;
  Group& group;
  std::string_view name;
  pool::Shape shape;
  PoolArea directory, control;
  Charge regions_charge, bytes_charge, name_charge;
};
// The object alone, with the memory that it owns from now on and what is paid for it.
Pool& add_pool(Pools& pools, PoolParts parts);
inline constexpr std::uint64_t kRegionsOfPool = 2;  // as which its two areas count

struct Joined {
  Pool* pool = nullptr;
  std::uint32_t index = 0;
};
Result<Joined> make_pool(Pools& pools, Session& session, const shmbw_pool_create& wish, std::string_view name);
Result<Joined> join_pool(Pools& pools, Session& session, Pool& pool, bool read_only);
// Returns how many of its lanes hold messages that are still unread.
std::uint32_t leave_pool(Pools& pools, Pool& pool, std::uint32_t index);
struct Cut {
  std::uint32_t segment = 0, first_slot = 0;
};
Result<Cut> add_segment(Pools& pools, Session& session, Pool& pool, const shmbw_pool_segment& wish);
Result<void> set_doorbell(Pools& pools, const Session& session, Pool& pool, std::uint32_t index, Fd doorbell);

// Notes that its record must be written again. That of the pool is also for a new segment. The directory is not
// written.
void changed(Pool& pool);
void changed(Participant& participant);
void changed(QueueBook& queue);
void changed(LaneBook& lane);

Pool* find_pool(Pools& pools, std::uint64_t id);
// Everything in the pool fails from now on, and its sleepers wake.
void break_pool(Pool& pool, pool::Broken why);
// Its name becomes free. The pool ends with its last participant.
void unname_pool(Pool& pool);
// Its group has ended and does not keep the pool.
void close_pool(Pools& pools, Pool& pool);
// The same for all pools of a group that has ended. An unnamed pool ends with its group at once. A named pool has a
// keep, like a named region; `all`: no keep counts any more. Returns when the next keep ends, kNever for none.
std::int64_t end_pools(Pools& pools, Group& group, std::int64_t now, bool all);
// Destroys the pool if nothing holds it. The pool, and a group that has ended, may be gone afterwards.
void settle_pool(Pools& pools, Pool& pool);
// The process of this session has ended, or the broker cannot learn when it will.
void end_participations(Pools& pools, Session& session);
// Ends its places in pools that are over. Nothing in such a pool is given out again, so nothing waits for the process'
// end.
void leave_pools_over(Pools& pools, Session& session);
// The session's requests are not answered any more.
void forget_lanes_in_making(Pools& pools, const Session& session);
void move_participations(Pools& pools, Session& from, Session& to);
// A table of the directory has changed: wakes the participants. What a request gives them goes by give() (pools.hpp).
void pool_changed(Pool& pool);

// An end is through with a lane. Its memory may be given out again, and waiting repairs look again.
void lanes_changed(Pools& pools, Pool& pool);

// For a broker that makes pools from records (daemon/serve/load_pools.hpp).
Result<Mapping> map_again(int memory, std::uint64_t bytes);
void begin_repair(Pool& pool, std::uint32_t index);  // of a participant that is dead or has left
// A process still maps it, and nothing will report the end of that process. So nothing in it may be given out again.
void lose_pool(Pool& pool);
// Writes its directory again, and wakes whom the dead broker may not have woken. A pool with a live participant whose
// session is not there is lost.
void resume_pool(Pools& pools, Pool& pool);

// The session's own place in a pool. For a session without a place the pool does not exist. `usable`: the pool is not
// over.
Result<Joined> place_in(Pools& pools, Session& session, std::uint64_t pool);
Result<Joined> usable_place_in(Pools& pools, Session& session, std::uint64_t pool);
// Says what is short in the pool itself, and what helps.
Error refuse_in_pool(const Pool& pool, shmbw_slot slot, std::uint64_t limit, std::uint64_t used, std::uint64_t asked,
                     std::string_view remedy);
Result<void> usable(const Pool& pool);

}  // namespace shmb::daemon
