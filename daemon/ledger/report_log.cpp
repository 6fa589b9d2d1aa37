// SPDX-License-Identifier: Apache-2.0
// See report_log.hpp.
#include "daemon/ledger/report_log.hpp"

#include <algorithm>
#include <utility>

namespace shmb::daemon {

void ReportLog::add(PastReport report) {
  if (rows_.size() == kMost) make_room();
  ++of_uid_[report.uid];
  rows_.emplace_hint(rows_.end(), ++last_, std::move(report));
}

void ReportLog::make_room() {
  const auto most = std::ranges::max_element(of_uid_, {}, [](const auto& entry) { return entry.second; });
  const auto oldest = std::ranges::find(rows_, most->first, [](const auto& row) { return row.second.uid; });
  rows_.erase(oldest);
  if (--most->second == 0) of_uid_.erase(most);
}

}  // namespace shmb::daemon
