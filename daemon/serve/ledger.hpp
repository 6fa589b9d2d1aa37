// SPDX-License-Identifier: Apache-2.0
// The ledger: everything that the broker knows, in one object on one thread.
//
// It owns the registries. Each registry holds one kind of object and knows the few others that its nouns need.
// Sessions, groups, regions, pools and worlds have 64-bit ids that are never reused. The nouns (region, lease, group,
// ...) are functions over a registry. Work that goes on between requests stands beside the objects that it works on:
// timers, helper threads for closes, seals and GPU nodes.
//
// These rules hold after each call from the transport:
// - A lease, name, ticket or hold is booked before the reply leaves (law 1).
// - Each object carries its own charges, and its destruction gives them back. So no path can forget one.
// - A region is live, on a shelf, or being closed. A live region has a holder: a lease, a name, a ticket, a pool
//   or a lane.
// - Nothing here waits (law 8). Waiting is a watch. Long work runs in portions by a timer, or on a helper thread that
//   reports through `wake_fd`.
//
// One thread needs no lock, and no request sees half of a change: a death touches most registries at once.
#pragma once

#include "daemon/gpu/gpu.hpp"
#include "daemon/kit/reserve.hpp"
#include "daemon/kit/secret.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/reply.hpp"
#include "daemon/ledger/sessions.hpp"
#include "daemon/ledger/tickets.hpp"
#include "daemon/ledger/watches.hpp"
#include "daemon/pools/pools.hpp"
#include "daemon/remote/worlds.hpp"
#include "daemon/serve/books_copy.hpp"
#include "daemon/serve/memory_pressure.hpp"

namespace shmb::daemon {

class Ledger {
 public:
  Ledger(const Config& config, BrokerFacts facts, const Secret& hash_key, books::Store store)
      : host(config, std::move(facts), std::move(store)),
        groups(host, accounts, watches, regions, hash_key),
        tickets(host, accounts, groups, regions, hash_key) {}
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // The transport has called in: the allowances of one turn on this thread start again.
  void begin_turn() {
    if (reserve::low()) memory_is_low();
    regions.closed_here = 0;
    regions.releaser.begin_turn();
  }

  bool has_memory();     // for a request that needs some, and for its records
  void memory_is_low();  // once a minute in the log

  Host host;
  Accounts accounts{host};
  Watches watches{host, accounts, groups};
  Groups groups;
  MemoryPressure pressure{host, groups};
  Regions regions{host, accounts, watches, groups};
  Tickets tickets;
  Sessions sessions{host, accounts, watches, tickets, groups, regions};
  Pools pools{host, accounts, groups, regions};
  Worlds worlds{host, accounts, groups, pools};
  Gpu gpu{host, accounts, groups, regions, sessions};
  Reply reply;
  BooksCopy books_copy{accounts};

 private:
  std::int64_t told_low_ = 0;
};

}  // namespace shmb::daemon
