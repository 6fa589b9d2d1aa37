// SPDX-License-Identifier: Apache-2.0
// Pages of LIST put together. A record that is malformed ends the listing with an error, never with a guess.
#include "client/session/views.hpp"

#include <array>

#include "client/session/call.hpp"
#include "client/session/user_group.hpp"
#include "proto/names.hpp"
#include "proto/refusal.hpp"

namespace shmb::client {
namespace {

// The texts after each kind of record.
bool take_texts(wire::RecordReader& reader, RegionRow& row) {
  auto group = reader.text(row.record.group_len), name = reader.text(row.record.name_len);
  if (!group || !name) return false;
  row.group = *group, row.name = *name;
  return true;
}
bool take_texts(wire::RecordReader& reader, GroupRow& row) {
  auto name = reader.text(row.record.name_len);
  if (name) row.name = *name;
  return name.has_value();
}
bool take_texts(wire::RecordReader& reader, SessionRow& row) {
  auto library = reader.text(row.record.library_len);
  if (library) row.library = *library;
  return library.has_value();
}
bool take_texts(wire::RecordReader&, LeaseRow&) { return true; }
bool take_texts(wire::RecordReader&, TicketRow&) { return true; }
bool take_texts(wire::RecordReader&, UidRow&) { return true; }
bool take_texts(wire::RecordReader& reader, PoolRow& row) {
  auto group = reader.text(row.record.group_len), name = reader.text(row.record.name_len);
  if (!group || !name) return false;
  row.group = *group, row.name = *name;
  return true;
}
bool take_texts(wire::RecordReader& reader, QueueRow& row) {
  auto pool = reader.text(row.record.pool_len), name = reader.text(row.record.name_len);
  if (!pool || !name) return false;
  row.pool = *pool, row.name = *name;
  return true;
}
bool take_texts(wire::RecordReader&, ParticipantRow&) { return true; }
bool take_texts(wire::RecordReader& reader, WorldRow& row) {
  auto address = reader.text(row.record.address_len);
  if (address) row.address = *address;
  return address.has_value();
}
bool take_texts(wire::RecordReader& reader, WorkerRow& row) {
  auto name = reader.text(row.record.name_len);
  if (name) row.name = *name;
  return name.has_value();
}
bool take_texts(wire::RecordReader& reader, ReferenceRow& row) {
  auto why = reader.text(row.record.error_len);
  if (why) row.error = *why;
  return why.has_value();
}
bool take_texts(wire::RecordReader& reader, GpuRow& row) {
  auto group = reader.text(row.record.group_len), name = reader.text(row.record.name_len);
  if (!group || !name) return false;
  row.group = *group, row.name = *name;
  return true;
}
bool take_texts(wire::RecordReader& reader, ReportRow& row) {
  auto group = reader.text(row.record.group_len), library = reader.text(row.record.library_len);
  auto ending = reader.text(row.record.ending_len);
  if (!group || !library || !ending) return false;
  row.group = *group, row.library = *library, row.ending = *ending;
  return true;
}
bool take_texts(wire::RecordReader&, RefusalRow&) { return true; }

template <class Row>
Result<Listing<Row>> list(Session& session, shmbw_table table, const Selection& selection, Deadline deadline) {
  Listing<Row> listing;
  shmbw_list request{};
  request.table = table;
  request.group = selection.group;
  request.region = selection.region;
  if (selection.owner_uid) {
    request.flags |= SHMBW_LIST_OWNER_GIVEN;
    request.owner_uid = *selection.owner_uid;
  }
  if (selection.all_groups) request.flags |= SHMBW_LIST_ALL_GROUPS;
  request.group_len = static_cast<std::uint16_t>(selection.group_name.size());
  request.name_len = static_cast<std::uint16_t>(selection.name.size());
  SHMB_TRY_VOID(check_answer_deadline(deadline));
  do {
    auto asked = call<SHMBW_OP_LIST>(session, request, {selection.group_name, selection.name}, deadline);
    // The request is well formed. So what the broker finds invalid is the number of a table that it does not have.
    if (!asked && asked.error().status == Status::invalid) {
      asked.error().status = Status::unsupported;
      return std::unexpected(of_older_broker(session.facts(), std::move(asked.error())));
    }
    SHMB_TRY(answer, std::move(asked));
    const shmbw_list_reply& page = answer.fixed;
    listing.total_bytes = page.total_bytes;
    listing.total_count = page.total_count;
    wire::RecordReader reader(answer.reply.view.rest, page.element_size);
    for (std::uint16_t i = 0; i < page.count; ++i) {
      auto record = reader.next<decltype(Row::record)>();
      if (!record) return malformed_answer<SHMBW_OP_LIST>();
      Row row;
      row.record = *record;
      if (!take_texts(reader, row)) return malformed_answer<SHMBW_OP_LIST>();
      listing.rows.push_back(std::move(row));
    }
    if (page.next != 0 && page.next <= request.cursor) return malformed_answer<SHMBW_OP_LIST>();  // would never end
    request.cursor = page.next;
  } while (request.cursor != 0);
  return listing;
}

}  // namespace

Result<Listing<RegionRow>> list_regions(Session& session, const Selection& selection, Deadline deadline) {
  return list<RegionRow>(session, SHMBW_TABLE_REGIONS, selection, deadline);
}
static Result<RegionRow> only_row(Session& session, const Selection& selection, const wire::Sought& sought,
                                  Deadline deadline) {
  SHMB_TRY(listed, list_regions(session, selection, deadline));
  if (listed.rows.empty()) return std::unexpected(session.of_broker(wire::not_found(sought)));
  return std::move(listed.rows.front());
}
static Result<RegionRow> find_in(Session& session, const names::Address& address, Deadline deadline) {
  Selection selection;
  selection.owner_uid = address.owner_uid;
  selection.name = address.name;
  std::string group = address.group;
  if (const auto id = names::group_id(group)) {
    selection.group = *id;
  } else if (!group.empty()) {
    selection.group_name = group;
  } else if (selection.group = session.facts().group; selection.group != 0) {
    group = names::id_text(selection.group);
  }
  if (!group.empty() || session.is_local()) {
    SHMB_TRY(listed, list_regions(session, selection, deadline));
    if (!listed.rows.empty()) return std::move(listed.rows.front());
  }
  wire::Sought sought{.name = address.name, .group = group, .owner_uid = address.owner_uid};
  // Objects that the caller may have meant, as the broker says it when a region is attached.
  if (auto pools = group.empty() ? Result<Listing<PoolRow>>() : list_pools(session, selection, deadline);
      pools && !pools->rows.empty())
    sought.other_kind = "pool";
  Selection everywhere;
  everywhere.name = address.name;
  std::string elsewhere;
  if (auto others = list_regions(session, everywhere, deadline))
    for (const RegionRow& row : others->rows)
      if (row.record.owner_uid == session.facts().uid && elsewhere.empty())
        elsewhere = (row.group.empty() ? names::id_text(row.record.group) : row.group) + "/" + address.name;
  sought.elsewhere = elsewhere;
  return std::unexpected(session.of_broker(wire::not_found(sought)));
}
Result<RegionRow> find_region(Session& session, const names::Address& address, Deadline deadline) {
  auto first = find_in(session, address, deadline);
  if (first || first.error().status != Status::not_found || session.is_local()) return first;
  const auto second = in_user_group(session, address);
  if (!second) return first;
  auto there = find_in(session, *second, deadline);
  if (!there && there.error().status == Status::not_found)
    return std::unexpected(in_neither(std::move(first.error()), *second));
  return there;
}

Result<RegionRow> find_region(Session& session, const shmbw_region_ref& region, Deadline deadline) {
  Selection selection;
  selection.region = region;
  return only_row(session, selection, {.id = region.id, .generation = region.generation}, deadline);
}
Result<Listing<GroupRow>> list_groups(Session& session, const Selection& selection, Deadline deadline) {
  return list<GroupRow>(session, SHMBW_TABLE_GROUPS, selection, deadline);
}
Result<Listing<SessionRow>> list_sessions(Session& session, const Selection& selection, Deadline deadline) {
  return list<SessionRow>(session, SHMBW_TABLE_SESSIONS, selection, deadline);
}
Result<Listing<LeaseRow>> list_leases(Session& session, const Selection& selection, Deadline deadline) {
  return list<LeaseRow>(session, SHMBW_TABLE_LEASES, selection, deadline);
}
Result<Listing<TicketRow>> list_tickets(Session& session, const Selection& selection, Deadline deadline) {
  return list<TicketRow>(session, SHMBW_TABLE_TICKETS, selection, deadline);
}
Result<Listing<UidRow>> list_uids(Session& session, const Selection& selection, Deadline deadline) {
  return list<UidRow>(session, SHMBW_TABLE_UIDS, selection, deadline);
}
Result<Listing<PoolRow>> list_pools(Session& session, const Selection& selection, Deadline deadline) {
  return list<PoolRow>(session, SHMBW_TABLE_POOLS, selection, deadline);
}
Result<Listing<QueueRow>> list_queues(Session& session, const Selection& selection, Deadline deadline) {
  return list<QueueRow>(session, SHMBW_TABLE_QUEUES, selection, deadline);
}
Result<Listing<ParticipantRow>> list_participants(Session& session, const Selection& selection, Deadline deadline) {
  return list<ParticipantRow>(session, SHMBW_TABLE_PARTICIPANTS, selection, deadline);
}
Result<Listing<WorldRow>> list_worlds(Session& session, const Selection& selection, Deadline deadline) {
  return list<WorldRow>(session, SHMBW_TABLE_WORLDS, selection, deadline);
}
Result<Listing<WorkerRow>> list_workers(Session& session, const Selection& selection, Deadline deadline) {
  return list<WorkerRow>(session, SHMBW_TABLE_WORKERS, selection, deadline);
}
Result<Listing<ReferenceRow>> list_references(Session& session, const Selection& selection, Deadline deadline) {
  return list<ReferenceRow>(session, SHMBW_TABLE_REFERENCES, selection, deadline);
}
Result<Listing<GpuRow>> list_gpu_regions(Session& session, const Selection& selection, Deadline deadline) {
  return list<GpuRow>(session, SHMBW_TABLE_GPU_REGIONS, selection, deadline);
}
Result<Listing<ReportRow>> list_reports(Session& session, const Selection& selection, Deadline deadline) {
  return list<ReportRow>(session, SHMBW_TABLE_REPORTS, selection, deadline);
}
Result<Listing<RefusalRow>> list_refusals(Session& session, Deadline deadline) {
  return list<RefusalRow>(session, SHMBW_TABLE_REFUSALS, {}, deadline);
}

Result<BrokerStatus> broker_status(Session& session, Deadline deadline) {
  SHMB_TRY(answer, call<SHMBW_OP_STATUS>(session, shmbw_status{}, {}, deadline));
  BrokerStatus status;
  status.record = answer.fixed;
  wire::TextReader texts = answer.texts();
  status.version = std::string(texts.take(answer.fixed.version_len).value_or(""));
  status.kernel = std::string(texts.take(answer.fixed.kernel_len).value_or(""));
  status.engine = std::string(texts.take(answer.fixed.engine_len).value_or(""));
  status.losses = std::string(texts.take(answer.fixed.losses_len).value_or(""));
  return status;
}

Result<BrokerBooks> broker_books(Session& session, Deadline deadline) {
  SHMB_TRY(answer, call<SHMBW_OP_BOOKS>(session, shmbw_books{}, {}, deadline));
  if (answer.reply.fds.size() != 1) return malformed_answer<SHMBW_OP_BOOKS>();
  return BrokerBooks{answer.fixed, std::move(answer.reply.fds.front())};
}

}  // namespace shmb::client
