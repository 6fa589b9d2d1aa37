// SPDX-License-Identifier: Apache-2.0
// What create and attach have in common. Between the broker's grant and the handle stand mapping, populating and
// zeroing, each of which can fail; then the lease is given back and the element is an error. Inside of client only.
#pragma once

#include <new>
#include <vector>

#include "client/populate.hpp"
#include "client/region.hpp"

namespace shmb::client {

using Handles = std::vector<Result<Region::Handle>>;

Handles unset_handles(std::size_t count);
// A descriptor shorter than what it is said to be would be a SIGBUS in the caller's first store.
Result<void> check_size(int fd, std::uint64_t length, std::uint64_t bytes);
Result<Mapping> map_whole(int fd, std::uint64_t length, std::uint64_t bytes, Access access);
// The element's own descriptor, or an error where the broker sent none.
Result<Fd> take_fd(Reply& reply, const shmbw_outcome& outcome);

// READY for several regions in one packet.
class ReadyReport {
 public:
  void add(shmbw_region_ref region, const Populated& populated);
  void post(Session& session);

 private:
  std::vector<shmbw_ready> elements_;
};

// What the allocator throws between the grant and the handle must not carry the lease away.
template <class Make>
Result<Region::Handle> without_throwing(Make make) {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return error(Status::no_memory, "out of memory");  // short enough to need none
  }
}

}  // namespace shmb::client
