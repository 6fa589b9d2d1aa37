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

  // Needs no memory: the place in the list is the region's own.
  static void add(std::unique_ptr<Region> region) noexcept;
  // Ends those whose devices are done: of a session and of no session, or (null) all. Does not wait.
  static Counts run(const client::Session* session);
  static bool any() noexcept;
  static bool any_on(const Uuid& device);

  // Regions in the order in which they left.
  class Line {
   public:
    Line() noexcept;
    Line(Line&& other) noexcept;
    Line& operator=(Line&&) = delete;
    ~Line();

    void add(std::unique_ptr<Region> region) noexcept;
    void add(Line&& others) noexcept;
    std::unique_ptr<Region> take() noexcept;  // the first one, or null
    std::size_t size() const noexcept { return size_; }
    bool any_on(const Uuid& device) const noexcept;

   private:
    std::unique_ptr<Region> first_;
    Region* last_ = nullptr;
    std::size_t size_ = 0;
  };

 private:
  static bool is_over(Region& region) noexcept;  // all that its devices had to do when it left
};

}  // namespace shmb::cuda
