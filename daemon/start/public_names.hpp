// SPDX-License-Identifier: Apache-2.0
// Names that an administrator has opened to other users, read-only: `[public."UID:GROUP/NAME"]` in the configuration.
// For all others such a name does not exist, as any name of another user (law 8).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "daemon/start/config.hpp"

namespace shmb::daemon {

// A user, as the kernel knows the peer: its uid, its gid, and the groups that it is in beside that.
struct UserIds {
  std::uint32_t uid = 0, gid = 0;
  std::span<const std::uint32_t> groups;
};
// Whether a rule opens the region of this name to the reader.
bool opens(const Limits& limits, const UserIds& reader, std::uint32_t owner, std::string_view group,
           std::string_view name);

}  // namespace shmb::daemon
