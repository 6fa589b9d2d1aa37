// SPDX-License-Identifier: Apache-2.0
// Placement of mappings. From 2 MiB on the address is congruent to the file offset, so that the kernel can use huge
// pages. Otherwise MADV_COLLAPSE gives EINVAL.
#include "base/mapping.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/sys_memory.hpp"

namespace shmb {

namespace {

// An area of length + 2 MiB always holds a fitting address; the rest on both sides is unmapped.
Sys<void*> map_congruent(int fd, std::uint64_t offset, std::size_t length, int protection) {
  const std::size_t pages = (length + kSmallPage - 1) & ~(kSmallPage - 1);
  const std::size_t reserved = pages + kHugePage;
  if (reserved < length) return sys_error(ENOMEM);
  auto area = sys::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  // RLIMIT_AS may leave room for the mapping but not for the margin: slower is better than refused.
  if (!area) return sys::mmap(nullptr, length, protection, MAP_SHARED, fd, offset);
  const auto start = reinterpret_cast<std::uintptr_t>(*area);
  const std::uintptr_t placed = start + ((offset - start) & (kHugePage - 1));
  auto mapped = sys::mmap(reinterpret_cast<void*>(placed), length, protection, MAP_SHARED | MAP_FIXED, fd, offset);
  if (!mapped) {
    (void)sys::munmap(*area, reserved);
    return mapped;
  }
  if (placed > start) (void)sys::munmap(*area, placed - start);
  const std::uintptr_t end = placed + pages;
  if (start + reserved > end) (void)sys::munmap(reinterpret_cast<void*>(end), start + reserved - end);
  return mapped;
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Sys<Mapping> Mapping::map(int fd, std::uint64_t offset, std::size_t length, Access access) {
  const int protection = access == Access::read ? PROT_READ : PROT_READ | PROT_WRITE;
  SHMB_TRY(address, length >= kHugePage ? map_congruent(fd, offset, length, protection)
                                        : sys::mmap(nullptr, length, protection, MAP_SHARED, fd, offset));
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(address);
  mapping.size_ = length;
  return mapping;
}

Sys<Mapping> Mapping::anonymous(std::size_t length) {
  SHMB_TRY(address, sys::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(address);
  mapping.size_ = length;
  return mapping;
}

Sys<void> Mapping::grow(std::size_t length) {
  SHMB_TRY(address, sys::mremap(data_, size_, length));
  data_ = static_cast<std::byte*>(address);
  size_ = length;
  return {};
}

void Mapping::reset() {
  if (data_ == nullptr) return;
  const int saved = errno;
  (void)sys::munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
  errno = saved;
}

void* Mapping::release() {
  size_ = 0;
  return std::exchange(data_, nullptr);
}

}  // namespace shmb
