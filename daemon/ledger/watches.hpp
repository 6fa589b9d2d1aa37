// SPDX-License-Identifier: Apache-2.0
// The registry of watches that hang on no object of another registry. They wait for names that may not be there yet, or
// for the reclaims of all users. Every other watch hangs on its region, group or user.
#pragma once

#include <cstdint>
#include <memory_resource>

#include "daemon/ledger/host.hpp"
#include "daemon/ledger/watch.hpp"

namespace shmb::daemon {

struct Accounts;
struct Groups;

struct Watches {
  Watches(Host& around, Accounts& users, Groups& owners)
      : host(around), accounts(users), groups(owners), names(&around.nodes) {}
  Watches(const Watches&) = delete;
  Watches& operator=(const Watches&) = delete;

  Host& host;
  Accounts& accounts;
  Groups& groups;
  NameWatches names;
  Watchers all_reclaims;    // of admins; those of others are in their Uid
  std::uint64_t count = 0;  // of all watches
};

}  // namespace shmb::daemon
