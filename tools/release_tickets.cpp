// SPDX-License-Identifier: Apache-2.0
// See release_tickets.hpp.
#include "tools/release_tickets.hpp"

#include <pwd.h>

#include <cerrno>
#include <charconv>
#include <optional>
#include <vector>

#include "base/result.hpp"
#include "base/text.hpp"
#include "client/region/region.hpp"
#include "proto/names.hpp"
#include "proto/refusal.hpp"
#include "tools/exit_code.hpp"
#include "tools/printable.hpp"
#include "tools/report_json.hpp"
#include "tools/resolve.hpp"
#include "tools/session.hpp"
#include "tools/view.hpp"

namespace shmb::tools {
namespace {

Result<std::uint32_t> user_of(const std::string& text) {
  std::uint32_t uid = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), uid);
  if (failure == std::errc{} && end == text.data() + text.size()) return uid;
  if (const passwd* const found = ::getpwnam(text.c_str())) return found->pw_uid;
  return error(Status::invalid, shmb::quoted(text) + " is no user of this host: give a name or a number");
}

// The target of the tickets, as far as the words alone say.
struct Meant {
  std::optional<Target> region;
  std::optional<names::Address> group;
  std::optional<std::uint32_t> owner;  // that these name
};

Result<Meant> meant_by(const TicketRelease& options) {
  Meant meant;
  if (!options.address.empty()) {
    SHMB_TRY(target, resolve(options.address));
    if (!target.id) meant.owner = names::parse_region(target.address)->owner_uid;
    meant.region = std::move(target);
  }
  if (!options.group.empty()) {
    SHMB_TRY(group, names::parse_group(options.group));
    meant.owner = group.owner_uid;
    meant.group = std::move(group);
  }
  return meant;
}

// The broker that a program of the caller finds. Tickets of another user are ended over its admin socket.
Result<Viewer> connect_for(const Common& common, std::optional<std::uint32_t>& user) {
  auto viewer = Viewer::connect(common);
  if (!viewer) return viewer;
  const std::uint32_t own = viewer->facts().uid;
  if (user.value_or(own) == own) {
    user = own;
    return viewer;
  }
  Common beside = common;
  beside.socket = viewer->facts().socket;
  auto admin = Viewer::connect(beside, true);
  if (!admin && (admin.error().system_errno == EACCES || admin.error().system_errno == EPERM))
    return error(Status::denied,
                 "tickets of " + user_text(*user) +
                     " are ended by that user, or by root and the broker's user: " + admin.error().sentence);
  return admin;
}

// An ended group has no name any more, and tickets may hold its regions. So all groups are searched.
Result<std::vector<std::uint64_t>> groups_of(const Viewer& viewer, const names::Address& group, std::uint32_t user,
                                             const std::string& text) {
  if (const auto id = names::group_id(group.group)) return std::vector{*id};
  Selection selection;
  selection.owner_uid = group.owner_uid.value_or(user);
  SHMB_TRY(groups, client::list_groups(viewer.session(), selection, viewer.deadline()));
  std::vector<std::uint64_t> found;
  for (const GroupRow& row : groups.rows)
    if (row.name == group.group) found.push_back(row.record.group);
  if (!found.empty()) return found;
  const wire::Sought sought{.what = "group", .name = text};
  return std::unexpected(client::asked_of(viewer.facts().socket, wire::not_found(sought)));
}

Result<client::TicketsEnded> end_tickets(const Viewer& viewer, const TicketRelease& options, const Meant& meant,
                                         std::uint32_t user) {
  client::TicketsMeant wish{.owner_uid = user, .region = {}, .group = 0, .held = options.end};
  if (meant.region) {
    SHMB_TRY(region, find(viewer, *meant.region));
    wish.region = region.record.region;
  }
  std::vector<std::uint64_t> groups{0};
  if (meant.group) {
    SHMB_TRY(found, groups_of(viewer, *meant.group, user, options.group));
    groups = std::move(found);
  }
  client::TicketsEnded all;
  for (const std::uint64_t group : groups) {
    wish.group = group;
    auto ended = client::release_tickets(viewer.session(), wish, viewer.deadline());
    if (!ended) return ended;
    all.tickets += ended->tickets;
    all.regions += ended->regions;
    all.bytes += ended->bytes;
    all.held += ended->held;
  }
  return all;
}

std::string ended_text(const TicketRelease& options, const client::TicketsEnded& ended, std::uint32_t user) {
  const std::string of = user_text(user);
  std::string text = ended.tickets == 0 ? "there was no ticket of " + of + " to end"
                                        : "ended " + count_text(ended.tickets, "ticket") + " of " + of;
  if (ended.tickets != 0)
    text += "; freed " + size_text(options.common, ended.bytes) + " in " + count_text(ended.regions, "region");
  if (ended.held != 0)
    text += "; " + count_text(ended.held, "ticket") +
            (ended.held == 1 ? " stays that a session" : " stay that sessions") + " may still use (--end ends " +
            (ended.held == 1 ? "it" : "them") + " too)";
  return printable(text) + "\n";
}

}  // namespace

int release_tickets(const TicketRelease& options) {
  const auto meant = meant_by(options);
  if (!meant) return fail(meant.error());
  std::optional<std::uint32_t> user = meant->owner;
  if (!options.user.empty()) {
    auto named = user_of(options.user);
    if (!named) return fail(named.error());
    user = *named;
  }
  auto viewer = connect_for(options.common, user);
  if (!viewer) return fail(viewer.error());
  auto ended = end_tickets(*viewer, options, *meant, *user);
  if (!ended) return fail(ended.error());
  if (!options.common.json) return print(ended_text(options, *ended, *user)) ? kExitOk : kExitError;
  Json json = document("release");
  if (!options.address.empty()) json["address"] = options.address;
  if (!options.group.empty()) json["group"] = options.group;
  json["uid"] = *user;
  json["tickets"] = ended->tickets;
  json["tickets_left"] = ended->held;
  json["regions_freed"] = ended->regions;
  json["bytes_freed"] = ended->bytes;
  return print(dump(json)) ? kExitOk : kExitError;
}

}  // namespace shmb::tools
