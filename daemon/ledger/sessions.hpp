// SPDX-License-Identifier: Apache-2.0
// The registry of sessions, and of the reports on what ended ones have left.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>

#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/reclaim.hpp"
#include "daemon/ledger/report_log.hpp"
#include "daemon/ledger/session.hpp"

namespace shmb::daemon {

struct Groups;
struct Regions;
struct Tickets;
struct Watches;

struct Sessions {
  Sessions(Host& around, Accounts& users, Watches& watched, Tickets& given, Groups& owners, Regions& memory)
      : host(around),
        accounts(users),
        watches(watched),
        tickets(given),
        groups(owners),
        regions(memory),
        all(&around.nodes),
        reports(&around.nodes),
        told(around.nodes) {}
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  Session* find(std::uint64_t id) {  // greeted or not, not ended
    auto at = all.find(id);
    return at == all.end() || at->second.phase == Phase::ended ? nullptr : &at->second;
  }

  Host& host;
  Accounts& accounts;
  Watches& watches;
  Tickets& tickets;
  Groups& groups;
  Regions& regions;
  std::pmr::map<std::uint64_t, Session> all;
  std::uint64_t last_id = 0;
  std::pmr::map<std::uint64_t, ReclaimReport> reports;  // that wait for an exit status, by session
  ReportLog told;                                       // the last of those that were made
  std::uint64_t reclaims = 0, bytes_reclaimed = 0;
};

}  // namespace shmb::daemon
