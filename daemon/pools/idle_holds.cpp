// SPDX-License-Identifier: Apache-2.0
// One look over all pools, in portions. See idle_holds.hpp.
#include "daemon/pools/idle_holds.hpp"

#include <algorithm>

#include "daemon/ledger/host.hpp"
#include "daemon/pools/pools.hpp"

namespace shmb::daemon {
namespace {

constexpr std::size_t kLinesPerTurn = 4096;
constexpr std::int64_t kFirstPause = 1'000'000'000, kLongestPause = 60'000'000'000;

}  // namespace

// Long enough for an active sender to send its next message, which drops the hold.
void IdleHolds::noticed() {
  waits_ |= pool_ != 0;  // a look is in progress, and may have passed this region
  if (armed() && pause_ == kFirstPause) return;
  pause_ = kFirstPause;
  pools_.host.timers.set(*this, pools_.host.now() + pause_);
}

void IdleHolds::on_timer(std::int64_t now) {
  std::size_t lines = kLinesPerTurn;
  for (auto at = pools_.all.lower_bound(pool_); at != pools_.all.end(); ++at) {
    if (at->first != pool_) lane_ = 0;
    pool_ = at->first;
    for (Pool& pool = at->second; lane_ < pool.lanes.size(); ++lane_) {
      if (lines == 0) return pools_.host.timers.set(*this, now);
      lines -= std::min(lines, drop_idle_holds(pools_, pool, lane_, waits_));
    }
  }
  pool_ = lane_ = 0;
  pause_ = std::min(2 * pause_, kLongestPause);
  if (std::exchange(waits_, false)) pools_.host.timers.set(*this, now + pause_);
}

}  // namespace shmb::daemon
