// SPDX-License-Identifier: Apache-2.0
// See world_view.hpp.
#include "tools/world_view.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <tuple>

#include "base/result.hpp"
#include "proto/names.hpp"
#include "tools/table.hpp"

namespace shmb::tools {
namespace {

constexpr std::uint32_t kRanks = 64;

std::string world_id_text(std::uint64_t world) { return names::id_text(world); }

std::string worker_label(const Worlds& books, std::uint64_t world, std::uint32_t rank) {
  const auto at = std::ranges::find_if(
      books.workers.rows, [&](const WorkerRow& row) { return row.record.world == world && row.record.rank == rank; });
  return std::to_string(rank) + (at == books.workers.rows.end() ? "" : " " + at->name);
}

std::string ranks_text(std::uint64_t ranks) {
  std::string out;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    if (!out.empty()) out += ',';
    out += std::to_string(rank);
  }
  return out;
}

std::string world_state_text(const shmbw_world_record& record) {
  if ((record.flags & SHMBW_WORLD_STATE_COMPLETE) == 0) return "waiting for workers";
  std::string text = (record.flags & SHMBW_WORLD_STATE_ENDING) != 0 ? "ending" : "complete";
  if (record.died != 0) text += ", " + std::to_string(record.died) + " died";
  if (record.replaced != 0) text += ", " + std::to_string(record.replaced) + " replaced";
  return text;
}

std::string worker_state_text(std::uint32_t state) {
  switch (state) {
    case SHMBW_WORKER_STATE_PRESENT:
      return "present";
    case SHMBW_WORKER_STATE_LEFT:
      return "left";
    case SHMBW_WORKER_STATE_DIED:
      return "died";
    default:
      return "unknown";
  }
}

// The ranks that each rank reaches by "holds a reference owned by": bit j of row i.
using Reach = std::array<std::uint64_t, kRanks>;
Reach closure(Reach reach) {
  for (std::uint32_t over = 0; over < kRanks; ++over)
    for (std::uint64_t& row : reach)
      if ((row >> over & 1) != 0) row |= reach[over];
  return reach;
}

}  // namespace

Result<Worlds> read_worlds(const Viewer& viewer, const Selection& selection) {
  SHMB_TRY(worlds, client::list_worlds(viewer.session(), selection, viewer.deadline()));
  SHMB_TRY(workers, client::list_workers(viewer.session(), selection, viewer.deadline()));
  SHMB_TRY(references, client::list_references(viewer.session(), selection, viewer.deadline()));
  std::ranges::sort(workers.rows, {},
                    [](const WorkerRow& row) { return std::tuple(row.record.world, row.record.rank); });
  std::ranges::sort(references.rows, {}, [](const ReferenceRow& row) {
    const shmbw_reference_record& record = row.record;
    return std::tuple(record.world, record.owner, record.reference.creator, record.reference.counter);
  });
  return Worlds{std::move(worlds), std::move(workers), std::move(references)};
}

std::string reference_text(const shmbw_ref_id& id) {
  return std::to_string(id.creator) + ":" + std::to_string(id.counter);
}

std::string ref_state_text(std::uint32_t state) {
  switch (state) {
    case SHMBW_REF_STATE_REGISTERED:
      return "registered";
    case SHMBW_REF_STATE_TAKEN:
      return "taken";
    case SHMBW_REF_STATE_READY:
      return "ready";
    case SHMBW_REF_STATE_FAILED:
      return "failed";
    case SHMBW_REF_STATE_OWNER_GONE:
      return "owner-gone";
    default:
      return "unknown";
  }
}

std::vector<bool> in_cycles(const std::vector<ReferenceRow>& references) {
  std::map<std::uint64_t, Reach> worlds;
  for (const ReferenceRow& row : references) {
    if (row.record.owner >= kRanks) continue;
    Reach& reach = worlds.try_emplace(row.record.world).first->second;
    const std::uint64_t owner = std::uint64_t{1} << row.record.owner;
    for (std::uint64_t users = row.record.user_ranks & ~owner; users != 0; users &= users - 1)
      reach[static_cast<std::size_t>(std::countr_zero(users))] |= owner;
  }
  for (auto& [world, reach] : worlds) reach = closure(reach);
  std::vector<bool> out;
  for (const ReferenceRow& row : references) {
    bool ring = false;
    if (row.record.owner < kRanks && row.record.state != SHMBW_REF_STATE_OWNER_GONE) {
      const std::uint64_t owner = std::uint64_t{1} << row.record.owner;
      // The owner reaches one of the users in turn.
      ring = (worlds.at(row.record.world)[row.record.owner] & row.record.user_ranks & ~owner) != 0;
    }
    out.push_back(ring);
  }
  return out;
}

Table world_table(const Worlds& books) {
  Table table({{"WORLD"},
               {"ADDRESS", Align::left, true, 3},
               {"RANK", Align::right},
               {"WORKER", Align::left, true},
               {"PID", Align::right},
               {"OWNS", Align::right, false, 2},
               {"HOLDS", Align::right, false, 2},
               {"AGE", Align::right, false, 1},
               {"STATE", Align::left, true}});
  for (const WorldRow& world : books.worlds.rows) {
    const shmbw_world_record& record = world.record;
    table.add({world_id_text(record.world), world.address,
               std::to_string(record.present) + "/" + std::to_string(record.world_size), "", "", record.references,
               record.forks, age_cell(record.created), world_state_text(record)},
              world_id_text(record.world));
    for (const WorkerRow& worker : books.workers.rows) {
      if (worker.record.world != record.world) continue;
      table.add_below({"", "", worker.record.rank, worker.name,
                       worker.record.pid != 0 ? Cell(worker.record.pid) : Cell(""), worker.record.owned,
                       worker.record.forks, "", worker_state_text(worker.record.state)});
    }
  }
  return table;
}

Table reference_table(const Worlds& books) {
  Table table({{"WORLD"},
               {"REFERENCE"},
               {"OWNER", Align::left, true},
               {"HELD BY", Align::left, true},
               {"USERS", Align::right, false, 2},
               {"SENT", Align::right, false, 3},
               {"AGE", Align::right, false, 1},
               {"STATE", Align::left, true}});
  const std::vector<bool> rings = in_cycles(books.references.rows);
  for (std::size_t i = 0; i < books.references.rows.size(); ++i) {
    const ReferenceRow& row = books.references.rows[i];
    const shmbw_reference_record& record = row.record;
    std::string state = ref_state_text(record.state);
    if (!row.error.empty()) state += ": " + row.error.substr(0, row.error.find('\n'));
    if (rings[i]) state += ", in a cycle";
    table.add(
        {world_id_text(record.world), reference_text(record.reference), worker_label(books, record.world, record.owner),
         ranks_text(record.user_ranks), record.users, record.in_flight, age_cell(record.created), state},
        world_id_text(record.world) + " " + reference_text(record.reference));
  }
  return table;
}

Json world_json(const Worlds& books) {
  const std::vector<bool> rings = in_cycles(books.references.rows);
  Json out = Json::array();
  for (const WorldRow& world : books.worlds.rows) {
    const shmbw_world_record& record = world.record;
    Json one{{"id", record.world},
             {"address", world.address},
             {"port", record.port},
             {"owner_uid", record.owner_uid},
             {"group_id", record.group},
             {"pool", record.pool == 0 ? Json() : Json(pool_id_text(record.pool))},
             {"world_size", record.world_size},
             {"present", record.present},
             {"died", record.died},
             {"replaced", record.replaced},
             {"complete", (record.flags & SHMBW_WORLD_STATE_COMPLETE) != 0},
             {"references_total", record.references},
             {"holds_total", record.forks},
             {"created", time_json(record.created)},
             {"workers", Json::array()},
             {"references", Json::array()}};
    for (const WorkerRow& worker : books.workers.rows) {
      if (worker.record.world != record.world) continue;
      one["workers"].push_back({{"rank", worker.record.rank},
                                {"name", worker.name},
                                {"state", worker_state_text(worker.record.state)},
                                {"pid", worker.record.pid},
                                {"session", worker.record.session},
                                {"life", worker.record.life},
                                {"owns", worker.record.owned},
                                {"holds", worker.record.forks}});
    }
    for (std::size_t i = 0; i < books.references.rows.size(); ++i) {
      const ReferenceRow& row = books.references.rows[i];
      if (row.record.world != record.world) continue;
      Json users = Json::array();
      for (std::uint32_t rank = 0; rank < kRanks; ++rank)
        if ((row.record.user_ranks >> rank & 1) != 0) users.push_back(rank);
      one["references"].push_back({{"id", reference_text(row.record.reference)},
                                   {"creator", row.record.reference.creator},
                                   {"owner", row.record.owner},
                                   {"state", ref_state_text(row.record.state)},
                                   {"error", row.error.empty() ? Json() : Json(row.error)},
                                   {"users", row.record.users},
                                   {"in_flight", row.record.in_flight},
                                   {"held_by", users},
                                   {"in_cycle", static_cast<bool>(rings[i])},
                                   {"created", time_json(row.record.created)}});
    }
    out.push_back(one);
  }
  return out;
}

}  // namespace shmb::tools
