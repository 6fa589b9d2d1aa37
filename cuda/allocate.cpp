// SPDX-License-Identifier: Apache-2.0
// Regions that no other process knows yet: fresh memory, and memory of another allocator. A failure half-way leaves
// nothing on the device.
#include <algorithm>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "cuda/leaving.hpp"
#include "cuda/region.hpp"

namespace shmb::cuda {
namespace {

constexpr std::uint64_t kLongestRegion = (std::uint64_t{1} << 47) - 1;

Result<const DeviceInfo*> device_for(const Driver& driver, const AllocateSpec& spec) {
  if (spec.uuid) return driver.find(*spec.uuid);
  if (spec.device >= 0) return driver.at(spec.device);
  if (spec.device != -1) return error(Status::invalid, "a device is an ordinal from 0 on, or SHMB_GPU_ANY_DEVICE");
  const Device current = current_device(driver);
  for (const DeviceInfo& device : driver.devices())
    if (device.device == current) return &device;
  return &driver.devices().front();
}

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// A shortage may pass, because other jobs on the host free memory too.
Result<std::vector<Allocation>> create_all(const Driver& driver, const Region::Memory& memory, bool rdma,
                                           std::int64_t retry) {
  const client::Deadline deadline = client::Deadline::after(retry, SHMB_GPU_RETRY);
  const client::Deadline released = client::Deadline::after(0);  // for regions that this process has released already
  for (;;) {
    std::vector<Allocation> made;
    Error shortage;
    for (const std::uint64_t bytes : memory.sizes) {
      auto one = Allocation::create(driver, *memory.device, bytes, rdma);
      if (!one && one.error().status != Status::out_of_memory)
        return std::unexpected(driver.looked_after(one.error(), memory.device));
      if (!one) {
        shortage = one.error();
        break;
      }
      made.push_back(std::move(*one));
    }
    if (made.size() == memory.sizes.size()) return made;
    made.clear();  // another process may wait for just the part that was made
    const bool coming = Leaving::any_on(memory.uuid);
    if (Leaving::run(nullptr).ended != 0) continue;
    if (deadline.passed() && (!coming || released.passed())) {
      shortage.sentence +=
          "; the device " + memory.device->uuid_text() + " has " + format_size(memory.device->bytes) +
          " in all: free memory there, or let shmb_gpu_allocate_options.retry_ns wait for others to do so";
      return std::unexpected(std::move(shortage));
    }
    sys::rest(2'000'000);
  }
}

}  // namespace

Result<Region::Handle> Region::allocate(std::shared_ptr<client::Session> session, std::uint64_t length,
                                        const AllocateSpec& spec) {
  SHMB_TRY(loaded, Driver::load());
  const Driver& driver = *loaded;
  if (length == 0 || length > kLongestRegion)
    return error(Status::invalid, "the length of a region is 1 to 2^47 - 1 bytes");
  SHMB_TRY(device, device_for(driver, spec));
  if (!device->shareable)
    return error(Status::not_supported, "the device " + device->uuid_text() +
                                            " cannot share memory by descriptor: lend memory of cudaMalloc instead");
  if (spec.rdma && !device->rdma)
    return error(Status::not_supported, "the device " + device->uuid_text() + " has no memory for network cards");
  Memory memory;
  memory.uuid = device->uuid;
  memory.mig = device->mig;
  memory.device = device;
  memory.rdma = spec.rdma;
  memory.length = length;
  memory.granularity = device->granularity;
  memory.bytes = round_up(length, memory.granularity);
  const std::uint64_t chunk = spec.chunk_bytes == 0 ? memory.bytes : round_up(spec.chunk_bytes, memory.granularity);
  for (std::uint64_t left = memory.bytes; left != 0; left -= memory.sizes.back())
    memory.sizes.push_back(std::min(left, chunk));

  ContextHold hold(driver, device->device);  // before the memory
  SHMB_TRY(scope, hold.enter());
  SHMB_TRY(allocations, create_all(driver, memory, spec.rdma, spec.retry));
  auto region = make(driver, std::move(memory), std::move(session));
  region->devices_ = {device->device};
  region->hold_.emplace(std::move(hold));
  auto done = region->map(allocations, 0);
  if (done) done = region->set_access(Access::read_write);
  if (!done) return std::unexpected(done.error());
  if (spec.zero) {
    // In a stream of its own: it waits for nothing that the program has enqueued. The region has it until the device is
    // done, so that the region does not end before, whatever fails here.
    SHMB_TRY(own, OwnStream::make(driver, device->device, region->called()));
    const Stream stream = region->working_.emplace(std::move(own)).get();
    const Code code = driver->memset8_async(region->pointer(), 0, region->memory_.bytes, stream);
    if (code != kSuccess) return std::unexpected(driver.failure(code, "cuMemsetD8Async", region->called()));
    Backlog zeroing = Backlog::of_stream(driver, device->device, stream, region->called());
    if (auto zeroed = zeroing.wait(Patience(spec.timeout).device()); !zeroed) {
      (void)release(std::move(region), client::Deadline::now());  // ends when the device is done with it
      return std::unexpected(zeroed.error());
    }
    region->working_.reset();
  }
  return region;
}

Result<Region::Handle> Region::adopt(std::shared_ptr<client::Session> session, Address pointer, std::uint64_t length) {
  SHMB_TRY(loaded, Driver::load());
  const Driver& driver = *loaded;
  if (length == 0 || length > kLongestRegion || pointer + length < pointer)
    return error(Status::invalid, "the length of a region is 1 to 2^47 - 1 bytes");
  const std::string object = "the memory at " + std::to_string(pointer);
  Memory memory;
  memory.kind = Kind::adopted;
  memory.length = length;
  std::vector<Allocation> found;
  const Device asked_of = handy_device(driver);  // memory without a context may be queried in any
  ContextHold any(driver, asked_of);
  SHMB_TRY(scope, any.enter());
  Address next = pointer, begin = 0;
  while (next < pointer + length) {
    Address base = 0;
    std::size_t bytes = 0;
    const Code code = driver->address_range(&base, &bytes, next);
    if (code != kSuccess && code != kNotFound && code != kInvalidValue)
      return std::unexpected(driver.failure(code, "cuMemGetAddressRange", object));
    if (code != kSuccess || bytes == 0 || base > next || base + bytes <= next)
      return error(Status::invalid, object + " is no device memory of this process, or ends before " +
                                        std::to_string(length) + " bytes: adopt what was allocated");
    SHMB_TRY(one, Allocation::at(driver, asked_of, next, object));
    SHMB_TRY(made, one.properties(object));
    if ((made.requested_handle_types & kPosixFd) == 0)
      return error(Status::not_exportable,
                   object + " was made without a handle for descriptors (only " +
                       (made.requested_handle_types == 0 ? "none" : "another kind") +
                       " was asked for at cuMemCreate): let its allocator ask for CU_MEM_HANDLE_TYPE_POSIX_FILE_"
                       "DESCRIPTOR, or copy into a region of shmb_gpu_allocate");
    if (found.empty()) {
      begin = base;
      auto device = driver.at(made.location.id);
      if (!device || made.location.type != kDeviceLocation)
        return error(Status::not_exportable, object + " is not memory of a device");
      memory.device = *device;
      memory.rdma = true;
    }
    if (made.location.type != kDeviceLocation || made.location.id != memory.device->device)
      return error(Status::not_exportable,
                   object + " lies on more than one device: adopt what is on each of them as a region of its own");
    memory.rdma = memory.rdma && made.flags.gpu_direct_rdma_capable != 0;
    found.push_back(std::move(one));
    memory.sizes.push_back(bytes);
    memory.bytes += bytes;
    next = base + bytes;
  }
  const auto uneven = [&](std::uint64_t bytes) { return bytes != memory.sizes.front(); };
  if (std::any_of(memory.sizes.begin(), memory.sizes.end() - 1, uneven) || memory.sizes.back() > memory.sizes.front())
    return error(Status::not_exportable,
                 object + " lies in allocations of different sizes: adopt each of them as a region of its own");
  memory.uuid = memory.device->uuid;
  memory.mig = memory.device->mig;
  memory.granularity = memory.device->granularity;
  memory.offset = pointer - begin;
  auto region = make(driver, std::move(memory), std::move(session));
  region->devices_ = {region->memory_.device->device};
  region->held_ = std::move(found);
  region->pointer_.store(pointer, std::memory_order_release);
  return region;
}

}  // namespace shmb::cuda
