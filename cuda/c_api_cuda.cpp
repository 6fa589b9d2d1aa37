// SPDX-License-Identifier: Apache-2.0
// The C ABI's devices, lent memory, dispatch and torch hooks. Regions are in c_api_cuda_regions.cpp.
#include "cuda/c_api_cuda.hpp"

#include <algorithm>
#include <cstring>

#include "cuda/torch.hpp"

namespace shmb::cuda::c_api {

Result<Region::Handle> region_of(const shmb_gpu_region* region) {
  if (region == nullptr) return error(Status::invalid, "no GPU region was given");
  return region->it;
}

Result<Sync> sync_of(std::uint32_t how, shmb_gpu_stream stream) {
  switch (how) {
    case SHMB_GPU_SYNC_DEVICE:
      return Sync{};
    case SHMB_GPU_SYNC_STREAM:
      return Sync{Sync::How::stream, static_cast<Stream>(stream)};
    case SHMB_GPU_SYNC_NONE:
      return Sync{Sync::How::none, nullptr};
    default:
      return error(Status::invalid, "an unknown way to wait for the device");
  }
}

Result<std::vector<Tensor>> tensors_of(const shmb_gpu_tensor* tensors, std::size_t count) {
  if (count > kMaxTensors) return error(Status::invalid, "a region has at most 65,536 tensors");
  if (tensors == nullptr && count != 0) return error(Status::invalid, "no tensors were given");
  std::vector<Tensor> copies;
  for (std::size_t i = 0; i < count; ++i) {
    const shmb_gpu_tensor& from = tensors[i];
    if (from.name == nullptr || from.dimensions > kMaxDimensions || (from.shape == nullptr && from.dimensions != 0))
      return error(Status::invalid,
                   "tensor " + std::to_string(i) + " has no name, no shape, or more than 32 dimensions");
    Tensor& to = copies.emplace_back();
    to.name = from.name;
    to.shape.assign(from.shape, from.shape + from.dimensions);
    if (from.strides != nullptr) to.strides.assign(from.strides, from.strides + from.dimensions);
    to.offset = from.offset;
    to.type = {from.type_code, from.type_bits, from.type_lanes};
  }
  return copies;
}

shmb_gpu_tensor to_c(const Tensor& tensor) {
  return {tensor.name.c_str(),
          tensor.shape.data(),
          tensor.strides.empty() ? nullptr : tensor.strides.data(),
          tensor.offset,
          static_cast<std::uint32_t>(tensor.shape.size()),
          tensor.type.code,
          tensor.type.bits,
          tensor.type.lanes};
}

namespace {

shmb_gpu_device device_to_c(const Driver& driver, const DeviceInfo& device) {
  shmb_gpu_device out{};
  std::ranges::copy(device.uuid.bytes, out.uuid);
  out.bytes = device.bytes;
  out.granularity = device.granularity;
  out.ordinal = device.device;
  const auto flag = [&](bool set, std::uint32_t bit) { out.flags |= set ? bit : 0U; };
  flag(device.shareable, SHMB_GPU_DEVICE_VMM);
  flag(device.rdma, SHMB_GPU_DEVICE_RDMA);
  flag(device.mem_ops_64, SHMB_GPU_DEVICE_MEMORY_OPS_64);
  flag(device.read_only_register, SHMB_GPU_DEVICE_READ_ONLY_PIN);
  flag(device.dma_buf, SHMB_GPU_DEVICE_DMA_BUF);
  flag(device.mig, SHMB_GPU_DEVICE_MIG);
  flag(driver.has(Feature::bounded_waits), SHMB_GPU_DEVICE_BOUNDED_WAITS);
  client::c_api::copy_text(out.name, device.name);
  client::c_api::copy_text(out.pci, device.bus_id);
  return out;
}

// torch cannot report an error: its allocator returns only NULL.
thread_local shmb_error last_torch_error;

}  // namespace
}  // namespace shmb::cuda::c_api

using namespace shmb;
using namespace shmb::client::c_api;
using namespace shmb::cuda::c_api;
using shmb::cuda::Driver;
using shmb::cuda::Notices;

extern "C" {

int shmb_gpu_devices(shmb_gpu_device* devices, size_t capacity, size_t* count, shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    if (count == nullptr || (devices == nullptr && capacity != 0))
      return shmb::error(Status::invalid, "no place for the devices was given");
    SHMB_TRY(driver, Driver::load());
    const auto known = driver->devices();
    for (std::size_t i = 0; i < std::min(capacity, known.size()); ++i) devices[i] = device_to_c(*driver, known[i]);
    *count = known.size();
    return {};
  });
}

int shmb_gpu_driver_version(int32_t* version, shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    if (version == nullptr) return shmb::error(Status::invalid, "no place for the version was given");
    SHMB_TRY(driver, Driver::load());
    *version = driver->version();
    return {};
  });
}

int shmb_gpu_lend(shmb_session* session, shmb_gpu_pointer pointer, uint64_t length,
                  const shmb_gpu_lend_options* options, shmb_gpu_lease** lease, shmb_error* error) noexcept {
  return guarded_and_free(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(wanted, read_options(options));
    constexpr std::uint32_t flags = SHMB_GPU_PUBLISH_REPLACE | SHMB_GPU_PUBLISH_WRITING | SHMB_GPU_PUBLISH_MANY_WRITERS;
    if ((wanted.flags & ~flags) != 0) return shmb::error(Status::unknown_flags, "an unknown flag of lend");
    if (lease == nullptr) return shmb::error(Status::invalid, "no place for the lease was given");
    cuda::PublishSpec spec;
    spec.name = text_or_empty(wanted.name);
    spec.group = wanted.group;
    spec.replace = (wanted.flags & SHMB_GPU_PUBLISH_REPLACE) != 0;
    spec.writing = (wanted.flags & SHMB_GPU_PUBLISH_WRITING) != 0;
    spec.many_writers = (wanted.flags & SHMB_GPU_PUBLISH_MANY_WRITERS) != 0;
    SHMB_TRY(sync, sync_of(wanted.sync, wanted.stream));
    spec.sync = sync;
    SHMB_TRY(tensors, tensors_of(wanted.tensors, wanted.tensor_count));
    spec.tensors = std::move(tensors);
    auto handle = std::make_unique<shmb_gpu_lease>();
    SHMB_TRY(made, cuda::Lease::lend(std::move(known), pointer, length, spec, wanted.free, wanted.context,
                                     cuda::Patience(wanted.timeout_ns)));
    handle->it = std::move(made);
    *lease = handle.release();
    return {};
  });
}

shmb_region_id shmb_gpu_lease_get_id(const shmb_gpu_lease* lease) noexcept {
  return lease == nullptr ? shmb_region_id{} : to_id(lease->it->ref(), lease->it->epoch());
}

int shmb_gpu_retire(shmb_gpu_lease* lease, shmb_error* error) noexcept {
  const std::unique_ptr<shmb_gpu_lease> handle(lease);
  if (lease == nullptr) return SHMB_OK;
  return guarded_to_end(error, [&]() -> Result<void> {
    if (Driver::loaded() == nullptr) return {};
    auto retired = handle->it->retire(client::Deadline::after(0));
    free_deferred();
    // A lost session is no failure of this call: the memory is free.
    if (!retired && retired.error().status == Status::session_lost) return {};
    return retired;
  });
}

void shmb_gpu_retire_later(shmb_gpu_lease* lease) noexcept {
  const std::unique_ptr<shmb_gpu_lease> handle(lease);
  (void)guarded_to_end(nullptr, [&]() -> Result<void> {
    if (lease != nullptr && Driver::loaded() != nullptr) handle->it->retire_later();
    return {};
  });
}

int shmb_dispatch(shmb_session* session, size_t* done, size_t* waiting, shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    const Notices::Done found = Notices::run(known.get());
    if (done != nullptr) *done = found.freed;
    if (waiting != nullptr) *waiting = found.waiting;
    return {};
  });
}

void* shmb_torch_alloc(ptrdiff_t bytes, int device, void* stream) noexcept {
  void* pointer = nullptr;
  last_torch_error = {};
  const auto allocate = [&]() -> Result<void> {
    if (bytes <= 0) return shmb::error(Status::invalid, "torch asked for a block of no bytes");
    SHMB_TRY(made, cuda::torch_allocate(static_cast<std::uint64_t>(bytes), device));
    pointer = reinterpret_cast<void*>(static_cast<std::uintptr_t>(made));
    return {};
  };
  // At the end the driver is asked whether parked memory can be freed now. While a stream is captured such a question
  // would spoil the capture.
  const Driver* const driver = Driver::loaded();
  int captured = 0;
  if (driver != nullptr && stream != nullptr)
    (void)(*driver)->stream_capturing(static_cast<cuda::Stream>(stream), &captured);
  (void)(captured != 0 ? guarded_to_end(&last_torch_error, allocate) : guarded_and_free(&last_torch_error, allocate));
  return pointer;
}

void shmb_torch_free(void* pointer, ptrdiff_t bytes, int device, void* stream) noexcept {
  (void)bytes;
  (void)device;
  (void)stream;  // the end of a region waits for the whole device
  (void)guarded_to_end(nullptr, [&]() -> Result<void> {
    (void)cuda::torch_free(static_cast<cuda::Address>(reinterpret_cast<std::uintptr_t>(pointer)));
    return {};
  });
}

int shmb_torch_last_error(shmb_error* error) noexcept {
  if (error != nullptr) *error = last_torch_error;
  return last_torch_error.status;
}

int shmb_torch_region(shmb_session* session, const void* pointer, shmb_gpu_region** region, uint64_t* offset,
                      shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    if (region == nullptr) return shmb::error(Status::invalid, "no place for the region was given");
    auto handle = std::make_unique<shmb_gpu_region>();
    SHMB_TRY(block, cuda::torch_block(known, static_cast<cuda::Address>(reinterpret_cast<std::uintptr_t>(pointer))));
    handle->it = std::move(block.region);
    if (offset != nullptr) *offset = block.offset;
    *region = handle.release();
    return {};
  });
}

}  // extern "C"
