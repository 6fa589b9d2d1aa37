// SPDX-License-Identifier: Apache-2.0
// A create succeeds whole or fails with a sentence and leaves nothing (law 5).
#pragma once

#include <string_view>

#include "base/result.hpp"
#include "daemon/lease.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

class World;
class Session;
struct Region;

struct Created {
  Region* region = nullptr;
  const Lease* lease = nullptr;
  bool dirty = false;  // recycled: the client zeroes it unless it said uninitialised
};
Result<Created> create_region(World& world, Session& session, const shmbw_create& wish, std::string_view name);

// A keep that a region or a group may have: 0, up to limits.keep_max, -1 until released.
Result<void> check_keep(const World& world, std::int64_t keep);

}  // namespace shmb::daemon
