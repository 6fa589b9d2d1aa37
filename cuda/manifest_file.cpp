// SPDX-License-Identifier: Apache-2.0
// The reader checks the seals too: the broker passes on a file that it has not read.
#include "cuda/manifest_file.hpp"

#include <fcntl.h>

#include <cstring>

#include "base/compat.hpp"
#include "base/mapping.hpp"
#include "base/sys_memory.hpp"

namespace shmb::cuda {
namespace {

constexpr std::size_t kMostBytes = std::size_t{4} << 20;  // the broker takes no more
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK;

}  // namespace

Result<Fd> manifest_file(std::span<const std::byte> bytes) {
  if (bytes.size() > kMostBytes)
    return error(Status::limit, "the list of tensors takes " + std::to_string(bytes.size()) +
                                    " bytes, at most 4 MiB are possible: use shorter names, or several regions");
  auto fd = sys::memfd_create("shmb-manifest", true);
  if (!fd) return system_failure(fd.error(), "memfd_create for a list of tensors");
  if (auto sized = sys::truncate(fd->get(), bytes.size()); !sized)
    return system_failure(sized.error(), "a list of tensors of " + std::to_string(bytes.size()) + " bytes");
  // By a system call: a lack of memory is then an errno, not a signal.
  if (auto room = sys::allocate(fd->get(), 0, bytes.size()); !room)
    return system_failure(room.error(), "a list of tensors of " + std::to_string(bytes.size()) + " bytes");
  {
    auto mapped = Mapping::map(fd->get(), 0, bytes.size(), Access::read_write);
    if (!mapped) return system_failure(mapped.error(), "mapping a list of tensors");
    std::memcpy(mapped->data(), bytes.data(), bytes.size());
  }
  if (auto sealed = sys::add_seals(fd->get(), kSeals); !sealed)
    return system_failure(sealed.error(), "sealing a list of tensors");
  return std::move(*fd);
}

Result<std::vector<std::byte>> read_manifest(int fd, std::uint64_t bytes) {
  auto facts = sys::file_facts(fd);
  auto seals = sys::seals(fd);
  if (bytes == 0 || bytes > kMostBytes || !facts || facts->size != bytes || !seals || (*seals & kSeals) != kSeals)
    return error(Status::protocol,
                 "the region's list of tensors came as a file that is not sealed, or of another size");
  auto mapped = Mapping::map(fd, 0, bytes, Access::read);
  if (!mapped) return system_failure(mapped.error(), "mapping a region's list of tensors");
  return std::vector<std::byte>(mapped->data(), mapped->data() + bytes);
}

}  // namespace shmb::cuda
