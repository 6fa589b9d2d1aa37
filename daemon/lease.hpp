// SPDX-License-Identifier: Apache-2.0
// One session's counted reference to one region. It is booked before the reply that carries its descriptor leaves
// (law 1), so a client killed at any instruction leaves nothing that is not in the books.
#pragma once

#include <cstdint>

#include "daemon/books.hpp"
#include "daemon/list.hpp"

namespace shmb::daemon {

class Session;
class World;
struct Region;

// What became of the last descriptor for writing that the session was given. The order counts: several references have
// the least of theirs.
enum class Reach : std::uint8_t {
  lent,    // nothing is known yet: it may be about to map it
  later,   // none is left: the session asks for another one before it maps
  mapped,  // mapped, or there never was one: nothing left that could still be mapped for writing
};

struct OfRegion;
struct Lease : Hook<Lease, OfRegion> {
  Region* region = nullptr;
  Session* session = nullptr;
  std::int64_t since = 0;
  std::uint64_t serial = 0;  // cursor of LIST, never reused
  std::uint32_t rights = 0;
  std::uint32_t count = 0;
  std::uint32_t pins = 0;  // times it is registered with a GPU: not sealed meanwhile
  bool kept = false;       // one reference is a mapping that the session gives back when it is asked
  bool asked = false;      // it was, for what is kept now
  Reach reach = Reach::lent;
  Charge charge;

  bool writes() const { return (rights & SHMBW_RIGHT_MAP_WRITE) != 0; }
  bool only_kept() const { return kept && count == 1; }
  bool may_still_map_for_writing() const { return writes() && reach != Reach::mapped; }
  bool lent_for_writing() const { return writes() && reach == Reach::lent; }
};

// `count` references more to what the session may hold already, with the rights of both. Fails only by a limit.
Result<Lease*> book_lease(World& world, Session& session, Region& region, std::uint32_t rights, std::uint32_t count,
                          Reach reach);
// The two halves of it, for what cannot be undone in between: the only step that can fail, and the rest.
Result<Charge> charge_lease(World& world, Session& session, const Region& region, std::uint32_t count);
Lease& book_charged(World& world, Session& session, Region& region, std::uint32_t rights, std::uint32_t count,
                    Reach reach, Charge charge);
Lease* find_lease(Session& session, const Region& region);
void set_lease(World& world, Lease& lease, std::uint32_t rights, Reach reach);
// One reference is only kept from now on, or none.
void keep_lease(World& world, Lease& lease);
void use_lease(World& world, Lease& lease);
// The sessions that only keep their mappings of it are asked to release them, once for each time that they said so.
void ask_for_kept(Region& region);
// The region may be gone after it (`recycle`: onto the shelf).
void drop_lease(World& world, Lease& lease, bool recycle = false);

}  // namespace shmb::daemon
