// SPDX-License-Identifier: Apache-2.0
// What a GPU region has beside what every region has. The memory is the driver's: the broker holds descriptors that
// keep it alive (vmm), or counts who uses what its owner frees later (legacy), and never maps, touches or asks for it.
// For each part of the memory it holds two exports. The keeper never leaves; the share does, and a hostile holder of an
// export can empty it for all who share the open file, so it can spoil later imports but never free the memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.hpp"
#include "base/sys_gpu.hpp"
#include "daemon/books.hpp"
#include "daemon/gpu_device.hpp"
#include "daemon/gpu_timeline.hpp"

namespace shmb::daemon {

class Session;
class World;
struct Lease;
struct Region;

struct GpuMemory {
  shmbw_gpu_kind kind = SHMBW_GPU_KIND_NONE;
  shmbw_gpu_state state = SHMBW_GPU_STATE_OK;
  bool imported = false;            // somebody could
  std::uint32_t publish_flags = 0;  // shmbw_gpu_publish_flags
  std::uint32_t chunks = 0;         // in all
  std::uint32_t driver = 0, exporter_pid = 0;
  std::int32_t code = 0;  // what the driver said last
  std::uint64_t chunk_bytes = 0, granularity = 0, offset = 0, allocation = 0, manifest_bytes = 0;
  sys::GpuUuid uuid{};
  std::array<std::uint8_t, 64> handle{};
  Session* exporter = nullptr;  // while it has its lease
  std::shared_ptr<GpuNode> node;
  std::vector<Fd> files;  // keeper, share, keeper, share, ...
  Fd manifest;
  std::uint64_t descriptors = 0;  // of the broker's table
  Charge descriptors_charge, manifest_charge;
  std::unique_ptr<Timeline> timeline;

  bool on_gpu() const { return kind != SHMBW_GPU_KIND_TIMELINE; }
  std::uint32_t present() const { return static_cast<std::uint32_t>(files.size() / 2); }
  int share(std::size_t chunk) const { return files[2 * chunk + 1].get(); }
  std::vector<Fd> take_files();
};

// The region is GPU memory: nothing of it can be mapped from a descriptor of ours.
bool on_gpu(const Region& region);
Error other_kind(const Region& region);
// Everybody who holds a lease, and who watches the region, is told.
void set_gpu_state(World& world, Region& region, shmbw_gpu_state state, std::int32_t code, std::uint32_t pid);

// The process behind the session has died, or broken with us without a word: what it wrote may be unfinished, what it
// lent may be freed. Its leases are not touched.
void gpu_session_over(World& world, Session& session);
// Whether a lease outlives its session: while the process lives it may map the memory, whatever became of its socket.
bool gpu_lease_stays(const Session& session, const Lease& lease);
// Drops the leases of a process that is gone: those that stayed after its session, or, where a forked child holds the
// socket still, those of GPU memory, which the child has not.
void drop_leases_of_dead(World& world, Session& session);
// Before a lease is dropped or given back.
void gpu_lease_over(World& world, Lease& lease);
// After something that held the region is gone while other things hold it still. True: the region is gone.
bool settle_gpu(World& world, Region& region);
// In `free_region`: true: its descriptors are closed elsewhere, `closed_regions` goes on.
bool close_gpu(World& world, Region& region);

}  // namespace shmb::daemon
