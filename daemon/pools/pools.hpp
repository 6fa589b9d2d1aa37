// SPDX-License-Identifier: Apache-2.0
// The registry of pools. A pool is named by an id that no region and no other pool has.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>

#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/pools/idle_holds.hpp"
#include "daemon/pools/pool.hpp"

namespace shmb::daemon {

struct Pools {
  Pools(Host& around, Accounts& users, Groups& owners, Regions& memory)
      : host(around), accounts(users), groups(owners), regions(memory), all(&around.nodes) {
    groups.end_pools = [this](Group& group, std::int64_t now, bool every) {
      return daemon::end_pools(*this, group, now, every);
    };
    regions.on_idle_hold = [this] { idle_holds.noticed(); };
  }
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  Host& host;
  Accounts& accounts;
  Groups& groups;
  Regions& regions;
  std::pmr::map<std::uint64_t, Pool> all;
  IdleHolds idle_holds{*this};
};

}  // namespace shmb::daemon
