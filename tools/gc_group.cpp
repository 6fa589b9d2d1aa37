// SPDX-License-Identifier: Apache-2.0
// See gc_group.hpp.
#include "tools/gc_group.hpp"

#include "base/result.hpp"
#include "base/text.hpp"
#include "client/face/shmbroker.h"
#include "proto/names.hpp"
#include "proto/refusal.hpp"
#include "tools/exit_code.hpp"
#include "tools/printable.hpp"
#include "tools/report_json.hpp"
#include "tools/session.hpp"
#include "tools/view.hpp"

namespace shmb::tools {
namespace {

struct Kept {
  GroupRow group;
  std::vector<RegionRow> lost, used;
  std::uint64_t bytes = 0;  // of those that are lost
};

bool lives(const Kept& kept) { return kept.group.record.members + kept.group.record.heirs != 0; }

Result<Kept> look_at_group(const Viewer& viewer, const std::string& text) {
  SHMB_TRY(address, names::parse_group(text));
  Selection selection;
  selection.owner_uid = address.owner_uid;
  if (auto id = names::group_id(address.group)) selection.group = *id;
  else selection.group_name = address.group;
  SHMB_TRY(groups, client::list_groups(viewer.session(), selection, viewer.deadline()));
  if (groups.rows.empty()) {
    const wire::Sought sought{.what = "group", .name = text};
    return std::unexpected(client::asked_of(viewer.facts().socket, wire::not_found(sought)));
  }
  Kept kept{.group = groups.rows.front()};
  selection.group = kept.group.record.group;
  selection.group_name.clear();
  SHMB_TRY(regions, client::list_regions(viewer.session(), selection, viewer.deadline()));
  for (RegionRow& row : regions.rows) {
    const shmbw_region_record& record = row.record;
    const bool is_lost = !lives(kept) && record.holders == 0 && record.tickets == 0 && record.queues == 0;
    if (is_lost) kept.bytes += record.bytes;
    (is_lost ? kept.lost : kept.used).push_back(std::move(row));
  }
  return kept;
}

std::string why_used(const Kept& kept, const RegionRow& row) {
  if (lives(kept)) return "its group lives";
  if (row.record.holders != 0) return count_text(row.record.holders, "session") + " of other groups use it";
  return row.record.tickets != 0 ? count_text(row.record.tickets, "ticket") + " can still open it"
                                 : "a message that was not received holds it";
}

std::string plan_text(const GroupCleaning& options, const Kept& kept) {
  std::string text;
  if (options.ids_only) {
    for (const RegionRow& row : kept.lost) text += printable(address_text(row)) + "\n";
    return text;
  }
  const std::string group = printable(options.group);
  if (lives(kept))
    text = "group " + group + " lives: " + count_text(kept.group.record.members + kept.group.record.heirs, "session") +
           "; nothing of it is lost (shmbroker release --group " + group + " --end ends it)\n";
  else if (kept.lost.empty()) text = "nothing to free in group " + group + "\n";
  else
    text = "plan: free " + size_text(options.common, kept.bytes) + " in " + count_text(kept.lost.size(), "region") +
           " that group " + group + " keeps, and that nobody uses\n";
  for (const RegionRow& row : kept.lost)
    text += "  " + printable(address_text(row)) + "  " + size_text(options.common, row.record.bytes) + "  keep " +
            keep_text(row.record.keep) + "\n";
  for (const RegionRow& row : kept.used)
    text += "left alone: " + printable(address_text(row)) + "  " + size_text(options.common, row.record.bytes) + "  " +
            why_used(kept, row) + "\n";
  if (!kept.lost.empty() && !options.yes)
    text += "Nothing was removed: add --yes. The broker looks again when it goes.\n";
  return text;
}

Json plan_json(const GroupCleaning& options, const Kept& kept) {
  Json json = document("gc.group");
  json["group"] = options.group;
  json["group_id"] = kept.group.record.group;
  json["members"] = kept.group.record.members + kept.group.record.heirs;
  json["removed"] = false;
  json["bytes"] = kept.bytes;
  json["plan"] = Json::array();
  for (const RegionRow& row : kept.lost) json["plan"].push_back(region_json(row));
  json["left_alone"] = Json::array();
  for (const RegionRow& row : kept.used)
    json["left_alone"].push_back({{"address", address_text(row)}, {"reason", why_used(kept, row)}});
  return json;
}

}  // namespace

int clean_group(const GroupCleaning& options) {
  auto viewer = Viewer::connect(options.common);
  if (!viewer) return fail(viewer.error());
  auto kept = look_at_group(*viewer, options.group);
  if (!kept) return fail(kept.error());
  Json json = plan_json(options, *kept);
  if (!options.yes || kept->lost.empty()) {
    if (!print(options.common.json ? dump(json) : plan_text(options, *kept))) return kExitError;
    return kept->lost.empty() ? kExitOk : kExitFindings;
  }
  auto session = Session::connect(options.common, Start::never);
  if (!session) return fail(session.error());
  shmb_group_ending ending{};
  shmb_error failure{};
  // KEPT_ONLY: a group that a process has joined since the plan is alive, and stays as it is.
  const int status = shmb_group_end(session->get(), kept->group.record.group, nullptr,
                                    SHMB_END_RELEASE_KEPT | SHMB_END_KEPT_ONLY, session->timeout(), &ending, &failure);
  if (status != SHMB_OK) return fail(failed(failure));
  json["removed"] = true;
  json["freed"] = ending.bytes_freed;
  const std::string text = plan_text(options, *kept) + "freed " + size_text(options.common, ending.bytes_freed) +
                           " that group " + printable(options.group) + " kept; " +
                           count_text(ending.regions, "region") + (ending.regions == 1 ? " is" : " are") +
                           " still in use\n";
  return print(options.common.json ? dump(json) : text) ? kExitOk : kExitError;
}

}  // namespace shmb::tools
