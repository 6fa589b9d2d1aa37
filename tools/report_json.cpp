// SPDX-License-Identifier: Apache-2.0
// See report_json.hpp.
#include "tools/report_json.hpp"

#include <fmt/format.h>

#include <ctime>

#include "base/sys_process.hpp"
#include "proto/names.hpp"

namespace shmb::tools {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

std::string state_name(std::uint32_t state) {
  constexpr const char* names[] = {"none", "created", "ready", "write_closed", "published", "freeing", "cached"};
  return state < std::size(names) ? names[state] : "unknown";
}

std::string page_name(std::uint32_t kind) {
  constexpr const char* names[] = {"unknown", "small", "huge", "mixed", "unpopulated"};
  return kind < std::size(names) ? names[kind] : "unknown";
}

Json keep_json(std::int64_t keep) {
  if (keep < 0) return "until_released";
  return static_cast<double>(keep) / kSecond;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json id_json(const shmbw_region_ref& ref) { return id_text(ref); }

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace

Json document(const std::string& verb) { return Json{{"schema", "shmbroker." + verb + "/1"}}; }

std::string dump(const Json& json) {
  // ASCII only, and bytes that are not UTF-8 are replaced: the document may go to a terminal.
  return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

Json time_json(std::int64_t boottime) {
  if (boottime == 0) return nullptr;
  const std::time_t seconds = wall_seconds(boottime);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[40];
  const std::size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S+00:00", &parts);
  return std::string(text, size);
}

Json report_json(const client::ReportRow& row) {
  const shmbw_report_record& record = row.record;
  return {{"time", time_json(record.when)},
          {"uid", record.uid},
          {"pid", record.pid == 0 ? Json() : Json(record.pid)},
          {"program", text_or_null(program_text(row.library))},
          {"group", text_or_null(row.group)},
          {"group_id", record.group == 0 ? Json() : Json(names::id_text(record.group))},
          {"freed_bytes", record.bytes},
          {"freed_gpu_bytes", record.gpu_bytes},
          {"regions", record.regions},
          {"leases", record.leases},
          {"how", death_text(record.how)},
          {"code", record.code},
          {"ending", row.ending}};
}

Json reclaim_json(const client::Event& event) {
  return {{"event", "reclaim"},
          {"uid", event.uid},
          {"pid", event.pid == 0 ? Json() : Json(event.pid)},
          {"group_id", event.group == 0 ? Json() : Json(names::id_text(event.group))},
          {"freed_bytes", event.bytes},
          {"regions", event.regions},
          {"how", death_text(event.how)},
          {"code", event.code},
          {"text", event.text}};
}

std::string mode_text(std::uint32_t mode) {
  constexpr const char* names[] = {"local", "system", "private"};
  return mode < std::size(names) ? names[mode] : "unknown";
}

std::string engine_text(std::uint32_t engine) {
  constexpr const char* names[] = {"none", "epoll", "io_uring"};
  return engine < std::size(names) ? names[engine] : "unknown";
}

Json region_json(const RegionRow& row) {
  const shmbw_region_record& record = row.record;
  return Json{{"id", id_json(record.region)},
              {"address", address_text(row)},
              {"group", group_text(record.group, row.group)},
              {"group_id", record.group},
              {"name", text_or_null(row.name)},
              {"owner_uid", record.owner_uid},
              {"length", record.length},
              {"bytes", record.bytes},
              {"touched", record.touched},
              {"state", state_name(record.state)},
              {"access", access_text(record)},
              {"pages", page_name(record.page_kind)},
              {"holders", record.holders},
              {"writers", record.writers},
              {"tickets", record.tickets},
              {"queues", record.queues},
              {"pool", record.pool == 0 ? Json(nullptr) : Json(pool_id_text(record.pool))},
              {"creator_pid", record.creator_pid == 0 ? Json(nullptr) : Json(record.creator_pid)},
              {"created", time_json(record.created)},
              {"keep_seconds", keep_json(record.keep)},
              {"freed_at", time_json(record.freed_at)}};
}

Json group_json(const GroupRow& row) {
  const shmbw_group_record& record = row.record;
  return Json{{"group", group_text(record.group, row.name)},
              {"group_id", record.group},
              {"owner_uid", record.owner_uid},
              {"bytes", record.bytes},
              {"bytes_limit", record.bytes_limit},
              {"bytes_peak", record.bytes_peak},
              {"bytes_cached", record.bytes_cached},
              {"regions", record.regions},
              {"regions_limit", record.regions_limit},
              {"members", record.members},
              {"heirs", record.heirs},
              {"supervisors", record.supervisors},
              {"supervised", (record.flags & SHMBW_GROUP_STATE_SUPERVISED) != 0},
              {"supervisor_lost", (record.flags & SHMBW_GROUP_STATE_SUPERVISOR_LOST) != 0},
              {"ended", (record.flags & SHMBW_GROUP_STATE_ENDED) != 0},
              {"created", time_json(record.created)},
              {"keep_seconds", keep_json(record.keep)}};
}

Json lease_json(const LeaseRow& row) {
  const shmbw_lease_record& record = row.record;
  return Json{{"region", id_json(record.region)},
              {"session", record.session},
              {"uid", record.uid},
              {"pid", record.pid == 0 ? Json(nullptr) : Json(record.pid)},
              {"rights", rights_text(record.rights)},
              {"count", record.count},
              {"state", session_state_text(record.state)},
              {"since", time_json(record.since)}};
}

Json ticket_json(const TicketRow& row) {
  const shmbw_ticket_record& record = row.record;
  return Json{{"region", id_json(record.region)},
              {"maker_uid", record.maker_uid},
              {"rights", rights_text(record.rights)},
              {"uses_left", record.uses_left},
              {"maker_session", record.maker == 0 ? Json(nullptr) : Json(record.maker)},
              {"maker_pid", record.maker_pid == 0 ? Json(nullptr) : Json(record.maker_pid)},
              {"expires", time_json(record.expires)}};
}

Json pool_json(const PoolRow& row) {
  const shmbw_pool_record& record = row.record;
  return Json{{"id", pool_id_text(record.pool)},
              {"address", address_text(row)},
              {"group", group_text(record.group, row.group)},
              {"group_id", record.group},
              {"name", text_or_null(row.name)},
              {"owner_uid", record.owner_uid},
              {"bytes", record.bytes},
              {"control_bytes", record.control_bytes},
              {"slots", record.slots},
              {"slots_limit", record.slots_limit},
              {"slots_used", record.slots_used},
              {"slots_high", record.slots_high},
              {"segments", record.segments},
              {"participants", record.participants},
              {"leaving", record.leaving},
              {"deaths", record.deaths},
              {"queues", record.queues},
              {"lanes", record.lanes},
              {"broken", (record.flags & SHMBW_POOL_BROKEN) != 0},
              {"created", time_json(record.created)},
              {"keep_seconds", keep_json(record.keep)}};
}

Json queue_json(const QueueRow& row, const std::string& address) {
  const shmbw_queue_record& record = row.record;
  return Json{{"address", address},
              {"pool", pool_id_text(record.pool)},
              {"group_id", record.group},
              {"name", row.name},
              {"owner_uid", record.owner_uid},
              {"kind", queue_kind_text(record.kind)},
              {"drop_oldest", (record.flags & SHMBW_QUEUE_OPEN_DROP_OLDEST) != 0},
              {"expiring", (record.flags & SHMBW_QUEUE_OPEN_EXPIRING) != 0},
              {"at_least_once", (record.flags & SHMBW_QUEUE_OPEN_AT_LEAST_ONCE) != 0},
              {"cells", record.cells},
              {"cell_size", record.cell_size},
              {"lanes", record.lanes},
              {"depth", record.depth},
              {"readers", record.readers},
              {"writers", record.writers},
              {"lag", record.lag},
              {"lost", record.lost},
              {"regions", record.regions},
              {"in_regions", record.in_regions},
              {"deaths", record.deaths},
              {"closed", record.closed != 0}};
}

Json participant_json(const ParticipantRow& row, const std::string& program) {
  const shmbw_participant_record& record = row.record;
  return Json{{"participant", record.participant},
              {"life", record.life},
              {"state", participant_state_text(record.state)},
              {"pid", record.pid == 0 ? Json(nullptr) : Json(record.pid)},
              {"uid", record.uid},
              {"session", record.session == 0 ? Json(nullptr) : Json(record.session)},
              {"program", text_or_null(program)},
              {"slots_held", record.slots_held},
              {"reading", record.reading},
              {"writing", record.writing},
              {"unread", record.unread}};
}

Json broker_json(const Viewer& viewer, const BrokerStatus& status) {
  const shmbw_status_reply& facts = status.record;
  return Json{{"version", status.version},
              {"mode", mode_text(facts.mode)},
              {"socket", viewer.facts().socket},
              {"found", viewer.facts().how},
              {"pid", facts.pid},
              {"uid", facts.broker_uid},
              {"epoch", hex(facts.epoch)},
              {"uptime_seconds", static_cast<double>(facts.uptime) / kSecond},
              {"engine", engine_text(facts.engine)},
              {"engine_reason", status.engine},
              {"kernel", status.kernel},
              {"losses", loss_lines(status)},
              {"bytes", facts.bytes},
              {"bytes_limit", facts.bytes_limit},
              {"bytes_cached", facts.bytes_cached},
              {"regions", facts.regions},
              {"groups", facts.groups},
              {"sessions", facts.sessions},
              {"leases", facts.leases},
              {"tickets", facts.tickets},
              {"watches", facts.watches},
              {"descriptors", facts.descriptors},
              {"descriptors_limit", facts.descriptors_limit},
              {"descriptors_reserved", facts.descriptors_reserved},
              {"in_flight", facts.in_flight},
              {"requests", facts.requests},
              {"refusals", facts.refusals},
              {"reclaims", facts.reclaims},
              {"bytes_reclaimed", facts.bytes_reclaimed}};
}

}  // namespace shmb::tools
