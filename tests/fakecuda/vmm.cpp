// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: allocations without addresses, descriptors of them, addresses without memory, and mappings
// of one on the other. None of it needs a context.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fakecuda/state.hpp"

namespace fakecuda {
namespace {

bool good_location(const State& it, const AllocationProp* prop) {
  return prop != nullptr && prop->type == kPinnedAllocation && prop->location.type == kDeviceLocation &&
         it.valid(prop->location.id);
}

int ordinal_of(const State& it, const MemoryName& name) {
  for (std::size_t i = 0; i < it.machine.visible.size(); ++i)
    if (it.machine.visible[i].index == name.gpu && it.machine.visible[i].instance == name.instance)
      return static_cast<int>(i);
  return -1;
}

MemHandle enter_handle(State& it, std::shared_ptr<Physical> physical) {
  const MemHandle handle = it.next_handle;
  it.next_handle += 0x10;
  it.handles.emplace(handle, std::move(physical));
  return handle;
}

// Whole reservations that cover a range without a gap.
bool reserved(const State& it, Address address, std::size_t bytes) {
  auto next = it.reservations.upper_bound(address);
  if (next == it.reservations.begin()) return false;
  --next;
  return address - next->first < next->second && bytes <= next->second - (address - next->first);
}

bool overlaps_mapping(const State& it, Address address, std::size_t bytes) {
  auto next = it.mappings.lower_bound(address);
  if (next != it.mappings.end() && next->first < address + bytes) return true;
  Address start = 0;
  return mapping_at(it, address, &start) != nullptr;
}

}  // namespace
}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API Code cuMemGetAllocationGranularity(std::size_t* granularity, const AllocationProp* prop, int option) {
  return enter("cuMemGetAllocationGranularity", Needs::driver, [&](State& it, Lock&) -> Code {
    if (granularity == nullptr || !good_location(it, prop) || option < 0 || option > 1) return kInvalidValue;
    *granularity = kGranularity;
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemCreate(MemHandle* handle, std::size_t bytes, const AllocationProp* prop,
                              unsigned long long flags) {
  return enter("cuMemCreate", Needs::memory, [&](State& it, Lock&) -> Code {
    if (handle == nullptr || flags != 0 || bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
    if (prop != nullptr && prop->location.type == kDeviceLocation && !it.valid(prop->location.id))
      return kInvalidDevice;
    if (!good_location(it, prop)) return kInvalidValue;
    if ((prop->requested_handle_types & ~kPosixFd) != 0) return kNotSupported;
    Code why = kSuccess;
    auto physical = make_physical(it, prop->location.id, bytes, prop->requested_handle_types,
                                  prop->flags.gpu_direct_rdma_capable != 0, "", &why);
    if (physical != nullptr) *handle = enter_handle(it, std::move(physical));
    return why;
  });
}

FAKECUDA_API Code cuMemRelease(MemHandle handle) {
  return enter("cuMemRelease", Needs::memory,
               [&](State& it, Lock&) -> Code { return it.handles.erase(handle) == 1 ? kSuccess : kInvalidValue; });
}

// A new open file each time, and not close-on-exec: what the real driver does about that flag is not documented, so
// nobody may rely on it.
FAKECUDA_API Code cuMemExportToShareableHandle(void* to, MemHandle handle, int type, unsigned long long flags) {
  return enter("cuMemExportToShareableHandle", Needs::memory, [&](State& it, Lock&) -> Code {
    const auto found = it.handles.find(handle);
    if (to == nullptr || found == it.handles.end() || flags != 0) return kInvalidValue;
    if (type != kPosixFd || (found->second->name().handle_types & kPosixFd) == 0) return kInvalidValue;
    const std::string path = "/proc/self/fd/" + std::to_string(found->second->fd());
    const int fd = ::open(path.c_str(), O_RDWR);
    if (fd < 0) return kOperatingSystem;
    *static_cast<int*>(to) = fd;
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemImportFromShareableHandle(MemHandle* handle, void* from, int type) {
  return enter("cuMemImportFromShareableHandle", Needs::memory, [&](State& it, Lock&) -> Code {
    if (handle == nullptr || type != kPosixFd) return kInvalidValue;
    const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(from));
    char target[512];
    const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target);
    MemoryName name;
    if (length <= 0 || !MemoryName::parse(std::string(target, static_cast<std::size_t>(length)), &name) ||
        name.card != it.machine.card || (name.handle_types & kPosixFd) == 0)
      return kInvalidValue;
    if (ordinal_of(it, name) < 0) return kNotSupported;
    struct stat seen{};
    if (::fstat(fd, &seen) != 0 || static_cast<std::size_t>(seen.st_size) != name.bytes)
      return kInvalidValue;  // somebody has spoilt it
    if (::lseek(fd, 0, SEEK_CUR) == kSpoiltAt) return kInvalidValue;
    const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return kOperatingSystem;
    *handle = enter_handle(it, std::make_shared<Physical>(own, name));
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemGetAllocationPropertiesFromHandle(AllocationProp* prop, MemHandle handle) {
  return enter("cuMemGetAllocationPropertiesFromHandle", Needs::memory, [&](State& it, Lock&) -> Code {
    const auto found = it.handles.find(handle);
    if (prop == nullptr || found == it.handles.end()) return kInvalidValue;
    *prop = {};
    prop->type = kPinnedAllocation;
    prop->requested_handle_types = found->second->name().handle_types;
    prop->location = {kDeviceLocation, ordinal_of(it, found->second->name())};
    prop->flags.gpu_direct_rdma_capable = found->second->name().rdma ? 1 : 0;
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemRetainAllocationHandle(MemHandle* handle, void* address) {
  return enter("cuMemRetainAllocationHandle", Needs::memory, [&](State& it, Lock&) -> Code {
    Address start = 0;
    const Mapping* mapping = mapping_at(it, reinterpret_cast<Address>(address), &start);
    if (handle == nullptr || mapping == nullptr || mapping->kind != Kind::vmm) return kInvalidValue;
    *handle = enter_handle(it, mapping->physical);
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemAddressReserve(Address* address, std::size_t bytes, std::size_t alignment, Address hint,
                                      unsigned long long flags) {
  return enter("cuMemAddressReserve", Needs::memory, [&](State& it, Lock&) -> Code {
    if (address == nullptr || flags != 0 || bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
    if ((alignment & (alignment - 1)) != 0) return kInvalidValue;
    *address = reserve(bytes, alignment, hint);
    if (*address == 0) return kOutOfMemory;
    it.reservations.emplace(*address, bytes);
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemAddressFree(Address address, std::size_t bytes) {
  return enter("cuMemAddressFree", Needs::memory, [&](State& it, Lock&) -> Code {
    const auto found = it.reservations.find(address);
    if (found == it.reservations.end() || found->second != bytes || overlaps_mapping(it, address, bytes))
      return kInvalidValue;
    unreserve(address, bytes);
    it.reservations.erase(found);
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemMap(Address address, std::size_t bytes, std::size_t offset, MemHandle handle,
                           unsigned long long flags) {
  return enter("cuMemMap", Needs::memory, [&](State& it, Lock&) -> Code {
    const auto found = it.handles.find(handle);
    if (found == it.handles.end() || offset != 0 || flags != 0 || bytes == 0 || bytes % kGranularity != 0 ||
        address % kGranularity != 0 || bytes > found->second->bytes() || !reserved(it, address, bytes) ||
        overlaps_mapping(it, address, bytes))
      return kInvalidValue;
    Mapping mapping;
    mapping.bytes = bytes;
    mapping.physical = found->second;
    mapping.shadow = shadow_of(mapping.physical->fd(), bytes);
    if (mapping.shadow == nullptr) return kOutOfMemory;
    mapping.id = it.next_id++;
    mapping.ordinal = ordinal_of(it, mapping.physical->name());
    it.mappings.emplace(address, std::move(mapping));
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemUnmap(Address address, std::size_t bytes) {
  return enter("cuMemUnmap", Needs::memory, [&](State& it, Lock&) -> Code {
    // "The entire contiguous address range that was mapped to": what one cuMemMap has mapped, no more and no less.
    const auto found = it.mappings.find(address);
    if (found == it.mappings.end() || found->second.kind != Kind::vmm || found->second.bytes != bytes)
      return kInvalidValue;
    it.mappings.erase(found);
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemSetAccess(Address address, std::size_t bytes, const AccessDesc* access, std::size_t count) {
  return enter("cuMemSetAccess", Needs::memory, [&](State& it, Lock&) -> Code {
    if (access == nullptr || count == 0 || bytes == 0) return kInvalidValue;
    std::vector<Mapping*> whole;
    for (Address at = address; at < address + bytes; at += whole.back()->bytes) {
      const auto found = it.mappings.find(at);
      if (found == it.mappings.end() || found->second.kind != Kind::vmm || at + found->second.bytes > address + bytes)
        return kInvalidValue;
      whole.push_back(&found->second);
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (access[i].location.type != kDeviceLocation || !it.valid(access[i].location.id)) return kInvalidDevice;
      if (access[i].flags != kNoAccess && access[i].flags != kReadAccess && access[i].flags != kReadWriteAccess)
        return kInvalidValue;
      for (const Mapping* mapping : whole)
        if (mapping->ordinal != access[i].location.id && !it.machine.peers) return kNotSupported;
    }
    for (std::size_t i = 0; i < count; ++i)
      for (Mapping* mapping : whole) mapping->access[access[i].location.id] = access[i].flags;
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemGetAccess(unsigned long long* flags, const Location* location, Address address) {
  return enter("cuMemGetAccess", Needs::driver, [&](State& it, Lock&) -> Code {
    Address start = 0;
    const Mapping* mapping = mapping_at(it, address, &start);
    if (flags == nullptr || location == nullptr || mapping == nullptr || mapping->kind != Kind::vmm)
      return kInvalidValue;
    const auto found = mapping->access.find(location->id);
    *flags = found == mapping->access.end() ? kNoAccess : static_cast<unsigned long long>(found->second);
    return kSuccess;
  });
}

// A dma-buf of memory that was made for network cards: here another open file of it, whose position is where the range
// begins.
FAKECUDA_API Code cuMemGetHandleForAddressRange(void* handle, Address address, std::size_t bytes, int type,
                                                unsigned long long flags) {
  constexpr int kDmaBuf = 1;
  constexpr std::size_t kHostPage = 4096;
  return enter("cuMemGetHandleForAddressRange", Needs::context, [&](State& it, Lock&) -> Code {
    if (it.machine.attribute(124) == 0) return kNotSupported;
    Address start = 0;
    const Mapping* mapping = mapping_at(it, address, &start);
    if (handle == nullptr || type != kDmaBuf || flags != 0 || bytes == 0 || address % kHostPage != 0 ||
        bytes % kHostPage != 0 || mapping == nullptr || mapping->kind != Kind::vmm ||
        bytes > mapping->bytes - (address - start))
      return kInvalidValue;
    if (!mapping->physical->name().rdma) return kNotSupported;
    const std::string path = "/proc/self/fd/" + std::to_string(mapping->physical->fd());
    const int fd = ::open(path.c_str(), O_RDWR);  // nor is this close-on-exec
    if (fd < 0 || ::lseek(fd, static_cast<off_t>(address - start), SEEK_SET) < 0) return kOperatingSystem;
    *static_cast<int*>(handle) = fd;
    return kSuccess;
  });
}
