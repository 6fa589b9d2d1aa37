// SPDX-License-Identifier: Apache-2.0
// The shelf's order and bounds. A region gets its new id when it is put here. No client ever saw that id, so no old
// reference can reach what a later create will write into the region.
#include "daemon/ledger/shelf.hpp"

#include <algorithm>

#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/regions.hpp"

namespace shmb::daemon {

bool Shelf::may_recycle(const Region& region) {
  return region.live() && region.bytes >= kShelfFrom && !region.no_recycle && !region.was_outside && !region.sealed();
}

std::uint64_t Shelf::capacity() const {
  return std::min(groups_.host.config.limits.shelf_bytes, group_.account.effective_limit(Resource::bytes) / 4);
}

bool Shelf::put(Region& region) {
  if (region.bytes > capacity()) return false;
  while (bytes_ + region.bytes > capacity())
    if (!drop_oldest()) return false;
  tell_region(groups_.watches, region, SHMBW_WATCH_EVENT_GONE);
  auto node = groups_.regions.all.extract(region.id);
  node.key() = region.id = ++groups_.regions.last_id;
  groups_.regions.all.insert(std::move(node));
  region.state = SHMBW_REGION_STATE_CACHED;
  region.created = groups_.host.now();
  region.generation = 1;
  region.keep = 0;
  region.creator_pid = 0;
  changed(region);
  --groups_.regions.count;
  add(region);
  groups_.on_recycled();
  return true;
}

void Shelf::add(Region& region) {
  group_.regions.remove(region);
  if (regions_.empty()) groups_.filled_shelves.push_back(*this);
  regions_.push_back(region);
  bytes_ += region.bytes;
  groups_.bytes_cached += region.bytes;
  rearm();
}

void Shelf::forget(Region& region) {
  regions_.remove(region);
  if (regions_.empty()) groups_.filled_shelves.remove(*this);
  group_.regions.push_back(region);
  bytes_ -= region.bytes;
  groups_.bytes_cached -= region.bytes;
  rearm();
}

Region* Shelf::take(std::uint64_t bytes, bool seal_sealed) {
  Region* found = nullptr;
  regions_.each([&](Region& region) {
    if (region.bytes == bytes && region.seal_sealed == seal_sealed)
      found = &region;  // the youngest: its pages are warmest
  });
  if (found) forget(*found);
  return found;
}

bool Shelf::drop_oldest() {
  Region* oldest = regions_.first();
  if (!oldest) return false;
  forget(*oldest);
  bool before = std::exchange(group_.in_service, true);
  free_region(groups_.regions, *oldest);
  group_.in_service = before;
  return true;
}

void Shelf::drop_all() {
  while (drop_oldest()) {
  }
}

void Shelf::rearm() {
  const Region* oldest = regions_.first();
  if (oldest) groups_.host.timers.set(*this, oldest->created + groups_.host.config.limits.shelf_idle);
  else cancel();
}

void Shelf::on_timer(std::int64_t now) {
  while (const Region* oldest = regions_.first()) {
    if (oldest->created + groups_.host.config.limits.shelf_idle > now) break;
    drop_oldest();
  }
  rearm();
}

}  // namespace shmb::daemon
