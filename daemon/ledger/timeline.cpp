// SPDX-License-Identifier: Apache-2.0
// The release of all waiters of a timeline whose producer is gone.
#include "daemon/ledger/timeline.hpp"

#include <algorithm>
#include <climits>

#include "base/sys_futex.hpp"
#include "daemon/ledger/gpu_memory.hpp"
#include "daemon/ledger/regions.hpp"
#include "proto/timeline_layout.hpp"

namespace shmb::daemon {
namespace {

constexpr std::int64_t kReleaseEvery = 100'000'000, kReleaseFor = 5'000'000'000;

timeline::Word* words_of(const Mapping& map) { return reinterpret_cast<timeline::Word*>(map.data()); }

bool others_hold(const Region& region) {
  return region.leases.size() > 1 || region.name != nullptr || region.tickets != 0 || region.pool_holds != 0;
}

}  // namespace

Timeline::~Timeline() { releaser.forget(*this); }

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
  const std::int64_t began = host_.now();
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
  if (!first_.empty()) host_.timers.set(*this, now);
  else if (!again_.empty()) host_.timers.set(*this, again_.first()->due);
  else cancel();
}

void end_timeline(Regions& regions, Region& region, shmbw_gpu_word_status status, std::uint32_t pid) {
  Timeline& line = *region.gpu->timeline;
  if (line.status != SHMBW_GPU_WORD_STATUS_OK) return;
  line.status = status;
  changed(*region.gpu);
  // Another holder must be released before it gets the event. Without another holder the region ends with its last
  // lease in a moment.
  regions.releaser.begin(line, others_hold(region));
  set_gpu_state(region, SHMBW_GPU_STATE_PRODUCER_DEAD, 0, pid);
}

}  // namespace shmb::daemon
