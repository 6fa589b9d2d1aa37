// SPDX-License-Identifier: Apache-2.0
// MADV_COLLAPSE (6.1 for shmem) works also with shmem_enabled=never, but not on a range without any page. So one page
// per 2 MiB is touched first. It sometimes fails for lack of a free huge page, or because a page is in motion. Then it
// is retried, and the rest is filled with 4 KiB pages.
#include "client/region/populate.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <span>
#include <string>
#include <utility>

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

using Range = std::span<std::byte>;

// Fills every page of the range. Before 5.14 fallocate reserves the file's pages, if the range is the whole file. That
// returns an errno as well.
Sys<void> fill(Range range, int fd, int advice = MADV_POPULATE_WRITE) {
  auto filled = advise(range.data(), range.size(), advice);
  if (filled || filled.error().value != EINVAL || fd < 0) return filled;
  return sys::allocate(fd, 0, range.size());
}

// One page in each 2 MiB, so that a collapse has something to start from.
Sys<void> seed(Range range) {
  for (std::size_t at = 0; at < range.size(); at += kHugePage)
    SHMB_TRY_VOID(advise(range.data() + at, kSmallPage, MADV_POPULATE_WRITE));
  return {};
}

bool collapse(Range range) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    auto collapsed = sys::madvise(range.data(), range.size(), MADV_COLLAPSE);
    if (collapsed) return true;
    if (collapsed.error().value == EINVAL || collapsed.error().value == EPERM) return false;  // this kernel cannot
  }
  return false;
}

// Files that this process has seen in huge pages, by their numbers. A collapse waits until every processor has emptied
// its list of new pages. Beside other work that takes milliseconds. So recycled memory that is known here is entered
// into the page tables without one. The kernel may have split it, so its kind is not known then, and each sixteenth use
// collapses it again.
class SeenHuge {
 public:
  bool has(std::uint64_t file) {
    if (file == 0 || std::ranges::none_of(files_, [&](const auto& seen) { return seen.load() == file; })) return false;
    return uses_.fetch_add(1) % 16 != 15;
  }
  void add(std::uint64_t file) {
    if (std::ranges::none_of(files_, [&](const auto& seen) { return seen.load() == file; }))
      files_[next_.fetch_add(1) % files_.size()] = file;
  }

 private:
  std::array<std::atomic<std::uint64_t>, 64> files_{};  // no lock: a process may fork at any time
  std::atomic<std::size_t> next_ = 0, uses_ = 0;
};

constinit SeenHuge seen_huge;

Range whole(const Mapping& mapping) { return {mapping.data(), mapping.size()}; }

// Populates a range of whole 2 MiB with huge pages as far as possible. Returns its kind, or the error for a page that
// could not be had. Recycled memory has its pages, most of them huge: one call enters them into the page tables.
Sys<shmbw_page_kind> populate_huge(Range range, int fd, bool recycled = false) {
  shmbw_page_kind kind = SHMBW_PAGE_KIND_SMALL;
  if (recycled && collapse(range)) return SHMBW_PAGE_KIND_HUGE;
  if (shmem_takes_huge_advice()) {
    (void)sys::madvise(range.data(), range.size(), MADV_HUGEPAGE);
    SHMB_TRY_VOID(fill(range, fd));
    return collapse(range) ? SHMBW_PAGE_KIND_HUGE : SHMBW_PAGE_KIND_MIXED;  // nothing to do if all are huge
  }
  auto seeded = seed(range);
  if (!seeded && seeded.error().value != EINVAL) return std::unexpected(seeded.error());
  if (seeded) {
    if (collapse(range)) return SHMBW_PAGE_KIND_HUGE;
    // A collapse that began has made some of them huge; one that the kernel does not know has made none.
    if (sys::madvise(range.data(), kHugePage, MADV_COLLAPSE)) kind = SHMBW_PAGE_KIND_MIXED;
  }
  SHMB_TRY_VOID(fill(range, fd));
  return kind;
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

Result<Populated> populate_fresh(const Mapping& mapping, int fd, PagesWanted pages, bool recycled) {
  Populated result{mapping.size(), SHMBW_PAGE_KIND_SMALL};
  if (pages == PagesWanted::hugetlb) result.kind = SHMBW_PAGE_KIND_HUGE;
  if (pages == PagesWanted::huge && can_be_huge(mapping)) {
    const std::uint64_t file = sys::file_facts(fd).value_or(sys::FileFacts{}).inode;
    if (recycled && seen_huge.has(file) && fill(whole(mapping), -1, MADV_POPULATE_READ)) {
      result.kind = SHMBW_PAGE_KIND_UNKNOWN;
      return result;
    }
    auto kind = populate_huge(whole(mapping), fd, recycled);
    if (!kind) return out_of_memory(kind.error(), mapping.size());
    if (*kind == SHMBW_PAGE_KIND_HUGE) seen_huge.add(file);
    result.kind = *kind;
    return result;
  }
  const int advice = recycled ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;
  if (auto filled = fill(whole(mapping), fd, advice); !filled) return out_of_memory(filled.error(), mapping.size());
  return result;
}

Result<Populated> populate_part(const Mapping& mapping, std::uint64_t offset, std::uint64_t length, Access access,
                                PagesWanted pages) {
  if (length == 0 || offset >= mapping.size() || length > mapping.size() - offset)
    return error(Status::invalid, "the part lies outside of the mapping");
  auto up = [](std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; };
  const bool hugetlb = pages == PagesWanted::hugetlb;
  const std::uint64_t unit = hugetlb ? kHugePage : kSmallPage;
  const std::uint64_t first = offset / unit * unit;
  const std::uint64_t end = std::min<std::uint64_t>(up(offset + length, unit), up(mapping.size(), unit));
  Populated result{end - first, hugetlb ? SHMBW_PAGE_KIND_HUGE : SHMBW_PAGE_KIND_SMALL};
  // The whole huge pages in it, and the parts before and after them.
  std::uint64_t huge = end, huge_end = end;
  if (access == Access::read_write && pages == PagesWanted::huge && can_be_huge(mapping) &&
      up(first, kHugePage) < end / kHugePage * kHugePage) {
    huge = up(first, kHugePage);
    huge_end = end / kHugePage * kHugePage;
    auto kind = populate_huge({mapping.data() + huge, huge_end - huge}, -1);
    if (!kind && kind.error().value != EINVAL) return out_of_memory(kind.error(), end - first);
    if (kind)
      result.kind = *kind == SHMBW_PAGE_KIND_HUGE && huge_end - huge != end - first ? SHMBW_PAGE_KIND_MIXED : *kind;
    else huge = huge_end = end;
  }
  for (const auto& [from, to] : {std::pair(first, huge), std::pair(huge_end, end)}) {
    if (from == to) continue;
    auto done = advise(mapping.data() + from, to - from,
                       access == Access::read_write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    if (!done && done.error().value == EINVAL)
      return error(Status::unsupported, "populating a part needs MADV_POPULATE (Linux 5.14)");
    if (!done) return out_of_memory(done.error(), end - first);
  }
  return result;
}

Result<void> place_on_node(const Mapping& mapping, std::uint32_t node) {
  auto bound = sys::bind_to_node(mapping.data(), mapping.size(), node);
  if (bound) return {};
  const std::string asked = "NUMA node " + std::to_string(node);
  switch (bound.error().value) {
    case EINVAL:
      return error(Status::invalid, asked +
                                        ": this process may not use a node of that number; "
                                        "/sys/devices/system/node/has_memory lists those of the host");
    case ENOSYS:
      return error(Status::unsupported, asked + ": this kernel knows no NUMA nodes");
    default:
      return system_failure(bound.error(), "binding memory to " + asked);
  }
}

shmbw_page_kind map_existing(const Mapping& mapping, Access access, bool look_for_huge) {
  if (look_for_huge && can_be_huge(mapping) && collapse(whole(mapping))) return SHMBW_PAGE_KIND_HUGE;
  (void)access;  // reading enters the pages for writing too where the mapping is shared and writable (measured: no
                 // faults)
  (void)advise(mapping.data(), mapping.size(), MADV_POPULATE_READ);
  return SHMBW_PAGE_KIND_SMALL;
}

}  // namespace shmb::client
