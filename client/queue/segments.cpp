// SPDX-License-Identifier: Apache-2.0
// Reading the segments from the directory, and mapping them. See segments.hpp.
#include "client/queue/segments.hpp"

#include <algorithm>

#include "client/region/obtain.hpp"

namespace shmb::client {

void Segments::expect(std::span<const SizeClass> later) {
  for (const SizeClass& one : later) classes_.push_back({one.slot_size, 0, one.slots_limit, {}});
  std::ranges::sort(classes_, {}, &Class::slot_size);
}

void Segments::read() {
  const auto known = me_->segments();
  for (std::size_t i = segments_.size(); i < known.size(); ++i) {
    const KnownSegment& entry = known[i];
    segments_.push_back({entry.first, entry.slots, entry.stride, entry.slots * entry.stride, nullptr});
    slots_ += entry.slots;
    auto found = std::ranges::find(classes_, entry.size, &Class::slot_size);
    if (found == classes_.end()) {
      found = classes_.insert(std::ranges::upper_bound(classes_, entry.size, {}, &Class::slot_size),
                              Class{entry.size, 0, entry.slots_limit, {}});
    }
    found->slots += entry.slots;
    if (!found->ranges.empty() && found->ranges.back().first + found->ranges.back().count == entry.first)
      found->ranges.back().count += entry.slots;
    else found->ranges.push_back({entry.first, entry.slots});
  }
}

Error Segments::attach(std::int64_t timeout) {
  std::vector<AttachItem> items;
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].region) continue;
    const KnownSegment& entry = me_->segments()[i];
    AttachItem item;
    item.target = Target::with_id({entry.region, entry.generation, 0});
    item.rights = SHMBW_RIGHT_MAP_READ | (read_only_ ? 0U : unsigned{SHMBW_RIGHT_MAP_WRITE});
    items.push_back(std::move(item));
    which.push_back(i);
  }
  Error failure;
  auto attached = attach_regions(session_, items, timeout);
  for (std::size_t n = 0; n < which.size(); ++n) {
    Segment& segment = segments_[which[n]];
    if (!attached[n]) failure = attached[n].error();
    else if ((*attached[n])->facts().bytes < segment.bytes)
      failure = error(Status::broken, "a segment of the pool is smaller than the directory says").error();
    else segment.region = std::move(*attached[n]);
  }
  return failure;
}

std::byte* Segments::find_data(std::uint32_t slot, Error* why, std::int64_t timeout) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (std::byte* const at = data_if_mapped(slot)) return at;
    if (attempt != 0) break;
    read();
    Error failure = attach(timeout);
    if (why != nullptr && !failure.sentence.empty()) *why = std::move(failure);
  }
  return nullptr;
}

std::uint32_t Segments::count_used(const std::vector<SlotRange>& ranges) const {
  std::uint32_t used = 0;
  for (const SlotRange& range : ranges)
    for (std::uint32_t slot = range.first; slot < range.first + range.count; ++slot)
      used += view_.slot(slot).holders.load(std::memory_order_relaxed) != 0 ? 1U : 0U;
  return used;
}

std::uint64_t Segments::limits() const {
  std::uint64_t slots = 0;
  for (const Class& one : classes_) slots += one.limit;
  return slots;
}

std::uint64_t Segments::bytes() const {
  std::uint64_t bytes = 0;
  for (const Segment& segment : segments_) bytes += segment.bytes;
  return bytes;
}

// Doubles the number of slots, within the limits.
std::uint32_t Segments::may_grow(const Class& wanted) const {
  if (read_only_ || wanted.slots >= wanted.limit || slots_ >= view_.slots()) return 0;
  if (segments_.size() >= view_.segments()) return 0;
  return std::min({std::max(wanted.slots, 1U), wanted.limit - wanted.slots, view_.slots() - slots_});
}

bool Segments::adopt(std::uint32_t segment, Region::Handle region) {
  read();
  if (segment >= segments_.size()) return false;
  if (Region::Handle& there = segments_[segment].region; !there) there = std::move(region);
  return true;
}

}  // namespace shmb::client
