// SPDX-License-Identifier: Apache-2.0
// Mappings of regions that come again in messages. A pool's participant keeps the last of them, for reading. So the
// same region in a later message costs no call to the broker and no page fault. Each keeps its lease, which is booked
// like any other. It is given up when the broker asks for it (event give_up). Writable mappings are never kept, because
// they would prevent a publish.
#pragma once

#include <cstdint>
#include <vector>

#include "client/region/region.hpp"

namespace shmb::client {

// Call under the participant's lock.
class KeptMappings {
 public:
  static constexpr std::size_t kMost = 64, kRemembered = 256;
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;

  // The mapping of that region with exactly these rights, or null. It leaves the store until it is given back.
  Region::Handle take(shmbw_region_ref region, std::uint32_t rights);
  // Keeps the mapping if the region has come before and no other handle has it, and makes room for it. Otherwise
  // releases it.
  void give(Region::Handle handle);
  // A user takes the handle over: it is in use, not only kept.
  void hand_out(const Region& region);
  // Releases what the broker has asked for since the last look. A mapping in use is released when it is given back.
  void give_up_asked(Session& session);
  void give_up_all();
  std::size_t size() const { return kept_.size(); }

 private:
  bool knows(std::uint64_t id) const;
  void remember(std::uint64_t id);
  void release(std::size_t place);

  std::vector<Region::Handle> kept_;  // the most recently used is last
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> remembered_;  // ids of regions that have come, a ring
  std::size_t next_remembered_ = 0;
  std::vector<std::uint64_t> told_;  // those that the broker knows as kept or in use
  std::uint64_t asked_seen_ = 0;     // position in Session::asked_back
};

}  // namespace shmb::client
