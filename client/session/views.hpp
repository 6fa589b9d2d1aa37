// SPDX-License-Identifier: Apache-2.0
// The broker's tables: LIST, read page by page to the end, and STATUS. The tool prints them; the C ABI's stat is one
// row of the first.
//
// A row is the wire's record with its texts. A newer broker may send longer records: the rest is skipped. An older one
// sends shorter records, and the missing fields are zero.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/session/session.hpp"
#include "proto/names.hpp"
#include "proto/shmb_wire.h"

namespace shmb::client {

// The filter of a listing. Nothing set: all that the caller may see.
struct Selection {
  std::uint64_t group = 0;
  shmbw_region_ref region{};               // id 0: any; generation 0: any
  std::optional<std::uint32_t> owner_uid;  // of group_name
  std::string group_name, name;
  bool all_groups = false;
};

struct RegionRow {
  shmbw_region_record record{};
  std::string group, name;
};
struct GroupRow {
  shmbw_group_record record{};
  std::string name;
};
struct SessionRow {
  shmbw_session_record record{};
  std::string library;
};
struct LeaseRow {
  shmbw_lease_record record{};
};
struct TicketRow {
  shmbw_ticket_record record{};
};
struct UidRow {
  shmbw_uid_record record{};
};
struct PoolRow {
  shmbw_pool_record record{};
  std::string group, name;
};
struct QueueRow {
  shmbw_queue_record record{};
  std::string pool, name;  // pool: its name, or "#id"
};
struct ParticipantRow {
  shmbw_participant_record record{};
};
struct WorldRow {
  shmbw_world_record record{};
  std::string address;
};
struct WorkerRow {
  shmbw_worker_record record{};
  std::string name;
};
struct ReferenceRow {
  shmbw_reference_record record{};
  std::string error;
};

struct ReportRow {
  shmbw_report_record record{};
  std::string group, library, ending;
};
struct RefusalRow {
  shmbw_refusal_record record{};
};

struct GpuRow {
  shmbw_gpu_record record{};
  std::string group, name;
};

// The totals are the broker's, over the whole selection, counted with the first page.
template <class Row>
struct Listing {
  std::vector<Row> rows;
  std::uint64_t total_bytes = 0, total_count = 0;
};

Result<Listing<RegionRow>> list_regions(Session& session, const Selection& selection, Deadline deadline);
// The one region at an address. not_found: there is none for this caller.
Result<RegionRow> find_region(Session& session, const names::Address& address, Deadline deadline);
Result<RegionRow> find_region(Session& session, const shmbw_region_ref& region, Deadline deadline);
Result<Listing<GroupRow>> list_groups(Session& session, const Selection& selection, Deadline deadline);
Result<Listing<SessionRow>> list_sessions(Session& session, const Selection& selection, Deadline deadline);
Result<Listing<LeaseRow>> list_leases(Session& session, const Selection& selection, Deadline deadline);
Result<Listing<TicketRow>> list_tickets(Session& session, const Selection& selection, Deadline deadline);
Result<Listing<UidRow>> list_uids(Session& session, const Selection& selection, Deadline deadline);
// Here the selection's region and name are those of a pool.
Result<Listing<PoolRow>> list_pools(Session& session, const Selection& selection, Deadline deadline);
Result<Listing<QueueRow>> list_queues(Session& session, const Selection& selection, Deadline deadline);
Result<Listing<ParticipantRow>> list_participants(Session& session, const Selection& selection, Deadline deadline);
// Here the selection's region is a world.
Result<Listing<WorldRow>> list_worlds(Session& session, const Selection& selection, Deadline deadline);
Result<Listing<WorkerRow>> list_workers(Session& session, const Selection& selection, Deadline deadline);
Result<Listing<ReferenceRow>> list_references(Session& session, const Selection& selection, Deadline deadline);

// Reclaims that the broker still knows of. The selection's group may have ended.
Result<Listing<ReportRow>> list_reports(Session& session, const Selection& selection, Deadline deadline);
Result<Listing<RefusalRow>> list_refusals(Session& session, Deadline deadline);

Result<Listing<GpuRow>> list_gpu_regions(Session& session, const Selection& selection, Deadline deadline);

struct BrokerStatus {
  shmbw_status_reply record{};
  std::string version, kernel, engine, losses;  // losses: one line each
};
Result<BrokerStatus> broker_status(Session& session, Deadline deadline);

// A copy of the broker's books, in memory that nobody can change. daemon/books/reader.hpp reads it.
struct BrokerBooks {
  shmbw_books_reply record{};
  Fd memory;
};
Result<BrokerBooks> broker_books(Session& session, Deadline deadline);

}  // namespace shmb::client
