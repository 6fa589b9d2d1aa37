// SPDX-License-Identifier: Apache-2.0
// States of GPU regions, and how the ends of processes change them. On a GPU "closed" never means "freed": the driver
// frees when the last mapping of the last process is gone. So bytes stay charged until every process that had a lease
// has given it back or ended.
#include "daemon/ledger/gpu_memory.hpp"

#include <algorithm>
#include <utility>

#include "daemon/ledger/group.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/sessions.hpp"
#include "daemon/ledger/timeline.hpp"

namespace shmb::daemon {

std::vector<Fd> GpuMemory::take_files() {
  std::vector<Fd> out = std::exchange(files, {});
  if (manifest) out.push_back(std::move(manifest));
  return out;
}

void changed(GpuMemory& gpu) { gpu.region.group->groups.host.books.gpu_memories.note(gpu); }

void end_records(Books& books, GpuMemory& gpu) {
  books.end<books::GpuMemoryRecord>(books.gpu_memories, gpu);
  for (GpuMemory::ChunkRecord& chunk : gpu.chunk_records) books.store.erase<books::GpuChunkRecord>(chunk.place);
  gpu.chunk_records.clear();
}

bool on_gpu(const Region& region) { return region.gpu && region.gpu->on_gpu(); }

Error other_kind(const Region& region) {
  if (on_gpu(region))
    return plain(Status::other_kind,
                 "region " + std::to_string(region.id) + " is GPU memory: open it with the functions for GPU regions");
  return plain(Status::other_kind,
               "region " + std::to_string(region.id) + " is host memory: attach it like any other region");
}

void set_gpu_state(Region& region, shmbw_gpu_state state, std::int32_t code, std::uint32_t pid) {
  GpuMemory& gpu = *region.gpu;
  if (gpu.state == state) return;
  gpu.state = state;
  if (code != 0) gpu.code = code;
  changed(gpu);
  tell_gpu_state(region, code, pid);
}

namespace {

void unname(Region& region) { region.group->names.remove(region); }

// Only processes that have left the broker still have it, so no process can open it any more.
bool only_stayed(const Region& region) {
  if (region.leases.empty() || region.name || region.tickets != 0 || region.pool_holds != 0) return false;
  bool all = true;
  region.leases.each([&](const Lease& lease) { all = all && lease.session->phase == Phase::ended; });
  return all;
}

void detach(Regions& regions, Region& region) {
  GpuMemory& gpu = *region.gpu;
  std::vector<Fd> files = gpu.take_files();
  changed(gpu);
  if (!files.empty()) (void)regions.closer.close(files);
  for (Fd& file : files) regions.closer.close_here(std::move(file));  // where no thread could be started
  regions.accounts.open_descriptors -= std::exchange(gpu.descriptors, 0);
  gpu.descriptors_charge.give_back();
  gpu.manifest_charge.give_back();
  set_gpu_state(region, SHMBW_GPU_STATE_DETACHED, 0, 0);
  regions.host.descriptor_freed();
}

}  // namespace

void gpu_session_over(Regions& regions, Session& session) {
  for (auto at = session.leases.begin(); at != session.leases.end();) {
    Lease& lease = (at++)->second;
    Region& region = *lease.region;
    if (!region.gpu) continue;
    GpuMemory& gpu = *region.gpu;
    const bool exporter = gpu.exporter == session.id;
    if (exporter) gpu.exporter = 0;
    changed(gpu);
    if (gpu.timeline) {
      if (exporter) end_timeline(regions, region, SHMBW_GPU_WORD_STATUS_PRODUCER_DEAD, session.pid);
    } else if (exporter && gpu.kind == SHMBW_GPU_KIND_LEGACY) {
      set_gpu_state(region, SHMBW_GPU_STATE_PRODUCER_DEAD, 0, session.pid);
      unname(region);
    } else if (exporter && gpu.state == SHMBW_GPU_STATE_INCOMPLETE) {
      set_gpu_state(region, SHMBW_GPU_STATE_INVALID, 0, session.pid);
      unname(region);
    } else if (lease.writes() && gpu.state == SHMBW_GPU_STATE_OK) {
      // Every other state says more. A region that its owner wants back must stay so, or the owner would wait for ever.
      set_gpu_state(region, SHMBW_GPU_STATE_POISONED, 0, session.pid);
    }
  }
}

bool gpu_lease_stays(const Session& session, const Lease& lease) {
  return on_gpu(*lease.region) && session.has_pidfd && !session.process_gone;
}

void drop_leases_of_dead(Sessions& sessions, Session& session) {
  const auto first =
      std::ranges::find_if(session.leases, [](const auto& entry) { return on_gpu(*entry.second.region); });
  if (first == session.leases.end()) return;
  Tally tally;
  Tally* outer = std::exchange(sessions.regions.tally, &tally);
  const Group& group = *first->second.region->group;
  const std::uint64_t group_id = group.id;
  const std::string group_text = group.text();
  for (auto at = first; at != session.leases.end();)
    if (Lease& lease = (at++)->second; on_gpu(*lease.region)) drop_lease(sessions.regions, lease);
  sessions.regions.tally = outer;
  add_to_reclaim(sessions, session, tally, group_id, group_text);
}

void gpu_lease_over(Regions& regions, Lease& lease) {
  Region& region = *lease.region;
  GpuMemory& gpu = *region.gpu;
  if (gpu.exporter != lease.session->id) return;
  gpu.exporter = 0;
  changed(gpu);
  if (gpu.timeline) return end_timeline(regions, region, SHMBW_GPU_WORD_STATUS_CLOSED, lease.session->pid);
  if (gpu.state != SHMBW_GPU_STATE_INCOMPLETE) return;
  set_gpu_state(region, SHMBW_GPU_STATE_INVALID, 0, lease.session->pid);
  unname(region);
}

bool settle_gpu(Regions& regions, Region& region) {
  GpuMemory& gpu = *region.gpu;
  const std::uint64_t id = region.id;
  if (gpu.state == SHMBW_GPU_STATE_RETIRED && gpu.exporter != 0 && region.leases.size() == 1) {
    Session& owner = *region.leases.first()->session;
    gpu.exporter = 0;
    changed(gpu);
    tell_gpu_drained(owner, region);
    region.bytes_charge.give_back();  // a ticket or a message may still name the region
    if (Lease* own = find_lease(owner, region)) drop_lease(regions, *own);
    return regions.find(id) == nullptr;
  }
  if (gpu.on_gpu() && gpu.state != SHMBW_GPU_STATE_DETACHED && only_stayed(region)) detach(regions, region);
  return false;
}

bool close_gpu(Regions& regions, Region& region) {
  std::vector<Fd> files = region.gpu->take_files();
  if (files.empty()) return false;
  if (regions.closer.close(files, region.id)) return true;
  regions.host.log(4, "no helper thread could be started: closing descriptors of GPU memory while others wait");
  for (Fd& file : files) regions.closer.close_here(std::move(file));
  return false;
}

}  // namespace shmb::daemon
