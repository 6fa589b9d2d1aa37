// SPDX-License-Identifier: Apache-2.0
// Groups from a session's view: make, join, leave, end, and wait for the end. A token admits by its value alone, a name
// only its own uid; the broker decides, the library only asks.
#include <algorithm>
#include <cstring>
#include <utility>

#include "client/session/call.hpp"
#include "client/session/late_reply.hpp"
#include "client/session/session.hpp"
#include "proto/names.hpp"

namespace shmb::client {

Result<GroupHandle> Session::create_group(const GroupSpec& spec, Deadline deadline) {
  if (local_) return needs_broker("groups");
  if (!spec.name.empty()) SHMB_TRY_VOID(names::check(spec.name, "group name"));
  shmbw_group_create request{};
  request.flags = spec.flags;
  request.limit_regions = spec.limit_regions;
  request.limit_bytes = spec.limit_bytes;
  request.keep = spec.keep;
  request.name_len = static_cast<std::uint16_t>(spec.name.size());
  SHMB_TRY(answer, client::call<SHMBW_OP_GROUP_CREATE>(*this, request, {spec.name}, deadline));
  GroupHandle group{answer.fixed.group, {}};
  std::memcpy(group.token.bytes.data(), answer.fixed.token, sizeof answer.fixed.token);
  if (group.id == 0 || group.token == Token{})
    return error(Status::protocol, "the broker's answer to GROUP_CREATE names no group");
  return group;
}

Result<std::uint64_t> Session::join(shmbw_group_join request, const std::string& name, Deadline deadline) {
  request.name_len = static_cast<std::uint16_t>(name.size());
  auto answer = client::call<SHMBW_OP_GROUP_JOIN>(*this, request, {name}, deadline);
  if (!answer) return std::unexpected(of_broker(std::move(answer.error())));
  if (answer->fixed.group == 0) return error(Status::protocol, "the broker's answer to GROUP_JOIN names no group");
  return answer->fixed.group;  // the channel has noted it
}

Result<std::uint64_t> Session::join_group(const std::string& group, std::uint32_t flags, Deadline deadline) {
  if (local_) return needs_broker("groups");
  SHMB_TRY(address, names::parse_group(group));
  shmbw_group_join request{};
  request.flags = flags;
  if (address.owner_uid) {
    request.flags |= SHMBW_JOIN_OWNER_GIVEN;
    request.owner_uid = *address.owner_uid;
  }
  return join(request, address.group, deadline);
}

Result<std::uint64_t> Session::join_group(const Token& token, std::uint32_t flags, Deadline deadline) {
  if (local_) return needs_broker("groups");
  if (token == Token{}) return error(Status::invalid, "a group token of zeros admits to no group");
  shmbw_group_join request{};
  request.flags = flags;
  std::memcpy(request.token, token.bytes.data(), sizeof request.token);
  return join(request, {}, deadline);
}

Result<std::uint64_t> Session::leave_group(std::uint64_t group, Deadline deadline) {
  if (local_) return needs_broker("groups");
  SHMB_TRY(answer, client::call<SHMBW_OP_GROUP_LEAVE>(*this, shmbw_group_leave{group}, {}, deadline));
  return answer.fixed.group;  // the channel has noted it
}

Result<GroupEnding> Session::end_group(std::uint64_t group, const std::string& name, std::uint32_t flags,
                                       Deadline deadline) {
  if (local_) return needs_broker("groups");
  shmbw_group_end request{};
  request.group = group;
  request.flags = flags;
  request.name_len = static_cast<std::uint16_t>(name.size());
  auto answer = client::call<SHMBW_OP_GROUP_END>(*this, request, {name}, deadline);
  if (!answer) return std::unexpected(of_broker(std::move(answer.error())));
  return GroupEnding{answer->fixed.members, answer->fixed.regions, answer->fixed.bytes_freed};
}

Result<GroupLimit> Session::limit_group(std::uint64_t group, const std::string& name, std::uint64_t bytes,
                                        Deadline deadline) {
  if (local_) return needs_broker("groups");
  shmbw_group_limit request{};
  request.group = group;
  request.bytes = bytes;
  request.name_len = static_cast<std::uint16_t>(name.size());
  auto answer = client::call<SHMBW_OP_GROUP_LIMIT>(*this, request, {name}, deadline);
  if (!answer) return std::unexpected(of_broker(std::move(answer.error())));
  return GroupLimit{answer->fixed.bytes, answer->fixed.before, answer->fixed.used};
}

// The death of the awaited side ends the wait by itself: the broker tells the group's end, and its own end is seen
// here.
Result<void> Session::wait_group(std::uint64_t group, Deadline answer, Deadline wait) {
  if (local_) return needs_broker("groups");
  for (;;) {
    WatchSpec spec;
    spec.kind = SHMBW_WATCH_KIND_GROUP;
    spec.group = group;
    OwnWatch watch(*this);
    SHMB_TRY_VOID(watch.begin(spec, answer));
    if ((watch.state() & SHMBW_WATCH_EVENT_ENDED) != 0) return {};
    auto event = watch.await(wait);
    if (!event && event.error().status == Status::deadline)
      return error(Status::deadline,
                   "the group did not end before the deadline: it still has members, which "
                   "`shmbroker list --groups` and `list --processes` show");
    if (!event) return std::unexpected(std::move(event.error()));
    if (event->kind == Event::Kind::group_ended) return {};
    answer = Deadline::after(0);  // a gap: ask again, the end may have been among what was lost
  }
}

// Late answers: what they grant is no news for the session, and is left (group_places.hpp).

void undo_group_create(LateReply& late) {
  // One that may have been there before is not given up: perhaps the session had it already.
  if ((late.request<shmbw_group_create>().flags & SHMBW_GROUP_ADOPT_EXISTING) != 0) return;
  late.groups.late.created.push_back(late.fixed<shmbw_group_create_reply>().group);
}

void undo_group_join(LateReply& late) {
  const bool supervises = (late.request<shmbw_group_join>().flags & SHMBW_JOIN_SUPERVISOR) != 0;
  GroupPlaces::Late& places = late.groups.late;
  (supervises ? places.supervised : places.member) = late.fixed<shmbw_group_join_reply>().group;
}

void GroupPlaces::note(std::uint16_t op, const wire::PacketView& reply, std::span<const std::byte> request, bool told) {
  const auto asked = [&]<class T>(T out) {
    std::memcpy(&out, request.data(), std::min(sizeof out, request.size()));
    return out;
  };
  switch (op) {
    case SHMBW_OP_GROUP_CREATE:
      if (told) std::erase(late.created, fixed_part<shmbw_group_create_reply>(reply).group);
      return;
    case SHMBW_OP_GROUP_JOIN: {
      if (!told) return;
      const bool supervises = (asked(shmbw_group_join{}).flags & SHMBW_JOIN_SUPERVISOR) != 0;
      (supervises ? supervised : member) = fixed_part<shmbw_group_join_reply>(reply).group;
      (supervises ? late.supervised : late.member) = 0;  // it has taken the place of the late one, or is the same
      return;
    }
    case SHMBW_OP_GROUP_LEAVE:  // a late one has left, too
      member = fixed_part<shmbw_group_leave_reply>(reply).group;
      if (supervised == asked(shmbw_group_leave{}).group) supervised = 0;
      return;
    default:
      return;
  }
}

std::vector<std::uint64_t> GroupPlaces::take_late() {
  const Late gone = std::exchange(late, {});
  std::vector<std::uint64_t> leave;
  if (gone.supervised != 0 && gone.supervised != supervised) leave.push_back(gone.supervised);
  if (gone.member != 0 && gone.member != member) {
    member = 0;  // the join took the session out of its group
    // GROUP_LEAVE names no role: of a group that is supervised too it would give up that. 0: the one it is a member of.
    leave.push_back(gone.member == supervised ? 0 : gone.member);
  }
  for (const std::uint64_t group : gone.created)
    if (group != member && group != supervised) leave.push_back(group);
  return leave;
}

}  // namespace shmb::client
