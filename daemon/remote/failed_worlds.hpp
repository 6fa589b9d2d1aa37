// SPDX-License-Identifier: Apache-2.0
// Worlds that ended before they were complete. Their workers are notified at once. This remembers the cause for the
// ranks that had not come yet. Without it they would found a world of their own, and wait there for workers that have
// gone. Each rank gets the cause once. A process that began after the failure may be a slow worker of the failed start,
// or belong to another start of the job. In the second case ranks that have the cause already come again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "base/result.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

class Session;

class FailedWorlds {
 public:
  using Cause = std::shared_ptr<const Error>;
  struct Note {
    std::uint32_t uid, port, world_size;
    std::uint64_t told;  // one bit for each rank
    std::int64_t at;     // CLOCK_BOOTTIME nanoseconds
    std::uint32_t last_pid;
    Cause cause;
  };
  void note(Note note);
  // The reason why the world of a late worker failed, if that rank has not got it yet. Null: no such world failed.
  struct Late {
    Cause cause;
    std::uint64_t told = 0;
    bool certain = false;  // its process began before the failure, so it gets this cause
  };
  Late tell(const Session& late, const shmbw_world_join& wish, std::int64_t now);

 private:
  std::deque<Note> notes_;  // in the order of their times
};

}  // namespace shmb::daemon
