// SPDX-License-Identifier: Apache-2.0
// Birth of a region's memfd. Mode 0600 is set before the first descriptor leaves. A memfd is born 0777, and a holder of
// an O_RDONLY descriptor could reopen it for writing through /proc (measured, Linux 6.18).
#include "daemon/ledger/region.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/compat.hpp"
#include "base/mapping.hpp"
#include "base/sys_memory.hpp"
#include "base/text.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/regions.hpp"

namespace shmb::daemon {

std::uint64_t rounded_bytes(std::uint64_t length, bool hugetlb) {
  std::uint64_t page = hugetlb || length >= kHugePage ? kHugePage : kSmallPage;
  return std::max(page, (length + page - 1) / page * page);
}

void changed(Region& region) { region.group->groups.host.books.regions.note(region); }

Region& add_region(Regions& regions, Group& group, std::uint64_t id, std::uint64_t bytes, Fd memory,
                   Charge bytes_charge, Charge region_charge) {
  Region& region = regions.all.try_emplace(id).first->second;
  region.id = id;
  region.bytes = bytes;
  region.fd = std::move(memory);
  region.bytes_charge = std::move(bytes_charge);
  region.region_charge = std::move(region_charge);
  region.group = &group;
  group.regions.push_back(region);
  ++regions.accounts.open_descriptors;
  return region;
}

static Status status_of(int code) {
  switch (code) {
    case EMFILE:
    case ENFILE:
      return Status::no_descriptors;
    case ENOMEM:
    case ENOSPC:
      return Status::no_memory;
    default:
      return Status::system;
  }
}

Result<Fd> make_memory(const Birth& birth) {
  auto failed = [&](const char* call, Errno code) -> Result<Fd> {
    auto out = system_failure(code, std::string(call) + " for a region of " + format_size(birth.bytes));
    Error reason = std::move(out).error();
    reason.status = status_of(code.value);
    return std::unexpected(std::move(reason));
  };
  auto fd = sys::memfd_create(birth.label, birth.no_exec, birth.hugetlb ? sys::Pages::hugetlb : sys::Pages::normal);
  if (!fd && birth.hugetlb && (fd.error().value == ENODEV || fd.error().value == ENOSYS || fd.error().value == EINVAL))
    return error(Status::unsupported, "this kernel has no hugetlb pages of 2 MiB (" + errno_text(fd.error().value) +
                                          "): create the region without hugetlb");
  if (!fd) return failed("memfd_create", fd.error());
  if (auto sized = sys::truncate(fd->get(), birth.bytes); !sized) return failed("ftruncate", sized.error());
  if (auto mode = sys::set_mode(fd->get(), 0600); !mode) return failed("fchmod", mode.error());
  int seals = F_SEAL_GROW | F_SEAL_SHRINK | (birth.seal_sealed ? F_SEAL_SEAL : 0);
  if (auto sealed = sys::add_seals(fd->get(), seals); !sealed) return failed("F_ADD_SEALS", sealed.error());
  return std::move(*fd);
}

}  // namespace shmb::daemon
