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

struct OfRegion;
struct Lease : Hook<Lease, OfRegion> {
  Region* region = nullptr;
  Session* session = nullptr;
  std::int64_t since = 0;
  std::uint64_t serial = 0;  // cursor of LIST, never reused
  std::uint32_t rights = 0;
  std::uint32_t count = 0;
  std::uint32_t pins = 0;  // times it is registered with a GPU: not sealed meanwhile
  bool mapped = false;  // reported READY, or holds no descriptor: nothing left that could still be mapped for writing
  Charge charge;

  bool writes() const { return (rights & SHMBW_RIGHT_MAP_WRITE) != 0; }
  bool may_still_map_for_writing() const { return writes() && !mapped; }
};

// `count` references more to what the session may hold already, with the rights of both. Fails only by a limit.
Result<Lease*> book_lease(World& world, Session& session, Region& region, std::uint32_t rights, std::uint32_t count,
                          bool mapped);
// The two halves of it, for what cannot be undone in between: the only step that can fail, and the rest.
Result<Charge> charge_lease(World& world, Session& session, const Region& region, std::uint32_t count);
Lease& book_charged(World& world, Session& session, Region& region, std::uint32_t rights, std::uint32_t count,
                    bool mapped, Charge charge);
Lease* find_lease(Session& session, const Region& region);
void set_lease(World& world, Lease& lease, std::uint32_t rights, bool mapped);
// The region may be gone after it (`recycle`: onto the shelf).
void drop_lease(World& world, Lease& lease, bool recycle = false);

}  // namespace shmb::daemon
