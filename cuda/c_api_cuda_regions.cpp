// SPDX-License-Identifier: Apache-2.0
// The C ABI's GPU regions: how they are made, change hands and end.
#include <algorithm>
#include <cstring>
#include <new>

#include "client/session/call.hpp"
#include "cuda/c_api_cuda.hpp"
#include "cuda/dlpack.hpp"

namespace shmb::cuda::c_api {
namespace {

using client::c_api::read_options;
using client::c_api::text_or_empty;

static_assert(static_cast<int>(SHMB_GPU_LENT) == static_cast<int>(Kind::lent));

Result<PublishSpec> publish_spec(const shmb_gpu_publish_options* options) {
  SHMB_TRY(wanted, read_options(options));
  constexpr std::uint32_t flags = SHMB_GPU_PUBLISH_KEEP_GIVEN | SHMB_GPU_PUBLISH_REPLACE | SHMB_GPU_PUBLISH_WRITING |
                                  SHMB_GPU_PUBLISH_MANY_WRITERS | SHMB_GPU_PUBLISH_CLOSE_OWN;
  if ((wanted.flags & ~flags) != 0) return error(Status::unknown_flags, "an unknown flag of publish");
  PublishSpec spec;
  spec.name = text_or_empty(wanted.name);
  spec.group = wanted.group;
  if ((wanted.flags & SHMB_GPU_PUBLISH_KEEP_GIVEN) != 0) spec.keep = wanted.keep_ns;
  spec.replace = (wanted.flags & SHMB_GPU_PUBLISH_REPLACE) != 0;
  spec.writing = (wanted.flags & SHMB_GPU_PUBLISH_WRITING) != 0;
  spec.many_writers = (wanted.flags & SHMB_GPU_PUBLISH_MANY_WRITERS) != 0;
  spec.close_own = (wanted.flags & SHMB_GPU_PUBLISH_CLOSE_OWN) != 0;
  SHMB_TRY(sync, sync_of(wanted.sync, wanted.stream));
  spec.sync = sync;
  SHMB_TRY(tensors, tensors_of(wanted.tensors, wanted.tensor_count));
  spec.tensors = std::move(tensors);
  return spec;
}

Result<ImportSpec> import_spec(const shmb_gpu_import_options& wanted) {
  if ((wanted.flags & ~std::uint32_t{SHMB_GPU_IMPORT_SHARE}) != 0)
    return error(Status::unknown_flags, "an unknown flag of import");
  if (wanted.access > SHMB_ACCESS_READ_WRITE) return error(Status::invalid, "an unknown access");
  if (wanted.devices == nullptr && wanted.device_count != 0) return error(Status::invalid, "no devices were given");
  ImportSpec spec;
  spec.access = wanted.access == SHMB_ACCESS_READ_WRITE ? Access::read_write : Access::read;
  spec.devices.assign(wanted.devices, wanted.devices + wanted.device_count);
  spec.at = wanted.at;
  spec.share = (wanted.flags & SHMB_GPU_IMPORT_SHARE) != 0;
  return spec;
}

client::GpuRequest wish_for(const ImportSpec& spec) {
  client::GpuRequest wish;
  wish.rights = SHMBW_RIGHT_MAP_READ | (spec.access == Access::read_write ? unsigned{SHMBW_RIGHT_MAP_WRITE} : 0U) |
                (spec.share ? unsigned{SHMBW_RIGHT_SHARE} : 0U);
  wish.manifest = true;
  wish.few = true;
  return wish;
}

Result<void> name_by(client::GpuRequest& wish, client::Session& session, const char* address, const shmb_region_id* id,
                     const std::uint8_t* ticket) {
  if ((address != nullptr) + (id != nullptr) + (ticket != nullptr) != 1)
    return error(Status::invalid,
                 "an import names its region in exactly one way: by address, by identity or by ticket");
  if (address != nullptr) {
    wish.by = SHMBW_ATTACH_BY_NAME;
    wish.address = address;
  } else if (id != nullptr) {
    if (id->epoch != 0 && id->epoch != session.epoch())
      return error(Status::stale, "the region's identity is from another life of the broker");
    wish.by = SHMBW_ATTACH_BY_ID;
    wish.region = client::c_api::to_ref(*id);
  } else {
    wish.by = SHMBW_ATTACH_BY_TICKET;
    wish.ticket = client::c_api::to_token(ticket);
  }
  return {};
}

Result<void> import_one(shmb_session* session, const char* address, const shmb_region_id* id,
                        const std::uint8_t* ticket, const shmb_gpu_import_options* options, shmb_gpu_region** region) {
  SHMB_TRY(known, client::c_api::session_of(session));
  SHMB_TRY(wanted, read_options(options));
  if (region == nullptr) return error(Status::invalid, "no place for the region was given");
  SHMB_TRY(spec, import_spec(wanted));
  auto wish = wish_for(spec);
  SHMB_TRY_VOID(name_by(wish, *known, address, id, ticket));
  auto handle = std::make_unique<shmb_gpu_region>();
  SHMB_TRY(made, Region::import(known, wish, spec, wanted.timeout_ns, wanted.wait_ns));
  handle->it = std::move(made);
  *region = handle.release();
  return {};
}

Result<SetSpec> set_spec(const char* name, const shmb_gpu_set_options* options) {
  SHMB_TRY(wanted, read_options(options));
  constexpr std::uint32_t flags = SHMB_GPU_PUBLISH_KEEP_GIVEN | SHMB_GPU_PUBLISH_REPLACE;
  if ((wanted.flags & ~flags) != 0) return error(Status::unknown_flags, "an unknown flag of a set");
  if (wanted.tensors == nullptr && wanted.tensor_count != 0) return error(Status::invalid, "no tensors were given");
  SetSpec spec;
  spec.name = text_or_empty(name);
  spec.group = wanted.group;
  if ((wanted.flags & SHMB_GPU_PUBLISH_KEEP_GIVEN) != 0) spec.keep = wanted.keep_ns;
  spec.replace = (wanted.flags & SHMB_GPU_PUBLISH_REPLACE) != 0;
  SHMB_TRY(sync, sync_of(wanted.sync, wanted.stream));
  spec.sync = sync;
  for (std::size_t i = 0; i < wanted.tensor_count; ++i) {
    SHMB_TRY(one, tensors_of(&wanted.tensors[i].tensor, 1));
    spec.tensors.push_back({static_cast<std::size_t>(wanted.tensors[i].region), std::move(one.front())});
  }
  return spec;
}

template <class Managed>
Result<void> handed_out(const shmb_gpu_region* region, const shmb_gpu_tensor* tensor, Managed** managed,
                        Result<Managed*> (*hand)(const Region::Handle&, const Tensor&)) {
  SHMB_TRY(known, region_of(region));
  if (tensor == nullptr || managed == nullptr)
    return error(Status::invalid, "no tensor, or no place for it, was given");
  SHMB_TRY(one, tensors_of(tensor, 1));
  SHMB_TRY(made, hand(known, one.front()));
  *managed = made;
  return {};
}

// The elements that can be requested at all, and their places in the result.
struct ImportBatch {
  std::vector<client::GpuRequest> wishes;
  std::vector<ImportSpec> specs;
  std::vector<std::size_t> places;
};

Result<void> add(ImportBatch& batch, client::Session& session, const shmb_gpu_import_item& item, std::size_t place) {
  SHMB_TRY(wanted, read_options(item.options));
  SHMB_TRY(spec, import_spec(wanted));
  auto wish = wish_for(spec);
  SHMB_TRY_VOID(name_by(wish, session, item.address, item.id, item.ticket));
  batch.wishes.push_back(std::move(wish));
  batch.specs.push_back(std::move(spec));
  batch.places.push_back(place);
  return {};
}

// Also where there is no memory for the sentence: what was made for other elements is theirs all the same.
void note_failure(Result<void>& first, int* statuses, std::size_t at, const Error& failure) noexcept {
  if (statuses != nullptr) statuses[at] = static_cast<int>(failure.status);
  if (!first) return;
  try {
    first = std::unexpected(failure);
  } catch (const std::bad_alloc&) {
    first = std::unexpected(Error{Status::no_memory, 0, {}, "out of memory"});  // short enough to need none
  }
}

}  // namespace
}  // namespace shmb::cuda::c_api

using namespace shmb;
using namespace shmb::client::c_api;
using namespace shmb::cuda::c_api;

extern "C" {

int shmb_gpu_allocate(shmb_session* session, uint64_t length, const shmb_gpu_allocate_options* options,
                      shmb_gpu_region** region, shmb_error* error) noexcept {
  return guarded_and_free(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(wanted, read_options(options));
    constexpr std::uint32_t flags = SHMB_GPU_ALLOCATE_RDMA | SHMB_GPU_ALLOCATE_UNINITIALISED;
    if ((wanted.flags & ~flags) != 0) return shmb::error(Status::unknown_flags, "an unknown flag of allocate");
    if (region == nullptr) return shmb::error(Status::invalid, "no place for the region was given");
    cuda::AllocateSpec spec;
    if (wanted.uuid != nullptr) {
      spec.uuid.emplace();
      std::copy_n(wanted.uuid, spec.uuid->bytes.size(), spec.uuid->bytes.begin());
    }
    spec.device = options == nullptr ? SHMB_GPU_ANY_DEVICE : wanted.device;
    spec.rdma = (wanted.flags & SHMB_GPU_ALLOCATE_RDMA) != 0;
    spec.zero = (wanted.flags & SHMB_GPU_ALLOCATE_UNINITIALISED) == 0;
    spec.chunk_bytes = wanted.chunk_bytes;
    spec.retry = wanted.retry_ns;
    spec.timeout = wanted.timeout_ns;
    auto handle = std::make_unique<shmb_gpu_region>();
    SHMB_TRY(made, cuda::Region::allocate(std::move(known), length, spec));
    handle->it = std::move(made);
    *region = handle.release();
    return {};
  });
}

int shmb_gpu_adopt(shmb_session* session, shmb_gpu_pointer pointer, uint64_t length, shmb_gpu_region** region,
                   shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    if (region == nullptr) return shmb::error(Status::invalid, "no place for the region was given");
    auto handle = std::make_unique<shmb_gpu_region>();
    SHMB_TRY(made, cuda::Region::adopt(std::move(known), pointer, length));
    handle->it = std::move(made);
    *region = handle.release();
    return {};
  });
}

int shmb_gpu_publish(shmb_gpu_region* region, const shmb_gpu_publish_options* options, shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, cuda::c_api::region_of(region));
    SHMB_TRY(spec, publish_spec(options));
    const std::int64_t timeout = read_options(options)->timeout_ns;  // which publish_spec has checked
    return std::move(cuda::Region::publish({&known, 1}, {&spec, 1}, cuda::Patience(timeout)).front());
  });
}

int shmb_gpu_publish_many(const shmb_gpu_publish_item* items, size_t count, int64_t timeout_ns, int* statuses,
                          shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    if (items == nullptr && count != 0) return shmb::error(Status::invalid, "no regions were given");
    std::vector<cuda::Region::Handle> regions;
    std::vector<cuda::PublishSpec> specs;
    std::vector<std::size_t> places;
    Result<void> first;
    for (std::size_t i = 0; i < count; ++i) {
      auto region = cuda::c_api::region_of(items[i].region);
      auto spec = publish_spec(items[i].options);
      if (!region || !spec) {
        note_failure(first, statuses, i, region ? spec.error() : region.error());
        continue;
      }
      regions.push_back(std::move(*region));
      specs.push_back(std::move(*spec));
      places.push_back(i);
    }
    const auto made = cuda::Region::publish(regions, specs, cuda::Patience(timeout_ns));
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (!made[i]) note_failure(first, statuses, places[i], made[i].error());
      else if (statuses != nullptr) statuses[places[i]] = SHMB_OK;
    }
    return first;
  });
}

int shmb_gpu_written(shmb_gpu_region* region, uint32_t sync, shmb_gpu_stream stream, int64_t timeout_ns,
                     shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, cuda::c_api::region_of(region));
    SHMB_TRY(wanted, sync_of(sync, stream));
    return known->written(wanted, cuda::Patience(timeout_ns));
  });
}

int shmb_gpu_publish_set(shmb_session* session, const char* name, shmb_gpu_region* const* regions, size_t count,
                         const shmb_gpu_set_options* options, shmb_gpu_region** set, shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    if (set == nullptr || (regions == nullptr && count != 0))
      return shmb::error(Status::invalid, "no regions, or no place for the set, were given");
    SHMB_TRY(spec, cuda::c_api::set_spec(name, options));
    std::vector<cuda::Region::Handle> all;
    for (std::size_t i = 0; i < count; ++i) {
      SHMB_TRY(one, cuda::c_api::region_of(regions[i]));
      all.push_back(std::move(one));
    }
    auto handle = std::make_unique<shmb_gpu_region>();
    SHMB_TRY(made,
             cuda::Region::publish_set(known, all, spec, cuda::Patience(options != nullptr ? options->timeout_ns : 0)));
    handle->it = std::move(made);
    *set = handle.release();
    return {};
  });
}

int shmb_gpu_import(shmb_session* session, const char* address, const shmb_gpu_import_options* options,
                    shmb_gpu_region** region, shmb_error* error) noexcept {
  return guarded_to_end(error, [&] { return import_one(session, address, nullptr, nullptr, options, region); });
}

int shmb_gpu_import_id(shmb_session* session, const shmb_region_id* id, const shmb_gpu_import_options* options,
                       shmb_gpu_region** region, shmb_error* error) noexcept {
  return guarded_to_end(error, [&] { return import_one(session, nullptr, id, nullptr, options, region); });
}

int shmb_gpu_import_ticket(shmb_session* session, const uint8_t ticket[16], const shmb_gpu_import_options* options,
                           shmb_gpu_region** region, shmb_error* error) noexcept {
  return guarded_to_end(error, [&] { return import_one(session, nullptr, nullptr, ticket, options, region); });
}

int shmb_gpu_import_many(shmb_session* session, const shmb_gpu_import_item* items, size_t count, int64_t timeout_ns,
                         shmb_gpu_region** regions, int* statuses, shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    if ((items == nullptr || regions == nullptr) && count != 0)
      return shmb::error(Status::invalid, "no items, or no place for the regions, were given");
    std::fill_n(regions, count, nullptr);
    ImportBatch batch;
    Result<void> first;
    for (std::size_t i = 0; i < count; ++i)
      if (auto added = add(batch, *known, items[i], i); !added) note_failure(first, statuses, i, added.error());
    std::vector<std::unique_ptr<shmb_gpu_region>> handles;
    for (std::size_t i = 0; i < batch.wishes.size(); ++i) handles.push_back(std::make_unique<shmb_gpu_region>());
    auto made = cuda::Region::import(known, batch.wishes, batch.specs, client::Deadline::after(timeout_ns));
    for (std::size_t i = 0; i < made.size(); ++i) {
      const std::size_t place = batch.places[i];
      if (!made[i]) {
        note_failure(first, statuses, place, made[i].error());
        continue;
      }
      handles[i]->it = std::move(*made[i]);
      regions[place] = handles[i].release();
      if (statuses != nullptr) statuses[place] = SHMB_OK;
    }
    return first;
  });
}

int shmb_gpu_region_get_info(const shmb_gpu_region* region, shmb_gpu_region_info* info, shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, cuda::c_api::region_of(region));
    const cuda::Region& it = *known;
    const cuda::Region::Memory& memory = it.memory();
    shmb_gpu_region_info out{};
    if (it.published()) out.id = to_id(it.ref(), it.epoch());
    out.pointer = it.pointer();
    out.length = memory.length;
    out.bytes = memory.bytes;
    out.offset = memory.offset;
    std::ranges::copy(memory.uuid.bytes, out.uuid);
    out.device = memory.device == nullptr ? SHMB_GPU_ANY_DEVICE : memory.device->device;
    out.kind = static_cast<std::uint32_t>(memory.kind);
    out.access = it.access() == Access::read_write ? SHMB_ACCESS_READ_WRITE : SHMB_ACCESS_READ;
    out.state = static_cast<std::uint32_t>(it.state());
    out.cu_result = it.code();
    out.chunks = static_cast<std::uint32_t>(memory.sizes.size());
    out.asleep = it.pointer() == 0 ? 1 : 0;
    out.notes = it.not_closed() ? unsigned{SHMB_GPU_NOTE_NOT_CLOSED} : 0U;
    out.tensor_count = it.published() ? it.manifest().tensors().size() : 0;
    return write_struct(out, info);
  });
}

shmb_gpu_pointer shmb_gpu_region_pointer(const shmb_gpu_region* region) noexcept {
  return region == nullptr ? 0 : region->it->pointer();
}
uint64_t shmb_gpu_region_length(const shmb_gpu_region* region) noexcept {
  return region == nullptr ? 0 : region->it->memory().length;
}
shmb_region_id shmb_gpu_region_get_id(const shmb_gpu_region* region) noexcept {
  if (region == nullptr || !region->it->published()) return {};
  return to_id(region->it->ref(), region->it->epoch());
}

int shmb_gpu_region_tensor(const shmb_gpu_region* region, size_t number, shmb_gpu_tensor* tensor,
                           shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, cuda::c_api::region_of(region));
    if (tensor == nullptr) return shmb::error(Status::invalid, "no place for the tensor was given");
    if (!known->published() || number >= known->manifest().tensors().size())
      return shmb::error(Status::not_found, known->called() + " has no tensor of that number");
    *tensor = cuda::c_api::to_c(known->manifest().tensors()[number]);
    return {};
  });
}

int shmb_gpu_region_find_tensor(const shmb_gpu_region* region, const char* name, shmb_gpu_tensor* tensor,
                                shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, cuda::c_api::region_of(region));
    if (tensor == nullptr || name == nullptr)
      return shmb::error(Status::invalid, "no name, or no place for the tensor, was given");
    const cuda::Tensor* const found = known->published() ? known->manifest().find(name) : nullptr;
    if (found == nullptr)
      return shmb::error(Status::not_found, known->called() + " has no tensor '" + std::string(name) + "'");
    *tensor = cuda::c_api::to_c(*found);
    return {};
  });
}

int shmb_gpu_dlpack(const shmb_gpu_region* region, const shmb_gpu_tensor* tensor,
                    struct DLManagedTensorVersioned** managed, shmb_error* error) noexcept {
  return guarded_to_end(error, [&] { return cuda::c_api::handed_out(region, tensor, managed, cuda::to_dlpack); });
}

int shmb_gpu_dlpack_unversioned(const shmb_gpu_region* region, const shmb_gpu_tensor* tensor,
                                struct DLManagedTensor** managed, shmb_error* error) noexcept {
  return guarded_to_end(error,
                        [&] { return cuda::c_api::handed_out(region, tensor, managed, cuda::to_dlpack_unversioned); });
}

int shmb_gpu_copy(const shmb_gpu_region* region, int64_t timeout_ns, shmb_gpu_region** copy,
                  shmb_error* error) noexcept {
  return cuda::c_api::guarded_and_free(error, [&]() -> Result<void> {
    SHMB_TRY(known, cuda::c_api::region_of(region));
    if (copy == nullptr) return shmb::error(Status::invalid, "no place for the copy was given");
    auto handle = std::make_unique<shmb_gpu_region>();
    SHMB_TRY(made, known->copy(cuda::Patience(timeout_ns)));
    handle->it = std::move(made);
    *copy = handle.release();
    return {};
  });
}

int shmb_gpu_sleep(shmb_gpu_region* region, int64_t timeout_ns, shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, cuda::c_api::region_of(region));
    return known->sleep(cuda::Patience(timeout_ns));
  });
}

int shmb_gpu_wake(shmb_gpu_region* region, int64_t timeout_ns, shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, cuda::c_api::region_of(region));
    return known->wake(client::Deadline::after(timeout_ns));
  });
}

int shmb_gpu_ticket_create(shmb_gpu_region* region, uint32_t rights, uint32_t uses, int64_t lifetime_ns,
                           int64_t timeout_ns, uint8_t ticket[16], int64_t* expires_ns, shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, cuda::c_api::region_of(region));
    if (ticket == nullptr) return shmb::error(Status::invalid, "no place for the ticket was given");
    if ((rights & ~static_cast<std::uint32_t>(SHMB_RIGHT_ALL)) != 0)
      return shmb::error(Status::unknown_flags, "an unknown right");
    SHMB_TRY(made, known->make_ticket(rights, uses, lifetime_ns, client::Deadline::after(timeout_ns)));
    std::memcpy(ticket, made.token.bytes.data(), made.token.bytes.size());
    if (expires_ns != nullptr) *expires_ns = made.expires;
    return {};
  });
}

int shmb_gpu_dma_buf(shmb_gpu_region* region, uint64_t offset, uint64_t length, int* fd, shmb_error* error) noexcept {
  return guarded_to_end(error, [&]() -> Result<void> {
    SHMB_TRY(known, cuda::c_api::region_of(region));
    if (fd == nullptr) return shmb::error(Status::invalid, "no place for the descriptor was given");
    SHMB_TRY(made, known->dma_buf(offset, length));
    *fd = made.release();
    return {};
  });
}

int shmb_gpu_release(shmb_gpu_region* region, uint32_t flags, int64_t timeout_ns, shmb_error* error) noexcept {
  const std::unique_ptr<shmb_gpu_region> handle(region);
  if (region == nullptr) return SHMB_OK;
  return guarded_to_end(error, [&]() -> Result<void> {
    if ((flags & ~static_cast<std::uint32_t>(SHMB_RELEASE_UNNAME)) != 0)
      return shmb::error(Status::unknown_flags, "an unknown flag of release");
    Result<void> unnamed;
    if (flags != 0 && cuda::Driver::loaded() != nullptr) unnamed = client::insist([&] { return handle->it->unname(); });
    auto released = cuda::Region::release(std::move(handle->it), client::Deadline::after(timeout_ns));
    cuda::c_api::free_deferred();
    return released ? unnamed : released;
  });
}

void shmb_gpu_release_later(shmb_gpu_region* region) noexcept { delete region; }

}  // extern "C"
