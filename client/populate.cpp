// SPDX-License-Identifier: Apache-2.0
// MADV_COLLAPSE (6.1 for shmem) works also with shmem_enabled=never, but not on a range without any page: one page per
// 2 MiB is touched first. It fails now and then for want of a free huge page or for a page in motion: it is tried
// again, and what then is still in 4 KiB pages is filled with those.
#include "client/populate.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/compat.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"

namespace shmb::client {
namespace {

std::unexpected<Error> out_of_memory(Errno code, std::uint64_t bytes) {
  auto failure = system_failure(code, "populating " + format_size(bytes));
  switch (code.value) {
    case ENOMEM:
    case ENOSPC:
    case EFAULT:     // MADV_POPULATE where a store would be SIGBUS
    case EHWPOISON:  // broken memory
      failure.error().status = Status::no_memory;
      failure.error().shortage.slot = SHMBW_SLOT_MEMORY;
      failure.error().shortage.asked = bytes;
      break;
    default:
      break;
  }
  return failure;
}

// EINTR and EAGAIN leave a part done; the call may simply be repeated (madvise(2)).
Sys<void> advise(std::byte* from, std::size_t length, int advice) {
  for (int attempt = 0;; ++attempt) {
    auto done = sys::madvise(from, length, advice);
    if (done || done.error().value != EAGAIN || attempt == 2) return done;
  }
}

// Every page of the range. Before 5.14 fallocate reserves the file's pages: an errno as well.
Sys<void> fill(const Mapping& mapping, int fd) {
  auto filled = advise(mapping.data(), mapping.size(), MADV_POPULATE_WRITE);
  if (filled || filled.error().value != EINVAL) return filled;
  return sys::allocate(fd, 0, mapping.size());
}

// One page in each 2 MiB, so that a collapse has something to start from.
Sys<void> seed(const Mapping& mapping) {
  for (std::size_t at = 0; at < mapping.size(); at += kHugePage)
    if (auto touched = advise(mapping.data() + at, kSmallPage, MADV_POPULATE_WRITE); !touched) return touched;
  return {};
}

bool collapse(const Mapping& mapping) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    auto collapsed = sys::madvise(mapping.data(), mapping.size(), MADV_COLLAPSE);
    if (collapsed) return true;
    if (collapsed.error().value == EINVAL || collapsed.error().value == EPERM) return false;  // this kernel cannot
  }
  return false;
}

bool can_be_huge(const Mapping& mapping) {
  return mapping.size() >= kHugePage && mapping.size() % kHugePage == 0 &&
         reinterpret_cast<std::uintptr_t>(mapping.data()) % kHugePage == 0;
}

}  // namespace

bool shmem_takes_huge_advice() {
  static const bool takes = [] {
    const auto setting = sys::read_file("/sys/kernel/mm/transparent_hugepage/shmem_enabled").value_or(std::string{});
    return setting.find("[always]") != setting.npos || setting.find("[within_size]") != setting.npos ||
           setting.find("[advise]") != setting.npos || setting.find("[force]") != setting.npos;
  }();
  return takes;
}

Result<Populated> populate_fresh(const Mapping& mapping, int fd, bool small_pages) {
  Populated result{mapping.size(), SHMBW_PAGE_KIND_SMALL};
  const bool huge = !small_pages && can_be_huge(mapping);
  if (huge && shmem_takes_huge_advice()) {
    (void)sys::madvise(mapping.data(), mapping.size(), MADV_HUGEPAGE);
    if (auto filled = fill(mapping, fd); !filled) return out_of_memory(filled.error(), mapping.size());
    result.kind = collapse(mapping) ? SHMBW_PAGE_KIND_HUGE : SHMBW_PAGE_KIND_MIXED;  // nothing to do where all are huge
    return result;
  }
  if (huge) {
    auto seeded = seed(mapping);
    if (!seeded && seeded.error().value != EINVAL) return out_of_memory(seeded.error(), mapping.size());
    if (seeded) {
      if (collapse(mapping)) {
        result.kind = SHMBW_PAGE_KIND_HUGE;
        return result;
      }
      // A collapse that began has made some of them huge; one that the kernel does not know has made none.
      const Mapping* whole = &mapping;
      const bool any = static_cast<bool>(sys::madvise(whole->data(), kHugePage, MADV_COLLAPSE));
      result.kind = any ? SHMBW_PAGE_KIND_MIXED : SHMBW_PAGE_KIND_SMALL;
    }
  }
  if (auto filled = fill(mapping, fd); !filled) return out_of_memory(filled.error(), mapping.size());
  return result;
}

Result<std::uint64_t> populate_part(const Mapping& mapping, std::uint64_t offset, std::uint64_t length, Access access) {
  if (length == 0 || offset >= mapping.size() || length > mapping.size() - offset)
    return error(Status::invalid, "the part lies outside of the mapping");
  const std::uint64_t first = offset / kSmallPage * kSmallPage;
  const std::uint64_t end = std::min<std::uint64_t>((offset + length + kSmallPage - 1) / kSmallPage * kSmallPage,
                                                    (mapping.size() + kSmallPage - 1) / kSmallPage * kSmallPage);
  auto done = advise(mapping.data() + first, end - first,
                     access == Access::read_write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  if (!done && done.error().value == EINVAL)
    return error(Status::unsupported, "populating a part needs MADV_POPULATE (Linux 5.14)");
  if (!done) return out_of_memory(done.error(), end - first);
  return end - first;
}

shmbw_page_kind map_existing(const Mapping& mapping, Access access, bool look_for_huge) {
  if (look_for_huge && can_be_huge(mapping) && collapse(mapping)) return SHMBW_PAGE_KIND_HUGE;
  (void)access;  // reading enters the pages for writing too where the mapping is shared and writable (measured: no
                 // faults)
  (void)advise(mapping.data(), mapping.size(), MADV_POPULATE_READ);
  return SHMBW_PAGE_KIND_SMALL;
}

}  // namespace shmb::client
