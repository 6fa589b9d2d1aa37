// SPDX-License-Identifier: Apache-2.0
// A world of workers: sessions of one uid that met at a port of this host. Being a worker is a role of a session. The
// role ends with the session's process, also if a forked child still has the socket. A world costs one of its uid's
// worlds. It belongs to the group of the worker that made it and keeps that group alive. It ends with its last worker
// or with the group.
//
// In a complete world another process of the same rank and name may replace a dead worker. That is a new life with its
// own references: what the dead worker owned stays lost, and its successor may not change what it made. A world can
// become impossible to complete, because a worker died or two have one name. It then ends at once for all its workers.
//
// Its states, in this order:
// - meeting: workers join. None of them may use references yet (working_in).
// - complete: every rank is present, or was replaced. References may be made.
// - ending: a worker has left in order. The places of dead workers stay empty from now on.
// - gone: no worker is left, its group has ended, or it failed while it was meeting. A failure stays known to the ranks
//   that it concerned (daemon/remote/failed_worlds.hpp), because they may ask later.
//
// The broker passes no message of a world. It gives out ranks and lives, and says who comes, leaves and dies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "daemon/books/booked.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/list.hpp"
#include "daemon/kit/timers.hpp"
#include "daemon/remote/reference.hpp"

namespace shmb::daemon {

struct Worlds;
class Session;
struct Group;
struct OfGroup;
struct World;
struct Pool;

// One life of a rank. It stays after its process is gone, because references that it owned still name it.
struct Worker : books::Booked<Worker> {
  static constexpr std::uint32_t kNoPlace = 0xffff'ffff;
  World* home = nullptr;
  Session* session = nullptr;  // null: absent or gone
  std::string name;
  std::uint32_t rank = 0, uid = 0, pid = 0;
  shmbw_worker_state state = SHMBW_WORKER_STATE_ABSENT;
  std::uint32_t life = 0;                                      // see world_join in the table of the wire
  std::uint32_t participant = kNoPlace, participant_life = 0;  // in the pool of the world
  // counters of its references: first_counter < counter <= last_counter
  std::uint64_t first_counter = 0, last_counter = 0;
  std::uint64_t serial = 0;  // cursor of LIST
  List<Reference, OfOwner> owned;
  List<Fork, OfUser> forks;

  bool present() const { return state == SHMBW_WORKER_STATE_PRESENT; }
  bool past() const;  // another life has its rank
  // A rank and its lives share one counter. True: this life made the reference.
  bool made(const RefKey& key) const { return key.creator == rank && key.counter > first_counter; }
};

struct World final : Timer, Hook<World, OfGroup>, books::Booked<World> {  // the timer ends the doubt
  World(Worlds& worlds, std::uint64_t id, Group& group, std::uint32_t size);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();
  std::uint32_t flags() const;
  std::uint32_t died() const;
  void on_timer(std::int64_t now) override;

  Worlds& worlds;
  std::uint64_t id;
  Group* group;
  std::uint32_t uid = 0, port = 0;
  std::string address;     // as the first worker gave it
  std::uint64_t pool = 0;  // as the first worker gave it: see pool_of()
  std::int64_t created = 0;
  Charge charge;
  bool complete = false;
  bool ending = false;  // complete, and a worker has left in order
  std::uint32_t present = 0, replaced = 0, last_life = 0;
  // Set when its first worker may be a late one of a world that failed: the cause, and the ranks that have it. Null: no
  // doubt.
  std::shared_ptr<const Error> doubt;
  std::uint64_t in_the_know = 0;
  std::vector<std::unique_ptr<Worker>> workers;  // by rank: the life that has the place, or had it last
  std::vector<std::unique_ptr<Worker>> past;     // earlier lives that references still name as their owners
  References references;
  Forks forks;
};

// Notes that its record must be written again.
void changed(World& world);
void changed(Worker& worker);

Result<Worker*> join_world(Worlds& worlds, Session& session, const shmbw_world_join& wish, std::string_view address,
                           std::string_view name);
// The role ends, and the world may be gone afterwards. `died`: the worker left without a farewell.
void leave_world(Worlds& worlds, Session& session, bool died);
void end_world(Worlds& worlds, World& world);  // its group has ended
void move_worker(Session& from, Session& to);
// The session has a place in the pool of its world. By that place others know the writer of a message.
void note_participant(Session& session, const Pool& pool, std::uint32_t index);
// Forgets an earlier life that owns no reference any more.
void forget_past(World& world, const Worker& worker);

// The session's own worker in that world (0: the world that it is in). For a session without a worker there, the world
// does not exist. A worker whose world ended before it was complete gets the cause.
Result<Worker*> worker_in(const Session& session, std::uint64_t world);
// As worker_in, and the world must be complete: before that there are no references.
Result<Worker*> working_in(const Session& session, std::uint64_t world);
void tell_world(World& world, shmbw_world_change change, std::uint32_t rank, const Session* except = nullptr);
// The pool in which its workers meet. 0: no worker has named it yet, or it is gone.
std::uint64_t pool_of(Worlds& worlds, const World& world);
std::string worker_text(const Worker& worker);  // "worker 1 ('trainer')"

}  // namespace shmb::daemon
