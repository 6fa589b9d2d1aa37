// SPDX-License-Identifier: Apache-2.0
// Owning types over the driver's memory: one physical allocation, and one range of addresses with allocations mapped
// into it. Each call is made in the device's primary context. They give back what they own, whatever happens to the
// context. In a forked child, where the driver must not be called, they give back nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "cuda/context.hpp"

namespace shmb::cuda {

// A reference to physical memory on a device: by creation, by import, or to memory mapped at an address. The memory
// outlives the reference while it is mapped, or while other references exist.
class Allocation {
 public:
  static Result<Allocation> create(const Driver& driver, const DeviceInfo& device, std::uint64_t bytes, bool rdma);
  static Result<Allocation> import(const Driver& driver, int fd, const DeviceInfo& device, const std::string& object);
  // not_exportable if the memory was not made by cuMemCreate. `device`: in whose context to ask.
  static Result<Allocation> at(const Driver& driver, Device device, Address address, const std::string& object);

  Allocation() = default;
  Allocation(Allocation&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)),
        device_(other.device_),
        handle_(std::exchange(other.handle_, 0)) {}
  Allocation& operator=(Allocation&& other) noexcept {
    if (this != &other) {
      reset();
      driver_ = std::exchange(other.driver_, nullptr);
      device_ = other.device_;
      handle_ = std::exchange(other.handle_, 0);
    }
    return *this;
  }
  ~Allocation() { reset(); }

  MemHandle get() const { return handle_; }
  // Each call makes another open file, close-on-exec.
  Result<Fd> share(const std::string& object) const;
  Result<AllocationProp> properties(const std::string& object) const;
  void reset() noexcept;

 private:
  Allocation(const Driver& driver, Device device, MemHandle handle)
      : driver_(&driver), device_(device), handle_(handle) {}
  const Driver* driver_ = nullptr;
  Device device_ = 0;
  MemHandle handle_ = 0;
};

// Addresses of this process that a device sees, with whole allocations mapped one after the other.
class AddressRange {
 public:
  // `at` 0: anywhere; otherwise at that address, or invalid. `alignment` is a multiple of the device's granularity.
  static Result<AddressRange> reserve(const Driver& driver, Device device, std::uint64_t bytes, std::uint64_t alignment,
                                      Address at, const std::string& object);
  AddressRange() = default;
  AddressRange(AddressRange&& other) noexcept { take(other); }
  AddressRange& operator=(AddressRange&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~AddressRange() { reset(); }

  explicit operator bool() const { return address_ != 0; }
  Address address() const { return address_; }
  bool mapped() const { return !mapped_.empty(); }

  // Maps all of them, or none. `sizes` add up to at most the range.
  Result<void> map(std::span<const Allocation> allocations, std::span<const std::uint64_t> sizes,
                   const std::string& object);
  Result<void> set_access(std::span<const Device> devices, int access, const std::string& object);
  // Returns the first code that is no success, or 0. Memory that could not be unmapped stays mapped, and its addresses
  // stay in use, until the process ends.
  Code unmap() noexcept;
  void reset() noexcept;
  bool stuck() const { return stuck_; }  // the driver refused to unmap

 private:
  void take(AddressRange& other) noexcept {
    driver_ = std::exchange(other.driver_, nullptr);
    device_ = other.device_;
    address_ = std::exchange(other.address_, 0);
    bytes_ = std::exchange(other.bytes_, 0);
    mapped_ = std::exchange(other.mapped_, {});
    stuck_ = std::exchange(other.stuck_, false);
  }
  const Driver* driver_ = nullptr;
  Device device_ = 0;
  Address address_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> mapped_;
  bool stuck_ = false;
};

}  // namespace shmb::cuda
