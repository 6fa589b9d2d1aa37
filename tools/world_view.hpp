// SPDX-License-Identifier: Apache-2.0
// Worlds of workers and their references as tables for people. The broker's table says which worker holds which
// reference. A cycle of owners that hold each other's references is named: where the references are stored in values,
// only the end of a worker frees them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/report_json.hpp"
#include "tools/table.hpp"
#include "tools/tool.hpp"
#include "tools/view.hpp"

namespace shmb::tools {

using client::ReferenceRow;
using client::WorkerRow;
using client::WorldRow;

struct Worlds {
  Listing<WorldRow> worlds;
  Listing<WorkerRow> workers;
  Listing<ReferenceRow> references;
};
Result<Worlds> read_worlds(const Viewer& viewer, const Selection& selection);

std::string reference_text(const shmbw_ref_id& id);  // "1:17", the 17th object that rank 1 has booked
std::string ref_state_text(std::uint32_t state);
// Whether user and owner belong to a cycle of ranks that hold each other's references, by the row's index in
// `references`.
std::vector<bool> in_cycles(const std::vector<ReferenceRow>& references);

Table world_table(const Worlds& books);
Table reference_table(const Worlds& books);
Json world_json(const Worlds& books);  // one document of each world, its workers and references inside

}  // namespace shmb::tools
