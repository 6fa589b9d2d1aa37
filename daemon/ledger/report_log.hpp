// SPDX-License-Identifier: Apache-2.0
// The last 1,000 reports of reclaims, for an administrator who comes after the fact (`shmbroker events`). When it is
// full, the oldest report of the user with the most reports goes. So a user whose processes die all the time pushes out
// its own reports, not those of others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <string>
#include <utility>

#include "daemon/ledger/reclaim.hpp"

namespace shmb::daemon {

struct PastReport {
  std::uint64_t session = 0, group = 0;
  std::int64_t when = 0;
  std::uint32_t uid = 0, pid = 0;
  Tally tally;
  shmbw_death how = SHMBW_DEATH_UNKNOWN;
  std::int32_t code = 0;
  std::string group_text, library, ending;
};

class ReportLog {
 public:
  static constexpr std::size_t kMost = 1000;

  explicit ReportLog(std::pmr::memory_resource& nodes) : rows_(&nodes), of_uid_(&nodes) {}
  void add(PastReport report) {
    if (rows_.size() == kMost) make_room();
    ++of_uid_[report.uid];
    rows_.emplace_hint(rows_.end(), ++last_, std::move(report));
  }
  const std::pmr::map<std::uint64_t, PastReport>& rows() const { return rows_; }  // by number, oldest first

 private:
  void make_room() {
    const auto most = std::ranges::max_element(of_uid_, {}, [](const auto& entry) { return entry.second; });
    rows_.erase(std::ranges::find(rows_, most->first, [](const auto& row) { return row.second.uid; }));
    if (--most->second == 0) of_uid_.erase(most);
  }

  std::pmr::map<std::uint64_t, PastReport> rows_;
  std::pmr::map<std::uint32_t, std::size_t> of_uid_;
  std::uint64_t last_ = 0;
};

}  // namespace shmb::daemon
