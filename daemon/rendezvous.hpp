// SPDX-License-Identifier: Apache-2.0
// A world of workers: sessions of one uid that met at a port of this host. Who is a worker is a session's role and ends
// with its process, also where a forked child still has its socket. A world costs one of its uid's worlds, belongs to
// the group of the worker that made it, keeps that group up, and ends with its last worker or with the group.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "daemon/books.hpp"
#include "daemon/list.hpp"
#include "daemon/reference.hpp"

namespace shmb::daemon {

class World;
class Session;
struct Group;
struct OfGroup;
struct Rendezvous;

// The one of a rank. It stays when its process is gone: what it owned still names it.
struct Worker {
  Rendezvous* home = nullptr;
  Session* session = nullptr;  // null: absent or gone
  std::string name;
  std::uint32_t rank = 0, uid = 0, pid = 0;
  shmbw_worker_state state = SHMBW_WORKER_STATE_ABSENT;
  std::uint64_t last_counter = 0, serial = 0;  // of what it has booked; cursor of LIST
  List<Reference, OfOwner> owned;
  List<Fork, OfUser> forks;

  bool present() const { return state == SHMBW_WORKER_STATE_PRESENT; }
};

struct Rendezvous : Hook<Rendezvous, OfGroup> {
  Rendezvous(World& world, std::uint64_t id, Group& group, std::uint32_t size);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  ~Rendezvous();
  std::uint32_t flags() const;
  std::uint32_t died() const;

  World& world;
  std::uint64_t id;
  Group* group;
  std::uint32_t uid = 0, port = 0;
  std::string address;  // as the first worker was told it
  std::uint64_t pool = 0;
  std::int64_t created = 0;
  Charge charge;
  bool complete = false;
  bool broken = false;  // somebody died before it was complete
  bool ending = false;  // complete, and somebody has left in order
  std::uint32_t present = 0;
  std::vector<Worker> workers;  // by rank, never resized
  References references;
  Forks forks;
};

Result<Worker*> join_world(World& world, Session& session, const shmbw_world_join& wish, std::string_view address,
                           std::string_view name);
// The role ends; the world may be gone after it. `died`: nobody said goodbye.
void leave_world(World& world, Session& session, bool died);
void end_world(World& world, Rendezvous& rendezvous);  // with its group
void move_worker(Session& from, Session& to);

// The session's own worker in that world (0: whichever it is in); for whoever has none the world is not there.
Result<Worker*> worker_in(const Session& session, std::uint64_t world);
// And the world is complete: before that there are no references.
Result<Worker*> working_in(const Session& session, std::uint64_t world);
void tell_world(Rendezvous& rendezvous, shmbw_world_change change, std::uint32_t rank, const Session* except = nullptr);
std::string worker_text(const Worker& worker);  // "worker 1 ('trainer')"

}  // namespace shmb::daemon
