// SPDX-License-Identifier: Apache-2.0
// The broker's requests for GPU memory, as functions: packing, the split into as many packets as descriptors need, and
// what came back. Nothing here knows the driver: what the descriptors stand for is the business of cuda/.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "client/session/session.hpp"
#include "proto/shmb_wire.h"

namespace shmb::client {

using GpuUuid = std::array<std::uint8_t, 16>;
using GpuHandle = std::array<std::uint8_t, 64>;

struct GpuHold {
  shmbw_gpu_hold hold = SHMBW_GPU_HOLD_NONE;
  std::uint32_t minor = UINT32_MAX;
  std::string text;  // why, where the broker could not open the node itself
};
// Waits until a process keeps the GPU initialised. `node`: the caller's open device node, or -1. A copy of it goes to a
// broker that cannot open the node itself.
Result<GpuHold> gpu_device(Session& session, const GpuUuid& uuid, std::string_view pci, int node, Deadline deadline);

// Two exports of one chunk, by two calls to the driver. Borrowed.
struct GpuChunk {
  int keeper = -1, share = -1;
};
struct GpuPublish {
  std::uint64_t group = 0, bytes = 0, chunk_bytes = 0, granularity = 0;
  std::optional<std::int64_t> keep;
  GpuUuid uuid{};
  shmbw_gpu_kind kind = SHMBW_GPU_KIND_VMM;
  std::uint32_t flags = 0;  // shmbw_gpu_publish_flags but keep_given and manifest
  std::uint32_t rights = 0, driver = 0;
  std::string name;
  std::vector<GpuChunk> chunks;
  int manifest = -1;  // a memfd sealed against writing, growing and shrinking; borrowed
  std::uint64_t manifest_bytes = 0;
  std::uint64_t offset = 0, allocation = 0;  // legacy
  GpuHandle handle{};                        // legacy
};
struct GpuPublished {
  shmbw_region_ref region{};
  std::uint64_t bytes = 0, group = 0;
  std::uint32_t rights = 0;
  shmbw_gpu_state state = SHMBW_GPU_STATE_NONE;
};
// One outcome for each, in order. A region whose chunks need several packets is given back where it cannot be made
// whole. The outer error: the connection is gone, or the deadline passed.
Result<std::vector<Result<GpuPublished>>> gpu_publish(Session& session, std::span<const GpuPublish> regions,
                                                      Deadline deadline);

// The next chunks of a region that was published with fewer than it has, at most 126: its state then.
Result<shmbw_gpu_state> gpu_add_chunks(Session& session, shmbw_region_ref region, std::size_t first,
                                       std::span<const GpuChunk> chunks, Deadline deadline);

struct GpuRequest {
  shmbw_attach_by by = SHMBW_ATTACH_BY_NAME;
  std::string address;  // by name: "name", "group/name", "uid:group/name"
  shmbw_region_ref region{};
  Token ticket;
  std::uint32_t rights = SHMBW_RIGHT_MAP_READ;
  bool manifest = false, no_fd = false;
  bool few = false;  // only the shares that come with the answer, the others by gpu_more
};
struct GpuOpened {
  shmbw_region_ref region{};
  std::uint64_t bytes = 0, chunk_bytes = 0, granularity = 0, group = 0;
  GpuUuid uuid{};
  shmbw_gpu_kind kind = SHMBW_GPU_KIND_NONE;
  shmbw_gpu_state state = SHMBW_GPU_STATE_NONE;
  std::uint32_t rights = 0, flags = 0, chunks = 0, driver = 0, exporter_pid = 0;
  std::vector<Fd> shares;  // one for each chunk, unless few were wanted
  Fd manifest;             // its file position is shared: pread or mmap
  std::uint64_t manifest_bytes = 0;
  std::uint64_t offset = 0, allocation = 0;  // legacy
  GpuHandle handle{};                        // legacy
};
Result<std::vector<Result<GpuOpened>>> gpu_open(Session& session, std::span<const GpuRequest> wishes,
                                                Deadline deadline);
// The shares from `first` on, as many of `most` as one packet carries, and one at least.
Result<std::vector<Fd>> gpu_more(Session& session, shmbw_region_ref region, std::size_t first, std::size_t most,
                                 Deadline deadline);

struct GpuReport {
  shmbw_region_ref region{};
  shmbw_gpu_finding what = SHMBW_GPU_FINDING_NONE;
  std::int32_t code = 0;
  GpuUuid uuid{};  // device_lost
};
// The state of the region afterwards.
Result<shmbw_gpu_state> gpu_report(Session& session, const GpuReport& report, Deadline deadline);
// Without an answer; at most SHMBW_MAX_BATCH.
Result<void> gpu_report_later(Session& session, std::span<const GpuReport> reports, Deadline deadline);

struct GpuRelease {
  shmbw_region_ref region{};
  std::uint32_t count = 0;  // references; 0: all
  bool unname = false;
};
// Without an answer; at most SHMBW_MAX_BATCH.
Result<void> gpu_release(Session& session, std::span<const GpuRelease> releases, Deadline deadline);

// Users that are left; 0: the memory may be freed now, no event comes.
Result<std::uint32_t> gpu_retire(Session& session, shmbw_region_ref region, Deadline deadline);

struct GpuTimelineRequest {
  std::uint64_t group = 0;
  std::optional<std::int64_t> keep;
  std::uint32_t words = 1;
  bool replace = false;
  std::string name;
};
struct GpuTimelineMade {
  shmbw_region_ref region{};
  std::uint64_t bytes = 0, group = 0;
  Fd memory;
};
Result<GpuTimelineMade> gpu_timeline(Session& session, const GpuTimelineRequest& wish, Deadline deadline);
// The producer's end: its waiters are released and its own reference is given back, and no other. Waits for nothing and
// takes no memory.
void post_timeline_end(Session& session, shmbw_region_ref region) noexcept;

// Pins of this session's lease afterwards.
Result<std::uint32_t> gpu_pinned(Session& session, shmbw_region_ref region, bool unpin, Deadline deadline);

}  // namespace shmb::client
