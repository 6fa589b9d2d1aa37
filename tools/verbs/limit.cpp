// SPDX-License-Identifier: Apache-2.0
// `shmbroker limit`: sets how many bytes the regions of a group may have. A limit below what the group uses frees
// nothing; the group gets no new region until it uses less. Its owner may set up to the configured limit, root more.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "base/result.hpp"
#include "base/text.hpp"
#include "proto/names.hpp"
#include "proto/refusal.hpp"
#include "tools/exit_code.hpp"
#include "tools/printable.hpp"
#include "tools/report_json.hpp"
#include "tools/session.hpp"
#include "tools/tool.hpp"
#include "tools/view.hpp"

namespace shmb::tools {
namespace {

using client::GroupLimit;

constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
constexpr const char* kAsConfigured = "default";

struct LimitOptions {
  Common common;
  std::string group, size;
};

Result<std::uint64_t> bytes_of(const std::string& size) {
  if (size == kAsConfigured) return 0;
  auto bytes = parse_size(size);
  if (bytes && *bytes != 0) return bytes;
  return error(Status::invalid, "the limit " + shmb::quoted(size) +
                                    " is no size: give 64M, 8G or a number of bytes, or `default` for the limit of the "
                                    "configuration");
}

Result<GroupLimit> set_limit(const Viewer& viewer, const names::Address& group, const std::string& text,
                             std::uint64_t bytes) {
  Selection selection;
  selection.owner_uid = group.owner_uid.value_or(viewer.facts().uid);
  if (const auto id = names::group_id(group.group)) {
    selection.group = *id;
    selection.owner_uid.reset();
  } else {
    selection.group_name = group.group;
  }
  SHMB_TRY(groups, client::list_groups(viewer.session(), selection, viewer.deadline()));
  if (groups.rows.empty()) {
    const wire::Sought sought{.what = "group", .name = text};
    return std::unexpected(client::asked_of(viewer.facts().socket, wire::not_found(sought)));
  }
  return viewer.session().limit_group(groups.rows.front().record.group, {}, bytes, viewer.deadline());
}

// Only the admin socket may set more than what is configured, or the limit of another user's group. So it is tried
// where the user's own socket refuses. A caller who may not use it is told the first refusal.
Result<GroupLimit> set_limit(const LimitOptions& options, const names::Address& group, std::uint64_t bytes) {
  SHMB_TRY(viewer, Viewer::connect(options.common));
  auto set = set_limit(viewer, group, options.group, bytes);
  if (set || (set.error().status != Status::limit && set.error().status != Status::denied &&
              set.error().status != Status::not_found))
    return set;
  Common beside = options.common;
  beside.socket = viewer.facts().socket;
  auto admin = Viewer::connect(beside, true);
  return admin ? set_limit(*admin, group, options.group, bytes) : set;
}

std::string limit_text(const Common& common, std::uint64_t bytes) {
  return bytes == kNone ? "no limit" : size_text(common, bytes);
}

int run_limit(const LimitOptions& options) {
  auto group = names::parse_group(options.group);
  if (!group) return fail(group.error());
  auto bytes = bytes_of(options.size);
  if (!bytes) return fail(bytes.error());
  auto set = set_limit(options, *group, *bytes);
  if (!set) return fail(set.error());
  if (options.common.json) {
    const auto number = [](std::uint64_t value) { return value == kNone ? Json() : Json(value); };
    Json json = document("limit");
    json["group"] = options.group;
    json["limit_bytes"] = number(set->bytes);
    json["limit_bytes_before"] = number(set->before);
    json["used_bytes"] = set->used;
    return print(dump(json)) ? kExitOk : kExitError;
  }
  std::string text = "group " + options.group + ": " + limit_text(options.common, set->bytes) + ", before " +
                     limit_text(options.common, set->before) + "; uses " + size_text(options.common, set->used);
  if (set->used > set->bytes) text += "; it gets no new region until it uses less";
  return print(printable(text) + "\n") ? kExitOk : kExitError;
}

}  // namespace

Command add_limit(CLI::App& app) {
  auto options = std::make_shared<LimitOptions>();
  CLI::App* verb = app.add_subcommand("limit", "Set how many bytes the regions of a group may have; frees nothing");
  verb->add_option("GROUP", options->group, "NAME, UID:NAME or @ID")->required();
  verb->add_option("SIZE", options->size, "The new limit: 64M, 8G; `default`: what is configured")->required();
  add_common(*verb, options->common, true, true);
  return {verb, [options] { return run_limit(*options); }};
}

}  // namespace shmb::tools
