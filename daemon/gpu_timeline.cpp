// SPDX-License-Identifier: Apache-2.0
// See gpu_timeline.hpp. The region behind a timeline is made like any other.
#include "daemon/gpu_timeline.hpp"

#include <fcntl.h>

#include <climits>

#include "base/sys_futex.hpp"
#include "base/sys_memory.hpp"
#include "daemon/create.hpp"
#include "daemon/refuse.hpp"
#include "daemon/world.hpp"
#include "proto/timeline_layout.hpp"

namespace shmb::daemon {
namespace {

constexpr std::int64_t kReleaseEvery = 100'000'000, kReleaseFor = 5'000'000'000;

timeline::Word* words_of(const Mapping& map) { return reinterpret_cast<timeline::Word*>(map.data()); }

void undo(World& world, Session& session, Region& region) {
  region.group->names.remove(region);
  if (Lease* lease = find_lease(session, region)) drop_lease(world, *lease);
}

}  // namespace

// What was reached before anything else, because the counter will not tell it any more; then the status, so that
// whoever sees the new counter sees why.
void Timeline::release() {
  timeline::Word* word = words_of(map);
  for (std::uint32_t i = 0; i < words; ++i, ++word) {
    const std::uint64_t released = word->announced.load(std::memory_order_relaxed) + timeline::kRelease;
    const bool first = word->status.load(std::memory_order_relaxed) != std::uint32_t{status};
    if (first) word->last.store(word->counter.load(std::memory_order_relaxed), std::memory_order_relaxed);
    word->status.store(status, std::memory_order_seq_cst);
    const std::uint64_t found = word->counter.exchange(released, std::memory_order_seq_cst);
    if (found == released && !first) continue;
    if (found != released) word->last.store(found, std::memory_order_release);  // also what landed late
    word->wakes.fetch_add(1, std::memory_order_seq_cst);
    (void)sys::futex_wake(word->wakes, INT_MAX);
  }
}

void Timeline::on_timer(std::int64_t now) {
  release();
  if (now < until) world.timers.set(*this, now + kReleaseEvery);
}

Result<Region*> make_timeline(World& world, Session& session, const shmbw_gpu_timeline& wish, std::string_view name) {
  if ((wish.flags & ~std::uint32_t{SHMBW_GPU_TIMELINE_KNOWN}) != 0)
    return error(Status::unknown_flags, "a timeline flag is not known to this broker");
  if (wish.words == 0 || wish.words > timeline::kMaxWords)
    return error(Status::invalid, "a timeline has 1 to " + std::to_string(timeline::kMaxWords) + " words, not " +
                                      std::to_string(wish.words));
  shmbw_create create{};
  create.group = wish.group;
  create.length = timeline::bytes_of(wish.words);
  create.keep = wish.keep;
  create.flags = SHMBW_CREATE_MANY_WRITERS | SHMBW_CREATE_NO_RECYCLE;
  if ((wish.flags & SHMBW_GPU_TIMELINE_KEEP_GIVEN) != 0) create.flags |= SHMBW_CREATE_KEEP_GIVEN;
  if ((wish.flags & SHMBW_GPU_TIMELINE_REPLACE) != 0) create.flags |= SHMBW_CREATE_REPLACE;
  auto made = create_region(world, session, create, name);
  if (!made) return std::unexpected(made.error());
  Region& region = *made->region;
  auto map = Mapping::map(region.fd.get(), 0, region.bytes, Access::read_write);
  if (!map) {
    undo(world, session, region);
    return system_failure(map.error(), "mapping the memory of a timeline");
  }
  // Nobody's reader closes writing: the producer's streams go on writing, and so does the broker at its end.
  if (!region.seal_sealed)
    if (auto sealed = sys::add_seals(region.fd.get(), F_SEAL_SEAL); !sealed) {
      undo(world, session, region);
      return system_failure(sealed.error(), "sealing the memory of a timeline");
    }
  region.seal_sealed = true;
  region.many_writers = true;
  region.state = SHMBW_REGION_STATE_READY;
  region.gpu = std::make_unique<GpuMemory>();
  region.gpu->kind = SHMBW_GPU_KIND_TIMELINE;
  region.gpu->exporter = &session;
  region.gpu->exporter_pid = session.pid;
  region.gpu->descriptors = 1;
  region.gpu->timeline = std::make_unique<Timeline>(world);
  region.gpu->timeline->map = std::move(*map);
  region.gpu->timeline->words = wish.words;
  return &region;
}

void end_timeline(World& world, Region& region, shmbw_gpu_word_status status, std::uint32_t pid) {
  Timeline& line = *region.gpu->timeline;
  if (line.status != SHMBW_GPU_WORD_STATUS_OK) return;
  line.status = status;
  line.until = world.now() + kReleaseFor;
  line.release();
  world.timers.set(line, world.now() + kReleaseEvery);
  set_gpu_state(world, region, SHMBW_GPU_STATE_PRODUCER_DEAD, 0, pid);
}

}  // namespace shmb::daemon
