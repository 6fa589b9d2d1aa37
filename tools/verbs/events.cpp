// SPDX-License-Identifier: Apache-2.0
// `shmbroker events`: what the broker has reclaimed, the last reports first to last: what ended, how, and what was
// freed. Reports stay until newer ones push them out, also those of groups that have ended.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "proto/names.hpp"
#include "tools/exit_code.hpp"
#include "tools/report_json.hpp"
#include "tools/session.hpp"
#include "tools/table.hpp"
#include "tools/tool.hpp"
#include "tools/view.hpp"

namespace shmb::tools {
namespace {

using client::ReportRow;

struct EventsOptions {
  Common common;
  std::string group;
  std::uint64_t most = 0;  // 0: all
  bool all_groups = false;
};

Table events_table(const Common& common, const std::vector<ReportRow>& rows) {
  Table table({{"WHEN", Align::left},
               {"PROGRAM", Align::left, true},
               {"PID", Align::right},
               {"USER", Align::left, true, 2},
               {"GROUP", Align::left, true},
               {"FREED", Align::right},
               {"REGIONS", Align::right, false, 3},
               {"LEASES", Align::right, false, 1},
               {"ENDING", Align::left, true}});
  for (const ReportRow& row : rows) {
    const shmbw_report_record& record = row.record;
    table.add(
        {local_time_text(record.when), program_text(row.library), record.pid == 0 ? Cell("unknown") : Cell(record.pid),
         user_text(record.uid), record.group == 0 ? Cell("") : Cell(group_text(record.group, row.group)),
         size_cell(common, record.bytes), record.regions, record.leases, row.ending},
        "@" + std::to_string(record.report));
  }
  return table;
}

std::string events_json(const std::vector<ReportRow>& rows) {
  Json json = document("events");
  json["events"] = Json::array();
  for (const ReportRow& row : rows) json["events"].push_back(report_json(row));
  return dump(json);
}

int run_events(const EventsOptions& options) {
  Selection selection;
  selection.all_groups = options.all_groups;
  if (!options.group.empty()) {
    auto address = names::parse_group(options.group);
    if (!address) return fail(address.error());
    selection.owner_uid = address->owner_uid;
    if (const auto id = names::group_id(address->group)) selection.group = *id;
    else selection.group_name = address->group;
  }
  auto viewer = Viewer::connect_for(options.common, options.all_groups);
  if (!viewer) return fail(viewer.error());
  auto reports = client::list_reports(viewer->session(), selection, viewer->deadline());
  if (!reports) return fail(reports.error());
  std::vector<ReportRow>& rows = reports->rows;
  if (options.most != 0 && rows.size() > options.most)
    rows.erase(rows.begin(), rows.end() - static_cast<std::ptrdiff_t>(options.most));
  std::string text = "no events\n";
  if (options.common.json) text = events_json(rows);
  else if (!rows.empty()) text = events_table(options.common, rows).text(look_of(STDOUT_FILENO));
  return print(text) ? kExitOk : kExitError;
}

}  // namespace

Command add_events(CLI::App& app) {
  auto options = std::make_shared<EventsOptions>();
  CLI::App* verb = app.add_subcommand("events", "List the reclaims: which process ended, how, and its freed objects");
  verb->add_option("--group", options->group, "Only those of this group: NAME, UID:NAME or @ID; it may have ended")
      ->type_name("GROUP");
  verb->add_flag("--all-groups", options->all_groups, "Those of all users, by the broker's admin socket");
  verb->add_option("-n,--newest", options->most, "Only the newest COUNT")->type_name("COUNT");
  add_common(*verb, options->common, true, true);
  return {verb, [options] { return run_events(*options); }};
}

}  // namespace shmb::tools
