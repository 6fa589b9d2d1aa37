// SPDX-License-Identifier: Apache-2.0
// See user_group.hpp. The broker knows nothing special of this group.
#include "client/session/user_group.hpp"

#include <utility>

namespace shmb::client {
namespace {

constexpr std::int64_t kUserGroupKeep = 3'600'000'000'000;

}  // namespace

std::string user_group_name(std::uint32_t uid) { return "shell-" + std::to_string(uid); }

std::optional<names::Address> in_user_group(Session& session, const names::Address& address) {
  if (address.owner_uid || !address.group.empty()) return std::nullopt;
  names::Address second = address;
  second.group = user_group_name(session.facts().uid);
  return second;
}

Error in_neither(Error first, const names::Address& second) {
  if (const std::string place = "group '" + second.group + "'"; !first.sentence.contains(place))
    first.sentence += "; nor is it in " + place;
  return first;
}

Result<std::uint64_t> join_user_group(Session& session, Deadline deadline) {
  if (session.is_local()) return needs_broker("groups");
  GroupSpec spec;
  spec.name = user_group_name(session.facts().uid);
  spec.keep = kUserGroupKeep;
  spec.flags = SHMBW_GROUP_ADOPT_EXISTING;
  SHMB_TRY(group, session.create_group(spec, deadline));
  return session.join_group(group.token, 0, deadline);
}

}  // namespace shmb::client
