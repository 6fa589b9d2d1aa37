// SPDX-License-Identifier: Apache-2.0
// See process_view.hpp.
#include "tools/process_view.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/result.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {
namespace {

std::string groups_text(const ProcessRow& row) {
  std::string out;
  for (const std::string& group : row.groups) out += (out.empty() ? "" : ", ") + group;
  return out;
}

struct Holdings {
  ProcessRow row;
  std::set<std::uint64_t> regions, pools;
};

}  // namespace

Result<std::vector<ProcessRow>> read_processes(const Viewer& viewer, const Selection& selection,
                                               const std::vector<RegionRow>& regions, const std::vector<PoolRow>& pools,
                                               const std::vector<GroupRow>& groups) {
  SHMB_TRY(sessions, client::list_sessions(viewer.session(), selection, viewer.deadline()));
  Selection everything;
  everything.all_groups = selection.all_groups;
  SHMB_TRY(leases, client::list_leases(viewer.session(), everything, viewer.deadline()));
  SHMB_TRY(participants, client::list_participants(viewer.session(), everything, viewer.deadline()));

  std::map<std::uint64_t, Holdings*> by_session;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Holdings> by_process;  // pid, or the session where it is unknown
  for (const SessionRow& session : sessions.rows) {
    const shmbw_session_record& record = session.record;
    if (record.pid == static_cast<std::uint32_t>(::getpid())) continue;
    Holdings& process = by_process[{record.pid, record.pid == 0 ? record.session : 0}];
    ProcessRow& row = process.row;
    by_session[record.session] = &process;
    row.pid = record.pid;
    row.uid = record.uid;
    if (row.program.empty()) row.program = program_text(session.library);
    if (row.connected == 0 || record.connected < row.connected) row.connected = record.connected;
    if (row.state.empty() || record.state == SHMBW_SESSION_STATE_MEMBER) row.state = session_state_text(record.state);
    if (record.group == 0) continue;
    const auto named = std::ranges::find(groups, record.group, [](const GroupRow& each) { return each.record.group; });
    const std::string group = group_text(record.group, named == groups.end() ? "" : named->name);
    if (std::ranges::find(row.groups, group) == row.groups.end()) row.groups.push_back(group);
  }
  for (const LeaseRow& lease : leases.rows)
    if (const auto at = by_session.find(lease.record.session); at != by_session.end())
      at->second->regions.insert(lease.record.region.id);
  for (const ParticipantRow& each : participants.rows)
    if (const auto at = by_session.find(each.record.session); at != by_session.end())
      at->second->pools.insert(each.record.pool);

  std::vector<ProcessRow> rows;
  for (auto& [key, process] : by_process) {
    ProcessRow& row = process.row;
    for (const RegionRow& region : regions) {
      // A pool's slots are counted with the pool.
      if (!process.regions.contains(region.record.region.id) || process.pools.contains(region.record.pool)) continue;
      row.bytes += region.record.bytes;
      ++row.regions;
    }
    for (const PoolRow& pool : pools) {
      if (!process.pools.contains(pool.record.pool)) continue;
      row.bytes += pool.record.bytes;
      ++row.pools;
    }
    rows.push_back(std::move(row));
  }
  std::ranges::stable_sort(rows, std::ranges::greater(), &ProcessRow::bytes);
  return rows;
}

Table process_table(const Common& common, const std::vector<ProcessRow>& rows) {
  Table table({{"PID", Align::right},
               {"USER", Align::left, true, 4},
               {"PROGRAM", Align::left, true},
               {"GROUP", Align::left, true},
               {"BYTES", Align::right},
               {"REGIONS", Align::right, false, 3},
               {"POOLS", Align::right, false, 2},
               {"AGE", Align::right, false, 1},
               {"STATE", Align::left, false, 5}});
  for (const ProcessRow& row : rows) {
    const std::string pid = row.pid == 0 ? "unknown" : std::to_string(row.pid);
    table.add({row.pid == 0 ? Cell(pid) : Cell(row.pid), user_text(row.uid), row.program, groups_text(row),
               size_cell(common, row.bytes), row.regions, row.pools, age_cell(row.connected), row.state},
              pid);
  }
  return table;
}

Json process_json(const ProcessRow& row) {
  return Json{{"pid", row.pid == 0 ? Json(nullptr) : Json(row.pid)},
              {"uid", row.uid},
              {"program", row.program},
              {"groups", row.groups},
              {"bytes", row.bytes},
              {"regions", row.regions},
              {"pools", row.pools},
              {"connected", time_json(row.connected)},
              {"state", row.state}};
}

}  // namespace shmb::tools
