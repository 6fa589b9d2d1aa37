// SPDX-License-Identifier: Apache-2.0
// Regions that only lanes of queues still hold: nobody has them mapped, and the message that named them was read. Their
// sender lets go of them at its next call, but it may never make one. So the broker looks: a sender has a lease until
// it has published, a receiver has one before it is done, thus a region without any lease is needed only by an unread
// message. A portion of lanes in a turn; the longer something stays unread, the more rarely it is looked for.
#pragma once

#include <cstdint>

#include "daemon/timers.hpp"

namespace shmb::daemon {

class World;

class IdleHolds final : public Timer {
 public:
  explicit IdleHolds(World& world) : world_(world) {}
  void noticed();  // a region that is held by lanes, or is part of a pool, has lost its last lease
  void on_timer(std::int64_t now) override;

 private:
  World& world_;
  std::uint64_t pool_ = 0;  // where the look stands
  std::uint32_t lane_ = 0;
  std::int64_t pause_ = 0;
  bool waits_ = false;  // there must be another look
};

}  // namespace shmb::daemon
