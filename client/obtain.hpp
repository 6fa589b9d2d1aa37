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
// What the broker says of a grant. Fewer rights than were asked for would be a SIGSEGV in the caller's first store, and
// another region the wrong memory. `asked.id` 0: any region will do; `asked.generation` 0: any generation.
struct Granted {
  shmbw_region_ref region{};
  std::uint32_t rights = 0;
  std::uint64_t length = 0, bytes = 0;
};
Result<void> check_grant(const Granted& granted, shmbw_region_ref asked, std::uint32_t rights);
// A memory file that can shrink, or that is shorter than what it is said to be, would be a SIGBUS in the caller's first
// store.
Result<void> check_memory(int fd, std::uint64_t length, std::uint64_t bytes);
// The kernel's refusal to map for writing becomes WRITE_CLOSED with its reason.
Result<Mapping> map_checked(int fd, std::uint64_t offset, std::uint64_t length, Access access);
Result<Mapping> map_whole(int fd, std::uint64_t length, std::uint64_t bytes, Access access);
// The element's own descriptor, or an error where the broker sent none.
Result<Fd> take_fd(Reply& reply, const shmbw_outcome& outcome);

// READY for several regions in one packet.
class ReadyReport {
 public:
  void add(shmbw_region_ref region, const Populated& populated);
  void add_unmapped(shmbw_region_ref region);  // no descriptor of it is left: another one is asked for first
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
