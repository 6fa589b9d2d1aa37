// SPDX-License-Identifier: Apache-2.0
// Addressing and wording shared by the handlers.
#include "daemon/ledger/views.hpp"

#include "daemon/ledger/groups.hpp"

namespace shmb::daemon {

Group* addressed_group(Groups& groups, Session& session, std::uint32_t owner, std::string_view text) {
  if (text.empty()) return session.group;
  Group* group = find_group(groups, owner, text);
  return group && !group->closed && may_address(session, *group) ? group : nullptr;
}

std::uint32_t region_flags(const Region& region) {
  std::uint32_t flags = 0;
  if (region.many_writers) flags |= SHMBW_REGION_MANY_WRITERS;
  if (region.name) flags |= SHMBW_REGION_NAMED;
  if (region.name && region.group->kept()) flags |= SHMBW_REGION_KEPT;
  if (region.dirty_birth) flags |= SHMBW_REGION_DIRTY_BIRTH;
  if (!region.sealed()) flags |= SHMBW_REGION_WRITE_OPEN;
  if (on_gpu(region)) flags |= SHMBW_REGION_GPU;
  if (region.heap) flags |= SHMBW_REGION_HEAP;
  if (region.name_with_holders) flags |= SHMBW_REGION_NAME_WITH_HOLDERS;
  if (region.hugetlb) flags |= SHMBW_REGION_HUGETLB;
  return flags;
}

std::string rights_text(std::uint32_t rights) {
  static constexpr std::pair<std::uint32_t, const char*> all[] = {{SHMBW_RIGHT_MAP_READ, "map_read"},
                                                                  {SHMBW_RIGHT_MAP_WRITE, "map_write"},
                                                                  {SHMBW_RIGHT_SHARE, "share"},
                                                                  {SHMBW_RIGHT_RELEASE, "release"}};
  std::string out;
  for (auto [bit, name] : all)
    if ((rights & bit) != 0) out += (out.empty() ? "" : " and ") + std::string(name);
  return out;
}

}  // namespace shmb::daemon
