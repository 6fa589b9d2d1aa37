// SPDX-License-Identifier: Apache-2.0
// `shmbroker gc --group`: what an ended group still keeps at the broker. The broker knows each holder by its lease. So
// nothing is guessed, and a region in use is never freed.
#pragma once

#include <string>

#include "tools/tool.hpp"

namespace shmb::tools {

struct GroupCleaning {
  Common common;
  std::string group;  // NAME, UID:NAME or @ID, as `list --group` takes it
  bool yes = false, ids_only = false;
};
// Returns the exit code. Without `yes` it only prints the plan.
int clean_group(const GroupCleaning& options);

}  // namespace shmb::tools
