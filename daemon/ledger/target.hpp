// SPDX-License-Identifier: Apache-2.0
// How a request names the region it is about: by identity, by name in a group, or by a ticket. A session that may not
// address a region gets the answer for a region that does not exist.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

class Session;
struct Regions;
struct Sessions;
struct Region;
struct Ticket;

struct Target {
  Region* region = nullptr;
  std::uint32_t may = 0;  // the rights that the session can get
  Ticket* ticket = nullptr;
  bool by_public_name = false;
};

struct Naming {
  std::uint32_t by = SHMBW_ATTACH_BY_NONE;
  shmbw_region_ref region{};
  const std::uint8_t* ticket = nullptr;  // 16 bytes
  std::uint32_t owner_uid = 0;           // of the group name
  std::string_view group, name;
};
Result<Target> find_target(Sessions& sessions, Session& session, const Naming& naming);
Result<Target> target_by_id(Regions& regions, Session& session, const shmbw_region_ref& ref);
// Checks that the rights are known, include map_read, and can be granted.
Result<void> check_rights(const Target& target, std::uint32_t rights);

}  // namespace shmb::daemon
