// SPDX-License-Identifier: Apache-2.0
// The registry of worlds of workers: by id, and by the port at which their workers meet.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <utility>

#include "daemon/pools/pools.hpp"
#include "daemon/remote/failed_worlds.hpp"
#include "daemon/remote/world.hpp"

namespace shmb::daemon {

struct Worlds {
  Worlds(Host& around, Accounts& users, Groups& owners, Pools& places)
      : host(around), accounts(users), groups(owners), pools(places), all(&around.nodes), by_port(&around.nodes) {
    groups.end_worlds = [this](Group& group) { group.worlds.each([this](World& world) { end_world(*this, world); }); };
  }
  Worlds(const Worlds&) = delete;
  Worlds& operator=(const Worlds&) = delete;

  Host& host;
  Accounts& accounts;
  Groups& groups;
  Pools& pools;
  std::pmr::map<std::uint64_t, World> all;
  std::pmr::map<std::pair<std::uint32_t, std::uint32_t>, World*> by_port;  // by uid and port
  FailedWorlds failed;
  std::uint64_t last_id = 0;
  std::int64_t last_reference = 0;  // time of the last booking; each has its own
};

}  // namespace shmb::daemon
