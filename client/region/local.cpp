// SPDX-License-Identifier: Apache-2.0
// Without a broker: plain memfds with the same handles. They are shared by inheritance, or by a descriptor passed by
// other means, so the handle keeps its descriptor. Names, tickets, groups and limits need a broker and are refused
// here.
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/compat.hpp"
#include "base/sys_file.hpp"
#include "base/sys_memory.hpp"
#include "client/region/headroom.hpp"
#include "client/region/obtain.hpp"
#include "client/region/populate.hpp"
#include "client/region/region.hpp"

namespace shmb::client {

Result<Region::Handle> create_local(const std::shared_ptr<Session>& session, const CreateItem& item) {
  if (!item.name.empty()) return needs_broker("names");
  if (item.group != 0) return needs_broker("groups");
  RegionFacts facts;
  facts.ref = {session->next_local_id(), 1, 0};
  facts.length = item.length;
  facts.bytes = rounded_bytes(item.length, item.hugetlb());
  facts.small_pages = (item.flags & kCreateSmallPages) != 0;
  facts.rights = item.rights != 0 ? item.rights : static_cast<std::uint32_t>(SHMBW_RIGHT_KNOWN);
  facts.state = SHMBW_REGION_STATE_CREATED;
  facts.page_kind = SHMBW_PAGE_KIND_UNPOPULATED;
  facts.flags = SHMBW_REGION_WRITE_OPEN;
  if ((item.flags & SHMBW_CREATE_HEAP) != 0) facts.flags |= SHMBW_REGION_HEAP;
  if (item.hugetlb()) facts.flags |= SHMBW_REGION_HUGETLB;
  const bool mapped = (item.flags & kCreateUnmapped) == 0;
  const bool on_node = (item.flags & kCreateOnNode) != 0;
  const bool populated = mapped && (item.flags & kCreateNoPopulate) == 0 &&
                         (item.length <= kPopulateByDefault || on_node || strict_overcommit());
  if (populated && !item.hugetlb()) SHMB_TRY_VOID(check_headroom(facts.bytes));
  auto fd = sys::memfd_create("shmb:local", true, item.hugetlb() ? sys::Pages::hugetlb : sys::Pages::normal);
  if (!fd) return system_failure(fd.error(), "memfd_create for a local region");
  if (auto sized = sys::truncate(fd->get(), facts.bytes); !sized)
    return system_failure(sized.error(), "sizing a local region");
  if (auto closed = sys::set_mode(fd->get(), 0600); !closed) return system_failure(closed.error(), "fchmod");
  const int seals = F_SEAL_GROW | F_SEAL_SHRINK | ((item.flags & SHMBW_CREATE_MANY_WRITERS) != 0 ? F_SEAL_SEAL : 0);
  if (auto sealed = sys::add_seals(fd->get(), seals); !sealed)
    return system_failure(sealed.error(), "sealing a local region");
  Mapping mapping;
  if (mapped) {
    SHMB_TRY(made, map_checked(fd->get(), 0, facts.bytes, Access::read_write, facts.hugetlb()));
    mapping = std::move(made);
    if (on_node) SHMB_TRY_VOID(place_region(mapping, item));
  }
  if (populated) {
    SHMB_TRY(filled, populate_fresh(mapping, fd->get(), facts.pages()));
    facts.populated = filled.bytes;
    facts.page_kind = filled.kind;
    facts.state = SHMBW_REGION_STATE_READY;
  }
  return std::make_shared<Region>(session, facts, std::move(mapping), std::move(*fd));
}

Result<Region::Handle> adopt_local(const std::shared_ptr<Session>& session, int fd, std::uint32_t rights) {
  if (!session->is_local())
    return error(Status::unsupported,
                 "a descriptor is adopted in local sessions only: a broker owns its regions itself");
  if (rights == 0) rights = SHMBW_RIGHT_MAP_READ;
  if ((rights & ~static_cast<std::uint32_t>(SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE)) != 0)
    return error(Status::invalid, "an adopted region has the rights read, or read and write");
  auto known = sys::file_facts(fd);
  if (!known) return system_failure(known.error(), "the descriptor to adopt");
  auto seals = sys::seals(fd);
  if (!seals) return error(Status::invalid, "the descriptor is no memory file (memfd_create)");
  // A process that could shrink the file could turn every access of this process into a SIGBUS.
  if ((*seals & F_SEAL_SHRINK) == 0)
    return error(Status::invalid,
                 "the memory file is not sealed against shrinking (F_SEAL_SHRINK): touching it could be a SIGBUS");
  if (known->size == 0) return error(Status::invalid, "the memory file is empty");
  const Access access = (rights & SHMBW_RIGHT_MAP_WRITE) != 0 ? Access::read_write : Access::read;
  RegionFacts facts;
  facts.ref = {session->next_local_id(), 1, 0};
  facts.length = facts.bytes = known->size;
  facts.rights = rights;
  facts.state = (*seals & F_SEAL_WRITE) != 0 ? SHMBW_REGION_STATE_PUBLISHED : SHMBW_REGION_STATE_READY;
  auto mapping = Mapping::map(fd, 0, known->size, access);
  if (!mapping && mapping.error().value == EPERM)
    return error(Status::write_closed, "the memory file is sealed against writing");
  if (!mapping) return system_failure(mapping.error(), "mapping the adopted descriptor");
  auto copy = sys::duplicate_above(fd, 0);
  if (!copy) return system_failure(copy.error(), "duplicating the adopted descriptor");
  return std::make_shared<Region>(session, facts, std::move(*mapping), std::move(*copy));
}

Result<void> Region::publish_local() {
  auto sealed = sys::add_seals(own_fd_.get(), F_SEAL_WRITE | F_SEAL_SEAL);
  if (!sealed && sealed.error().value == EBUSY)
    return error(Status::still_mapped, "a process, often a forked child, still maps the region");
  if (!sealed) return system_failure(sealed.error(), "sealing the local region");
  state_ = SHMBW_REGION_STATE_PUBLISHED;
  facts_.flags &= ~static_cast<std::uint32_t>(SHMBW_REGION_WRITE_OPEN);
  auto mapped = Mapping::map(own_fd_.get(), 0, facts_.bytes, Access::read);
  if (!mapped) return system_failure(mapped.error(), "the region is published; mapping it for reading");
  mapping_ = std::move(*mapped);
  return {};
}

}  // namespace shmb::client
