// SPDX-License-Identifier: Apache-2.0
// The part of a GPU region that other regions do not have. The memory is the driver's. For vmm memory the broker holds
// descriptors that keep it alive; for legacy memory it counts the users of what the owner frees later. It never maps,
// touches or asks for the memory. It holds two exports of each part: the keeper and the share. Only the share leaves
// the broker. A hostile holder of the share can empty it for all who share the open file. That spoils later imports,
// but cannot free the memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "base/sys_gpu.hpp"
#include "daemon/books/booked.hpp"
#include "daemon/kit/account.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

class Session;
struct Books;
struct GpuNode;
struct Lease;
struct Region;
struct Regions;
struct Sessions;
struct Timeline;

// A GPU that a session has named.
struct GpuDevice {
  sys::GpuUuid uuid{};
  std::vector<std::uint64_t> watches;  // events that wait for the end of the look
  std::shared_ptr<GpuNode> node;       // null: the look is not over
  std::uint64_t serial = 0;
  std::uint32_t place = books::kNowhere;  // of its record
};

struct GpuMemory : books::Booked<GpuMemory> {
  explicit GpuMemory(Region& of) : region(of) {}

  Region& region;
  shmbw_gpu_kind kind = SHMBW_GPU_KIND_NONE;
  shmbw_gpu_state state = SHMBW_GPU_STATE_OK;
  std::uint32_t publish_flags = 0;  // shmbw_gpu_publish_flags
  std::uint32_t chunks = 0;         // in all
  std::uint32_t driver = 0, exporter_pid = 0;
  std::int32_t code = 0;  // what the driver said last
  std::uint64_t chunk_bytes = 0, granularity = 0, offset = 0, allocation = 0, manifest_bytes = 0;
  sys::GpuUuid uuid{};
  std::array<std::uint8_t, 64> handle{};
  std::uint64_t exporter = 0;  // the session of its publisher, while that has its lease; else 0
  std::shared_ptr<GpuNode> node;
  std::vector<Fd> files;  // keeper, share, keeper, share, ...
  struct ChunkRecord {
    std::uint64_t serial = 0;
    std::uint32_t place = books::kNowhere;
  };
  std::vector<ChunkRecord> chunk_records;
  Fd manifest;
  std::uint64_t descriptors = 0;  // of the broker's table
  Charge descriptors_charge, manifest_charge;
  std::shared_ptr<Timeline> timeline;  // or null

  bool on_gpu() const { return kind != SHMBW_GPU_KIND_TIMELINE; }
  std::uint32_t present() const { return static_cast<std::uint32_t>(files.size() / 2); }
  int share(std::size_t chunk) const { return files[2 * chunk + 1].get(); }
  std::vector<Fd> take_files();
};

// Notes that its record must be written again.
void changed(GpuMemory& gpu);
void end_records(Books& books, GpuMemory& gpu);

// The region is GPU memory: no part of it can be mapped from a descriptor of the broker's.
bool on_gpu(const Region& region);
Error other_kind(const Region& region);
// Notifies every holder of a lease and every watcher of the region.
void set_gpu_state(Region& region, shmbw_gpu_state state, std::int32_t code, std::uint32_t pid);

// The process behind the session has died, or dropped its connection without a farewell. Its writes may be incomplete,
// and memory that it lent may be freed. Its leases are not touched.
void gpu_session_over(Regions& regions, Session& session);
// Whether a lease outlives its session. While the process lives it may map the memory, even after its socket is closed.
bool gpu_lease_stays(const Session& session, const Lease& lease);
// Drops the leases of a dead process: those that stayed after its session. Where a forked child still holds the socket,
// only those of GPU memory, which the child does not have.
void drop_leases_of_dead(Sessions& sessions, Session& session);
// Call before a lease is dropped or given back.
void gpu_lease_over(Regions& regions, Lease& lease);
// Call when something that held the region is gone while other things still hold it. True: the region is gone.
bool settle_gpu(Regions& regions, Region& region);
// Used by `free_region`. True: its descriptors are closed on another thread, and `closed_regions` continues.
bool close_gpu(Regions& regions, Region& region);

}  // namespace shmb::daemon
