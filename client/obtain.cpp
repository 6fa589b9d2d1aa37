// SPDX-License-Identifier: Apache-2.0
// What create and attach share: from the broker's answer to a mapped handle, or everything given back.
#include "client/obtain.hpp"

#include <cerrno>

#include "base/sys_memory.hpp"
#include "base/text.hpp"

namespace shmb::client {

Handles unset_handles(std::size_t count) {
  Handles results;
  results.reserve(count);
  for (std::size_t i = 0; i < count; ++i) results.emplace_back(std::unexpected(Error{}));
  return results;
}

Result<void> check_size(int fd, std::uint64_t length, std::uint64_t bytes) {
  auto facts = sys::file_facts(fd);
  if (!facts) return system_failure(facts.error(), "asking for the size of a region's descriptor");
  if (length == 0 || length > bytes || facts->size < bytes)
    return error(Status::protocol, "the broker's answer and its descriptor do not agree on the region's size");
  return {};
}

Result<Mapping> map_whole(int fd, std::uint64_t length, std::uint64_t bytes, Access access) {
  if (auto fits = check_size(fd, length, bytes); !fits) return std::unexpected(fits.error());
  auto mapping = Mapping::map(fd, 0, bytes, access);
  if (mapping) return std::move(*mapping);
  if (mapping.error().value == EPERM && access == Access::read_write)
    return error(Status::write_closed, "writing to the region is closed for ever: read-only readers have it");
  auto failure = system_failure(mapping.error(), "mapping a region of " + format_size(bytes));
  if (mapping.error().value == ENOMEM)
    failure.error().sentence +=
        "; the process' address space may be limited (`ulimit -v`), or it has too many mappings";
  return failure;
}

Result<Fd> take_fd(Reply& reply, const shmbw_outcome& outcome) {
  if (outcome.fd_index >= reply.fds.size() || !reply.fds[outcome.fd_index])
    return error(Status::protocol, "the broker's answer lacks a descriptor");
  return std::move(reply.fds[outcome.fd_index]);
}

void ReadyReport::add(shmbw_region_ref region, const Populated& populated) {
  elements_.push_back({region, populated.bytes, populated.kind, 0});
}

void ReadyReport::post(Session& session) {
  if (elements_.empty()) return;
  std::vector<std::byte> buffer(sizeof(shmbw_header) + sizeof(shmbw_batch) + elements_.size() * sizeof(shmbw_ready));
  wire::Writer writer(buffer);
  writer.begin_batch<shmbw_ready>(SHMBW_OP_READY, 0, elements_.size(), SHMBW_HEADER_NO_REPLY);
  for (std::size_t i = 0; i < elements_.size(); ++i) writer.element(i, elements_[i]);
  writer.finish(0);
  (void)session.post(buffer, Deadline::after(0));
}

}  // namespace shmb::client
