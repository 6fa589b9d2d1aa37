// SPDX-License-Identifier: Apache-2.0
// The tool's JSON. The first key of each document is its schema's id, "shmbroker.VERB/1". Keys may be added to a
// schema. They are never renamed, and their meaning never changes, without a new number. Times are UTC with offset,
// sizes bytes, text is ASCII.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/session.hpp"
#include "tools/view.hpp"

namespace shmb::tools {

using Json = nlohmann::ordered_json;

Json document(const std::string& verb);
std::string dump(const Json& json);

Json region_json(const RegionRow& row);
Json group_json(const GroupRow& row);
Json lease_json(const LeaseRow& row);
Json ticket_json(const TicketRow& row);
Json pool_json(const PoolRow& row);
Json queue_json(const QueueRow& row, const std::string& address);
Json participant_json(const ParticipantRow& row, const std::string& program);
Json report_json(const client::ReportRow& row);
Json reclaim_json(const client::Event& event);  // of kind reclaim
Json broker_json(const Viewer& viewer, const BrokerStatus& status);

// CLOCK_BOOTTIME as "2026-01-31T12:00:00+00:00"; null for 0.
Json time_json(std::int64_t boottime);
std::string mode_text(std::uint32_t mode);
std::string engine_text(std::uint32_t engine);

}  // namespace shmb::tools
