// SPDX-License-Identifier: Apache-2.0
// See public_names.hpp.
#include "daemon/start/public_names.hpp"

#include <algorithm>
#include <string>

namespace shmb::daemon {

bool opens(const Limits& limits, const UserIds& reader, std::uint32_t owner, std::string_view group,
           std::string_view name) {
  if (limits.public_names.empty()) return false;
  const auto rule = limits.public_names.find(public_key(owner, group, name));
  if (rule == limits.public_names.end()) return false;
  const auto listed = [](const std::vector<std::uint32_t>& ids, std::uint32_t id) {
    return std::ranges::find(ids, id) != ids.end();
  };
  return listed(rule->second.uids, reader.uid) || listed(rule->second.gids, reader.gid) ||
         std::ranges::any_of(reader.groups, [&](std::uint32_t gid) { return listed(rule->second.gids, gid); });
}

}  // namespace shmb::daemon
