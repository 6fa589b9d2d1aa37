// SPDX-License-Identifier: Apache-2.0
// Processes and what they hold: the regions that each has open, and the pools that it has joined. An object with
// several holders counts for each, so the sum over all may exceed the total.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/report_json.hpp"
#include "tools/session.hpp"
#include "tools/table.hpp"
#include "tools/view.hpp"

namespace shmb::tools {

struct ProcessRow {
  std::uint32_t pid = 0, uid = 0;  // pid 0: in another PID namespace; then a row is a session
  std::string program;
  std::vector<std::string> groups;  // usually one; each session of a process may have its own
  std::uint64_t bytes = 0;
  std::uint32_t regions = 0, pools = 0;
  std::int64_t connected = 0;  // its first session
  std::string state;
};

// Without the caller itself, which holds nothing and ends at once.
Result<std::vector<ProcessRow>> read_processes(const Viewer& viewer, const Selection& selection,
                                               const std::vector<RegionRow>& regions, const std::vector<PoolRow>& pools,
                                               const std::vector<GroupRow>& groups);
Table process_table(const Common& common, const std::vector<ProcessRow>& rows);
Json process_json(const ProcessRow& row);

}  // namespace shmb::tools
