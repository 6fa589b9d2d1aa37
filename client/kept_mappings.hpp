// SPDX-License-Identifier: Apache-2.0
// Mappings of regions that came in messages and come again: a pool's participant keeps the last of them, to read, so
// the same region in a later message costs no call of the broker and no page fault. Each keeps its lease, is in the
// books as any other, and is given up when the broker asks for it (event give_up). What may be written is never kept:
// nobody could publish it meanwhile.
#pragma once

#include <cstdint>
#include <vector>

#include "client/region.hpp"

namespace shmb::client {

// Under the participant's lock.
class KeptMappings {
 public:
  static constexpr std::size_t kMost = 64, kRemembered = 256;
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;

  // The mapping of that region with exactly these rights, or null. It is not kept any more until it is given again.
  Region::Handle take(shmbw_region_ref region, std::uint32_t rights);
  // Keeps it if the region has come before and nobody else has it, and makes room for it. Else it is released.
  void give(Region::Handle handle);
  // A user takes the handle over: it is not only kept any more.
  void hand_out(const Region& region);
  // What the broker has asked for since the last look. A mapping in use is released when it is given back.
  void give_up_asked(Session& session);
  void give_up_all();
  std::size_t size() const { return kept_.size(); }

 private:
  bool knows(std::uint64_t id) const;
  void remember(std::uint64_t id);
  void release(std::size_t place);

  std::vector<Region::Handle> kept_;  // the one that was used last is last
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> remembered_;  // ids of regions that have come, a ring
  std::size_t next_remembered_ = 0;
  std::vector<std::uint64_t> told_;  // those of which the broker knows, kept or in use
  std::uint64_t asked_seen_ = 0;     // of Session::asked_back
};

}  // namespace shmb::client
