// SPDX-License-Identifier: Apache-2.0
// The common part of create and attach: from the broker's reply to a mapped handle, or everything given back.
#include "client/region/obtain.hpp"

#include <fcntl.h>

#include <cerrno>

#include "base/compat.hpp"
#include "base/sys_memory.hpp"
#include "base/text.hpp"
#include "client/region/headroom.hpp"
#include "client/session/call.hpp"

namespace shmb::client {

Handles unset_handles(std::size_t count) {
  Handles results;
  results.reserve(count);
  for (std::size_t i = 0; i < count; ++i) results.emplace_back(std::unexpected(Error{}));
  return results;
}

Result<void> check_grant(const Granted& granted, shmbw_region_ref asked, std::uint32_t rights) {
  const auto wrong = [](const std::string& what) {
    return error(Status::protocol, "the broker's answer is not what was asked for: " + what);
  };
  if (granted.region.id == 0 || granted.region.generation == 0) return wrong("it names no region");
  if (asked.id != 0 && granted.region.id != asked.id)
    return wrong("region " + std::to_string(granted.region.id) + " instead of region " + std::to_string(asked.id));
  if (asked.generation != 0 && granted.region.generation != asked.generation)
    return wrong("generation " + std::to_string(granted.region.generation) + " of region " + std::to_string(asked.id) +
                 " instead of generation " + std::to_string(asked.generation));
  if ((granted.rights & rights) != rights) return wrong("it grants fewer rights");
  const bool empty = granted.length == 0;  // then it has the least memory there is
  if (granted.bytes == 0 || granted.length > granted.bytes || granted.length > kMaxLength ||
      (empty && granted.bytes != rounded_bytes(0)))
    return wrong("a region of " + std::to_string(granted.length) + " bytes in " + std::to_string(granted.bytes));
  return {};
}

Result<void> check_memory(int fd, std::uint64_t length, std::uint64_t bytes) {
  auto facts = sys::file_facts(fd);
  if (!facts) return system_failure(facts.error(), "asking for the size of a region's descriptor");
  if (bytes == 0 || length > bytes || facts->size < bytes)
    return error(Status::protocol, "the broker's answer and its descriptor do not agree on the region's size");
  const auto seals = sys::seals(fd);
  if (!seals || (*seals & F_SEAL_SHRINK) == 0)
    return error(Status::protocol, "the broker's descriptor is no memory file that keeps its size");
  return {};
}

namespace {

// The reason why the kernel does not map the file for writing.
Error not_writable(int fd) {
  const int seals = sys::seals(fd).value_or(0);
  if ((seals & F_SEAL_WRITE) != 0)
    return error(Status::write_closed, "the region is published: nobody can write to it any more").error();
  if ((seals & F_SEAL_FUTURE_WRITE) != 0)
    return error(Status::write_closed,
                 "writing to the region is closed for ever: read-only readers have it; create its successor with "
                 "replace")
        .error();
  return error(Status::protocol, "the broker's descriptor cannot be mapped for writing").error();
}

}  // namespace

Result<Mapping> map_checked(int fd, std::uint64_t offset, std::uint64_t length, Access access, bool hugetlb) {
  auto mapping = Mapping::map(fd, offset, length, access);
  if (mapping) return std::move(*mapping);
  const int code = mapping.error().value;
  if ((code == EPERM || code == EACCES) && access == Access::read_write) return std::unexpected(not_writable(fd));
  if (code == ENOMEM && hugetlb) return std::unexpected(reserve_too_small(length));
  auto failure = system_failure(mapping.error(), "mapping " + format_size(length) + " of a region");
  if (code == ENOMEM)
    failure.error().sentence +=
        "; the process' address space may be limited (`ulimit -v`), or it has too many mappings";
  return failure;
}

Result<void> place_region(const Mapping& mapping, const CreateItem& item) {
  SHMB_TRY_VOID(check_node_room(item.node, mapping.size(), item.hugetlb()));
  return place_on_node(mapping, item.node);
}

Result<Mapping> map_whole(int fd, std::uint64_t length, std::uint64_t bytes, Access access, bool hugetlb) {
  SHMB_TRY_VOID(check_memory(fd, length, bytes));
  return map_checked(fd, 0, bytes, access, hugetlb);
}

Result<Fd> take_fd(Reply& reply, const shmbw_outcome& outcome) {
  if (outcome.fd_index >= reply.fds.size() || !reply.fds[outcome.fd_index])
    return error(Status::protocol, "the broker's answer lacks a descriptor");
  return std::move(reply.fds[outcome.fd_index]);
}

void ReadyReport::add(shmbw_region_ref region, const Populated& populated) {
  elements_.push_back({region, populated.bytes, populated.kind, 0});
}

void ReadyReport::add_unmapped(shmbw_region_ref region) {
  elements_.push_back({region, 0, SHMBW_PAGE_KIND_UNKNOWN, SHMBW_READY_UNMAPPED});
}

void ReadyReport::post(Session& session) { (void)client::post<SHMBW_OP_READY>(session, elements_, Deadline::after(0)); }

}  // namespace shmb::client
