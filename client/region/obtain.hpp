// SPDX-License-Identifier: Apache-2.0
// The common part of create and attach. Between the broker's grant and the handle come mapping, populating and zeroing.
// If one of them fails, the lease is given back and the element is an error. Internal to client.
#pragma once

#include <new>
#include <vector>

#include "client/region/populate.hpp"
#include "client/region/region.hpp"

namespace shmb::client {

using Handles = std::vector<Result<Region::Handle>>;

Handles unset_handles(std::size_t count);
// The broker's facts about a grant, checked. With fewer rights than asked for the caller's first store would be a
// SIGSEGV, and another region would be the wrong memory. `asked.id` 0: any region; `asked.generation` 0: any
// generation.
struct Granted {
  shmbw_region_ref region{};
  std::uint32_t rights = 0;
  std::uint64_t length = 0, bytes = 0;
};
Result<void> check_grant(const Granted& granted, shmbw_region_ref asked, std::uint32_t rights);
// A memory file that can shrink, or that is shorter than reported, would cause a SIGBUS in the caller's first store.
Result<void> check_memory(int fd, std::uint64_t length, std::uint64_t bytes);
// The kernel's refusal to map for writing becomes WRITE_CLOSED with its reason.
Result<Mapping> map_checked(int fd, std::uint64_t offset, std::uint64_t length, Access access, bool hugetlb = false);
// Binds new memory to the node that was asked for, if that has room for it.
Result<void> place_region(const Mapping& mapping, const CreateItem& item);
Result<Mapping> map_whole(int fd, std::uint64_t length, std::uint64_t bytes, Access access, bool hugetlb = false);
// The element's own descriptor, or an error if the broker sent none.
Result<Fd> take_fd(Reply& reply, const shmbw_outcome& outcome);

// READY for several regions in one packet.
class ReadyReport {
 public:
  void add(shmbw_region_ref region, const Populated& populated);
  void add_unmapped(shmbw_region_ref region);  // no descriptor of it is left: the session asks for another one first
  void post(Session& session);

 private:
  std::vector<shmbw_ready> elements_;
};

// An exception of the allocator between the grant and the handle must not lose the lease.
template <class Make>
Result<Region::Handle> without_throwing(Make make) {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return error(Status::no_memory, "out of memory");  // short enough to need none
  }
}

}  // namespace shmb::client
