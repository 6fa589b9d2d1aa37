// SPDX-License-Identifier: Apache-2.0
// GPU memory in C++, header-only over shmbroker_cuda.h. It follows shmbroker.hpp: C++20, each operation as `try_x` that
// returns a Result, and as `x` that throws shmbroker::Error with the same status. Handles move and are not copied. It
// needs no cuda.h: a device pointer is a number, a stream is the void* that CUstream and cudaStream_t are. Sizes and
// offsets are bytes.
//
// Threads: any, unless a function says otherwise. In a forked child of a process that used the driver, calls fail with
// forked_child.
#if __cplusplus < 202002L
#error "shmbroker/cuda.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_cuda.h)"
#elif !defined(SHMBROKER_CUDA_HPP)
#define SHMBROKER_CUDA_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shmbroker.hpp"
#include "shmbroker_cuda.h"

namespace shmbroker {
namespace detail {

template <>
struct Closer<shmb_gpu_region> {
  static void close(shmb_gpu_region* handle) noexcept { shmb_gpu_release_later(handle); }
};
template <>
struct Closer<shmb_gpu_lease> {
  static void close(shmb_gpu_lease* handle) noexcept { shmb_gpu_retire_later(handle); }
};
template <>
struct Closer<shmb_gpu_timeline> {
  static void close(shmb_gpu_timeline* handle) noexcept { (void)shmb_gpu_timeline_close(handle, nullptr); }
};
template <>
struct Closer<shmb_gpu_pin> {
  static void close(shmb_gpu_pin* handle) noexcept { (void)shmb_gpu_unpin(handle, nullptr); }
};

}  // namespace detail

namespace gpu {

inline constexpr int any_device = SHMB_GPU_ANY_DEVICE;  // any that is free

using Pointer = shmb_gpu_pointer;
using Stream = shmb_gpu_stream;

/// The UUID of a GPU or of a MIG instance.
struct Uuid {
  std::array<std::uint8_t, 16> bytes{};
  friend auto operator<=>(const Uuid&, const Uuid&) = default;
};

/// The access of this process, the origin of the memory, and its state. See shmbroker_cuda.h.
enum class Access : std::uint32_t { read_only = SHMB_ACCESS_READ, read_write = SHMB_ACCESS_READ_WRITE };
enum class Kind : std::uint32_t { vmm = SHMB_GPU_VMM, adopted = SHMB_GPU_ADOPTED, lent = SHMB_GPU_LENT };
enum class State : std::uint32_t {
  unpublished = SHMB_GPU_UNPUBLISHED,
  ok = SHMB_GPU_OK,
  incomplete = SHMB_GPU_INCOMPLETE,
  poisoned = SHMB_GPU_POISONED,
  detached = SHMB_GPU_DETACHED,
  device_lost = SHMB_GPU_DEVICE_LOST,
  invalid = SHMB_GPU_INVALID,
  retired = SHMB_GPU_RETIRED,
  producer_dead = SHMB_GPU_PRODUCER_DEAD,
};

/// Lists the devices that this process may use. Statuses: no_driver, stub_driver, driver_too_old, no_device,
/// forked_child. The functions below that use a device have these too. Throws std::bad_alloc.
inline Result<std::vector<shmb_gpu_device> > try_devices() {
  std::vector<shmb_gpu_device> devices(8);
  for (;;) {
    std::size_t count = 0;
    shmb_error error;
    if (shmb_gpu_devices(devices.data(), devices.size(), &count, &error) != SHMB_OK) return Error(error);
    const bool all = count <= devices.size();
    devices.resize(count);
    if (all) return {std::move(devices)};
  }
}
/// The driver's version: 13000 for 13.0. Statuses: those of try_devices().
inline Result<int> try_driver_version() noexcept {
  std::int32_t version = 0;
  shmb_error error;
  if (shmb_gpu_driver_version(&version, &error) != SHMB_OK) return Error(error);
  return int{version};
}

/// The type of a tensor's elements, a DLDataType.
struct Type {
  std::uint8_t code = 2;  // DLDataTypeCode: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool
  std::uint8_t bits = 32;
  std::uint16_t lanes = 1;
  friend bool operator==(const Type&, const Type&) = default;
};

/// One tensor in a region's manifest. A plain value.
struct Tensor {
  std::string name;
  Type type;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements; empty: rows follow each other
  std::uint64_t offset = 0;           // in bytes
  /// From the C form. Throws std::bad_alloc.
  static Tensor from_c(const shmb_gpu_tensor& c) {
    Tensor tensor;
    tensor.name = c.name;
    tensor.type = {c.type_code, c.type_bits, c.type_lanes};
    tensor.shape.assign(c.shape, c.shape + c.dimensions);
    if (c.strides != nullptr) tensor.strides.assign(c.strides, c.strides + c.dimensions);
    tensor.offset = c.offset;
    return tensor;
  }
  /// The result points into this object. It is valid as long as this object.
  shmb_gpu_tensor to_c() const noexcept {
    shmb_gpu_tensor c{};
    c.name = name.c_str();
    c.shape = shape.data();
    c.strides = strides.empty() ? nullptr : strides.data();
    c.offset = offset;
    c.dimensions = static_cast<std::uint32_t>(shape.size());
    c.type_code = type.code;
    c.type_bits = type.bits;
    c.type_lanes = type.lanes;
    return c;
  }
};

/// The condition that a publication waits for before others may read. A plain value: the stream must exist until the
/// call returns.
class Sync {
 public:
  /// Everything that is enqueued on the device; one stream; or nothing, because the contents are there or a timeline
  /// tells.
  Sync() noexcept = default;  // everything that is enqueued on the device
  static Sync stream(Stream stream) noexcept { return Sync(SHMB_GPU_SYNC_STREAM, stream); }
  static Sync none() noexcept { return Sync(SHMB_GPU_SYNC_NONE, nullptr); }
  /// As the C functions take them.
  std::uint32_t kind() const noexcept { return kind_; }
  Stream handle() const noexcept { return stream_; }

 private:
  Sync(std::uint32_t kind, Stream stream) noexcept : kind_(kind), stream_(stream) {}
  std::uint32_t kind_ = SHMB_GPU_SYNC_DEVICE;
  Stream stream_ = nullptr;
};

/// How memory is allocated.
struct AllocateOptions {
  std::optional<Uuid> uuid{};  // none: chosen by ordinal
  int device = any_device;
  bool rdma = false;
  bool uninitialised = false;
  std::uint64_t chunk_bytes = 0;
  Timeout retry{};    // how long to retry while the device has no memory; default: not at all
  Timeout timeout{};  // for zeroing; default: 60 s
};

/// How memory is published. `timeout` is for the device and for the broker.
struct PublishOptions {
  Text name{};  // empty: unnamed
  GroupId group{};
  std::optional<Keep> keep{};
  bool replace = false;
  bool writing = false;       // this handle continues to write
  bool many_writers = false;  // importers may write too
  bool close_own = false;     // this mapping becomes read-only when the writing is over; see shmbroker_cuda.h
  Sync sync{};
  std::vector<Tensor> tensors{};
  Timeout timeout{};
};

/// A tensor of a set: the number of its region, and the tensor, whose offset counts from that region's begin.
struct SetTensor {
  std::size_t region = 0;
  Tensor tensor{};
};
/// How a set is published. `timeout` is for the device and for the broker.
struct SetOptions {
  GroupId group{};
  std::optional<Keep> keep{};
  bool replace = false;
  Sync sync{};
  std::vector<SetTensor> tensors{};
  Timeout timeout{};
};

/// How a region is imported. `devices`: ordinals that shall reach it. `at`: the address that it shall have; 0: any.
struct ImportOptions {
  Access access = Access::read_only;
  std::vector<std::int32_t> devices{};  // empty: that of the current context, else the region's own
  Pointer at = 0;
  Timeout wait{};  // for a name that does not exist yet; default: no wait
  Timeout timeout{};
  bool share = false;  // so that tickets can be made from the import
};

/// GPU memory with its mapping in this process. Ownership: the handle owns one reference and moves only. Threads: any.
/// Lifetime: addresses are valid until the handle ends or sleeps.
class Region {
 public:
  /// Takes over a C handle.
  explicit Region(shmb_gpu_region* adopted) noexcept : handle_(adopted) {}

  /// Memory on a device, mapped there for reading and writing. No other process knows of it until publish(). It ends
  /// with the handle or the process. Statuses: deadline, device_not_found, not_supported, out_of_memory, invalid,
  /// context_poisoned, device_lost, mps, and those of try_devices().
  static Result<Region> try_allocate(const Session& session, std::uint64_t length,
                                     const AllocateOptions& options = {}) noexcept {
    shmb_gpu_allocate_options c{};
    c.size = sizeof c;
    if (options.uuid) c.uuid = options.uuid->bytes.data();
    c.device = options.device;
    c.flags = (options.rdma ? unsigned{SHMB_GPU_ALLOCATE_RDMA} : 0U) |
              (options.uninitialised ? unsigned{SHMB_GPU_ALLOCATE_UNINITIALISED} : 0U);
    c.chunk_bytes = options.chunk_bytes;
    c.retry_ns = options.retry.nanoseconds();
    c.timeout_ns = options.timeout.nanoseconds();
    return made([&](shmb_gpu_region** raw, shmb_error* error) {
      return shmb_gpu_allocate(session.c(), length, &c, raw, error);
    });
  }
  /// Adopts memory that another allocator made with cuMemCreate. The allocator keeps its mapping. The memory stays
  /// while the region does. Statuses: not_exportable (made by cudaMalloc: lend it), invalid.
  static Result<Region> try_adopt(const Session& session, Pointer pointer, std::uint64_t length) noexcept {
    return made([&](shmb_gpu_region** raw, shmb_error* error) {
      return shmb_gpu_adopt(session.c(), pointer, length, raw, error);
    });
  }
  /// The region that shmb_torch_alloc made around a pointer. `offset` gets the place of the pointer in it, in bytes.
  /// Status: not_found (another allocator made it).
  static Result<Region> try_of_torch(const Session& session, const void* pointer,
                                     std::uint64_t* offset = nullptr) noexcept {
    return made([&](shmb_gpu_region** raw, shmb_error* error) {
      return shmb_torch_region(session.c(), pointer, raw, offset, error);
    });
  }
  /// Imports by address, by identity, or by ticket. Statuses: not_found, denied, generation_mismatch, stale, deadline,
  /// not_ready, write_closed, region_poisoned (for writing, after a writer died), region_invalid, detached,
  /// producer_dead, other_kind, device_not_visible, different_mig_instance, bad_fd, too_small, out_of_memory,
  /// not_permitted, context_poisoned, device_lost, mps, and those of try_devices().
  static Result<Region> try_import(const Session& session, std::string_view address,
                                   const ImportOptions& options = {}) noexcept {
    const shmb_gpu_import_options c = to_c(options);
    return made([&](shmb_gpu_region** raw, shmb_error* error) {
      return shmb_gpu_import(session.c(), shmbroker::detail::CText(address).get(), &c, raw, error);
    });
  }
  static Result<Region> try_import(const Session& session, const RegionId& id,
                                   const ImportOptions& options = {}) noexcept {
    const shmb_gpu_import_options c = to_c(options);
    const shmb_region_id c_id = id.to_c();
    return made([&](shmb_gpu_region** raw, shmb_error* error) {
      return shmb_gpu_import_id(session.c(), &c_id, &c, raw, error);
    });
  }
  static Result<Region> try_import(const Session& session, const Ticket& ticket,
                                   const ImportOptions& options = {}) noexcept {
    const shmb_gpu_import_options c = to_c(options);
    return made([&](shmb_gpu_region** raw, shmb_error* error) {
      return shmb_gpu_import_ticket(session.c(), ticket.data(), &c, raw, error);
    });
  }
  /// Imports many, in one request for each 126 or fewer. Elements fail one by one; the first failure has its full
  /// sentence. It does not wait for names. Statuses: those of try_import(). Throws std::bad_alloc.
  static Result<std::vector<Result<Region> > > try_import_many(const Session& session, std::span<const RegionId> ids,
                                                               const ImportOptions& options = {}) {
    const shmb_gpu_import_options c = to_c(options);
    std::vector<shmb_region_id> c_ids;
    for (const RegionId& id : ids) c_ids.push_back(id.to_c());
    std::vector<shmb_gpu_import_item> items;
    for (const shmb_region_id& id : c_ids) items.push_back({nullptr, &id, nullptr, &c});
    std::vector<shmb_gpu_region*> regions(ids.size());
    std::vector<int> statuses(ids.size());
    std::vector<Result<Region> > results;
    results.reserve(regions.size());  // before: what was made is not lost
    shmb_error error{};
    const int first = shmb_gpu_import_many(session.c(), items.data(), items.size(), options.timeout.nanoseconds(),
                                           regions.data(), statuses.data(), &error);
    bool told = false;
    for (std::size_t i = 0; i < regions.size(); ++i) {
      if (regions[i] != nullptr) (void)results.emplace_back(Region(regions[i]));
      else if (!std::exchange(told, true) && first != SHMB_OK) results.push_back(Error(error));
      else results.push_back(Error(static_cast<Status>(statuses[i])));
    }
    return {std::move(results)};
  }

  /// Publishes many regions of one device at once under one name; an empty name: unnamed. A reader imports the set as
  /// one region: it has all of one generation, or of the one before. Returns a handle without a mapping. Statuses:
  /// those of try_publish(), and invalid (a region of another session or device; asleep; still written; twice; a tensor
  /// that reaches beyond its region). Throws std::bad_alloc.
  static Result<Region> try_publish_set(const Session& session, std::string_view name, std::span<Region* const> regions,
                                        const SetOptions& options = {}) {
    std::vector<shmb_gpu_region*> raw;
    for (const Region* region : regions) raw.push_back(region->c());
    std::vector<shmb_gpu_set_tensor> tensors;
    for (const SetTensor& one : options.tensors) tensors.push_back({one.region, one.tensor.to_c()});
    shmb_gpu_set_options c{};
    c.size = sizeof c;
    c.tensors = tensors.data();
    c.tensor_count = tensors.size();
    c.group = options.group.value;
    if (options.keep) {
      c.keep_ns = options.keep->nanoseconds();
      c.flags |= SHMB_GPU_PUBLISH_KEEP_GIVEN;
    }
    if (options.replace) c.flags |= SHMB_GPU_PUBLISH_REPLACE;
    c.sync = options.sync.kind();
    c.stream = options.sync.handle();
    c.timeout_ns = options.timeout.nanoseconds();
    const shmbroker::detail::CText text(name);
    return made([&](shmb_gpu_region** set, shmb_error* error) {
      return shmb_gpu_publish_set(session.c(), name.empty() ? nullptr : text.get(), raw.data(), raw.size(), &c, set,
                                  error);
    });
  }

  /// Gives the memory to the broker, so that others may import it. It waits for options.sync first. Then it lives while
  /// a handle of any process, a ticket or its name does. Returns its identity. Statuses: exists, limit, invalid (a
  /// tensor that does not fit), not_exportable, device_not_pinned, bad_fd, unsupported, local_only, busy, and deadline.
  /// After deadline for the device the region is as before; after deadline for the broker the broker may have it.
  /// Throws std::bad_alloc.
  Result<RegionId> try_publish(const PublishOptions& options = {}) {
    std::vector<shmb_gpu_tensor> tensors;
    for (const Tensor& tensor : options.tensors) tensors.push_back(tensor.to_c());
    shmb_gpu_publish_options c{};
    c.size = sizeof c;
    if (!options.name.empty()) c.name = options.name.c_str();
    c.group = options.group.value;
    if (options.keep) {
      c.keep_ns = options.keep->nanoseconds();
      c.flags |= SHMB_GPU_PUBLISH_KEEP_GIVEN;
    }
    if (options.replace) c.flags |= SHMB_GPU_PUBLISH_REPLACE;
    if (options.writing) c.flags |= SHMB_GPU_PUBLISH_WRITING;
    if (options.many_writers) c.flags |= SHMB_GPU_PUBLISH_MANY_WRITERS;
    if (options.close_own) c.flags |= SHMB_GPU_PUBLISH_CLOSE_OWN;
    c.sync = options.sync.kind();
    c.stream = options.sync.handle();
    c.tensors = tensors.data();
    c.tensor_count = tensors.size();
    c.timeout_ns = options.timeout.nanoseconds();
    shmb_error error;
    if (shmb_gpu_publish(handle_.get(), &c, &error) != SHMB_OK) return Error(error);
    return id();
  }

  /// Where the first byte is in this process; 0: it sleeps.
  Pointer pointer() const noexcept { return shmb_gpu_region_pointer(handle_.get()); }
  /// An address for kernels. The host cannot read through it. The rest are facts without a request: the length asked
  /// for in bytes, the identity (all 0: not published), all facts of the handle, and the device.
  void* data() const noexcept { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer())); }
  std::size_t size() const noexcept { return static_cast<std::size_t>(shmb_gpu_region_length(handle_.get())); }
  RegionId id() const noexcept { return RegionId::from_c(shmb_gpu_region_get_id(handle_.get())); }
  shmb_gpu_region_info info() const noexcept {
    shmb_gpu_region_info info{};
    info.size = sizeof info;
    (void)shmb_gpu_region_get_info(handle_.get(), &info, nullptr);
    return info;
  }
  Uuid device() const noexcept {
    Uuid uuid;
    const shmb_gpu_region_info known = info();
    std::memcpy(uuid.bytes.data(), known.uuid, uuid.bytes.size());
    return uuid;
  }
  /// Of this mapping; the state as of the last notice, which dispatch() reads; and the C handle, which this object
  /// keeps.
  Access access() const noexcept { return static_cast<Access>(info().access); }
  State state() const noexcept { return static_cast<State>(info().state); }  // as of the last notice
  shmb_gpu_region* c() const noexcept { return handle_.get(); }

  /// How many tensors its publisher listed.
  std::size_t tensor_count() const noexcept { return info().tensor_count; }
  /// One of them, by number from 0 or by name. Status: not_found. Throws std::bad_alloc.
  Result<Tensor> try_tensor(std::size_t number) const {
    shmb_gpu_tensor c{};
    shmb_error error;
    if (shmb_gpu_region_tensor(handle_.get(), number, &c, &error) != SHMB_OK) return Error(error);
    return Tensor::from_c(c);
  }
  Result<Tensor> try_tensor(std::string_view name) const {
    shmb_gpu_tensor c{};
    shmb_error error;
    if (shmb_gpu_region_find_tensor(handle_.get(), shmbroker::detail::CText(name).get(), &c, &error) != SHMB_OK)
      return Error(error);
    return Tensor::from_c(c);
  }
  /// A DLPack tensor over memory of the region, which stays mapped until its deleter is called. The caller calls the
  /// deleter, or passes the tensor to a library that does. Status: invalid (it is not in the region, or the region
  /// sleeps).
  Result<DLManagedTensorVersioned*> try_dlpack(const Tensor& tensor) const noexcept {
    DLManagedTensorVersioned* managed = nullptr;
    const shmb_gpu_tensor c = tensor.to_c();
    shmb_error error;
    if (shmb_gpu_dlpack(handle_.get(), &c, &managed, &error) != SHMB_OK) return Error(error);
    return managed;
  }
  /// The same in DLPack's form before version 1, for receivers that know no other. Statuses: those of try_dlpack(),
  /// denied (the mapping is read-only, which this form cannot say).
  Result<DLManagedTensor*> try_dlpack_unversioned(const Tensor& tensor) const noexcept {
    DLManagedTensor* managed = nullptr;
    const shmb_gpu_tensor c = tensor.to_c();
    shmb_error error;
    if (shmb_gpu_dlpack_unversioned(handle_.get(), &c, &managed, &error) != SHMB_OK) return Error(error);
    return managed;
  }

  /// A writable copy on the same device, which no other process knows of: for receivers that ignore that a tensor is
  /// read-only. Its tensors lie where they lie here. Statuses: those of try_allocate(), invalid (it sleeps), busy,
  /// deadline.
  Result<Region> try_copy(Timeout timeout = {}) const noexcept {
    return made([&](shmb_gpu_region** raw, shmb_error* error) {
      return shmb_gpu_copy(handle_.get(), timeout.nanoseconds(), raw, error);
    });
  }

  /// This handle does not write any more: a death does not poison the region. It waits for `sync` first. Statuses:
  /// denied (no writer), invalid (not published, or asleep), deadline and busy; then it is a writer still.
  Result<void> try_written(Sync sync = {}, Timeout timeout = {}) noexcept {
    shmb_error error;
    return shmbroker::detail::outcome(
        shmb_gpu_written(handle_.get(), sync.kind(), sync.handle(), timeout.nanoseconds(), &error), error);
  }
  /// Takes the mapping away and keeps its addresses, so that other memory can use the device; and maps it again there.
  /// Sleeping waits for the device. Statuses: invalid, busy (a DLPack tensor of it lives), deadline (the region is
  /// awake), and for wake those of try_import().
  Result<void> try_sleep(Timeout timeout = {}) noexcept {
    shmb_error error;
    return shmbroker::detail::outcome(shmb_gpu_sleep(handle_.get(), timeout.nanoseconds(), &error), error);
  }
  Result<void> try_wake(Timeout timeout = {}) noexcept {
    shmb_error error;
    return shmbroker::detail::outcome(shmb_gpu_wake(handle_.get(), timeout.nanoseconds(), &error), error);
  }
  /// A ticket for sessions of any group and user. `lifetime`: 10 minutes by default. Statuses: invalid (not published,
  /// or lent memory), denied, limit.
  Result<Ticket> try_ticket(Rights rights = Rights::read, std::uint32_t uses = 1, Timeout lifetime = {},
                            Timeout timeout = {}) const noexcept {
    std::uint8_t bytes[16];
    shmb_error error;
    if (shmb_gpu_ticket_create(handle_.get(), static_cast<std::uint32_t>(rights), uses, lifetime.nanoseconds(),
                               timeout.nanoseconds(), bytes, nullptr, &error) != SHMB_OK)
      return Error(error);
    return Ticket(Token(bytes));
  }
  /// A dma-buf of a part, for network cards. Offset and length are multiples of 4096. The caller owns and closes the
  /// descriptor. Statuses: not_supported, invalid.
  Result<int> try_dma_buf(std::uint64_t offset, std::uint64_t length) const noexcept {
    int fd = -1;
    shmb_error error;
    if (shmb_gpu_dma_buf(handle_.get(), offset, length, &fd, &error) != SHMB_OK) return Error(error);
    return fd;
  }
  /// Ends the handle now, whatever the result, and the region as soon as the device is done with it. The destructor
  /// asks the device nothing, and leaves the end of the region to the next call or dispatch(). Statuses: deadline or
  /// busy, and then dispatch() ends the region later; with `unname` those of RegionBase::try_release().
  Result<void> try_release(bool unname = false, Timeout timeout = {}) noexcept {
    shmb_error error;
    const std::uint32_t flags = unname ? unsigned{SHMB_RELEASE_UNNAME} : 0U;
    return shmbroker::detail::outcome(shmb_gpu_release(handle_.release(), flags, timeout.nanoseconds(), &error), error);
  }

#if SHMBROKER_EXCEPTIONS
  /// Each does what its try_ form does, and throws Error with the status that the form returns. `where` is an address,
  /// a RegionId or a Ticket.
  static Region publish_set(const Session& session, std::string_view name, std::span<Region* const> regions,
                            const SetOptions& options = {}) {
    return try_publish_set(session, name, regions, options).value();
  }
  static Region allocate(const Session& session, std::uint64_t length, const AllocateOptions& options = {}) {
    return try_allocate(session, length, options).value();
  }
  static Region adopt(const Session& session, Pointer pointer, std::uint64_t length) {
    return try_adopt(session, pointer, length).value();
  }
  static Region of_torch(const Session& session, const void* pointer, std::uint64_t* offset = nullptr) {
    return try_of_torch(session, pointer, offset).value();
  }
  template <class Where>  // an address, a RegionId, a Ticket
  static Region import(const Session& session, const Where& where, const ImportOptions& options = {}) {
    return try_import(session, where, options).value();
  }
  static std::vector<Result<Region> > import_many(const Session& session, std::span<const RegionId> ids,
                                                  const ImportOptions& options = {}) {
    return try_import_many(session, ids, options).value();
  }
  RegionId publish(const PublishOptions& options = {}) { return try_publish(options).value(); }
  Tensor tensor(std::size_t number) const { return try_tensor(number).value(); }
  Tensor tensor(std::string_view name) const { return try_tensor(name).value(); }
  DLManagedTensorVersioned* dlpack(const Tensor& tensor) const { return try_dlpack(tensor).value(); }
  Region copy(Timeout timeout = {}) const { return try_copy(timeout).value(); }
  DLManagedTensor* dlpack_unversioned(const Tensor& tensor) const { return try_dlpack_unversioned(tensor).value(); }
  void written(Sync sync = {}, Timeout timeout = {}) { try_written(sync, timeout).value(); }
  void sleep(Timeout timeout = {}) { try_sleep(timeout).value(); }
  void wake(Timeout timeout = {}) { try_wake(timeout).value(); }
  Ticket ticket(Rights rights = Rights::read, std::uint32_t uses = 1, Timeout lifetime = {},
                Timeout timeout = {}) const {
    return try_ticket(rights, uses, lifetime, timeout).value();
  }
  int dma_buf(std::uint64_t offset, std::uint64_t length) const { return try_dma_buf(offset, length).value(); }
  void release(bool unname = false, Timeout timeout = {}) { try_release(unname, timeout).value(); }
#endif

 private:
  template <class Make>
  static Result<Region> made(Make make) noexcept {
    shmb_gpu_region* raw = nullptr;
    shmb_error error;
    if (make(&raw, &error) != SHMB_OK) return Error(error);
    return Region(raw);
  }
  static shmb_gpu_import_options to_c(const ImportOptions& options) noexcept {
    shmb_gpu_import_options c{};
    c.size = sizeof c;
    c.access = static_cast<std::uint32_t>(options.access);
    c.flags = options.share ? unsigned{SHMB_GPU_IMPORT_SHARE} : 0U;
    c.devices = options.devices.data();
    c.device_count = options.devices.size();
    c.at = options.at;
    c.wait_ns = options.wait.nanoseconds();
    c.timeout_ns = options.timeout.nanoseconds();
    return c;
  }
  shmbroker::detail::Handle<shmb_gpu_region> handle_;
};

/// How memory is lent. See PublishOptions.
struct LendOptions {
  Text name{};
  GroupId group{};
  bool replace = false;
  bool writing = false, many_writers = false;
  Sync sync{};
  std::vector<Tensor> tensors{};
  Timeout timeout{};
};

/// Memory of cudaMalloc that is lent to others. Ownership: the caller's memory stays the caller's; the end of the
/// handle retires it. Lifetime: the memory must exist until `free` is called, and ends with this process. Threads: any,
/// but not while it ends. `free` is called once after the last user has gone, in dispatch() or at the end of another
/// call that may wait for the device. If it throws, the other memory is freed all the same.
class Lease {
 public:
  /// Takes over a C handle.
  explicit Lease(shmb_gpu_lease* adopted) noexcept : handle_(adopted) {}
  /// Lends `length` bytes; others may import them. Statuses: not_exportable (of a memory pool, managed, or made by
  /// cuMemCreate: adopt the last), invalid (no device memory, or too long), exists, limit, and those of try_devices().
  /// Throws std::bad_alloc.
  static Result<Lease> try_lend(const Session& session, Pointer pointer, std::uint64_t length,
                                std::function<void(Pointer)> free, const LendOptions& options = {}) {
    std::vector<shmb_gpu_tensor> tensors;
    for (const Tensor& tensor : options.tensors) tensors.push_back(tensor.to_c());
    shmb_gpu_lend_options c{};
    c.size = sizeof c;
    if (!options.name.empty()) c.name = options.name.c_str();
    c.group = options.group.value;
    if (options.replace) c.flags |= SHMB_GPU_PUBLISH_REPLACE;
    if (options.writing) c.flags |= SHMB_GPU_PUBLISH_WRITING;
    if (options.many_writers) c.flags |= SHMB_GPU_PUBLISH_MANY_WRITERS;
    c.sync = options.sync.kind();
    c.stream = options.sync.handle();
    c.tensors = tensors.data();
    c.tensor_count = tensors.size();
    std::unique_ptr<std::function<void(Pointer)> > kept;
    if (free) {
      kept = std::make_unique<std::function<void(Pointer)> >(std::move(free));
      c.context = kept.get();
      c.free = [](void* context, shmb_gpu_pointer freed) {
        const std::unique_ptr<std::function<void(Pointer)> > call(static_cast<std::function<void(Pointer)>*>(context));
        (*call)(freed);
      };
    }
    c.timeout_ns = options.timeout.nanoseconds();
    shmb_gpu_lease* raw = nullptr;
    shmb_error error;
    if (shmb_gpu_lend(session.c(), pointer, length, &c, &raw, &error) != SHMB_OK) return Error(error);
    (void)kept.release();
    return Lease(raw);
  }
  /// The identity, by which others import it.
  RegionId id() const noexcept { return RegionId::from_c(shmb_gpu_lease_get_id(handle_.get())); }
  /// No other process gets it any more, and the handle ends, whatever the result. Statuses: the common ones.
  Result<void> try_retire() noexcept {
    shmb_error error;
    return shmbroker::detail::outcome(shmb_gpu_retire(handle_.release(), &error), error);
  }
#if SHMBROKER_EXCEPTIONS
  /// Each does what its try_ form does, and throws Error with the status that the form returns.
  static Lease lend(const Session& session, Pointer pointer, std::uint64_t length, std::function<void(Pointer)> free,
                    const LendOptions& options = {}) {
    return try_lend(session, pointer, length, std::move(free), options).value();
  }
  void retire() { try_retire().value(); }
#endif

 private:
  shmbroker::detail::Handle<shmb_gpu_lease> handle_;
};

/// The outcome of a dispatch.
struct Dispatched {
  std::size_t freed = 0, waiting = 0;  // freed now; still in use by other processes or by a device
};
/// Reads what the broker has sent, and ends what devices and other processes have let go. Call it when the event
/// descriptor of the session is readable. It waits for no device. Status: session_lost.
inline Result<Dispatched> try_dispatch(const Session& session) noexcept {
  Dispatched done;
  shmb_error error;
  if (shmb_dispatch(session.c(), &done.freed, &done.waiting, &error) != SHMB_OK) return Error(error);
  return done;
}

#if SHMBROKER_EXCEPTIONS
/// As the try_ forms. Each throws Error with the same status.
inline std::vector<shmb_gpu_device> devices() { return try_devices().value(); }
inline int driver_version() { return try_driver_version().value(); }
inline Dispatched dispatch(const Session& session) { return try_dispatch(session).value(); }
#endif

/// The properties of a new timeline. `words`: how many counters it has.
struct TimelineOptions {
  Text name{};
  GroupId group{};
  std::optional<Keep> keep{};
  bool replace = false;
  std::uint32_t words = 1;
  Timeout timeout{};
};
/// One word of a timeline: the value reached, the highest value whose signal is enqueued, and whether its producer
/// lives.
struct TimelineState {
  std::uint64_t counter = 0, announced = 0;
  Status status = Status::ok;
  std::uint32_t words = 0;
};

/// Counters on which streams and threads of several processes meet. Ownership: one handle of this process. Lifetime:
/// when the producer's handle ends, every waiter is released. Threads: any, but not while it ends.
class Timeline {
 public:
  /// None; or it takes over a C handle.
  Timeline() noexcept = default;
  explicit Timeline(shmb_gpu_timeline* handle) noexcept : handle_(handle) {}
  /// Makes a timeline, whose producer is this process. It needs no GPU. Statuses: those of Session::try_create(),
  /// local_only, unsupported.
  static Result<Timeline> try_create(const Session& session, const TimelineOptions& options = {}) noexcept {
    shmb_gpu_timeline_options c{};
    c.size = sizeof c;
    c.name = options.name.empty() ? nullptr : options.name.c_str();
    c.group = options.group.value;
    if (options.keep) c.keep_ns = options.keep->nanoseconds();
    c.flags = (options.keep ? unsigned{SHMB_GPU_PUBLISH_KEEP_GIVEN} : 0U) |
              (options.replace ? unsigned{SHMB_GPU_PUBLISH_REPLACE} : 0U);
    c.words = options.words;
    c.timeout_ns = options.timeout.nanoseconds();
    shmb_gpu_timeline* raw = nullptr;
    shmb_error error;
    if (shmb_gpu_timeline_create(session.c(), &c, &raw, &error) != SHMB_OK) return Error(error);
    return Timeline(raw);
  }
  /// Opens one by its address. `wait`: for a name that does not exist yet; default: no wait. Statuses: those of
  /// Session::try_attach(), invalid (no timeline).
  static Result<Timeline> try_open(const Session& session, std::string_view address, Timeout wait = {}) noexcept {
    shmb_attach_options c{};
    c.size = sizeof c;
    c.wait_ns = wait.nanoseconds();
    shmb_gpu_timeline* raw = nullptr;
    shmb_error error;
    if (shmb_gpu_timeline_open(session.c(), shmbroker::detail::CText(address).get(), &c, &raw, &error) != SHMB_OK)
      return Error(error);
    return Timeline(raw);
  }
  /// Its identity.
  RegionId id() const noexcept { return RegionId::from_c(shmb_gpu_timeline_get_id(handle_.get())); }
  /// Enqueues the write of `value` behind what is in the stream. Values only grow. Statuses: invalid (not greater than
  /// the last; a stream of another context than a primary one), denied (not the producer), not_supported, busy (a
  /// stream under capture), context_poisoned, and those of try_devices().
  Result<void> try_signal(std::uint64_t value, Stream stream, std::uint32_t word = 0) noexcept {
    shmb_error error;
    return shmbroker::detail::outcome(shmb_gpu_timeline_signal(handle_.get(), word, value, stream, &error), error);
  }
  /// Makes the stream wait until the word has reached `value`. First this thread waits until the producer has enqueued
  /// that signal, at most `timeout`. Statuses: deadline, producer_dead, device_lost, and those of try_signal().
  Result<void> try_wait(std::uint64_t value, Stream stream, std::uint32_t word = 0, Timeout timeout = {}) noexcept {
    shmb_error error;
    return shmbroker::detail::outcome(
        shmb_gpu_timeline_wait(handle_.get(), word, value, stream, timeout.nanoseconds(), &error), error);
  }
  /// This thread waits, without the driver. Statuses: deadline, producer_dead, device_lost, invalid.
  Result<void> try_wait_host(std::uint64_t value, std::uint32_t word = 0, Timeout timeout = {}) const noexcept {
    shmb_error error;
    return shmbroker::detail::outcome(
        shmb_gpu_timeline_wait_host(handle_.get(), word, value, timeout.nanoseconds(), &error), error);
  }
  /// The present state. Look after a stream has passed a wait, before its results are believed. Status: invalid (no
  /// such word).
  Result<TimelineState> try_look(std::uint32_t word = 0) const noexcept {
    shmb_gpu_timeline_state state{};
    state.size = sizeof state;
    shmb_error error;
    if (shmb_gpu_timeline_look(handle_.get(), word, &state, &error) != SHMB_OK) return Error(error);
    return TimelineState{state.counter, state.announced, static_cast<Status>(state.status), state.words};
  }
#if SHMBROKER_EXCEPTIONS
  /// Each does what its try_ form does, and throws Error with the status that the form returns.
  static Timeline create(const Session& session, const TimelineOptions& options = {}) {
    return try_create(session, options).value();
  }
  static Timeline open(const Session& session, std::string_view address, Timeout wait = {}) {
    return try_open(session, address, wait).value();
  }
  void signal(std::uint64_t value, Stream stream, std::uint32_t word = 0) { try_signal(value, stream, word).value(); }
  void wait(std::uint64_t value, Stream stream, std::uint32_t word = 0, Timeout timeout = {}) {
    try_wait(value, stream, word, timeout).value();
  }
  void wait_host(std::uint64_t value, std::uint32_t word = 0, Timeout timeout = {}) const {
    try_wait_host(value, word, timeout).value();
  }
  TimelineState look(std::uint32_t word = 0) const { return try_look(word).value(); }
#endif

 private:
  shmbroker::detail::Handle<shmb_gpu_timeline> handle_;
};

/// A region of the host that devices can access. Ownership: the destructor unpins; several pins of one handle are one
/// registration. Lifetime: the region stays mapped and leased while it is pinned, also after its handle has ended.
/// Threads: any, but not while it ends.
class PinnedHost {
 public:
  /// None; or it takes over a C handle.
  PinnedHost() noexcept = default;
  explicit PinnedHost(shmb_gpu_pin* handle) noexcept : handle_(handle) {}
  /// Registers a mapped region with the driver. It cannot be published meanwhile (pinned), and is never recycled.
  /// Statuses: invalid (not mapped), not_supported, already_registered, out_of_memory, not_permitted, context_poisoned,
  /// and those of try_devices().
  static Result<PinnedHost> try_pin(const shmbroker::RegionBase& region, Timeout timeout = {}) noexcept {
    shmb_gpu_pin* raw = nullptr;
    shmb_error error;
    if (shmb_gpu_pin_region(region.c(), timeout.nanoseconds(), &raw, &error) != SHMB_OK) return Error(error);
    return PinnedHost(raw);
  }
  /// Where devices reach it.
  Pointer pointer() const noexcept { return shmb_gpu_pin_pointer(handle_.get()); }
#if SHMBROKER_EXCEPTIONS
  /// As try_pin(). Throws Error with the same status.
  static PinnedHost pin(const shmbroker::RegionBase& region, Timeout timeout = {}) {
    return try_pin(region, timeout).value();
  }
#endif

 private:
  shmbroker::detail::Handle<shmb_gpu_pin> handle_;
};

}  // namespace gpu
}  // namespace shmbroker

#endif
