// SPDX-License-Identifier: Apache-2.0
// Released regions that a device still works with. No call may wait for that without a deadline, and nothing may be
// unmapped under a kernel. They keep their mapping and their reference until the device is done. They end in
// shmb_dispatch, or at the end of a call that frees. A region whose work never ends stays until the process ends.
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

  // If it throws, the caller still has the region.
  static void add(std::unique_ptr<Region>& region, Backlog backlog);
  // Ends those whose devices are done: of a session and of no session, or (null) all. Does not wait.
  static Counts run(const client::Session* session);
  static bool any() noexcept;
  static bool any_on(const Uuid& device);
};

}  // namespace shmb::cuda
