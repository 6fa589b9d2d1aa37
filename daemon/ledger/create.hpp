// SPDX-License-Identifier: Apache-2.0
// A create succeeds whole or fails with a sentence and leaves nothing (law 5).
//
// So its steps have an order: the checks of the words, the group, the charge for the name, then the memory with its
// charges, and the lease. The memory comes from the shelf or is a new memfd. If the lease is refused, the memory goes
// back to where it came from. Only the last step cannot fail: the region gets its name, and its previous holder loses
// it.
#pragma once

#include <string_view>

#include "base/result.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/ledger/lease.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

struct Host;
struct Groups;
struct Regions;
class Session;
struct Group;
struct Region;

struct Created {
  Region* region = nullptr;
  const Lease* lease = nullptr;
  bool dirty = false;  // recycled: the client zeroes it unless it said uninitialised
};
Result<Created> create_region(Regions& regions, Session& session, const shmbw_create& wish, std::string_view name);

// Checks whether the region may take its promised name and keep, and returns the charge for a new name. They take
// effect at publish. The previous holder of the name then loses it.
Result<Charge> may_keep_promise(Groups& groups, Session& session, Region& region);
void keep_promise(Regions& regions, Region& region, Charge charge);

// Checks whether a create may take the name that the region `old` has now (null: no region has it). Returns the charge
// for the name, or an empty one where the name is taken over.
Result<Charge> may_take_name(Groups& groups, Session& session, Group& group, Region* old, std::string_view name,
                             bool replace);
void give_name(Regions& regions, Region& region, std::string_view name, Charge charge);

Result<Group*> group_for_create(Regions& regions, Session& session, std::uint64_t id);
Result<Charge> charge_group(Regions& regions, const Session& session, Group& group, Resource resource,
                            std::uint64_t amount);
// Checks for room in the descriptor table, and in the share of the user who pays.
Result<void> room_for_descriptors(Regions& regions, const Session& session, std::uint32_t payer, std::uint64_t wanted);

// Frees `wanted` bytes of recycled memory: of the session's group first, then of other groups of its user. Returns how
// many bytes were freed.
std::uint64_t empty_shelves(Regions& regions, const Session& session, std::uint64_t wanted);

// Checks a keep that a region, a pool or a group may have: 0, up to limits.keep_max, or -1 (until released). An object
// without a name has none, because only a name holds it beyond the group.
Result<void> check_keep(const Host& host, std::int64_t keep, bool named);

}  // namespace shmb::daemon
