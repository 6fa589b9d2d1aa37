// SPDX-License-Identifier: Apache-2.0
// A create succeeds whole or fails with a sentence and leaves nothing (law 5).
#pragma once

#include <string_view>

#include "base/result.hpp"
#include "daemon/books.hpp"
#include "daemon/lease.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

class World;
class Session;
struct Group;
struct Region;

struct Created {
  Region* region = nullptr;
  const Lease* lease = nullptr;
  bool dirty = false;  // recycled: the client zeroes it unless it said uninitialised
};
Result<Created> create_region(World& world, Session& session, const shmbw_create& wish, std::string_view name);

// The name and the keep that the region was promised at its creation. May it have them now (the charge for a new name)?
// Then, once it is published, it gets them, and who had the name loses it.
Result<Charge> may_keep_promise(World& world, Session& session, Region& region);
void keep_promise(World& world, Region& region, Charge charge);

// What a create for a group begins with: the group that is meant; charges that drop recycled memory before they refuse;
// places in the descriptor table.
// `old` has the name now. The charge for it, or nothing where it is taken over.
Result<Charge> may_take_name(World& world, Session& session, Group& group, Region* old, std::string_view name,
                             bool replace);
void give_name(World& world, Region& region, std::string_view name, Charge charge);

Result<Group*> group_for_create(World& world, Session& session, std::uint64_t id);
Result<Charge> charge_group(World& world, const Session& session, Group& group, Slot slot, std::uint64_t amount);
// In the table, and in the share of the user who is charged.
Result<void> room_for_descriptors(World& world, const Session& session, std::uint32_t payer, std::uint64_t wanted);

// Gives up `wanted` bytes of recycled memory: of the session's group, then of the other groups of its user. Returns how
// many were there.
std::uint64_t empty_shelves(World& world, const Session& session, std::uint64_t wanted);

// A keep that a region or a group may have: 0, up to limits.keep_max, -1 until released.
Result<void> check_keep(const World& world, std::int64_t keep);

}  // namespace shmb::daemon
