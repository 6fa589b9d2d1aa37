// SPDX-License-Identifier: Apache-2.0
// `shmbroker release --tickets`: ends tickets of one user, so that the user can make others and what only they hold is
// freed. Those that a session still holds stay unless the caller says so: somebody may be about to use them.
#pragma once

#include <string>

#include "tools/tool.hpp"

namespace shmb::tools {

struct TicketRelease {
  Common common;
  std::string address, group;  // one of them at most: only tickets to that region, or to regions of that group
  std::string user;            // name or number; empty: the owner that address or group names, else the caller
  bool end = false;            // also those that a session still holds
};
// Gives the exit code.
int release_tickets(const TicketRelease& options);

}  // namespace shmb::tools
