// SPDX-License-Identifier: Apache-2.0
// `shmbroker release --tickets`: ends tickets of one user. The user can then make others, and regions that only these
// tickets hold are freed. Tickets that a session still holds stay unless the caller says so, because a process may be
// about to use them.
#pragma once

#include <string>

#include "tools/tool.hpp"

namespace shmb::tools {

struct TicketRelease {
  Common common;
  std::string address, group;  // at most one: only tickets to that region, or to regions of that group
  std::string user;            // name or number; empty: the owner in the address or group, else the caller
  bool end = false;            // also those that a session still holds
};
// Returns the exit code.
int release_tickets(const TicketRelease& options);

}  // namespace shmb::tools
