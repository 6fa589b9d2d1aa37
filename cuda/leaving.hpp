// SPDX-License-Identifier: Apache-2.0
// Regions whose last handle has ended. A handle may end at any time, in a destructor or a finaliser, also while a
// stream is being captured into a graph, which a question to the driver would spoil. So nothing is asked then. The
// region keeps its mapping and its reference until the next call that may ask (allocate, import, publish, release,
// lend, retire, disconnect, dispatch) finds its devices done. A region whose work never ends stays until the process
// ends.
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/abi.hpp"

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
  static void add(std::unique_ptr<Region>& region);
  // Ends those whose devices are done: of a session and of no session, or (null) all. Does not wait.
  static Counts run(const client::Session* session);
  static bool any() noexcept;
  static bool any_on(const Uuid& device);
};

}  // namespace shmb::cuda
