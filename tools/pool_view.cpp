// SPDX-License-Identifier: Apache-2.0
// See pool_view.hpp.
#include "tools/pool_view.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "proto/names.hpp"
#include "tools/table.hpp"

namespace shmb::tools {
namespace {

std::string decimal(std::uint64_t value) { return std::to_string(value); }

std::string counted(std::uint64_t value, const char* noun) {
  return decimal(value) + " " + noun + (value == 1 ? "" : "s");
}

std::string keep_sentence(const PoolRow& row) {
  if (row.name.empty()) return "goes with its last participant";
  if ((row.record.flags & SHMBW_POOL_NAME_WITH_HOLDERS) != 0) return "goes with its last participant, and its name too";
  if (row.record.keep < 0) return "stays until its group is released";
  return row.record.keep == 0 ? "loses its name when its group ends, and ends with it"
                              : "stays " + format_duration(row.record.keep) + " after the end of its group";
}

}  // namespace

std::string queue_address(const std::vector<PoolRow>& pools, const QueueRow& row) {
  const auto pool = std::ranges::find(pools, row.record.pool, [](const PoolRow& each) { return each.record.pool; });
  return (pool == pools.end() ? pool_id_text(row.record.pool) : address_text(*pool)) + ":" + row.name;
}

Table pool_table(const Common& common, const std::vector<PoolRow>& rows) {
  Table table({{"POOL", Align::left, true},
               {"SIZE", Align::right},
               {"USED", Align::right},
               {"SLOTS", Align::right},
               {"LIMIT", Align::right, false, 5},
               {"HIGH", Align::right, false, 4},
               {"PARTICIPANTS", Align::right, false, 7},
               {"QUEUES", Align::right, false, 6},
               {"DEATHS", Align::right, false, 3},
               {"KEEP", Align::left, false, 1},
               {"AGE", Align::right, false, 2},
               {"STATE", Align::left, true}});
  for (const PoolRow& row : rows) {
    const shmbw_pool_record& record = row.record;
    table.add({address_text(row), size_cell(common, record.bytes), record.slots_used, record.slots, record.slots_limit,
               record.slots_high, record.participants, record.queues, record.deaths, keep_text(record.keep),
               age_cell(record.created), pool_state_text(record)},
              pool_id_text(record.pool));
  }
  return table;
}

Table queue_table(const std::vector<PoolRow>& pools, const std::vector<QueueRow>& rows) {
  Table table({{"QUEUE", Align::left, true},
               {"KIND", Align::left, false, 4},
               {"DEPTH", Align::right},
               {"CELLS", Align::right, false, 3},
               {"READERS", Align::right, false, 5},
               {"WRITERS", Align::right, false, 6},
               {"LAG", Align::right},
               {"LOST", Align::right, false, 2},
               {"DEATHS", Align::right, false, 1},
               {"STATE", Align::left, true}});
  for (const QueueRow& row : rows) {
    const shmbw_queue_record& record = row.record;
    const bool ring = record.kind == SHMBW_QUEUE_KIND_BROADCAST;  // only its readers lag and lose
    table.add({queue_address(pools, row), queue_kind_text(record.kind), record.depth, record.cells, record.readers,
               record.writers, ring ? Cell(record.lag) : Cell(""), ring ? Cell(record.lost) : Cell(""), record.deaths,
               queue_state_text(row)},
              queue_address({}, row));
  }
  return table;
}

Table participant_table(const std::vector<ParticipantRow>& rows, const std::vector<std::string>& programs) {
  Table table({{"PARTICIPANT", Align::right},
               {"PID", Align::right},
               {"USER", Align::left, true, 3},
               {"PROGRAM", Align::left, true},
               {"SLOTS", Align::right},
               {"READS", Align::right, false, 1},
               {"WRITES", Align::right, false, 2},
               {"UNREAD", Align::right},
               {"STATE"}});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const shmbw_participant_record& record = rows[i].record;
    table.add({record.participant, record.pid == 0 ? "unknown" : decimal(record.pid), user_text(record.uid),
               programs[i], record.slots_held, record.reading, record.writing, record.unread,
               participant_state_text(record.state)});
  }
  return table;
}

std::string pool_lines(const Common& common, const PoolRow& row) {
  const shmbw_pool_record& record = row.record;
  std::string state = pool_state_text(record);
  if ((record.flags & SHMBW_POOL_BROKEN) != 0) state += ": every call in it fails";
  if (record.leaving != 0) state += " (dead or left; something of them is unread, or under repair)";
  return label_lines(
      {{"pool", address_text(row) + "   id " + pool_id_text(record.pool)},
       {"slots", decimal(record.slots_used) + " used of " + decimal(record.slots) + ", at most " +
                     decimal(record.slots_limit) + "; " + decimal(record.slots_high) + " were seen used at once"},
       {"size", size_text(common, record.bytes) + " charged: " + counted(record.segments, "segment") +
                    " of slots, and " + size_text(common, record.control_bytes) + " of tables and lanes"},
       {"group", group_text(record.group, row.group) + "   id " + names::id_text(record.group) + ", owner " +
                     user_text(record.owner_uid) + " (uid " + decimal(record.owner_uid) + ")"},
       {"created", age_text(record.created) + " ago"},
       {"holds", counted(record.participants, "participant") + ", " + counted(record.queues, "queue") + ", " +
                     counted(record.lanes, "lane") + "; " + counted(record.deaths, "death") + " so far"},
       {"state", state},
       {"keep", keep_sentence(row)}});
}

std::string queue_lines(const PoolRow& pool, const QueueRow& row) {
  const shmbw_queue_record& record = row.record;
  const std::string flags = queue_flags_text(record.flags);
  std::vector<std::pair<std::string, std::string>> lines{
      {"queue", address_text(pool) + ":" + row.name},
      {"kind", queue_kind_text(record.kind) + (flags.empty() ? "" : ", " + flags)},
      {"cells", decimal(record.cells) + " for each of " + counted(record.lanes, "lane") + ", " +
                    decimal(record.cell_size) + " bytes each (" + decimal(record.cell_size - 8) + " inline)"},
      {"depth", counted(record.depth, "message") + " sent and not taken"},
      {"ends", counted(record.readers, "reader") + ", " + counted(record.writers, "writer") + "; " +
                   counted(record.deaths, "death") + " so far"}};
  if (record.kind == SHMBW_QUEUE_KIND_BROADCAST)
    lines.emplace_back("lag", "the slowest reader is " + decimal(record.lag) + " behind; " + decimal(record.lost) +
                                  " overwritten before readers saw them");
  std::string regions = decimal(record.regions) + " held by messages under way";
  if (record.in_regions != 0)
    regions += "; " + counted(record.in_regions, "message") + " travelled in a new one: no slot was large enough";
  lines.emplace_back("regions", regions);
  lines.emplace_back("state", queue_state_text(row) + (record.closed != 0 ? ": nobody may send" : ""));
  return label_lines(lines);
}

}  // namespace shmb::tools
