// SPDX-License-Identifier: Apache-2.0
// The regions that a sender's lane holds. A message may name regions, and its receiver attaches them when it reads the
// message, perhaps long after the sender has let go of them. So the broker books a hold of the lane on each region
// before the message is published.
//
// The lane holds a region once, however many messages name it. A region that is sent again and again stays held between
// two messages (idle), because each hold is a request. Idle holds are dropped when there are many, or when they are
// large. That request needs no reply.
//
// The lock of the pool's participant must be held for all functions.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "client/queue/pool.hpp"

namespace shmb::client {

class LaneHolds {
 public:
  // One more message names each of these. All are counted, or none (if memory runs out).
  void count(std::span<Region* const> regions);
  // Those that the broker has not booked yet, each once.
  std::vector<const Region*> missing(std::span<Region* const> regions) const;
  void book(const Region& region) { holds_.at(region.ref().id).handle = region.serial(); }
  void let_go(std::uint64_t region);  // by a message that named it
  bool has_idle() const { return !idle_.empty(); }
  // Tells the broker that the lane has no use for its idle holds any more; if they are few, only with `all`.
  void drop_idle(Pool& pool, std::uint32_t lane, std::uint32_t serial, bool all = false);
  void clear();  // the lane is gone, and its holds with it

 private:
  struct Hold {
    std::uint32_t generation = 0;
    std::uint32_t in_flight = 0;  // messages that name it, including those that are being sent
    std::uint64_t bytes = 0,
                  handle = 0;  // Region::serial(), 0: not held yet. While it lives, the broker keeps the hold
  };
  std::unordered_map<std::uint64_t, Hold> holds_;
  std::vector<std::uint64_t> idle_;
  std::uint64_t idle_bytes_ = 0;
};

}  // namespace shmb::client
