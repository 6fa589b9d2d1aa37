// SPDX-License-Identifier: Apache-2.0
// The registry of pools. A pool is named by an id that no region and no other pool has.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <vector>

#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/pools/idle_holds.hpp"
#include "daemon/pools/pool.hpp"

namespace shmb::daemon {

// Something that a request gives to participants: they may use it as soon as the directory shows it. It is shown after
// the commit (show_given). Otherwise a broker that is killed in between would leave a lane with messages in it, and no
// later broker would know that lane. What a request takes away is shown at once: repairs rely on that.
struct Gift {
  enum class What : std::uint8_t { segment, queue, ends, lane, participant, doorbells };
  std::uint64_t pool;
  What what;
  std::uint32_t index;
};

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
  std::vector<Gift> given;  // in this turn
};

// The caller tells participants with a doorbell: their event is queued now, and leaves after the directory has changed.
void give(Pool& pool, Gift::What what, std::uint32_t index = 0);
// Writes into the directories what this turn has given, and wakes the participants.
void show_given(Pools& pools);

}  // namespace shmb::daemon
