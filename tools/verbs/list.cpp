// SPDX-License-Identifier: Apache-2.0
// `shmbroker list`: holders and what they hold. Totals first, then a line per region, pool, queue and world; a table is
// shown only if it has rows. Groups without regions are counted only in the totals, and shown by --groups. The last
// lines say what only root can see.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <tuple>

#include "base/result.hpp"
#include "base/text.hpp"
#include "proto/names.hpp"
#include "proto/refusal.hpp"
#include "tools/exit_code.hpp"
#include "tools/gpu_view.hpp"
#include "tools/hidden.hpp"
#include "tools/host_all.hpp"
#include "tools/pool_view.hpp"
#include "tools/printable.hpp"
#include "tools/process_view.hpp"
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
  std::string group, sort;
  bool all_groups = false, show_groups = false, show_processes = false, show_pools = false, show_queues = false,
       show_worlds = false, show_refs = false, show_gpu = false, ids_only = false;
  bool all = false, as_tree = false;  // of the host, without a broker
  ListingOptions host;

  bool one_table() const {
    return show_groups || show_processes || show_pools || show_queues || show_worlds || show_refs || show_gpu;
  }
};

struct Books {
  BrokerStatus status;
  Listing<RegionRow> regions;
  Listing<GroupRow> groups;
  Listing<PoolRow> pools;
  Listing<QueueRow> queues;
  Worlds worlds;
  Listing<GpuRow> gpu;
  std::vector<ProcessRow> processes;  // where asked for
  Hidden hidden;
};

Result<Selection> selection_of(const ListOptions& options) {
  Selection selection;
  selection.all_groups = options.all_groups;
  if (options.group.empty()) return selection;
  SHMB_TRY(address, names::parse_group(options.group));
  selection.owner_uid = address.owner_uid;
  if (auto id = names::group_id(address.group)) {
    selection.group = *id;
  } else {
    selection.group_name = address.group;
  }
  return selection;
}

Result<Books> read_books(const Viewer& viewer, const ListOptions& options, const Selection& selection) {
  SHMB_TRY(status, client::broker_status(viewer.session(), viewer.deadline()));
  SHMB_TRY(regions, client::list_regions(viewer.session(), selection, viewer.deadline()));
  SHMB_TRY(groups, client::list_groups(viewer.session(), selection, viewer.deadline()));
  SHMB_TRY(pools, client::list_pools(viewer.session(), selection, viewer.deadline()));
  SHMB_TRY(queues, client::list_queues(viewer.session(), selection, viewer.deadline()));
  SHMB_TRY(worlds, read_worlds(viewer, selection));
  SHMB_TRY(gpu, client::list_gpu_regions(viewer.session(), selection, viewer.deadline()));
  Hidden hidden;
  if (options.group.empty()) hidden = hidden_from(status, regions.total_count, options.all_groups);
  // GPU regions have a table of their own.
  std::erase_if(regions.rows, [](const RegionRow& row) { return (row.record.flags & SHMBW_REGION_GPU) != 0; });
  // A group's regions together, the largest first.
  std::ranges::sort(regions.rows, {}, [](const RegionRow& row) {
    return std::tuple(row.record.owner_uid, row.group, row.record.group, ~row.record.bytes, row.record.region.id);
  });
  std::ranges::sort(pools.rows, {}, [](const PoolRow& row) {
    return std::tuple(row.record.owner_uid, row.group, row.record.group, row.name, row.record.pool);
  });
  std::ranges::sort(queues.rows, {}, [&](const QueueRow& row) {
    const auto pool = std::ranges::find(pools.rows, row.record.pool, [](const PoolRow& it) { return it.record.pool; });
    return std::tuple(pool - pools.rows.begin(), row.record.pool, row.name);
  });
  std::vector<ProcessRow> processes;
  if (options.show_processes) {
    SHMB_TRY(read, read_processes(viewer, selection, regions.rows, pools.rows, groups.rows));
    processes = std::move(read);
  }
  return Books{std::move(status), std::move(regions), std::move(groups),    std::move(pools), std::move(queues),
               std::move(worlds), std::move(gpu),     std::move(processes), std::move(hidden)};
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

Table region_table(const ListOptions& options, const Books& books) {
  Table table({{"GROUP", Align::left, true},
               {"REGION", Align::left, true},
               {"SIZE", Align::right},
               {"TOUCHED", Align::right, false, 4},
               {"HOLDERS", Align::right, false, 5},
               {"ACCESS", Align::left, false, 3},
               {"PAGES", Align::left, false, 1},
               {"KEEP", Align::left, false, 2},
               {"AGE", Align::right, false, 6},
               {"STATE", Align::left, true}});
  for (const RegionRow& row : books.regions.rows) {
    const shmbw_region_record& record = row.record;
    table.add(
        {owner_prefix(record.owner_uid) + group_text(record.group, row.group),
         row.name.empty() ? id_text(record.region) : row.name, size_cell(options.common, record.bytes),
         size_cell(options.common, record.touched), record.holders, access_text(record), page_text(record.page_kind),
         keep_text(record.keep), age_cell(record.created), state_text(record) + held_text(record, books.pools.rows)},
        id_text(record.region));
  }
  return table;
}

std::string group_state(const shmbw_group_record& record) {
  std::string text = record.flags & SHMBW_GROUP_STATE_ENDED             ? "ended"
                     : record.flags & SHMBW_GROUP_STATE_SUPERVISOR_LOST ? "supervisor lost"
                     : record.supervisors > 0                           ? "supervised"
                                                                        : "open";
  if (record.flags & SHMBW_GROUP_STATE_KEPT) text += ", kept";
  return text;
}

Table group_table(const ListOptions& options, const Books& books) {
  Table table({{"GROUP", Align::left, true},
               {"OWNER", Align::left, true},
               {"USED", Align::right},
               {"LIMIT", Align::right, false, 7},
               {"PEAK", Align::right, false, 5},
               {"CACHED", Align::right, false, 3},
               {"REGIONS", Align::right, false, 6},
               {"MEMBERS", Align::right},
               {"HEIRS", Align::right, false, 1},
               {"KEEP", Align::left, false, 2},
               {"AGE", Align::right, false, 4},
               {"STATE", Align::left, true}});
  for (const GroupRow& row : books.groups.rows) {
    const shmbw_group_record& record = row.record;
    table.add({group_text(record.group, row.name), user_text(record.owner_uid), size_cell(options.common, record.bytes),
               size_cell(options.common, record.bytes_limit), size_cell(options.common, record.bytes_peak),
               size_cell(options.common, record.bytes_cached), record.regions, record.members, record.heirs,
               keep_text(record.keep), age_cell(record.created), group_state(record)},
              names::id_text(record.group));
  }
  return table;
}

std::string list_json(const ListOptions& options, const Viewer& viewer, const Books& books) {
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
  if (options.show_processes) {
    json["processes"] = Json::array();
    for (const ProcessRow& row : books.processes) json["processes"].push_back(process_json(row));
  }
  json["hidden"] = hidden_json(books.hidden);
  return dump(json);
}

struct Shown {
  Table table;
  const char* none;  // the noun for an empty table
};

// The table that was asked for, or all tables of a general listing.
std::vector<Shown> tables(const ListOptions& options, const Books& books) {
  const Common& common = options.common;
  std::vector<Shown> shown;
  const auto add = [&](bool wanted, auto&& make, const char* none) {
    if (wanted) shown.push_back({make(), none});
  };
  const bool all = !options.one_table();
  add(options.show_groups, [&] { return group_table(options, books); }, "groups");
  add(options.show_processes, [&] { return process_table(common, books.processes); }, "processes");
  add(all, [&] { return region_table(options, books); }, "regions");
  add(all || options.show_gpu, [&] { return gpu_table(common, books.gpu.rows); }, "GPU regions");
  add(all || options.show_pools, [&] { return pool_table(common, books.pools.rows); }, "pools");
  add(all || options.show_queues, [&] { return queue_table(books.pools.rows, books.queues.rows); }, "queues");
  add(all || options.show_worlds, [&] { return world_table(books.worlds); }, "worlds");
  add(options.show_refs, [&] { return reference_table(books.worlds); }, "references");
  return shown;
}

// Each table that has the column is sorted by it.
Result<void> sort(std::vector<Shown>& shown, const std::string& column) {
  bool sorted = false;
  for (Shown& each : shown) sorted |= each.table.sort_by(column);
  if (sorted) return {};
  return error(Status::invalid,
               "--sort " + shmb::quoted(column) + " is no column of this table: " + shown.front().table.titles());
}

// An empty line between tables. A table that was asked for and has no rows is replaced by a word.
std::string text_of(const ListOptions& options, const std::vector<Shown>& shown) {
  const Look look = look_of(STDOUT_FILENO);
  std::string text;
  for (const Shown& each : shown) {
    if (!each.table.empty()) text += (text.empty() ? "" : "\n") + each.table.text(look);
    else if (options.one_table()) text += std::string("no ") + each.none + "\n";
  }
  return text;
}

// Options that need a broker, beside --all.
std::string needs_broker(const ListOptions& options) {
  if (!options.common.socket.empty()) return "--socket";
  if (options.common.timeout != 0) return "--timeout";
  if (!options.group.empty()) return "--group";
  return options.all_groups ? "--all-groups" : "";
}

int list_of_host(const ListOptions& options) {
  if (const std::string option = needs_broker(options); !option.empty()) {
    complain("list --all asks no broker, so " + option + " says nothing beside it: leave out one of the two");
    return kExitUsage;
  }
  ListingOptions listing = options.host;
  listing.common = options.common;
  listing.ids_only = options.ids_only;
  listing.order = options.sort;
  return repeat(listing, [&] { return list_host(listing, options.as_tree); });
}

int list_of_broker(const ListOptions& options) {
  auto selection = selection_of(options);
  if (!selection) return fail(selection.error());
  auto viewer = Viewer::connect_for(options.common, options.all_groups);
  if (!viewer) {
    const std::string brokers = brokers_text(other_brokers());
    if (!brokers.empty()) (void)print(brokers);
    return fail(viewer.error());
  }
  auto books = read_books(*viewer, options, *selection);
  if (!books) return fail(books.error());
  if (!options.group.empty() && books->groups.rows.empty()) {
    const wire::Sought sought{.what = "group", .name = options.group};
    return fail(client::asked_of(viewer->facts().socket, wire::not_found(sought)));
  }
  std::vector<Shown> shown = tables(options, *books);
  if (!options.sort.empty())
    if (auto sorted = sort(shown, options.sort); !sorted) return fail(sorted.error());
  std::string text;
  if (options.common.json) {
    text = list_json(options, *viewer, *books);
  } else if (options.ids_only) {
    text = shown.front().table.ids();
  } else {
    text = totals(options, *books) + text_of(options, shown) + hidden_text(books->hidden);
  }
  return print(text) ? kExitOk : kExitError;
}

int run_list(const ListOptions& options) {
  if (options.all) return list_of_host(options);
  return repeat(options.host, [&] { return list_of_broker(options); });
}

}  // namespace

Command add_list(CLI::App& app) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* verb = app.add_subcommand("list", "List the regions, their holders and their sizes");
  verb->add_option("--group", options->group, "Only this group: NAME, UID:NAME or @ID")->type_name("GROUP");
  verb->add_flag("--all-groups", options->all_groups, "Those of all users, by the broker's admin socket");
  CLI::Option* groups = verb->add_flag("--groups", options->show_groups, "A line per group instead of one per region");
  CLI::Option* processes = verb->add_flag("--processes", options->show_processes,
                                          "A line per process: program, groups, bytes that it holds");
  CLI::Option* pools = verb->add_flag("--pools", options->show_pools, "The pools alone: slots, participants, queues");
  CLI::Option* queues =
      verb->add_flag("--queues", options->show_queues, "The queues alone: depth, readers, writers, lag");
  CLI::Option* gpu = verb->add_flag("--gpu", options->show_gpu, "The GPU regions alone: device, users, state");
  CLI::Option* worlds = verb->add_flag("--worlds", options->show_worlds, "Only the worlds, with their workers");
  CLI::Option* refs = verb->add_flag("--refs", options->show_refs, "Remote references: owner, holders, state, cycles");
  CLI::Option* const one_of[] = {groups, processes, pools, queues, gpu, worlds, refs};
  for (CLI::Option* one : one_of)
    for (CLI::Option* other : one_of)
      if (one != other) one->excludes(other);
  verb->add_option("-S,--sort", options->sort, "By this column: numbers from the largest on, texts from A to Z")
      ->type_name("COLUMN");
  verb->add_flag("-q,--quiet", options->ids_only, "Ids only");
  CLI::Option* all =
      verb->add_flag("--all", options->all, "All shared memory of the host, made by any program; needs no broker");
  for (CLI::Option* one : one_of) all->excludes(one);
  CLI::Option* tree =
      verb->add_flag("--tree", options->as_tree, "With --all: each process with the objects that it holds")->needs(all);
  verb->add_option("-o,--columns", options->host.columns, "With --all, which columns: " + object_fields().names())
      ->type_name("LIST")
      ->needs(all)
      ->excludes(tree);
  verb->add_option("-f,--filter", options->host.filter, "With --all, rows that pass (shmbroker(1))")
      ->type_name("FILTER")
      ->needs(all);
  add_duration(*verb, "-w,--watch", options->host.every, "Again and again, with this much time between");
  add_common(*verb, options->common, true, true);
  return {verb, [options] { return run_list(*options); }};
}

}  // namespace shmb::tools
