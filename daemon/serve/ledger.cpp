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

bool Ledger::has_memory() {
  if (!reserve::low() && host.books.store.ready()) return true;
  memory_is_low();
  return false;
}

void Ledger::memory_is_low() {
  constexpr std::int64_t kTellEvery = 60'000'000'000;
  if (told_low_ == 0 || host.now() - told_low_ >= kTellEvery) {
    told_low_ = host.now();
    host.log(4, "the broker's own memory was used up: until it has its reserve again it only takes things back");
  }
  reserve::refill();
}

}  // namespace shmb::daemon
