// SPDX-License-Identifier: Apache-2.0
// Regions that only lanes of queues still hold: no process has them mapped, and the message that named them was read.
// Their sender drops the hold at its next call, but it may never make one. So the broker looks for them. A sender has a
// lease until it has published, and a receiver has one before it is done. Thus a region without any lease is needed
// only by an unread message. Each turn looks at a portion of the lanes. The longer a message stays unread, the longer
// the pause between two looks.
#pragma once

#include <cstdint>

#include "daemon/kit/timers.hpp"

namespace shmb::daemon {

struct Pools;

class IdleHolds final : public Timer {
 public:
  explicit IdleHolds(Pools& pools) : pools_(pools) {}
  void noticed();  // a region that lanes hold, or that is part of a pool, has lost its last lease
  void on_timer(std::int64_t now) override;

 private:
  Pools& pools_;
  std::uint64_t pool_ = 0;  // where the look continues
  std::uint32_t lane_ = 0;
  std::int64_t pause_ = 0;
  bool waits_ = false;  // another look is needed
};

}  // namespace shmb::daemon
