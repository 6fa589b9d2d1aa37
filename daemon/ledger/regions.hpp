// SPDX-License-Identifier: Apache-2.0
// The registry of regions and their leases, and of what is done to regions on other threads: closes and seals.
// A region is live, on a shelf, or being closed. A live region has a holder: a lease, a name, a ticket, the pool of
// which it is a segment, or a lane whose messages name it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory_resource>
#include <set>
#include <vector>

#include "daemon/kit/closer.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/reclaim.hpp"
#include "daemon/ledger/region.hpp"
#include "daemon/ledger/sealer.hpp"
#include "daemon/ledger/timeline.hpp"

namespace shmb::daemon {

struct Groups;
struct Watches;

struct Regions {
  Regions(Host& around, Accounts& users, Watches& watched, Groups& owners)
      : host(around),
        accounts(users),
        watches(watched),
        groups(owners),
        all(&around.nodes),
        closing_pools(&around.nodes),
        sealings(&around.nodes) {}
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;

  Region* find(std::uint64_t id) {  // live ones only
    auto at = all.find(id);
    return at == all.end() || !at->second.live() ? nullptr : &at->second;
  }

  Host& host;
  Accounts& accounts;
  Watches& watches;
  Groups& groups;
  std::pmr::map<std::uint64_t, Region> all;
  std::uint64_t last_id = 0;  // of regions and pools
  std::uint64_t count = 0;    // live ones
  std::uint64_t leases = 0;
  std::set<Lease*> kept_leases;  // mappings that their sessions give back on request
  Tally* tally = nullptr;        // counts frees while a session or a group ends
  Closer closer;                 // closes freed regions
  std::pmr::map<std::uint64_t, ClosingPool> closing_pools;
  std::uint64_t closed_here = 0;  // bytes closed on this thread since the transport called in
  Sealer sealer;
  std::pmr::map<std::uint64_t, Sealing> sealings;  // in progress, by region
  std::vector<Sealer::Job> sealed;                 // those that are done
  TimelineReleaser releaser{host};
  // Called when a region that lanes hold, or that is part of a pool, has lost its last lease. The room of the pools
  // sets it.
  std::function<void()> on_idle_hold = [] {};
};

}  // namespace shmb::daemon
