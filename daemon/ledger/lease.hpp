// SPDX-License-Identifier: Apache-2.0
// One session's counted reference to one region. It is booked before the reply that carries its descriptor leaves (law
// 1). So a client killed at any instruction leaves nothing that is not in the books.
//
// A session has at most one lease on a region. A second attach adds to its count and its rights. The map of the session
// owns it, and the list of the region links it. The end of either side walks its own collection: the session's end
// drops leases, and a publication takes the right to write from each lease of the region.
#pragma once

#include <cstdint>

#include "daemon/books/booked.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/list.hpp"

namespace shmb::daemon {

class Session;
struct Regions;
struct Region;

// The fate of the last descriptor for writing that the session was given. A lease of several references has the
// smallest of their values, so the order matters.
enum class Reach : std::uint8_t {
  lent,    // nothing is known yet: the session may be about to map it
  later,   // the session has closed it: it asks for another one before it maps
  mapped,  // mapped, or there never was one: nothing could still be mapped for writing
};

struct OfRegion;
struct Lease : Hook<Lease, OfRegion>, books::Booked<Lease> {
  Region* region = nullptr;
  Session* session = nullptr;
  std::int64_t since = 0;
  std::uint64_t serial = 0;  // cursor of LIST, never reused
  std::uint32_t rights = 0;
  std::uint32_t count = 0;
  std::uint32_t pins = 0;  // GPU registrations of it: it is not sealed meanwhile
  bool kept = false;       // one reference is a mapping that the session gives back on request
  bool asked = false;      // the session was asked to give back what is kept now
  bool made = false;       // by the request that made the region: it may be undone
  Reach reach = Reach::lent;
  Charge charge;

  bool writes() const { return (rights & SHMBW_RIGHT_MAP_WRITE) != 0; }
  bool only_kept() const { return kept && count == 1; }
  bool may_still_map_for_writing() const { return writes() && reach != Reach::mapped; }
  bool lent_for_writing() const { return writes() && reach == Reach::lent; }
};

// Notes that its record has to be written again.
void changed(Lease& lease);

// Adds `count` references to those that the session may hold already, with the rights of both. Fails only by a limit.
Result<Lease*> book_lease(Regions& regions, Session& session, Region& region, std::uint32_t rights, std::uint32_t count,
                          Reach reach);
// The two halves of book_lease, for callers that cannot undo what lies in between: the only step that can fail, and the
// rest.
Result<Charge> charge_lease(Regions& regions, Session& session, const Region& region, std::uint32_t count);
Lease& book_charged(Regions& regions, Session& session, Region& region, std::uint32_t rights, std::uint32_t count,
                    Reach reach, Charge charge);
// The object alone, on a region on which the session has none.
Lease& add_lease(Regions& regions, Session& session, Region& region, std::uint64_t serial, Charge charge,
                 std::uint32_t rights, Reach reach);
Lease* find_lease(Session& session, const Region& region);
void set_lease(Regions& regions, Lease& lease, std::uint32_t rights, Reach reach);
// From now on one reference only keeps a mapping, or none does.
void keep_lease(Regions& regions, Lease& lease);
void use_lease(Regions& regions, Lease& lease);
// Asks the sessions that only keep their mappings of the region to release them. Each is asked once per report of a
// keep.
void ask_for_kept(Region& region);
// The region may be gone afterwards. `recycle`: onto the shelf.
void drop_lease(Regions& regions, Lease& lease, bool recycle = false);

}  // namespace shmb::daemon
