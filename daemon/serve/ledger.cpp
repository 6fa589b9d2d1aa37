// SPDX-License-Identifier: Apache-2.0
// An orderly end: objects are destroyed before the accounts that they are charged to.
#include "daemon/serve/ledger.hpp"

namespace shmb::daemon {

Ledger::~Ledger() {
  sessions.reports.clear();
  watches.names.clear();
  tickets.in_order.clear();
  tickets.all.clear();
  sessions.all.clear();
  worlds.all.clear();
  pools.all.clear();
  regions.closing_pools.clear();
  regions.all.clear();
  groups.all.clear();
}

}  // namespace shmb::daemon
