// SPDX-License-Identifier: Apache-2.0
// LIST of what has happened: reports of reclaims, and how often each limit has refused.
#include <string>

#include "daemon/serve/page.hpp"

namespace shmb::daemon {

// A group that has ended has no row any more, so its text is compared.
void list_reports(const Request& request, const Filter& filter) {
  Page<shmbw_report_record> page(request, filter);
  for (const auto& [number, report] : page.rows(request.ledger.sessions.told.rows())) {
    if (page.done(number)) break;
    if (!request.session.admin && report.uid != request.session.uid) continue;
    if (!filter.takes_owner(report.uid) || (filter.wish.group != 0 && filter.wish.group != report.group)) continue;
    if (!filter.group_text.empty() && filter.group_text != report.group_text) continue;
    page.count(report.tally.bytes);
    if (!page.wants(number)) continue;
    if (!page.room(report.group_text.size() + report.library.size() + report.ending.size())) continue;
    shmbw_report_record record{};
    record.report = number;
    record.session = report.session;
    record.group = report.group;
    record.bytes = report.tally.bytes;
    record.gpu_bytes = report.tally.gpu_bytes;
    record.when = report.when;
    record.uid = report.uid;
    record.pid = report.pid;
    record.regions = report.tally.regions;
    record.leases = report.tally.leases;
    record.how = report.how;
    record.code = report.code;
    record.group_len = static_cast<std::uint16_t>(report.group_text.size());
    record.library_len = static_cast<std::uint16_t>(report.library.size());
    record.ending_len = static_cast<std::uint16_t>(report.ending.size());
    page.add(number, record, {report.group_text, report.library, report.ending});
  }
  page.send();
}

// Counts of all users, as those of STATUS are: for each limit, how often it has refused.
void list_refusals(const Request& request, const Filter& filter) {
  Page<shmbw_refusal_record> page(request, filter);
  for (const auto& [limit, count] : request.ledger.accounts.refused_by) {
    page.count(0);
    const std::uint64_t key = std::uint64_t{limit.first} << 16 | limit.second;
    if (page.wants(key) && page.room(0)) page.add(key, shmbw_refusal_record{limit.first, limit.second, 0, count});
  }
  page.send();
}

}  // namespace shmb::daemon
