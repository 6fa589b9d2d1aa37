// SPDX-License-Identifier: Apache-2.0
// See target.hpp.
#include "daemon/ledger/target.hpp"

#include "daemon/ledger/grant.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/sessions.hpp"
#include "daemon/ledger/tickets.hpp"
#include "daemon/ledger/views.hpp"
#include "daemon/start/public_names.hpp"
#include "proto/names.hpp"

namespace shmb::daemon {

Result<Target> target_by_id(Regions& regions, Session& session, const shmbw_region_ref& ref) {
  // One search and one look, also where there is no such region: then at its neighbour. So the time of the answer does
  // not tell another user's region from none.
  const auto near = regions.all.lower_bound(ref.id);
  const bool live = near != regions.all.end() && near->second.live();
  const std::uint32_t may = live ? authority(session, near->second) : 0;
  if (may == 0 || near->first != ref.id) return std::unexpected(no_such_region(ref.id));
  Region* const region = &near->second;
  if (ref.generation != 0 && ref.generation != region->generation)
    return std::unexpected(stale_region(ref.id, ref.generation, region->generation));
  return Target{region, may, nullptr};
}

static bool opened_to(const Host& host, const Session& session, const Naming& naming) {
  if (session.link == nullptr) return false;
  const Peer& peer = session.link->peer();
  return opens(host.config.limits, {peer.uid, peer.gid, peer.groups}, naming.owner_uid, naming.group, naming.name);
}

static Result<Target> target_by_name(Sessions& sessions, Session& session, const Naming& naming) {
  SHMB_TRY_VOID(names::check(naming.name, "region name"));
  Group* group = addressed_group(sessions.groups, session, naming.owner_uid, naming.group);
  Region* region = group ? group->names.find(naming.name) : nullptr;
  if (!group && opened_to(sessions.host, session, naming)) {
    Group* const owners = find_group(sessions.groups, naming.owner_uid, naming.group);
    region = owners != nullptr && !owners->closed ? owners->names.find(naming.name) : nullptr;
    if (region) return Target{region, SHMBW_RIGHT_MAP_READ, nullptr, true};
  }
  if (!region)
    return std::unexpected(
        no_such_name(sessions.groups, session, "region", naming.owner_uid, naming.group, naming.name));
  return Target{region, SHMBW_RIGHT_KNOWN, nullptr};
}

Result<Target> find_target(Sessions& sessions, Session& session, const Naming& naming) {
  if (naming.by == SHMBW_ATTACH_BY_NAME) return target_by_name(sessions, session, naming);
  if (!naming.group.empty() || !naming.name.empty())
    return error(Status::invalid, "names in an attach that is not by name");
  if (naming.by == SHMBW_ATTACH_BY_ID) return target_by_id(sessions.regions, session, naming.region);
  if (naming.by != SHMBW_ATTACH_BY_TICKET) return error(Status::invalid, "attach by id, name or ticket");
  std::uint8_t bytes[16];
  std::copy_n(naming.ticket, sizeof bytes, bytes);
  Ticket* ticket = find_ticket(sessions.tickets, Secret::from(bytes));
  if (!ticket) return std::unexpected(no_such_ticket());
  return Target{ticket->region, ticket->rights, ticket};
}

Result<void> check_rights(const Target& target, std::uint32_t rights) {
  if ((rights & ~target.may) == 0) return {};
  return error(Status::denied, std::string(target.ticket           ? "the ticket"
                                           : target.by_public_name ? "the public name"
                                                                   : "the session's lease") +
                                   " does not carry " + rights_text(rights & ~target.may));
}

}  // namespace shmb::daemon
