// SPDX-License-Identifier: Apache-2.0
// Order of a publication: check all words, look at every descriptor, take every charge, book region, lease and name.
#include "daemon/gpu/publish.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/sys_memory.hpp"
#include "base/text.hpp"
#include "daemon/gpu/gpu.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/create.hpp"
#include "daemon/ledger/grant.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "proto/names.hpp"

namespace shmb::daemon {
namespace {

constexpr std::uint32_t kMostChunks = 1U << 20;
constexpr std::uint64_t kUsualGranularity = 2 << 20, kMostGranularity = 1 << 30;

bool flagged(const shmbw_gpu_publish& wish, shmbw_gpu_publish_flags flag) { return (wish.flags & flag) != 0; }

std::uint64_t allocation_of(const shmbw_gpu_publish& wish) { return wish.allocation ? wish.allocation : wish.bytes; }

std::uint64_t chunks_of(const shmbw_gpu_publish& wish) {
  if (flagged(wish, SHMBW_GPU_PUBLISH_SET)) return wish.chunk_bytes;
  const std::uint64_t allocation = allocation_of(wish);
  return wish.chunk_bytes == 0 ? 1 : (allocation - 1) / wish.chunk_bytes + 1;
}

Result<void> check_sizes(const shmbw_gpu_publish& wish) {
  if (wish.bytes == 0) return error(Status::invalid, "a region of 0 bytes cannot be made; publish at least 1");
  const std::uint64_t allocation = allocation_of(wish);
  if (wish.bytes > kMaxLength || allocation > kMaxLength)
    return error(Status::invalid, "a region is at most 2^47 - 1 bytes");
  if (wish.offset > allocation || wish.bytes > allocation - wish.offset)
    return error(Status::invalid, "the region reaches beyond its allocation of " + format_size(allocation));
  return {};
}

Result<void> check_vmm(const shmbw_gpu_publish& wish) {
  const std::uint64_t granularity = wish.granularity ? wish.granularity : kUsualGranularity;
  if ((granularity & (granularity - 1)) != 0 || granularity > kMostGranularity)
    return error(Status::invalid, "a granularity is a power of two, at most " + format_size(kMostGranularity));
  if (allocation_of(wish) % granularity != 0)
    return error(Status::invalid, "an allocation of " + format_size(allocation_of(wish)) +
                                      " is no multiple of the granularity " + format_size(granularity) +
                                      ": no importer could map it");
  const bool set = flagged(wish, SHMBW_GPU_PUBLISH_SET);
  if (set && (wish.chunk_bytes == 0 || wish.chunk_bytes > allocation_of(wish) / granularity))
    return error(Status::invalid, "a set of " + format_size(allocation_of(wish)) + " has 1 to " +
                                      std::to_string(allocation_of(wish) / granularity) + " chunks, not " +
                                      std::to_string(wish.chunk_bytes));
  if (set && !flagged(wish, SHMBW_GPU_PUBLISH_MANIFEST))
    return error(Status::invalid, "a set without a manifest: nobody would know the lengths of its chunks");
  if (set && flagged(wish, SHMBW_GPU_PUBLISH_WRITING))
    return error(Status::invalid, "a set is published when its writing is over: leave the flag writing out");
  if (!set && wish.chunk_bytes % granularity != 0)
    return error(Status::invalid, "chunks of " + format_size(wish.chunk_bytes) +
                                      " are no multiple of the granularity " + format_size(granularity));
  const std::uint64_t chunks = chunks_of(wish);
  if (chunks > kMostChunks)
    return error(Status::invalid, "a region has at most " + std::to_string(kMostChunks) + " chunks: make them larger");
  if (wish.chunks == 0 || wish.chunks > chunks)
    return error(Status::invalid, "the region has " + std::to_string(chunks) + " chunks, and " +
                                      std::to_string(wish.chunks) + " of them are in the packet");
  if (std::ranges::any_of(wish.handle, [](std::uint8_t byte) { return byte != 0; }))
    return error(Status::invalid, "a handle in a publication of kind vmm: its memory travels as descriptors");
  return {};
}

Result<void> check_legacy(const shmbw_gpu_publish& wish) {
  if (wish.chunks != 0 || wish.chunk_bytes != 0 || wish.granularity != 0)
    return error(Status::invalid, "memory of kind legacy has no chunks: only its handle travels");
  constexpr std::uint32_t none = SHMBW_GPU_PUBLISH_RDMA | SHMBW_GPU_PUBLISH_ADOPTED | SHMBW_GPU_PUBLISH_SET;
  if ((wish.flags & none) != 0) return error(Status::invalid, "rdma, adopted and set are for memory of kind vmm");
  if (flagged(wish, SHMBW_GPU_PUBLISH_KEEP_GIVEN) && wish.keep != 0)
    return error(Status::invalid, "memory of kind legacy is its owner's and cannot be kept beyond it");
  return {};
}

Result<void> check_gpu_words(const Host& host, const shmbw_gpu_publish& wish, std::string_view name) {
  if ((wish.flags & ~std::uint32_t{SHMBW_GPU_PUBLISH_KNOWN}) != 0)
    return error(Status::unknown_flags, "a flag of gpu_publish is not known to this broker");
  if ((wish.rights & ~std::uint32_t{SHMBW_RIGHT_KNOWN}) != 0)
    return error(Status::unknown_flags, "a right is not known to this broker");
  if (wish.rights != 0 && (wish.rights & SHMBW_RIGHT_MAP_READ) == 0)
    return error(Status::invalid, "the publisher's rights must include map_read");
  if (wish.kind != SHMBW_GPU_KIND_VMM && wish.kind != SHMBW_GPU_KIND_LEGACY)
    return error(Status::invalid, "publish memory of kind vmm or legacy");
  if (auto sizes = check_sizes(wish); !sizes) return sizes;
  if (auto kind = wish.kind == SHMBW_GPU_KIND_VMM ? check_vmm(wish) : check_legacy(wish); !kind) return kind;
  const bool manifest = flagged(wish, SHMBW_GPU_PUBLISH_MANIFEST);
  if (manifest != (wish.manifest_bytes != 0))
    return error(Status::invalid, "a manifest has its flag and a size, or neither");
  if (wish.manifest_bytes > kMaxManifest)
    return error(Status::invalid, "a manifest is at most " + format_size(kMaxManifest));
  if (flagged(wish, SHMBW_GPU_PUBLISH_MANY_WRITERS) && !flagged(wish, SHMBW_GPU_PUBLISH_WRITING))
    return error(Status::invalid, "many_writers without the flag writing");
  const bool keep_given = flagged(wish, SHMBW_GPU_PUBLISH_KEEP_GIVEN);
  if (!keep_given && wish.keep != 0) return error(Status::invalid, "keep without the flag keep_given");
  if (keep_given)
    if (auto keep = check_keep(host, wish.keep, !name.empty()); !keep) return keep;
  if (!name.empty()) return names::check(name, "region name");
  if (flagged(wish, SHMBW_GPU_PUBLISH_REPLACE)) return error(Status::invalid, "replace needs a name");
  return {};
}

// `first`: number of the first of these chunks.
Result<void> check_exports(std::span<const Fd> files, std::size_t first) {
  for (std::size_t i = 0; i + 1 < files.size(); i += 2) {
    const auto chunk = [&] { return "chunk " + std::to_string(first + i / 2) + ": "; };
    for (std::size_t side = 0; side < 2; ++side) {
      auto what = sys::gpu_file(files[i + side].get());
      if (!what || what->kind != sys::GpuKind::control)
        return error(Status::bad_fd,
                     chunk() + (side == 0 ? "the keeper" : "the share") +
                         " is no export of GPU memory (an open of /dev/nvidiactl that the driver made)");
    }
    auto same = sys::same_open_file(files[i].get(), files[i + 1].get());
    if (!same)
      return error(Status::unsupported,
                   chunk() +
                       "keeper and share cannot be told apart: kcmp(2) and fcntl(F_SETFL) both failed, the last with " +
                       errno_text(same.error().value) + "; let the broker's seccomp profile allow one of them");
    if (*same)
      return error(Status::bad_fd, chunk() + "keeper and share are one open file: export the memory twice, not dup()");
  }
  return {};
}

// The manifest is sealed by its maker, and the broker does not read it. The seals are checked first: only a memfd has
// seals, so the size then comes from the kernel.
Result<Fd> take_manifest(const Fd& given, std::uint64_t bytes) {
  auto seals = sys::seals(given.get());
  constexpr int needed = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK;
  if (!seals || (*seals & needed) != needed)
    return error(Status::bad_fd, "the manifest is no memfd with the seals F_SEAL_WRITE, F_SEAL_GROW and F_SEAL_SHRINK");
  auto facts = sys::file_facts(given.get());
  if (!facts) return system_failure(facts.error(), "asking for the size of a manifest");
  if (facts->size != bytes)
    return error(Status::invalid,
                 "the manifest has " + std::to_string(facts->size) + " bytes, not " + std::to_string(bytes));
  return reopen_read_only(given.get(), "the manifest");
}

Result<std::shared_ptr<GpuNode>> held_node(Session& session, const sys::GpuUuid& uuid) {
  GpuDevice* device = find_device(session, uuid);
  if (device && device->node) return device->node;
  return error(Status::device_not_pinned,
               device ? "the GPU's node is still being opened: wait for the event gpu_device"
                      : "this session has not named the GPU: say gpu_device first, with a descriptor of the GPU's node "
                        "where the broker cannot open that itself");
}

Result<Charge> charge_gpu(Gpu& gpu, const Session& session, Group& group, Resource resource, std::uint64_t amount) {
  if (amount == 0) return Charge{};
  auto charge = group.account.charge(resource, amount);
  if (!charge) return std::unexpected(refuse_limit(gpu.groups, session, charge.error()));
  return std::move(*charge);
}

std::uint32_t rights_of_publisher(const shmbw_gpu_publish& wish) {
  const std::uint32_t rights = wish.rights ? wish.rights : std::uint32_t{SHMBW_RIGHT_KNOWN};
  return flagged(wish, SHMBW_GPU_PUBLISH_WRITING) ? rights : rights & ~std::uint32_t{SHMBW_RIGHT_MAP_WRITE};
}

void take_files_into(Host& host, GpuMemory& gpu, std::span<Fd> files) {
  gpu.files.insert(gpu.files.end(), std::make_move_iterator(files.begin()), std::make_move_iterator(files.end()));
  while (gpu.chunk_records.size() < gpu.present()) gpu.chunk_records.push_back({++host.last_serial});
}

void describe(GpuMemory& gpu, const Session& session, const shmbw_gpu_publish& wish) {
  gpu.kind = static_cast<shmbw_gpu_kind>(wish.kind);
  gpu.publish_flags = wish.flags;
  gpu.chunks = wish.kind == SHMBW_GPU_KIND_VMM ? static_cast<std::uint32_t>(chunks_of(wish)) : 0;
  gpu.state = wish.chunks < gpu.chunks ? SHMBW_GPU_STATE_INCOMPLETE : SHMBW_GPU_STATE_OK;
  gpu.driver = wish.driver;
  gpu.exporter_pid = session.pid;
  gpu.chunk_bytes = wish.chunk_bytes;
  if (wish.kind == SHMBW_GPU_KIND_VMM) gpu.granularity = wish.granularity ? wish.granularity : kUsualGranularity;
  gpu.offset = wish.offset;
  gpu.allocation = allocation_of(wish);
  gpu.manifest_bytes = wish.manifest_bytes;
  std::ranges::copy(wish.uuid, gpu.uuid.begin());
  std::ranges::copy(wish.handle, gpu.handle.begin());
}

}  // namespace

Result<PublishedGpu> publish_gpu(Gpu& gpu, Session& session, const shmbw_gpu_publish& wish, std::string_view name,
                                 std::span<Fd> descriptors) {
  SHMB_TRY_VOID(check_gpu_words(gpu.host, wish, name));
  SHMB_TRY(found, group_for_create(gpu.regions, session, wish.group));
  Group& group = *found;
  sys::GpuUuid uuid;
  std::ranges::copy(wish.uuid, uuid.begin());
  SHMB_TRY(node, held_node(session, uuid));
  Region* old = name.empty() ? nullptr : group.names.find(name);
  SHMB_TRY(name_charge, may_take_name(gpu.groups, session, group, old, name, flagged(wish, SHMBW_GPU_PUBLISH_REPLACE)));

  const std::span<Fd> files = descriptors.first(std::size_t{2} * wish.chunks);
  SHMB_TRY_VOID(check_exports(files, 0));
  Result<Fd> manifest = Fd();
  if (flagged(wish, SHMBW_GPU_PUBLISH_MANIFEST)) manifest = take_manifest(descriptors.back(), wish.manifest_bytes);
  if (!manifest) return std::unexpected(manifest.error());

  const std::uint64_t count = 2 * chunks_of(wish) * (wish.kind == SHMBW_GPU_KIND_VMM) + (*manifest ? 1 : 0);
  SHMB_TRY_VOID(room_for_descriptors(gpu.regions, session, group.uid, count));
  SHMB_TRY(region_charge, charge_group(gpu.regions, session, group, Resource::regions, 1));
  SHMB_TRY(bytes_charge, charge_gpu(gpu, session, group, Resource::gpu_bytes, allocation_of(wish)));
  SHMB_TRY(descriptors_charge, charge_gpu(gpu, session, group, Resource::gpu_descriptors, count));
  Result<Charge> manifest_charge = Charge{};
  if (*manifest)
    manifest_charge = charge_group(gpu.regions, session, group, Resource::bytes, rounded_bytes(wish.manifest_bytes));
  if (!manifest_charge) return std::unexpected(manifest_charge.error());

  const std::uint64_t id = ++gpu.regions.last_id;
  Region& region = gpu.regions.all.try_emplace(id).first->second;
  region.id = id;
  region.length = wish.bytes;
  region.bytes = allocation_of(wish);
  region.generation = old ? old->generation + 1 : 1;
  region.keep = flagged(wish, SHMBW_GPU_PUBLISH_KEEP_GIVEN) ? wish.keep
                : wish.kind == SHMBW_GPU_KIND_LEGACY        ? 0
                                                            : group.keep;
  region.created = gpu.host.now();
  region.creator_pid = session.pid;
  region.state = flagged(wish, SHMBW_GPU_PUBLISH_WRITING) ? SHMBW_REGION_STATE_READY : SHMBW_REGION_STATE_PUBLISHED;
  region.many_writers = flagged(wish, SHMBW_GPU_PUBLISH_MANY_WRITERS);
  region.no_recycle = true;
  region.bytes_charge = std::move(bytes_charge);
  region.region_charge = std::move(region_charge);
  region.gpu = std::make_unique<GpuMemory>(region);
  GpuMemory& memory = *region.gpu;
  describe(memory, session, wish);
  memory.node = std::move(node);
  memory.descriptors = count;
  memory.descriptors_charge = std::move(descriptors_charge);
  memory.manifest_charge = std::move(*manifest_charge);
  memory.manifest = std::move(*manifest);
  take_files_into(gpu.host, memory, files);
  gpu.accounts.open_descriptors += count;
  region.group = &group;
  changed(region);
  group.regions.push_back(region);
  ++gpu.regions.count;
  auto lease = book_lease(gpu.regions, session, region, rights_of_publisher(wish), 1, Reach::mapped);
  if (!lease) {
    free_region(gpu.regions, region);
    return std::unexpected(lease.error());
  }
  (*lease)->made = true;
  memory.exporter = session.id;
  changed(memory);
  // The region that had the name keeps it until the last chunk has come. A new name keeps its place for as long.
  if (!name.empty() && memory.state == SHMBW_GPU_STATE_INCOMPLETE)
    region.promised = std::make_unique<Promised>(std::string(name), std::exchange(region.keep, 0),
                                                 flagged(wish, SHMBW_GPU_PUBLISH_REPLACE));
  else if (!name.empty()) give_name(gpu.regions, region, name, std::move(name_charge));
  sponsor_group(session, group);
  return PublishedGpu{&region, *lease};
}

Result<void> add_gpu_chunks(Gpu& gpu, Session& session, Region& region, const shmbw_gpu_chunks& wish,
                            std::span<Fd> descriptors) {
  GpuMemory& memory = *region.gpu;
  if (memory.exporter != session.id) return error(Status::denied, "only its publisher gives a region its chunks");
  if (memory.state != SHMBW_GPU_STATE_INCOMPLETE)
    return error(Status::invalid, "the region has all its " + std::to_string(memory.chunks) + " chunks");
  if (wish.first != memory.present() || wish.count == 0 || wish.count > memory.chunks - memory.present())
    return error(Status::invalid, "the region has " + std::to_string(memory.present()) + " of " +
                                      std::to_string(memory.chunks) + " chunks: the next ones are wanted, in order");
  if (auto exports = check_exports(descriptors, wish.first); !exports) return exports;
  const bool whole = wish.first + wish.count == memory.chunks;
  Result<Charge> name_charge = Charge{};
  if (whole && region.promised) name_charge = may_keep_promise(gpu.groups, session, region);
  if (!name_charge) return std::unexpected(name_charge.error());
  take_files_into(gpu.host, memory, descriptors);
  changed(memory);
  if (!whole) return {};
  set_gpu_state(region, SHMBW_GPU_STATE_OK, 0, session.pid);
  if (region.promised) keep_promise(gpu.regions, region, std::move(*name_charge));
  return {};
}

}  // namespace shmb::daemon
