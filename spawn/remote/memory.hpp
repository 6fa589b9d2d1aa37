// SPDX-License-Identifier: Apache-2.0
// Memory for what a worker sends and keeps: regions in the group of its world, and slots of the world's pool.
//
// A few bytes are copied and need none of this. More bytes on their way lie in a slot, which is used again. If they are
// too many for a slot, or no slot is free, they lie in a region of their own. A value stays, so it is never in a slot.
// All functions are called without the lock, because they ask the broker.
#pragma once

#include <cstdint>
#include <string_view>

#include "spawn/remote/life.hpp"
#include "spawn/remote/monitor.hpp"
#include "spawn/remote/place.hpp"
#include "spawn/remote/state.hpp"

namespace shmb::remote {

class Memory {
 public:
  Memory(const Place& place, const Monitor& monitor, const Life& life)
      : place_(place), monitor_(monitor), life_(life) {}

  // `timeout` in ns is the broker's, 0 is the default.
  Result<client::Region::Handle> region(std::uint64_t length, std::int64_t timeout = 0) const;
  Result<client::Region::Handle> again(const client::Region& region) const;  // one more handle of the same memory
  // A lease of the worker's own on a region of another session, with the rights of that handle.
  Result<client::Region::Handle> lease(client::Region& region) const;

  // A copy of `bytes`. `deadline` is the call's, CLOCK_MONOTONIC; 0: it has none. DEADLINE: it has passed, and the
  // broker was not asked.
  Result<client::Region::Handle> in_region(std::string_view bytes, std::int64_t deadline) const;
  SlotBytes in_slot(std::string_view bytes, std::int64_t deadline) const;  // empty: no slot is free, or large enough
  // A payload as this worker keeps it: for a call to itself, or, if it `stays`, as a value.
  Result<Content> keep(const Payload& payload, bool stays, std::int64_t deadline) const;

 private:
  const Place& place_;
  const Monitor& monitor_;
  const Life& life_;
};

}  // namespace shmb::remote
