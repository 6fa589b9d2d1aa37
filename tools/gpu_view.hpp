// SPDX-License-Identifier: Apache-2.0
// GPU regions for people: device, size, publisher, users, state, and why their memory is still held.
#pragma once

#include <string>
#include <vector>

#include "tools/report_json.hpp"
#include "tools/table.hpp"
#include "tools/tool.hpp"
#include "tools/view.hpp"

namespace shmb::tools {

using client::GpuRow;

std::string gpu_state_text(const shmbw_gpu_record& record);
std::string why_held(const shmbw_gpu_record& record);  // "name, publisher, 2 importers, 1 ticket"
Table gpu_table(const Common& common, const std::vector<GpuRow>& rows);
// Lines of `inspect`: label and text.
std::vector<std::pair<std::string, std::string>> gpu_lines(const Common& common, const shmbw_gpu_record& record);
Json gpu_json(const GpuRow& row);

}  // namespace shmb::tools
