// SPDX-License-Identifier: Apache-2.0
// The broker's books as this caller may see them: the tables of LIST, all pages, and STATUS.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "proto/shmb_wire.h"
#include "tools/session.hpp"

namespace shmb::tools {

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

struct Selection {
  std::uint64_t group = 0;    // 0: any
  shmbw_region_ref region{};  // id 0: any
  std::optional<std::uint32_t> owner_uid;
  std::string group_name, name;  // empty: any
  bool all_groups = false;
};

template <class Row>
struct Rows {
  std::vector<Row> rows;
  std::uint64_t total_bytes = 0;  // as the broker adds them up
};

Result<Rows<RegionRow>> regions(const Viewer& viewer, const Selection& selection);
Result<Rows<GroupRow>> groups(const Viewer& viewer, const Selection& selection);
Result<Rows<SessionRow>> sessions(const Viewer& viewer, const Selection& selection);
Result<Rows<LeaseRow>> leases(const Viewer& viewer, const Selection& selection);
Result<Rows<TicketRow>> tickets(const Viewer& viewer, const Selection& selection);

struct BrokerStatus {
  shmbw_status_reply facts{};
  std::string version, kernel, engine;
  std::vector<std::string> losses;
};
Result<BrokerStatus> broker_status(const Viewer& viewer);

// What people call these.
std::string address_text(
    const RegionRow& row);  // "GROUP/NAME", "UID:GROUP/NAME" of another uid, "@ID.GENERATION" unnamed
std::string id_text(const shmbw_region_ref& ref);                   // "@17.1"
std::string group_text(std::uint64_t id, const std::string& name);  // the name, or "#17"
std::string access_text(const shmbw_region_record& record);         // "rw", "ro", "ro*" (many writers: no boundary)
std::string rights_text(std::uint32_t rights);                      // "read write share release"
std::string state_text(const shmbw_region_record& record);
std::string page_text(std::uint32_t page_kind);
std::string session_state_text(std::uint32_t state);
std::string keep_text(std::int64_t keep);  // "0", "10m", "until released"

}  // namespace shmb::tools
