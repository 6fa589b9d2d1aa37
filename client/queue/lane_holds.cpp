// SPDX-License-Identifier: Apache-2.0
// Counting and dropping holds. See lane_holds.hpp.
#include "client/queue/lane_holds.hpp"

#include <algorithm>

#include "client/session/call.hpp"

namespace shmb::client {
namespace {

constexpr std::size_t kIdleHolds = 64;
constexpr std::uint64_t kIdleHoldBytes = std::uint64_t{1} << 20;

}  // namespace

void LaneHolds::count(std::span<Region* const> regions) {
  for (const Region* region : regions) holds_.try_emplace(region->ref().id);  // all, before any is counted
  for (const Region* region : regions) {
    Hold& hold = holds_.at(region->ref().id);
    hold.generation = region->ref().generation;
    hold.bytes = region->facts().bytes;
    ++hold.in_flight;
  }
}

std::vector<const Region*> LaneHolds::missing(std::span<Region* const> regions) const {
  const auto id_of = [](const Region* region) { return region->ref().id; };
  std::vector<const Region*> which;
  for (const Region* region : regions)
    if (holds_.at(id_of(region)).handle != region->serial()) which.push_back(region);
  std::ranges::sort(which, {}, id_of);
  which.erase(std::ranges::unique(which, {}, id_of).begin(), which.end());
  return which;
}

void LaneHolds::let_go(std::uint64_t region) {
  const auto known = holds_.find(region);
  if (known == holds_.end() || known->second.in_flight == 0 || --known->second.in_flight != 0) return;
  idle_.push_back(region);
  idle_bytes_ += known->second.bytes;
}

void LaneHolds::drop_idle(Pool& pool, std::uint32_t lane, std::uint32_t serial, bool all) {
  if (idle_.empty() || (!all && idle_.size() < kIdleHolds && idle_bytes_ < kIdleHoldBytes)) return;
  std::vector<shmbw_queue_hold> drops;
  for (const std::uint64_t id : idle_) {
    const auto known = holds_.find(id);
    if (known == holds_.end() || known->second.in_flight != 0) continue;
    shmbw_queue_hold drop{};
    drop.pool = pool.id();
    drop.lane = lane;
    drop.serial = serial;
    drop.region = {id, known->second.generation, 0};
    drop.flags = SHMBW_QUEUE_HOLD_DROP;
    drops.push_back(drop);
    holds_.erase(known);
  }
  idle_.clear();
  idle_bytes_ = 0;
  (void)post<SHMBW_OP_QUEUE_HOLD>(*pool.session(), drops, Deadline::after(0));
}

void LaneHolds::clear() {
  holds_.clear();
  idle_.clear();
  idle_bytes_ = 0;
}

}  // namespace shmb::client
