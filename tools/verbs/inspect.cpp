// SPDX-License-Identifier: Apache-2.0
// `shmbroker inspect ADDRESS`: one region, its holders with their rights, and what will happen to it; or one pool with
// its participants and what each holds; or one queue. Regions and pools have separate names. If both have one, the
// region is shown, and --pool selects the pool.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "base/result.hpp"
#include "base/text.hpp"
#include "proto/names.hpp"
#include "tools/exit_code.hpp"
#include "tools/gpu_view.hpp"
#include "tools/pool_view.hpp"
#include "tools/report_json.hpp"
#include "tools/resolve.hpp"
#include "tools/table.hpp"
#include "tools/tool.hpp"

namespace shmb::tools {
namespace {

struct InspectOptions {
  Common common;
  std::string address;
  bool pool = false;
};

struct RegionFacts {
  RegionRow region;
  std::vector<LeaseRow> leases;
  std::vector<TicketRow> tickets;
  std::vector<SessionRow> sessions;
  std::optional<GpuRow> gpu;
  std::vector<PoolRow> pools;  // the pools that use it as slots
};

struct PoolFacts {
  PoolRow pool;
  std::vector<ParticipantRow> participants;
  std::vector<std::string> programs;
  std::vector<QueueRow> queues;
};

Result<RegionFacts> look(const Viewer& viewer, RegionRow region) {
  Selection one;
  one.region = region.record.region;
  one.owner_uid = region.record.owner_uid;
  SHMB_TRY(held, client::list_leases(viewer.session(), one, viewer.deadline()));
  SHMB_TRY(given, client::list_tickets(viewer.session(), one, viewer.deadline()));
  SHMB_TRY(holders, client::list_sessions(viewer.session(), {}, viewer.deadline()));
  RegionFacts facts{std::move(region), std::move(held.rows), std::move(given.rows), std::move(holders.rows), {}, {}};
  if (facts.region.record.pool != 0) {
    Selection owner;
    owner.region.id = facts.region.record.pool;
    SHMB_TRY(pool, client::list_pools(viewer.session(), owner, viewer.deadline()));
    facts.pools = std::move(pool.rows);
  }
  SHMB_TRY(gpu, client::list_gpu_regions(viewer.session(), one, viewer.deadline()));
  if (!gpu.rows.empty()) facts.gpu = std::move(gpu.rows.front());
  return facts;
}

std::string program_of(const std::vector<SessionRow>& sessions, std::uint64_t session) {
  auto found = std::ranges::find(sessions, session, [](const SessionRow& row) { return row.record.session; });
  return found == sessions.end() ? "" : found->library;
}

Result<PoolFacts> look(const Viewer& viewer, PoolRow pool) {
  Selection one;
  one.region.id = pool.record.pool;
  SHMB_TRY(participants, client::list_participants(viewer.session(), one, viewer.deadline()));
  SHMB_TRY(queues, client::list_queues(viewer.session(), one, viewer.deadline()));
  SHMB_TRY(sessions, client::list_sessions(viewer.session(), {}, viewer.deadline()));
  std::vector<std::string> programs;
  for (const ParticipantRow& row : participants.rows) programs.push_back(program_of(sessions.rows, row.record.session));
  return PoolFacts{std::move(pool), std::move(participants.rows), std::move(programs), std::move(queues.rows)};
}

std::string what_becomes_of_it(const RegionFacts& facts) {
  const shmbw_region_record& record = facts.region.record;
  if (record.freed_at != 0) return format_duration(record.keep) + " after the end of its group, which has ended";
  if (record.pool != 0) return "goes with its pool";
  if (facts.region.name.empty()) return "goes with its last holder and ticket";
  if ((record.flags & SHMBW_REGION_NAME_WITH_HOLDERS) != 0)
    return "goes with its last holder and ticket, and its name too";
  if (record.keep < 0) return "stays until released";
  return record.keep == 0 ? "loses its name when its group ends, and goes with its last holder and ticket"
                          : "stays " + format_duration(record.keep) + " after the end of its group";
}

std::string inspect_text(const InspectOptions& options, const RegionFacts& facts) {
  const shmbw_region_record& record = facts.region.record;
  const std::string pid = record.creator_pid == 0 ? "unknown" : std::to_string(record.creator_pid);
  std::vector<std::pair<std::string, std::string>> lines{
      {"region", address_text(facts.region) + "   id " + id_text(record.region)},
      {"size", size_text(options.common, record.length) + " (" + size_text(options.common, record.bytes) +
                   " charged, " + size_text(options.common, record.touched) + " touched), pages " +
                   page_text(record.page_kind)},
      {"group", group_text(record.group, facts.region.group) + "   id " + names::id_text(record.group) + ", owner " +
                    user_text(record.owner_uid) + " (uid " + std::to_string(record.owner_uid) + ")"},
      {"created", age_text(record.created) + " ago by pid " + pid},
      {"state", state_text(record) + held_text(record, facts.pools) + ", access " + access_text(record)},
      {"keep", what_becomes_of_it(facts)}};
  if (facts.gpu) {
    const bool on_gpu = (record.flags & SHMBW_REGION_GPU) != 0;
    if (on_gpu)
      lines[1].second = size_text(options.common, record.length) + " (" + size_text(options.common, record.bytes) +
                        " charged), of a GPU";
    for (auto& line : gpu_lines(options.common, facts.gpu->record)) lines.push_back(std::move(line));
  }
  std::string text = label_lines(lines);
  Table holders({{"HOLDER", Align::right},
                 {"USER", Align::left, true, 3},
                 {"PROGRAM", Align::left, true},
                 {"RIGHTS"},
                 {"REFERENCES", Align::right, false, 1},
                 {"SINCE", Align::right, false, 2},
                 {"STATE"}});
  for (const LeaseRow& lease : facts.leases)
    holders.add({lease.record.pid == 0 ? "unknown" : std::to_string(lease.record.pid), user_text(lease.record.uid),
                 program_of(facts.sessions, lease.record.session), rights_text(lease.record.rights), lease.record.count,
                 age_cell(lease.record.since), session_state_text(lease.record.state)});
  text += holders.empty() ? "nobody holds it\n" : "\n" + holders.text(look_of(1));
  Table given({{"TICKET OF"}, {"MADE BY"}, {"RIGHTS"}, {"USES LEFT", Align::right}, {"EXPIRES IN", Align::right}});
  for (const TicketRow& ticket : facts.tickets) {
    constexpr std::int64_t second = 1'000'000'000;
    const std::int64_t left = std::max<std::int64_t>(ticket.record.expires - sys::now_boottime(), 0);
    const std::string pid = ticket.record.maker_pid == 0 ? "unknown" : std::to_string(ticket.record.maker_pid);
    given.add({user_text(ticket.record.maker_uid), ticket.record.maker == 0 ? "ended" : pid,
               rights_text(ticket.record.rights), ticket.record.uses_left, format_duration(left - left % second)});
  }
  if (!given.empty()) text += "\n" + given.text(look_of(1));
  return text;
}

std::string inspect_json(const RegionFacts& facts) {
  Json json = document("inspect");
  json["region"] = region_json(facts.region);
  if (facts.gpu) json["gpu"] = gpu_json(*facts.gpu);
  json["holders"] = Json::array();
  for (const LeaseRow& lease : facts.leases) {
    Json holder = lease_json(lease);
    holder["program"] = program_of(facts.sessions, lease.record.session);
    json["holders"].push_back(std::move(holder));
  }
  json["tickets"] = Json::array();
  for (const TicketRow& ticket : facts.tickets) json["tickets"].push_back(ticket_json(ticket));
  return dump(json);
}

std::string pool_text(const Common& common, const PoolFacts& facts) {
  const Table participants = participant_table(facts.participants, facts.programs);
  const Table queues = queue_table({facts.pool}, facts.queues);
  return pool_lines(common, facts.pool) +
         (participants.empty() ? "nobody takes part in it\n" : "\n" + participants.text(look_of(1))) +
         (queues.empty() ? "" : "\n" + queues.text(look_of(1)));
}

std::string pool_document(const PoolFacts& facts) {
  Json json = document("inspect-pool");
  json["pool"] = pool_json(facts.pool);
  json["participants"] = Json::array();
  for (std::size_t i = 0; i < facts.participants.size(); ++i)
    json["participants"].push_back(participant_json(facts.participants[i], facts.programs[i]));
  json["queues"] = Json::array();
  for (const QueueRow& row : facts.queues) json["queues"].push_back(queue_json(row, queue_address({facts.pool}, row)));
  return dump(json);
}

Result<std::string> show_region(const InspectOptions& options, const Viewer& viewer, RegionRow row) {
  SHMB_TRY(facts, look(viewer, std::move(row)));
  return options.common.json ? inspect_json(facts) : inspect_text(options, facts);
}

Result<std::string> show_pool(const InspectOptions& options, const Viewer& viewer, PoolRow row) {
  SHMB_TRY(facts, look(viewer, std::move(row)));
  return options.common.json ? pool_document(facts) : pool_text(options.common, facts);
}

Result<std::string> show_queue(const InspectOptions& options, const Viewer& viewer, const Target& target,
                               const std::string& name) {
  SHMB_TRY(pool, find_pool(viewer, target));
  SHMB_TRY(queue, find_queue(viewer, pool, name));
  if (!options.common.json) return queue_lines(pool, queue);
  Json json = document("inspect-queue");
  json["queue"] = queue_json(queue, queue_address({pool}, queue));
  json["pool"] = pool_json(pool);
  return dump(json);
}

Result<std::string> show(const InspectOptions& options, const Viewer& viewer, const Target& target,
                         const std::string& queue) {
  if (!queue.empty()) return show_queue(options, viewer, target, queue);
  if (!options.pool) {
    auto region = find(viewer, target);
    if (region) return show_region(options, viewer, std::move(*region));
    if (region.error().status != Status::not_found) return std::unexpected(region.error());
  }
  auto pool = find_pool(viewer, target);
  if (pool) return show_pool(options, viewer, std::move(*pool));
  if (pool.error().status != Status::not_found || options.pool) return std::unexpected(pool.error());
  return std::unexpected(nothing_there("region and no pool", target, viewer));
}

int run_inspect(const InspectOptions& options) {
  std::string address = options.address;
  const bool wants_queue = !address.starts_with(':') && address.ends_with(':');
  const std::string queue = take_queue(address);
  auto target = resolve(address);
  if (!target) return fail(target.error());
  if (!queue.empty() || wants_queue)
    if (auto named = names::check(queue, "queue name"); !named) return fail(named.error());
  auto viewer = Viewer::connect(options.common);
  if (!viewer) return fail(viewer.error());
  auto text = show(options, *viewer, *target, queue);
  if (!text) return fail(text.error());
  return print(*text) ? kExitOk : kExitError;
}

}  // namespace

Command add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* verb = app.add_subcommand("inspect", "Show one region (holders, rights, keep), pool or queue");
  verb->add_option("address", options->address, "NAME, GROUP/NAME, UID:GROUP/NAME or @ID; a queue: POOL:QUEUE")
      ->required();
  verb->add_flag("--pool", options->pool, "The pool of that name, where a region has it too");
  add_common(*verb, options->common, true, true);
  return {verb, [options] { return run_inspect(*options); }};
}

}  // namespace shmb::tools
