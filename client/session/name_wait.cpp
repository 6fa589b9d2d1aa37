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
  Session::OwnWatch own(session), of_user(session);
  auto begun = own.begin(spec, Deadline::after(0));
  // A session that has no group yet cannot watch a name in it.
  if (!begun && (!second || begun.error().status != Status::not_found)) return begun;
  if (second) {
    spec.address = second->group + "/" + second->name;
    SHMB_TRY_VOID(of_user.begin(spec, Deadline::after(0)));
  }
  if (own.state() != 0 || of_user.state() != 0) return {};
  Channel::Subscription* const both[] = {&own.subscription(), &of_user.subscription()};
  SHMB_TRY_VOID(session.await_any(both, deadline, second ? std::optional(group) : std::nullopt));
  return {};
}

}  // namespace shmb::client
