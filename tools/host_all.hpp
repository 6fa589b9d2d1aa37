// SPDX-License-Identifier: Apache-2.0
// `shmbroker list --all`: all shared memory of the host. It needs no broker.
#pragma once

#include "tools/host_view.hpp"

namespace shmb::tools {

// One row for each object; with `as_tree` each process with its objects. Returns the exit code.
int list_host(const ListingOptions& options, bool as_tree);

}  // namespace shmb::tools
