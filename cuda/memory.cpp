// SPDX-License-Identifier: Apache-2.0
// The driver's documentation defines its calls. cuda/driver.cpp says what its codes mean to the caller.
#include "cuda/memory.hpp"

#include <numeric>

#include "base/sys_file.hpp"

namespace shmb::cuda {

Result<Allocation> Allocation::create(const Driver& driver, const DeviceInfo& device, std::uint64_t bytes, bool rdma) {
  AllocationProp wanted;
  wanted.type = kPinnedAllocation;
  wanted.requested_handle_types = kPosixFd;
  wanted.location = {kDeviceLocation, device.device};
  wanted.flags.gpu_direct_rdma_capable = rdma ? 1 : 0;
  MemHandle handle = 0;
  const InContext inside(driver, device.device);
  if (const Code code = driver->mem_create(&handle, bytes, &wanted, 0); code != kSuccess)
    return std::unexpected(
        driver.failure(code, "cuMemCreate", std::to_string(bytes) + " bytes on " + device.uuid_text()));
  return Allocation(driver, device.device, handle);
}

Result<Allocation> Allocation::import(const Driver& driver, int fd, const DeviceInfo& device,
                                      const std::string& object) {
  MemHandle handle = 0;
  // The driver takes the descriptor's number where other calls take an address.
  void* const number = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  const InContext inside(driver, device.device);
  if (const Code code = driver->mem_import(&handle, number, kPosixFd); code != kSuccess)
    return std::unexpected(driver.import_failure(code, object, device));
  return Allocation(driver, device.device, handle);
}

Result<Allocation> Allocation::at(const Driver& driver, Device device, Address address, const std::string& object) {
  MemHandle handle = 0;
  const InContext inside(driver, device);
  const Code code = driver->mem_retain(&handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)));
  if (code == kInvalidValue)
    return error(Status::not_exportable,
                 object +
                     " was not made by cuMemCreate and has no handle to share: memory of cudaMalloc is shared with "
                     "shmb_gpu_lend, other memory is copied into a region of shmb_gpu_allocate");
  if (code != kSuccess) return std::unexpected(driver.failure(code, "cuMemRetainAllocationHandle", object));
  return Allocation(driver, device, handle);
}

Result<Fd> Allocation::share(const std::string& object) const {
  const Driver& driver = *driver_;
  int number = -1;
  const InContext inside(driver, device_);
  const Code code = driver->mem_export(&number, handle_, kPosixFd, 0);
  if (code == kInvalidValue || code == kNotSupported)
    return error(Status::not_exportable,
                 object +
                     " was made without a handle that can be shared by descriptor (CU_MEM_HANDLE_TYPE_POSIX_FILE_"
                     "DESCRIPTOR at cuMemCreate): let its allocator ask for one, or copy into a region of "
                     "shmb_gpu_allocate");
  if (code != kSuccess) return std::unexpected(driver.failure(code, "cuMemExportToShareableHandle", object));
  Fd fd = Fd::adopt(number);
  // No document says whether the driver sets close-on-exec itself.
  if (auto set = sys::set_close_on_exec(fd.get()); !set)
    return system_failure(set.error(), "the descriptor of " + object);
  return fd;
}

Result<AllocationProp> Allocation::properties(const std::string& object) const {
  AllocationProp found;
  const InContext inside(*driver_, device_);
  if (const Code code = (*driver_)->mem_properties(&found, handle_); code != kSuccess)
    return std::unexpected(driver_->failure(code, "cuMemGetAllocationPropertiesFromHandle", object));
  return found;
}

void Allocation::reset() noexcept {
  if (driver_ != nullptr && Driver::loaded() != nullptr) {
    const InContext inside(*driver_, device_);
    (*driver_)->mem_release(handle_);
  }
  driver_ = nullptr;
  handle_ = 0;
}

Result<AddressRange> AddressRange::reserve(const Driver& driver, Device device, std::uint64_t bytes,
                                           std::uint64_t alignment, Address at, const std::string& object) {
  AddressRange range;
  Address found = 0;
  const InContext inside(driver, device);
  if (const Code code = driver->address_reserve(&found, bytes, alignment, at, 0); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuMemAddressReserve", object));
  range.driver_ = &driver;
  range.device_ = device;
  range.address_ = found;
  range.bytes_ = bytes;
  // The driver takes the wanted address as a hint.
  if (at != 0 && found != at)
    return error(Status::invalid, "the address asked for " + object + " is not free in this process");
  return range;
}

Result<void> AddressRange::map(std::span<const Allocation> allocations, std::span<const std::uint64_t> sizes,
                               const std::string& object) {
  Address next = address_;
  const InContext inside(*driver_, device_);
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    mapped_.reserve(allocations.size());
    if (const Code code = (*driver_)->mem_map(next, sizes[i], 0, allocations[i].get(), 0); code != kSuccess) {
      Error failure = driver_->map_failure(code, object, sizes[i]);
      unmap();
      return std::unexpected(std::move(failure));
    }
    mapped_.push_back(sizes[i]);
    next += sizes[i];
  }
  return {};
}

Result<void> AddressRange::set_access(std::span<const Device> devices, int access, const std::string& object) {
  std::vector<AccessDesc> wanted;
  for (const Device device : devices) wanted.push_back({{kDeviceLocation, device}, access});
  const std::uint64_t bytes = std::accumulate(mapped_.begin(), mapped_.end(), std::uint64_t{0});
  const InContext inside(*driver_, device_);
  if (const Code code = (*driver_)->mem_set_access(address_, bytes, wanted.data(), wanted.size()); code != kSuccess)
    return std::unexpected(driver_->failure(code, "cuMemSetAccess", object));
  return {};
}

// Each call takes exactly what one cuMemMap has mapped.
Code AddressRange::unmap() noexcept {
  Code first = kSuccess;
  std::size_t refused = 0;
  if (driver_ != nullptr && !mapped_.empty() && Driver::loaded() != nullptr) {
    const InContext inside(*driver_, device_);
    Address next = address_;
    for (const std::uint64_t bytes : mapped_) {
      const Code code = (*driver_)->mem_unmap(next, bytes);
      if (code != kSuccess && refused++ == 0) first = code;
      next += bytes;
    }
  }
  if (refused != 0 && refused == mapped_.size()) return first;  // nothing has changed
  stuck_ = stuck_ || refused != 0;
  mapped_.clear();
  return first;
}

void AddressRange::reset() noexcept {
  if (unmap() != kSuccess) stuck_ = true;
  if (driver_ != nullptr && !stuck_ && Driver::loaded() != nullptr) {
    const InContext inside(*driver_, device_);
    (*driver_)->address_free(address_, bytes_);
  }
  mapped_.clear();
  driver_ = nullptr;
  address_ = 0;
  bytes_ = 0;
}

}  // namespace shmb::cuda
