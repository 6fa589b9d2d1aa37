// SPDX-License-Identifier: Apache-2.0
// Pools, queues and participants as tables and lines for people. For figures of lanes and slots the broker reads shared
// words that others change meanwhile. So each figure is true at some moment, but not all at the same one.
#pragma once

#include <string>
#include <vector>

#include "tools/table.hpp"
#include "tools/tool.hpp"
#include "tools/view.hpp"

namespace shmb::tools {

// A queue's address; its pool is among `pools`, or is named by its id.
std::string queue_address(const std::vector<PoolRow>& pools, const QueueRow& row);

Table pool_table(const Common& common, const std::vector<PoolRow>& rows);
Table queue_table(const std::vector<PoolRow>& pools, const std::vector<QueueRow>& rows);
// `programs`: one for each row.
Table participant_table(const std::vector<ParticipantRow>& rows, const std::vector<std::string>& programs);

std::string pool_lines(const Common& common, const PoolRow& row);
std::string queue_lines(const PoolRow& pool, const QueueRow& row);

}  // namespace shmb::tools
