// SPDX-License-Identifier: Apache-2.0
// Putting memory behind a mapping, in the process that asked, with calls that return an errno where a store would raise
// a signal. Huge pages first: for 1 GiB they make attach 176 times, the first write 10 times and freeing 75 times
// cheaper.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/mapping.hpp"
#include "base/result.hpp"
#include "proto/shmb_wire.h"

namespace shmb::client {

inline constexpr std::uint64_t kPopulateByDefault = std::uint64_t{1} << 30;

struct Populated {
  std::uint64_t bytes = 0;
  shmbw_page_kind kind = SHMBW_PAGE_KIND_UNPOPULATED;
};

// huge: pages of 2 MiB where they can be had. hugetlb: the file has no others, and the mapping has reserved them.
enum class PagesWanted { small, huge, hugetlb };

// New memory. Fresh pages are zero. `fd` backs the mapping, for kernels without MADV_POPULATE (5.14). `recycled`:
// nearly all pages are there. Reading enters them 16 at a time, allocates those that are not, and serves writing too.
Result<Populated> populate_fresh(const Mapping& mapping, int fd, PagesWanted pages, bool recycled = false);
// A part of a mapping (whole pages around it); for writing in huge pages where it has whole ones.
Result<Populated> populate_part(const Mapping& mapping, std::uint64_t offset, std::uint64_t length, Access access,
                                PagesWanted pages);
// All memory of the file comes from this NUMA node, whichever process touches it. To be called before it is populated.
Result<void> place_on_node(const Mapping& mapping, std::uint32_t node);
// Enters pages that exist already (recycled, or another process') into the page tables. `kind` is what can be known of
// them. Best effort: pages that are not mapped now fault later, which is only slower.
shmbw_page_kind map_existing(const Mapping& mapping, Access access, bool look_for_huge);

// The behaviour of shmem towards huge pages on this host ("never" on a stock system).
bool shmem_takes_huge_advice();

}  // namespace shmb::client
