// SPDX-License-Identifier: Apache-2.0
// Regions that nobody has any more while a device still works with them: nobody may wait for that without a deadline,
// and nothing may be unmapped under a kernel. They keep their mapping and their reference until the device is through,
// and go in shmb_dispatch or at the end of a call that frees. What never ends keeps its region until the process does.
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/backlog.hpp"

namespace shmb::client {
class Session;
}

namespace shmb::cuda {

class Region;

class Leaving {
 public:
  struct Counts {
    std::size_t ended = 0, waiting = 0;
  };

  // Where it throws the region is still the caller's.
  static void add(std::unique_ptr<Region>& region, Backlog backlog);
  // Ends those of a session and of none, or (null) all, whose devices are through. Waits for none.
  static Counts run(const client::Session* session);
  static bool any() noexcept;
  static bool any_on(const Uuid& device);
};

}  // namespace shmb::cuda
