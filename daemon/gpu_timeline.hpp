// SPDX-License-Identifier: Apache-2.0
// A timeline: words on which GPU streams of several processes meet. It is control memory that the broker has laid out
// and mapped (law 3), and of which it trusts nothing (law 4): it writes a status and a number, and reads one number
// that it only adds to. When the producer is gone every waiter is released, again and again for some seconds, because a
// write that the dead producer's stream had begun may land later and undo it.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/mapping.hpp"
#include "base/result.hpp"
#include "daemon/timers.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

class Session;
class World;
struct Region;

struct Timeline final : Timer {
  explicit Timeline(World& owner) : world(owner) {}
  void on_timer(std::int64_t now) override;
  void release();

  World& world;
  Mapping map;
  std::uint32_t words = 0;
  shmbw_gpu_word_status status = SHMBW_GPU_WORD_STATUS_OK;
  std::int64_t until = 0;  // how long the release is repeated
};

// A region of the session's, who is its producer.
Result<Region*> make_timeline(World& world, Session& session, const shmbw_gpu_timeline& wish, std::string_view name);
void end_timeline(World& world, Region& region, shmbw_gpu_word_status status, std::uint32_t pid);

}  // namespace shmb::daemon
