// SPDX-License-Identifier: Apache-2.0
// `shmbroker inspect ADDRESS`: one region, who holds it with which rights, and what will become of it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "base/text.hpp"
#include "tools/exit_code.hpp"
#include "tools/report_json.hpp"
#include "tools/resolve.hpp"
#include "tools/table.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {
namespace {

struct InspectOptions {
  Common common;
  std::string address;
};

struct InspectFacts {
  RegionRow region;
  std::vector<LeaseRow> leases;
  std::vector<TicketRow> tickets;
  std::vector<SessionRow> sessions;
};

Result<InspectFacts> look(const Viewer& viewer, const Target& target) {
  auto region = find(viewer, target);
  if (!region) return std::unexpected(region.error());
  Selection one;
  one.region = region->record.region;
  one.owner_uid = region->record.owner_uid;
  auto held = client::list_leases(viewer.session(), one, viewer.deadline());
  if (!held) return std::unexpected(held.error());
  auto given = client::list_tickets(viewer.session(), one, viewer.deadline());
  if (!given) return std::unexpected(given.error());
  auto holders = client::list_sessions(viewer.session(), {}, viewer.deadline());
  if (!holders) return std::unexpected(holders.error());
  return InspectFacts{std::move(*region), std::move(held->rows), std::move(given->rows), std::move(holders->rows)};
}

std::string program_of(const InspectFacts& facts, const LeaseRow& lease) {
  auto found =
      std::ranges::find(facts.sessions, lease.record.session, [](const SessionRow& row) { return row.record.session; });
  return found == facts.sessions.end() ? "" : found->library;
}

std::string what_becomes_of_it(const InspectFacts& facts) {
  const shmbw_region_record& record = facts.region.record;
  if (record.freed_at != 0) return format_duration(record.keep) + " after the end of its group, which has ended";
  if (facts.region.name.empty()) return "goes with its last holder and ticket";
  if (record.keep < 0) return "stays until released";
  return record.keep == 0 ? "loses its name when its group ends, and goes with its last holder and ticket"
                          : "stays " + format_duration(record.keep) + " after the end of its group";
}

std::string inspect_text(const InspectOptions& options, const InspectFacts& facts) {
  const shmbw_region_record& record = facts.region.record;
  const std::string pid = record.creator_pid == 0 ? "unknown" : std::to_string(record.creator_pid);
  std::vector<std::pair<std::string, std::string>> lines{
      {"region", address_text(facts.region) + "   id " + id_text(record.region)},
      {"size", size_text(options.common, record.length) + " (" + size_text(options.common, record.bytes) +
                   " charged, " + size_text(options.common, record.touched) + " touched), pages " +
                   page_text(record.page_kind)},
      {"group", group_text(record.group, facts.region.group) + "   id #" + std::to_string(record.group) + ", owner " +
                    user_text(record.owner_uid) + " (uid " + std::to_string(record.owner_uid) + ")"},
      {"created", age_text(record.created) + " ago by pid " + pid},
      {"state", state_text(record) + ", access " + access_text(record)},
      {"keep", what_becomes_of_it(facts)}};
  std::string text = label_lines(lines);
  Table holders({{"HOLDER", Align::right},
                 {"USER"},
                 {"PROGRAM"},
                 {"RIGHTS"},
                 {"REFERENCES", Align::right},
                 {"SINCE", Align::right},
                 {"STATE"}});
  for (const LeaseRow& lease : facts.leases)
    holders.add({lease.record.pid == 0 ? "unknown" : std::to_string(lease.record.pid), user_text(lease.record.uid),
                 program_of(facts, lease), rights_text(lease.record.rights), std::to_string(lease.record.count),
                 age_text(lease.record.since), session_state_text(lease.record.state)});
  text += holders.empty() ? "nobody holds it\n" : "\n" + holders.text(colour(1));
  Table given({{"TICKET OF"}, {"RIGHTS"}, {"USES LEFT", Align::right}, {"EXPIRES IN", Align::right}});
  for (const TicketRow& ticket : facts.tickets) {
    constexpr std::int64_t second = 1'000'000'000;
    const std::int64_t left = std::max<std::int64_t>(ticket.record.expires - sys::now_boottime(), 0);
    given.add({user_text(ticket.record.maker_uid), rights_text(ticket.record.rights),
               std::to_string(ticket.record.uses_left), format_duration(left - left % second)});
  }
  if (!given.empty()) text += "\n" + given.text(colour(1));
  return text;
}

std::string inspect_json(const InspectFacts& facts) {
  Json json = document("inspect");
  json["region"] = region_json(facts.region);
  json["holders"] = Json::array();
  for (const LeaseRow& lease : facts.leases) {
    Json holder = lease_json(lease);
    holder["program"] = program_of(facts, lease);
    json["holders"].push_back(std::move(holder));
  }
  json["tickets"] = Json::array();
  for (const TicketRow& ticket : facts.tickets) json["tickets"].push_back(ticket_json(ticket));
  return dump(json);
}

int run_inspect(const InspectOptions& options) {
  auto target = resolve(options.address);
  if (!target) return fail(target.error());
  auto viewer = Viewer::connect(options.common);
  if (!viewer) return fail(viewer.error());
  auto facts = look(*viewer, *target);
  if (!facts) return fail(facts.error());
  return print(options.common.json ? inspect_json(*facts) : inspect_text(options, *facts)) ? kExitOk : kExitError;
}

}  // namespace

Command add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* verb = app.add_subcommand("inspect", "One region: holders, rights, tickets, keep");
  verb->add_option("address", options->address, "NAME, GROUP/NAME, UID:GROUP/NAME or @ID")->required();
  add_common(*verb, options->common, true, true);
  return {verb, [options] { return run_inspect(*options); }};
}

}  // namespace shmb::tools
