// SPDX-License-Identifier: Apache-2.0
// See name_wait.hpp. A watch tells what holds already, so no name is missed between a request and its watch.
#include "client/session/name_wait.hpp"

#include <optional>
#include <string>

#include "client/session/user_group.hpp"

namespace shmb::client {

Result<void> wait_for_name(Session& session, const names::Address& address, Named what, Deadline deadline) {
  WatchSpec spec;
  spec.kind = SHMBW_WATCH_KIND_NAME;
  spec.pool = what == Named::pool;
  if (address.owner_uid) spec.address = std::to_string(*address.owner_uid) + ":";
  if (!address.group.empty()) spec.address += address.group + "/";
  spec.address += address.name;
  const auto second = in_user_group(session, address);
  const std::uint64_t group = session.facts().group;
  Session::OwnWatch own(session), of_user(session), end(session);
  auto begun = own.begin(spec, Deadline::after(0));
  // A session that has no group yet cannot watch a name in it.
  if (!begun && (!second || begun.error().status != Status::not_found)) return begun;
  if (second) {
    spec.address = second->group + "/" + second->name;
    SHMB_TRY_VOID(of_user.begin(spec, Deadline::after(0)));
  }
  // No name comes in a group that has ended. Without this watch the wait is as long as its deadline. So it is no
  // failure if the broker gives none.
  bool ended = false;
  const bool named = !address.group.empty();
  if (named || group != 0) {
    spec = {};
    spec.kind = SHMBW_WATCH_KIND_GROUP;
    if (!named) spec.group = group;
    else spec.address = (address.owner_uid ? std::to_string(*address.owner_uid) + ":" : "") + address.group;
    auto watched = end.begin(spec, Deadline::after(0));
    ended = !watched && (watched.error().status == Status::not_found || watched.error().status == Status::group_ended);
  }
  if (own.state() != 0 || of_user.state() != 0) return {};
  // A name may also be waited for before its group is there, and in a group that will be made again.
  ended = !named && (ended || (end.state() & SHMBW_WATCH_EVENT_ENDED) != 0);
  if (ended && session.facts().group != group) return {};  // it has left that group meanwhile
  if (ended)
    return error(Status::group_ended, "the group of this session has ended while it waited for '" + address.name +
                                          "'; leave it or join another one");
  // The end of the group, too, is a reason to ask again: the session may have left it for another one just now.
  Channel::Subscription* const all[] = {&own.subscription(), &of_user.subscription(), &end.subscription()};
  SHMB_TRY(event, session.await_any(all, deadline, second ? std::optional(group) : std::nullopt));
  if (named && event.kind == Event::Kind::group_ended)
    return error(Status::group_ended, "group '" + address.group + "' has ended while this session waited for '" +
                                          address.name + "' in it: wait again if it is to be made again");
  return {};
}

}  // namespace shmb::client
