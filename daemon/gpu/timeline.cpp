// SPDX-License-Identifier: Apache-2.0
// See gpu_timeline.hpp. The region behind a timeline is made like any other.
#include "daemon/gpu/timeline.hpp"

#include <fcntl.h>

#include <algorithm>
#include <climits>

#include "base/sys_futex.hpp"
#include "base/sys_memory.hpp"
#include "daemon/ledger/create.hpp"
#include "daemon/ledger/ledger.hpp"
#include "daemon/ledger/refuse.hpp"
#include "proto/refusal.hpp"
#include "proto/timeline_layout.hpp"

namespace shmb::daemon {
namespace {

constexpr std::int64_t kReleaseEvery = 100'000'000, kReleaseFor = 5'000'000'000;

timeline::Word* words_of(const Mapping& map) { return reinterpret_cast<timeline::Word*>(map.data()); }

// A mapping of the broker's, of which the kernel allows a process only a limited number.
Result<Charge> charge_timeline(Ledger& ledger, const Session& session, Group& group) {
  auto charge = group.account.charge(Resource::timelines, 1);
  if (charge) return std::move(*charge);
  if (charge.error().scope != SHMBW_SCOPE_HOST) return std::unexpected(refuse_limit(ledger, session, charge.error()));
  return std::unexpected(wire::limit_refusal(
      charge.error(), "the broker", "close some, or raise the kernel's vm.max_map_count: half of it is for timelines"));
}

bool others_hold(const Region& region) {
  return region.leases.size() > 1 || region.name != nullptr || region.tickets != 0 || region.pool_holds != 0;
}

void undo(Ledger& ledger, Session& session, Region& region) {
  region.group->names.remove(region);
  if (Lease* lease = find_lease(session, region)) drop_lease(ledger, *lease);
}

}  // namespace

Timeline::~Timeline() { ledger.releaser.forget(*this); }

// First the value that was reached, because the counter will not show it any more. Then the status, so that a waiter
// that sees the new counter sees the reason.
std::uint32_t Timeline::release(std::uint32_t most) {
  const std::uint32_t end = next + std::min(most, words - next);
  const std::uint32_t count = end - next;
  for (timeline::Word* word = words_of(map) + next; next < end; ++next, ++word) {
    const std::uint64_t released = word->announced.load(std::memory_order_relaxed) + timeline::kRelease;
    const bool first = word->status.load(std::memory_order_relaxed) != std::uint32_t{status};
    if (first) word->last.store(word->counter.load(std::memory_order_relaxed), std::memory_order_relaxed);
    word->status.store(status, std::memory_order_seq_cst);
    const std::uint64_t found = word->counter.exchange(released, std::memory_order_seq_cst);
    if (found == released && !first) continue;
    if (found != released) word->last.store(found, std::memory_order_release);  // also a write that landed late
    word->wakes.fetch_add(1, std::memory_order_seq_cst);
    (void)sys::futex_wake(word->wakes, INT_MAX);
  }
  return count;
}

void TimelineReleaser::begin(Timeline& line, bool now) {
  const std::int64_t began = ledger_.now();
  line.until = began + kReleaseFor;
  line.stage = Timeline::Stage::first;
  first_.push_back(line);
  if (now && left_ != 0) work(line, began);
  rearm(began);
}

void TimelineReleaser::forget(Timeline& line) {
  if (line.stage == Timeline::Stage::served) return;
  list_of(line).remove(line);
  line.stage = Timeline::Stage::served;
}

void TimelineReleaser::work(Timeline& line, std::int64_t now) {
  left_ -= line.release(left_);
  if (line.next < line.words) return;
  forget(line);
  line.next = 0;
  if (now >= line.until) return;
  line.due = now + kReleaseEvery;
  line.stage = Timeline::Stage::again;
  again_.push_back(line);
}

void TimelineReleaser::on_timer(std::int64_t now) {
  while (left_ != 0) {
    Timeline* line = first_.first();
    if (!line) line = again_.first();
    if (!line || (line->stage == Timeline::Stage::again && line->due > now)) break;
    work(*line, now);
  }
  rearm(now);
}

void TimelineReleaser::rearm(std::int64_t now) {
  if (!first_.empty()) ledger_.timers.set(*this, now);
  else if (!again_.empty()) ledger_.timers.set(*this, again_.first()->due);
  else cancel();
}

Result<Region*> make_timeline(Ledger& ledger, Session& session, const shmbw_gpu_timeline& wish, std::string_view name) {
  if ((wish.flags & ~std::uint32_t{SHMBW_GPU_TIMELINE_KNOWN}) != 0)
    return error(Status::unknown_flags, "a timeline flag is not known to this broker");
  if (wish.words == 0 || wish.words > timeline::kMaxWords)
    return error(Status::invalid, "a timeline has 1 to " + std::to_string(timeline::kMaxWords) + " words, not " +
                                      std::to_string(wish.words));
  SHMB_TRY(group, group_for_create(ledger, session, wish.group));
  SHMB_TRY(charge, charge_timeline(ledger, session, *group));
  shmbw_create create{};
  create.group = wish.group;
  create.length = timeline::bytes_of(wish.words);
  create.keep = wish.keep;
  create.flags = SHMBW_CREATE_MANY_WRITERS | SHMBW_CREATE_NO_RECYCLE;
  if ((wish.flags & SHMBW_GPU_TIMELINE_KEEP_GIVEN) != 0) create.flags |= SHMBW_CREATE_KEEP_GIVEN;
  if ((wish.flags & SHMBW_GPU_TIMELINE_REPLACE) != 0) create.flags |= SHMBW_CREATE_REPLACE;
  SHMB_TRY(made, create_region(ledger, session, create, name));
  Region& region = *made.region;
  auto map = Mapping::map(region.fd.get(), 0, region.bytes, Access::read_write);
  if (!map) {
    undo(ledger, session, region);
    return system_failure(map.error(), "mapping the memory of a timeline");
  }
  // No reader closes writing here: the producer's streams keep writing, and so does the broker at the producer's end.
  if (!region.seal_sealed)
    if (auto sealed = sys::add_seals(region.fd.get(), F_SEAL_SEAL); !sealed) {
      undo(ledger, session, region);
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
  region.gpu->timeline = std::make_unique<Timeline>(ledger, std::move(charge));
  region.gpu->timeline->map = std::move(*map);
  region.gpu->timeline->words = wish.words;
  return &region;
}

void end_timeline(Ledger& ledger, Region& region, shmbw_gpu_word_status status, std::uint32_t pid) {
  Timeline& line = *region.gpu->timeline;
  if (line.status != SHMBW_GPU_WORD_STATUS_OK) return;
  line.status = status;
  // Another holder must be released before it gets the event. Without another holder the region ends with its last
  // lease in a moment.
  ledger.releaser.begin(line, others_hold(region));
  set_gpu_state(ledger, region, SHMBW_GPU_STATE_PRODUCER_DEAD, 0, pid);
}

}  // namespace shmb::daemon
