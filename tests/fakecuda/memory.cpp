// SPDX-License-Identifier: Apache-2.0
// Device memory as memfds: made, mapped, addressed and counted. Addresses are reservations without any access for the
// host; the bytes are in the shadow.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/fakecuda/state.hpp"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace fakecuda {
namespace {

constexpr int kGarbage = 0xa5;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kPortion = std::size_t{1} << 20;

// A real card's memory is not zeroed for us; what relies on it must be seen here.
void soil(int fd, std::size_t bytes, int fill) {
  const auto shadow = shadow_of(fd, bytes);
  if (shadow == nullptr) return;
  if (fill >= 0) {
    std::memset(shadow->data(), fill, bytes);
  } else {
    std::memset(shadow->data(), kGarbage, kPage);
    std::memset(shadow->data() + bytes - kPage, kGarbage, kPage);
  }
}

std::size_t bytes_of_this_process(const State& it, const Gpu& gpu) {
  std::map<std::string, std::size_t> seen;
  const auto add = [&](const std::shared_ptr<Physical>& physical) {
    if (physical != nullptr && physical->name().gpu == gpu.index && physical->name().instance == gpu.instance)
      seen[physical->name().id] = physical->bytes();
  };
  for (const auto& [handle, physical] : it.handles) add(physical);
  for (const auto& [address, mapping] : it.mappings) add(mapping.physical);
  std::size_t bytes = 0;
  for (const auto& [id, size] : seen) bytes += size;
  return bytes;
}

}  // namespace

Physical::~Physical() { ::close(fd_); }
Shadow::~Shadow() {
  if (owned_) ::munmap(data_, bytes_);
}

std::shared_ptr<Shadow> shadow_of(int fd, std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return data == MAP_FAILED ? nullptr : std::make_shared<Shadow>(data, bytes, true);
}

std::shared_ptr<Physical> make_physical(State& it, int ordinal, std::size_t bytes, int handle_types, bool rdma,
                                        const char* what, Code* why) {
  const Gpu& gpu = it.gpu(ordinal);
  const std::size_t used = it.machine.bytes_limited ? bytes_in_use(it.machine.card, gpu.index, gpu.instance)
                                                    : bytes_of_this_process(it, gpu);
  if (bytes > it.machine.bytes || used > it.machine.bytes - bytes) {
    *why = kOutOfMemory;
    return nullptr;
  }
  MemoryName name{it.machine.card,
                  gpu.index,
                  gpu.instance,
                  std::to_string(::getpid()) + "." + what + std::to_string(it.next_memory++),
                  bytes,
                  handle_types,
                  rdma};
  const int fd = ::memfd_create(name.text().c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    if (fd >= 0) ::close(fd);
    *why = kOperatingSystem;
    return nullptr;
  }
  // Real exports cannot be resized either; other attacks on them are not played.
  if (it.machine.sealed) ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  soil(fd, bytes, it.machine.fill);
  *why = kSuccess;
  return std::make_shared<Physical>(fd, name);
}

Address reserve(std::size_t bytes, std::size_t alignment, Address hint) {
  alignment = std::max(alignment, kGranularity);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (hint != 0 && hint % alignment == 0) {
    void* at = ::mmap(reinterpret_cast<void*>(hint), bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == reinterpret_cast<void*>(hint)) return hint;
    if (at != MAP_FAILED) ::munmap(at, bytes);
  }
  void* place = ::mmap(nullptr, bytes + alignment, PROT_NONE, flags, -1, 0);
  if (place == MAP_FAILED) return 0;
  const auto start = reinterpret_cast<Address>(place);
  const Address aligned = (start + alignment - 1) / alignment * alignment;
  if (aligned > start) ::munmap(place, aligned - start);
  ::munmap(reinterpret_cast<void*>(aligned + bytes), start + alignment - aligned);
  return aligned;
}

void unreserve(Address address, std::size_t bytes) { ::munmap(reinterpret_cast<void*>(address), bytes); }

const Mapping* mapping_at(const State& it, Address address, Address* start) {
  auto next = it.mappings.upper_bound(address);
  if (next == it.mappings.begin()) return nullptr;
  --next;
  if (address - next->first >= next->second.bytes) return nullptr;
  *start = next->first;
  return &next->second;
}

Code each_part(int ordinal, Address address, std::size_t bytes, bool write,
               const std::function<void(char*, std::size_t, std::size_t)>& part) {
  State& it = state();
  for (std::size_t done = 0; done < bytes;) {
    Lock lock(it.mutex);
    Address start = 0;
    const Mapping* mapping = mapping_at(it, address + done, &start);
    if (mapping == nullptr) return kIllegalAddress;
    if (mapping->kind == Kind::vmm) {
      const auto access = mapping->access.find(ordinal);
      if (access == mapping->access.end() || access->second == kNoAccess) return kIllegalAddress;
      if (write && access->second != kReadWriteAccess) return kIllegalAddress;
    } else if (write && mapping->read_only) {
      return kIllegalAddress;
    }
    const std::size_t offset = address + done - start;
    const std::size_t portion = std::min({bytes - done, mapping->bytes - offset, kPortion});
    part(mapping->shadow->data() + offset, done, portion);
    done += portion;
  }
  return kSuccess;
}

}  // namespace fakecuda
