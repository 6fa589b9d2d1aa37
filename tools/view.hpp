// SPDX-License-Identifier: Apache-2.0
// The names that people use for the objects in the broker's tables (client/session/views.hpp reads them). A state
// number of a newer broker is "unknown", never an index beyond a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/session/views.hpp"

namespace shmb::tools {

using client::BrokerStatus;
using client::GroupRow;
using client::LeaseRow;
using client::Listing;
using client::ParticipantRow;
using client::PoolRow;
using client::QueueRow;
using client::RegionRow;
using client::Selection;
using client::SessionRow;
using client::TicketRow;

// The names that people use for these.
// "GROUP/NAME", "UID:GROUP/NAME" of another uid
std::string address_text(std::uint32_t owner, std::uint64_t group, const std::string& group_name,
                         const std::string& name);
std::string address_text(const RegionRow& row);                     // that, "@ID.GENERATION" unnamed
std::string address_text(const PoolRow& row);                       // as a region's; "@ID" unnamed
std::string id_text(const shmbw_region_ref& ref);                   // "@17.1"
std::string pool_id_text(std::uint64_t pool);                       // "@17"
std::string group_text(std::uint64_t id, const std::string& name);  // the name, or "@17"
std::string access_text(const shmbw_region_record& record);         // "rw", "ro", "ro*" (many writers: no boundary)
std::string rights_text(std::uint32_t rights);                      // "read write share release"
std::string state_text(const shmbw_region_record& record);
// The holders of a region that no name and no process holds, to follow its state: ", slots of cam/frames", ", only 1
// ticket holds it". Empty for others.
std::string held_text(const shmbw_region_record& record, const std::vector<PoolRow>& pools);
std::string program_text(const std::string& library);  // "python3" of "python3 (libshmbroker 0.1.0)"
std::string page_text(std::uint32_t page_kind);
std::string session_state_text(std::uint32_t state);
std::string death_text(std::uint32_t how);  // "killed"
std::string keep_text(std::int64_t keep);   // "0", "10m", "until-released"
std::string queue_kind_text(std::uint32_t kind);
std::string queue_flags_text(std::uint32_t flags);  // "drop-oldest expiring"
std::string queue_state_text(const QueueRow& row);  // "open", "closed"
std::string participant_state_text(std::uint32_t state);
std::string pool_state_text(const shmbw_pool_record& record);  // "ok", "broken", "1 leaving"
std::vector<std::string> loss_lines(const BrokerStatus& status);

}  // namespace shmb::tools
