// SPDX-License-Identifier: Apache-2.0
// The registry of GPUs: their nodes, and the thread that finds them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "daemon/gpu/device.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/sessions.hpp"

namespace shmb::daemon {

struct Gpu {
  Gpu(Host& around, Accounts& users, Groups& all_groups, Regions& memory, Sessions& owners)
      : host(around), accounts(users), groups(all_groups), regions(memory), sessions(owners) {}
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Host& host;
  Accounts& accounts;
  Groups& groups;
  Regions& regions;
  Sessions& sessions;
  GpuLooker looker;
  std::map<std::uint32_t, std::weak_ptr<GpuNode>> nodes;  // opened by the broker, by minor
};

}  // namespace shmb::daemon
