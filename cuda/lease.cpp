// SPDX-License-Identifier: Apache-2.0
// The driver is asked whether memory can be lent before it is published: its own refusals come late and say little.
#include "cuda/lease.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "client/session/call.hpp"
#include "cuda/manifest_file.hpp"

namespace shmb::cuda {
namespace {

struct PointerFacts {
  int memory_type = 0;
  int ordinal = -1;
  int ipc_capable = 0;
  unsigned long long handle_types = 0;
  MemHandle pool = 0;
};

Result<PointerFacts> facts_of(const Driver& driver, Address pointer) {
  PointerFacts facts;
  std::array attributes = {PointerAttribute::memory_type, PointerAttribute::device_ordinal,
                           PointerAttribute::legacy_ipc_capable, PointerAttribute::allowed_handle_types,
                           PointerAttribute::mempool};
  std::array<void*, 5> places = {&facts.memory_type, &facts.ordinal, &facts.ipc_capable, &facts.handle_types,
                                 &facts.pool};
  const Code code = driver->pointer_attributes(5, attributes.data(), places.data(), pointer);
  if (code != kSuccess)
    return std::unexpected(driver.failure(code, "cuPointerGetAttributes", "the memory at " + std::to_string(pointer)));
  return facts;
}

}  // namespace

Result<std::unique_ptr<Lease>> Lease::lend(std::shared_ptr<client::Session> session, Address pointer,
                                           std::uint64_t length, const PublishSpec& spec,
                                           void (*free)(void*, std::uint64_t), void* context,
                                           const Patience& patience) {
  SHMB_TRY(loaded, Driver::load());
  const Driver& driver = *loaded;
  SHMB_TRY_VOID(driver.need(Feature::lease));
  if (session->is_local()) return client::needs_broker("memory that is lent to others");
  if (spec.many_writers && !spec.writing)
    return error(Status::invalid,
                 "SHMB_GPU_PUBLISH_MANY_WRITERS is for memory that is still written: say SHMB_GPU_PUBLISH_WRITING too");
  SHMB_TRY(facts, facts_of(driver, pointer));
  const std::string object = "the memory at " + std::to_string(pointer);
  if (facts.memory_type != kDeviceMemory) return error(Status::invalid, object + " is no memory of a device");
  if (facts.ipc_capable == 0) {
    const char* why = facts.pool != 0           ? " is of a memory pool, which cannot be lent: "
                      : facts.handle_types != 0 ? " was made by cuMemCreate: shmb_gpu_adopt shares it; or "
                                                : " cannot be lent (managed, or made by cuMemCreate for this "
                                                  "process alone): ";
    return error(Status::not_exportable, object + why + "copy it into a region of shmb_gpu_allocate");
  }
  SHMB_TRY(device, driver.at(facts.ordinal));
  ContextHold hold(driver, device->device);
  SHMB_TRY(scope, hold.enter());
  Address base = 0;
  std::size_t allocation = 0;
  if (const Code code = driver->address_range(&base, &allocation, pointer); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuMemGetAddressRange", object));
  const std::uint64_t offset = pointer - base;
  if (length == 0 || length > allocation - offset)
    return error(Status::invalid, object + " has " + std::to_string(allocation - offset) +
                                      " bytes to the end of its "
                                      "allocation; asked to lend: " +
                                      std::to_string(length));
  SHMB_TRY(manifest, Manifest::of(spec.tensors, length));

  const Device number = device->device;
  SHMB_TRY_VOID(wait_for(driver, spec.sync, {&number, 1}, object, patience.device()));
  IpcHandle handle;
  if (const Code code = driver->ipc_get_memory(&handle, base); code != kSuccess)
    return std::unexpected(driver.failure(code, "cuIpcGetMemHandle", object));

  const client::Deadline deadline = patience.broker();
  const auto notices = Notices::of(session);
  SHMB_TRY_VOID(notices->pin_device(*device, deadline));
  client::GpuPublish request;
  request.kind = SHMBW_GPU_KIND_LEGACY;
  request.group = spec.group;
  request.bytes = length;
  request.offset = offset;
  request.allocation = allocation;
  std::ranges::copy(device->uuid.bytes, request.uuid.begin());
  std::memcpy(request.handle.data(), handle.reserved, sizeof handle.reserved);
  request.driver = static_cast<std::uint32_t>(driver.version());
  request.name = spec.name;
  if (device->mig) request.flags |= SHMBW_GPU_PUBLISH_MIG;
  if (spec.replace) request.flags |= SHMBW_GPU_PUBLISH_REPLACE;
  if (spec.writing) request.flags |= SHMBW_GPU_PUBLISH_WRITING;
  if (spec.many_writers) request.flags |= SHMBW_GPU_PUBLISH_MANY_WRITERS;
  const auto encoded = manifest.encode();
  Fd file;
  if (!encoded.empty()) {
    SHMB_TRY(made, manifest_file(encoded));
    file = std::move(made);
    request.manifest = file.get();
    request.manifest_bytes = encoded.size();
  }
  // Made before the broker knows: a reply without a place for it would leave lent memory that cannot be taken back.
  auto lent = std::make_shared<Lent>();
  auto lease = std::make_unique<Lease>(lent);
  lease->retired_ = true;
  const Notices::Lending lending;
  SHMB_TRY(made, client::gpu_publish(*session, {&request, 1}, deadline));
  if (!made.front()) return std::unexpected(made.front().error());
  lent->session = std::move(session);
  lent->ref = made.front()->region;
  lent->pointer = pointer;
  lent->length = length;
  lent->free = free;
  lent->context = context;
  lease->retired_ = false;
  notices->lend(lent);
  return lease;
}

Result<void> Lease::retire(client::Deadline deadline) {
  if (std::exchange(retired_, true)) return {};
  return Notices::of(lent_->session)->retire(lent_, deadline);
}

Lease::~Lease() {
  if (retired_ || Driver::loaded() == nullptr) return;                    // a forked child: the memory is its parent's
  (void)client::insist([&] { return retire(client::Deadline::now()); });  // dispatch asks the broker again
}

void Lease::retire_later() { (void)retire(client::Deadline::now()); }

}  // namespace shmb::cuda
