// SPDX-License-Identifier: Apache-2.0
// `shmbroker list`: who holds how much. Totals first, then a line per region, per pool, per queue and per world, each
// table only where it has rows; groups without regions are counted only in the totals and shown by --groups.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <tuple>

#include "base/text.hpp"
#include "proto/names.hpp"
#include "proto/refusal.hpp"
#include "tools/exit_code.hpp"
#include "tools/gpu_view.hpp"
#include "tools/pool_view.hpp"
#include "tools/printable.hpp"
#include "tools/report_json.hpp"
#include "tools/session.hpp"
#include "tools/table.hpp"
#include "tools/tool.hpp"
#include "tools/view.hpp"
#include "tools/world_view.hpp"

namespace shmb::tools {
namespace {

struct ListOptions {
  Common common;
  std::string group;
  bool all_groups = false, show_groups = false, show_pools = false, show_queues = false, show_worlds = false,
       show_refs = false, show_gpu = false, ids_only = false;
};

struct Books {
  BrokerStatus status;
  Listing<RegionRow> regions;
  Listing<GroupRow> groups;
  Listing<PoolRow> pools;
  Listing<QueueRow> queues;
  Worlds worlds;
  Listing<GpuRow> gpu;
};

Result<Selection> selection_of(const ListOptions& options) {
  Selection selection;
  selection.all_groups = options.all_groups;
  if (options.group.empty()) return selection;
  auto address = names::parse_group(options.group);
  if (!address) return std::unexpected(address.error());
  selection.owner_uid = address->owner_uid;
  if (auto id = names::group_id(address->group)) {
    selection.group = *id;
  } else {
    selection.group_name = address->group;
  }
  return selection;
}

Result<Books> read_books(const Viewer& viewer, const Selection& selection) {
  auto status = client::broker_status(viewer.session(), viewer.deadline());
  if (!status) return std::unexpected(status.error());
  auto regions = client::list_regions(viewer.session(), selection, viewer.deadline());
  if (!regions) return std::unexpected(regions.error());
  auto groups = client::list_groups(viewer.session(), selection, viewer.deadline());
  if (!groups) return std::unexpected(groups.error());
  auto pools = client::list_pools(viewer.session(), selection, viewer.deadline());
  if (!pools) return std::unexpected(pools.error());
  auto queues = client::list_queues(viewer.session(), selection, viewer.deadline());
  if (!queues) return std::unexpected(queues.error());
  auto worlds = read_worlds(viewer, selection);
  if (!worlds) return std::unexpected(worlds.error());
  auto gpu = client::list_gpu_regions(viewer.session(), selection, viewer.deadline());
  if (!gpu && gpu.error().status != Status::invalid) return std::unexpected(gpu.error());  // an older broker has none
  if (!gpu) gpu.emplace();
  // They have a table of their own.
  std::erase_if(regions->rows, [](const RegionRow& row) { return (row.record.flags & SHMBW_REGION_GPU) != 0; });
  // A group's regions together, the largest first.
  std::ranges::sort(regions->rows, {}, [](const RegionRow& row) {
    return std::tuple(row.record.owner_uid, row.group, row.record.group, ~row.record.bytes, row.record.region.id);
  });
  std::ranges::sort(pools->rows, {}, [](const PoolRow& row) {
    return std::tuple(row.record.owner_uid, row.group, row.record.group, row.name, row.record.pool);
  });
  std::ranges::sort(queues->rows, {}, [&](const QueueRow& row) {
    const auto pool = std::ranges::find(pools->rows, row.record.pool, [](const PoolRow& it) { return it.record.pool; });
    return std::tuple(pool - pools->rows.begin(), row.record.pool, row.name);
  });
  return Books{std::move(*status), std::move(*regions), std::move(*groups), std::move(*pools),
               std::move(*queues), std::move(*worlds),  std::move(*gpu)};
}

std::string totals(const ListOptions& options, const Books& books) {
  const shmbw_status_reply& facts = books.status.record;
  std::string text = mode_text(facts.mode) + " broker " + books.status.version + ", up " +
                     age_text(sys::now_boottime() - facts.uptime) + ": " + size_text(options.common, facts.bytes) +
                     " of " + size_text(options.common, facts.bytes_limit) + " in use";
  if (facts.bytes_cached != 0)
    text += " (" + size_text(options.common, facts.bytes_cached) + " of it cached for reuse)";
  text += "; shown: " + count_text(books.groups.rows.size(), "group") + ", " +
          count_text(books.regions.rows.size(), "region") + ", " + size_text(options.common, books.regions.total_bytes);
  if (!books.pools.rows.empty())
    text += "; " + count_text(books.pools.rows.size(), "pool") + ", " + count_text(books.queues.rows.size(), "queue");
  if (!books.worlds.worlds.rows.empty())
    text += "; " + count_text(books.worlds.worlds.rows.size(), "world") + ", " +
            count_text(books.worlds.references.rows.size(), "reference");
  if (!books.gpu.rows.empty())
    text += "; " + count_text(books.gpu.rows.size(), "GPU region") + ", " +
            size_text(options.common, books.gpu.total_bytes);
  return printable(text) + "\n";
}

std::string owner_prefix(std::uint32_t uid) { return uid == ::geteuid() ? "" : std::to_string(uid) + ":"; }

std::string region_table(const ListOptions& options, const Books& books) {
  Table table({{"GROUP"},
               {"REGION"},
               {"SIZE", Align::right},
               {"TOUCHED", Align::right},
               {"HOLDERS", Align::right},
               {"ACCESS"},
               {"PAGES"},
               {"KEEP"},
               {"AGE", Align::right},
               {"STATE"}});
  for (const RegionRow& row : books.regions.rows) {
    const shmbw_region_record& record = row.record;
    table.add({owner_prefix(record.owner_uid) + group_text(record.group, row.group),
               row.name.empty() ? id_text(record.region) : row.name, size_text(options.common, record.bytes),
               size_text(options.common, record.touched), std::to_string(record.holders), access_text(record),
               page_text(record.page_kind), keep_text(record.keep), age_text(record.created), state_text(record)});
  }
  return table.empty() ? "" : table.text(colour(STDOUT_FILENO));
}

std::string group_state(const shmbw_group_record& record) {
  std::string text = record.flags & SHMBW_GROUP_STATE_ENDED             ? "ended"
                     : record.flags & SHMBW_GROUP_STATE_SUPERVISOR_LOST ? "supervisor lost"
                     : record.supervisors > 0                           ? "supervised"
                                                                        : "open";
  if (record.flags & SHMBW_GROUP_STATE_KEPT) text += ", kept";
  return text;
}

std::string group_table(const ListOptions& options, const Books& books) {
  Table table({{"GROUP"},
               {"OWNER"},
               {"USED", Align::right},
               {"LIMIT", Align::right},
               {"PEAK", Align::right},
               {"CACHED", Align::right},
               {"REGIONS", Align::right},
               {"MEMBERS", Align::right},
               {"HEIRS", Align::right},
               {"KEEP"},
               {"AGE", Align::right},
               {"STATE"}});
  for (const GroupRow& row : books.groups.rows) {
    const shmbw_group_record& record = row.record;
    table.add({group_text(record.group, row.name), user_text(record.owner_uid), size_text(options.common, record.bytes),
               size_text(options.common, record.bytes_limit), size_text(options.common, record.bytes_peak),
               size_text(options.common, record.bytes_cached), std::to_string(record.regions),
               std::to_string(record.members), std::to_string(record.heirs), keep_text(record.keep),
               age_text(record.created), group_state(record)});
  }
  return table.empty() ? "" : table.text(colour(STDOUT_FILENO));
}

std::string ids(const ListOptions& options, const Books& books) {
  std::string out;
  if (options.show_groups) {
    for (const GroupRow& row : books.groups.rows) out += names::id_text(row.record.group) + "\n";
  } else if (options.show_pools) {
    for (const PoolRow& row : books.pools.rows) out += pool_id_text(row.record.pool) + "\n";
  } else if (options.show_queues) {
    for (const QueueRow& row : books.queues.rows) out += queue_address({}, row) + "\n";
  } else if (options.show_worlds) {
    for (const WorldRow& row : books.worlds.worlds.rows) out += names::id_text(row.record.world) + "\n";
  } else if (options.show_refs) {
    for (const ReferenceRow& row : books.worlds.references.rows)
      out += names::id_text(row.record.world) + " " + reference_text(row.record.reference) + "\n";
  } else if (options.show_gpu) {
    for (const GpuRow& row : books.gpu.rows) out += id_text(row.record.region) + "\n";
  } else {
    for (const RegionRow& row : books.regions.rows) out += id_text(row.record.region) + "\n";
  }
  return out;
}

std::string list_json(const Viewer& viewer, const Books& books) {
  Json json = document("list");
  json["broker"] = broker_json(viewer, books.status);
  json["totals"] = {{"groups", books.groups.rows.size()},
                    {"regions", books.regions.rows.size()},
                    {"bytes", books.regions.total_bytes},
                    {"pools", books.pools.rows.size()},
                    {"queues", books.queues.rows.size()},
                    {"worlds", books.worlds.worlds.rows.size()},
                    {"references", books.worlds.references.rows.size()},
                    {"gpu_regions", books.gpu.rows.size()},
                    {"gpu_bytes", books.gpu.total_bytes}};
  json["groups"] = Json::array();
  for (const GroupRow& row : books.groups.rows) json["groups"].push_back(group_json(row));
  json["regions"] = Json::array();
  for (const RegionRow& row : books.regions.rows) json["regions"].push_back(region_json(row));
  json["pools"] = Json::array();
  for (const PoolRow& row : books.pools.rows) json["pools"].push_back(pool_json(row));
  json["queues"] = Json::array();
  for (const QueueRow& row : books.queues.rows)
    json["queues"].push_back(queue_json(row, queue_address(books.pools.rows, row)));
  json["worlds"] = world_json(books.worlds);
  json["gpu_regions"] = Json::array();
  for (const GpuRow& row : books.gpu.rows) json["gpu_regions"].push_back(gpu_json(row));
  return dump(json);
}

// One table where one was asked for, and a word where it has no rows; else all that have rows, with an empty line
// between them.
std::string tables(const ListOptions& options, const Books& books) {
  const bool all = !options.show_groups && !options.show_pools && !options.show_queues && !options.show_worlds &&
                   !options.show_refs && !options.show_gpu;
  std::string text;
  const auto add = [&](bool wanted, const std::string& table, const char* none) {
    if (wanted && table.empty()) text += std::string("no ") + none + "\n";
    else if (all || wanted) text += (text.empty() || table.empty() ? "" : "\n") + table;
  };
  if (options.show_groups) add(true, group_table(options, books), "groups");
  add(false, region_table(options, books), "regions");
  add(options.show_gpu, gpu_table(options.common, books.gpu.rows), "GPU regions");
  add(options.show_pools, pool_table(options.common, books.pools.rows), "pools");
  add(options.show_queues, queue_table(books.pools.rows, books.queues.rows), "queues");
  add(options.show_worlds, world_table(books.worlds), "worlds");
  if (options.show_refs) add(true, reference_table(books.worlds), "references");
  return text;
}

int run_list(const ListOptions& options) {
  auto selection = selection_of(options);
  if (!selection) return fail(selection.error());
  auto viewer = Viewer::connect(options.common, options.all_groups);
  if (!viewer) return fail(viewer.error());
  auto books = read_books(*viewer, *selection);
  if (!books) return fail(books.error());
  if (!options.group.empty() && books->groups.rows.empty()) {
    const wire::Sought sought{.what = "group", .name = options.group};
    return fail(client::asked_of(viewer->facts().socket, wire::not_found(sought)));
  }
  std::string text;
  if (options.common.json) {
    text = list_json(*viewer, *books);
  } else if (options.ids_only) {
    text = ids(options, *books);
  } else {
    text = totals(options, *books) + tables(options, *books);
  }
  return print(text) ? kExitOk : kExitError;
}

}  // namespace

Command add_list(CLI::App& app) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* verb = app.add_subcommand("list", "Who holds how much shared memory");
  verb->add_option("--group", options->group, "Only this group: NAME, UID:NAME or @ID")->type_name("GROUP");
  verb->add_flag("--all-groups", options->all_groups, "Those of all users, by the broker's admin socket");
  CLI::Option* groups = verb->add_flag("--groups", options->show_groups, "A line per group instead of one per region");
  CLI::Option* pools = verb->add_flag("--pools", options->show_pools, "The pools alone: slots, participants, queues");
  CLI::Option* queues =
      verb->add_flag("--queues", options->show_queues, "The queues alone: depth, readers, writers, lag");
  CLI::Option* gpu = verb->add_flag("--gpu", options->show_gpu, "The GPU regions alone: device, users, state");
  CLI::Option* worlds = verb->add_flag("--worlds", options->show_worlds, "The worlds of workers alone: who is in them");
  CLI::Option* refs =
      verb->add_flag("--refs", options->show_refs, "Remote references: owner, who holds them, state, cycles");
  CLI::Option* const one_of[] = {groups, pools, queues, gpu, worlds, refs};
  for (CLI::Option* one : one_of)
    for (CLI::Option* other : one_of)
      if (one != other) one->excludes(other);
  verb->add_flag("-q,--quiet", options->ids_only, "Ids only");
  add_common(*verb, options->common, true, true);
  return {verb, [options] { return run_list(*options); }};
}

}  // namespace shmb::tools
