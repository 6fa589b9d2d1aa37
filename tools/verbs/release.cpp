// SPDX-License-Identifier: Apache-2.0
// `shmbroker release`: removes the name of a region, or of a pool where no region has that name. The object then ends
// with its last holder, and no holder loses its memory. With --group it releases everything that an ended group keeps;
// a live group is ended only with --end. With --tickets it ends tickets that dead sessions left.
#include <CLI/CLI.hpp>
#include <memory>

#include "base/text.hpp"
#include "proto/names.hpp"
#include "tools/exit_code.hpp"
#include "tools/printable.hpp"
#include "tools/release_tickets.hpp"
#include "tools/report_json.hpp"
#include "tools/resolve.hpp"
#include "tools/session.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {
namespace {

struct ReleaseOptions {
  Common common;
  std::string address, group, user;
  bool end = false, tickets = false;
};

// The clause for a region without a name that tickets still hold. Empty: none does.
std::string held_by_tickets(const shmb_region_stat& stat) {
  if (stat.tickets == 0) return {};
  return count_text(stat.tickets, "ticket") + " can still open it: `shmbroker release --tickets " +
         names::id_text(stat.id.id) + "` ends those that ended sessions have left, and with --end all";
}

// @ID has to become an address, because the name is what is removed.
Result<std::string> address_of(const Session& session, const Target& target, shmb_region_stat& stat) {
  shmb_error failure{};
  stat = {};
  stat.size = sizeof stat;
  const int status = target.id ? shmb_stat_id(session.get(), &*target.id, session.timeout(), &stat, &failure)
                               : shmb_stat(session.get(), target.address.c_str(), session.timeout(), &stat, &failure);
  if (status != SHMB_OK) return std::unexpected(failed(failure));
  if (!target.id) return target.address;
  if (*stat.name == '\0')
    return error(Status::denied, shmb::quoted(target.text) + " has no name to take away: it goes with its last holder" +
                                     (stat.tickets == 0 ? "" : ", and " + held_by_tickets(stat)));
  const std::string group = *stat.group_name ? stat.group_name : names::id_text(stat.group);
  return std::to_string(stat.owner_uid) + ":" + group + "/" + stat.name;
}

// Only a participant can remove the name, so this process joins meanwhile. No region has that name.
int release_pool(const ReleaseOptions& options, const Session& session, const Target& target) {
  shmb_pool_open_options opening{};
  opening.size = sizeof opening;
  opening.timeout_ns = session.timeout();
  if (target.id) opening.id = target.id->id;
  shmb_pool* pool = nullptr;
  shmb_error failure{};
  const int opened =
      shmb_pool_open(session.get(), target.id ? nullptr : target.address.c_str(), &opening, &pool, &failure);
  if (opened == SHMB_E_NOT_FOUND) {
    auto viewer = Viewer::connect(options.common);
    return fail(viewer ? nothing_there("region and no pool", target, *viewer) : viewer.error());
  }
  if (opened != SHMB_OK) return fail(failed(failure));
  shmb_pool_info info{};
  info.size = sizeof info;
  int status = shmb_pool_get_info(pool, &info, &failure);
  if (status == SHMB_OK) status = shmb_pool_remove(pool, &failure);
  shmb_pool_close(pool);
  if (status != SHMB_OK) return fail(failed(failure));
  const std::uint32_t others = info.participants - 1;
  if (options.common.json) {
    Json json = document("release");
    json["id"] = pool_id_text(info.id);
    json["address"] = target.id ? pool_id_text(info.id) : target.address;
    json["group_id"] = info.group;
    json["pool"] = info.id;
    json["bytes"] = info.bytes;
    json["participants"] = others;
    return print(dump(json)) ? kExitOk : kExitError;
  }
  std::string text =
      "released pool " + (target.id ? target.text : target.address) + ", " + size_text(options.common, info.bytes);
  if (others != 0)
    text += "; " + std::to_string(others) + (others == 1 ? " session still uses it" : " sessions still use it") +
            ", the memory goes with the last";
  return print(printable(text) + "\n") ? kExitOk : kExitError;
}

int release_region(const ReleaseOptions& options, const Session& session) {
  auto target = resolve(options.address);
  if (!target) return fail(target.error());
  shmb_region_stat stat;
  auto address = address_of(session, *target, stat);
  if (!address && address.error().status == Status::not_found) return release_pool(options, session, *target);
  if (!address) return fail(address.error());
  shmb_error failure{};
  if (shmb_unname(session.get(), address->c_str(), session.timeout(), &failure) != SHMB_OK)
    return fail(failed(failure));
  if (options.common.json) {
    Json json = document("release");
    json["id"] = id_text({stat.id.id, stat.id.generation, 0});
    json["address"] = address_text(stat.owner_uid, stat.group, stat.group_name, stat.name);
    json["group"] = group_text(stat.group, stat.group_name);
    json["group_id"] = stat.group;
    json["name"] = std::string(stat.name);
    json["bytes"] = stat.bytes;
    json["holders"] = stat.holders;
    return print(dump(json)) ? kExitOk : kExitError;
  }
  std::string text =
      "released " + (target->id ? target->text : target->address) + ", " + size_text(options.common, stat.bytes);
  if (stat.holders != 0)
    text += "; " + std::to_string(stat.holders) +
            (stat.holders == 1 ? " session still uses it" : " sessions still use it") +
            ", the memory goes with the last";
  if (stat.tickets != 0) text += "; " + held_by_tickets(stat);
  return print(printable(text) + "\n") ? kExitOk : kExitError;
}

int release_group(const ReleaseOptions& options, const Session& session) {
  auto address = names::parse_group(options.group);
  if (!address) return fail(address.error());
  const std::uint64_t id = names::group_id(address->group).value_or(0);
  if (id == 0 && address->owner_uid && *address->owner_uid != session.info().uid)
    return fail(
        {Status::invalid,
         0,
         {},
         "a group of another user is named by its @ID, which root sees by `shmbroker list --groups --all-groups`"});
  shmb_group_ending ending{};
  shmb_error failure{};
  const std::uint32_t flags = SHMB_END_RELEASE_KEPT | (options.end ? 0U : unsigned{SHMB_END_KEPT_ONLY});
  const int status = shmb_group_end(session.get(), id, id == 0 ? address->group.c_str() : nullptr, flags,
                                    session.timeout(), &ending, &failure);
  if (status == SHMB_E_BUSY && !options.end) {
    Error refused = failed(failure);
    refused.sentence += "; `shmbroker release --group " + options.group +
                        " --end` ends the group: its names go, and its processes share nothing new by them";
    return fail(refused);
  }
  if (status != SHMB_OK) return fail(failed(failure));
  if (options.common.json) {
    Json json = document("release");
    json["group"] = options.group;
    json["bytes_freed"] = ending.bytes_freed;
    json["members_left"] = ending.members;
    json["regions_left"] = ending.regions;
    return print(dump(json)) ? kExitOk : kExitError;
  }
  const std::string tickets =
      ending.regions == 0 ? ""
                          : ", by sessions or by tickets (`shmbroker release --tickets --group " + options.group + "`)";
  const std::string ended = ending.members == 0
                                ? ""
                                : "; its " + std::to_string(ending.members) +
                                      (ending.members == 1 ? " session is" : " sessions are") + " in no group now";
  return print(printable("freed " + size_text(options.common, ending.bytes_freed) + " that group " + options.group +
                         " kept" + ended + "; " + std::to_string(ending.regions) +
                         (ending.regions == 1 ? " region is" : " regions are") + " still in use" + tickets) +
               "\n")
             ? kExitOk
             : kExitError;
}

int run_release(const ReleaseOptions& options) {
  if (options.tickets && !options.address.empty() && !options.group.empty())
    return fail({Status::invalid, 0, {}, "--tickets takes an address or --group, not both"});
  if (options.tickets)
    return release_tickets({options.common, options.address, options.group, options.user, options.end});
  if (!options.user.empty())
    return fail({Status::invalid, 0, {}, "--user goes with --tickets: it says whose tickets are ended"});
  if (options.end && options.group.empty())
    return fail({Status::invalid,
                 0,
                 {},
                 "--end goes with --group or --tickets: it ends a group whose processes still run, or tickets that "
                 "sessions may still use"});
  if (options.address.empty() == options.group.empty())
    return fail({Status::invalid, 0, {}, "release takes an address, --group or --tickets"});
  auto session = Session::connect(options.common, Start::never);
  if (!session) return fail(session.error());
  return options.group.empty() ? release_region(options, *session) : release_group(options, *session);
}

}  // namespace

Command add_release(CLI::App& app) {
  auto options = std::make_shared<ReleaseOptions>();
  CLI::App* verb =
      app.add_subcommand("release", "Release a region: it loses its name, and its memory with its last holder");
  verb->add_option("address", options->address, "NAME, GROUP/NAME, UID:GROUP/NAME or @ID");
  verb->add_option("--group", options->group, "All regions that this group keeps; it must have ended")
      ->type_name("GROUP");
  verb->add_flag("--tickets", options->tickets,
                 "Tickets that ended sessions left; with an address or --group those to that region or group");
  verb->add_option("--user", options->user, "With --tickets: those that this user made (default: you)")
      ->type_name("USER");
  verb->add_flag("--end", options->end,
                 "With --group: also end the group if its processes still run. With --tickets: all of the user");
  add_common(*verb, options->common, true, true);
  return {verb, [options] { return run_release(*options); }};
}

}  // namespace shmb::tools
