// SPDX-License-Identifier: Apache-2.0
// The registry of tickets: by secret, and in the order in which they were made.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <unordered_map>

#include "daemon/kit/secret.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/ticket.hpp"

namespace shmb::daemon {

struct Groups;
struct Regions;

struct Tickets {
  Tickets(Host& around, Accounts& users, Groups& owners, Regions& memory, const Secret& hash_key)
      : host(around),
        accounts(users),
        groups(owners),
        regions(memory),
        all(16, SecretHash(hash_key), SecretSame(), &around.nodes),
        in_order(&around.nodes) {}
  Tickets(const Tickets&) = delete;
  Tickets& operator=(const Tickets&) = delete;

  Host& host;
  Accounts& accounts;
  Groups& groups;
  Regions& regions;
  std::pmr::unordered_map<Secret, Ticket, SecretHash, SecretSame> all;
  std::pmr::map<std::uint64_t, Ticket*> in_order;  // by serial: walked in portions
};

}  // namespace shmb::daemon
