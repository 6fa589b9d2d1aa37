// SPDX-License-Identifier: Apache-2.0
// A world of workers: sessions of one uid that met at a port of this host. Who is a worker is a session's role and ends
// with its process, also where a forked child still has its socket. A world costs one of its uid's worlds, belongs to
// the group of the worker that made it, keeps that group up, and ends with its last worker or with the group. In a
// complete world the place of a worker that has died may be taken by another process of its rank and name. That is a
// new life with books of its own: what the dead one owned stays lost, and what it made is not the new one's to change.
// A world that cannot be complete any more, because a worker died or two have one name, ends at once for all its
// workers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "daemon/books.hpp"
#include "daemon/list.hpp"
#include "daemon/reference.hpp"
#include "daemon/timers.hpp"

namespace shmb::daemon {

class World;
class Session;
struct Group;
struct OfGroup;
struct Rendezvous;
struct Pool;

// One life of a rank. It stays when its process is gone: what it owned still names it.
struct Worker {
  static constexpr std::uint32_t kNoPlace = 0xffff'ffff;
  Rendezvous* home = nullptr;
  Session* session = nullptr;  // null: absent or gone
  std::string name;
  std::uint32_t rank = 0, uid = 0, pid = 0;
  shmbw_worker_state state = SHMBW_WORKER_STATE_ABSENT;
  std::uint32_t life = 0;                                      // see world_join in the table of the wire
  std::uint32_t participant = kNoPlace, participant_life = 0;  // in the pool of the world
  std::uint64_t first_counter = 0, last_counter = 0;           // of what it has booked: from the one behind the first
  std::uint64_t serial = 0;                                    // cursor of LIST
  List<Reference, OfOwner> owned;
  List<Fork, OfUser> forks;

  bool present() const { return state == SHMBW_WORKER_STATE_PRESENT; }
  // Of the two that count on one counter, rank and life: this one made it.
  bool made(const RefKey& key) const { return key.creator == rank && key.counter > first_counter; }
};

struct Rendezvous final : Timer, Hook<Rendezvous, OfGroup> {  // the timer ends the doubt
  Rendezvous(World& world, std::uint64_t id, Group& group, std::uint32_t size);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  ~Rendezvous();
  std::uint32_t flags() const;
  std::uint32_t died() const;
  void on_timer(std::int64_t now) override;

  World& world;
  std::uint64_t id;
  Group* group;
  std::uint32_t uid = 0, port = 0;
  std::string address;     // as the first worker was told it
  std::uint64_t pool = 0;  // as it was told: see pool_of()
  std::int64_t created = 0;
  Charge charge;
  bool complete = false;
  bool ending = false;  // complete, and somebody has left in order
  std::uint32_t present = 0, replaced = 0, last_life = 0;
  // Its first worker may be a late one of a world that failed: why, and the ranks that know. Null: it is not.
  std::shared_ptr<const Error> doubt;
  std::uint64_t in_the_know = 0;
  std::vector<std::unique_ptr<Worker>> workers;  // by rank: the life that has the place, or had it last
  std::vector<std::unique_ptr<Worker>> past;     // lives before those that references still name as their owners
  References references;
  Forks forks;
};

Result<Worker*> join_world(World& world, Session& session, const shmbw_world_join& wish, std::string_view address,
                           std::string_view name);
// The role ends; the world may be gone after it. `died`: nobody said goodbye.
void leave_world(World& world, Session& session, bool died);
void end_world(World& world, Rendezvous& rendezvous);  // with its group
void move_worker(Session& from, Session& to);
// The session has a place in the pool of its world: by it the others know who wrote a message.
void note_participant(Session& session, const Pool& pool, std::uint32_t index);
// A life before the present one that owns no reference any more is forgotten.
void forget_past(Rendezvous& rendezvous, const Worker& worker);

// The session's own worker in that world (0: whichever it is in); for whoever has none the world is not there. A worker
// whose world ended before it was complete is told why.
Result<Worker*> worker_in(const Session& session, std::uint64_t world);
// And the world is complete: before that there are no references.
Result<Worker*> working_in(const Session& session, std::uint64_t world);
void tell_world(Rendezvous& rendezvous, shmbw_world_change change, std::uint32_t rank, const Session* except = nullptr);
// Where its workers meet. 0: nobody has told it yet, or it has gone with the last of those who were in it.
std::uint64_t pool_of(World& world, const Rendezvous& rendezvous);
std::string worker_text(const Worker& worker);  // "worker 1 ('trainer')"

}  // namespace shmb::daemon
