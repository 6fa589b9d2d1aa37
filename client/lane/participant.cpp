// SPDX-License-Identifier: Apache-2.0
// Slots: owning, dropping and keeping them. See participant.hpp.
#include "client/lane/participant.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/rescue.hpp"
#include "client/lane/lane.hpp"

namespace shmb::client {

namespace {

constexpr std::uint32_t kMostCached = 16;
constexpr std::uint64_t kRotationBytes = 64 << 10;
constexpr std::uint64_t kLeastRotation = 4;  // for any size
using pool::kGroupSlots;

bool within(std::uint32_t slot, std::span<const SlotRange> ranges) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [slot](const SlotRange& range) { return slot - range.first < range.count; });
}

}  // namespace

Participant::Participant(pool::View view, std::uint32_t index, std::uint32_t life)
    : view_(view),
      index_(index),
      life_(life),
      bit_(std::uint64_t{1} << index),
      sleeper_(*this),
      books_(view.slots()),
      freed_seen_(view.groups() > 1 ? view.groups() : 0),
      taken_(freed_seen_.size()),
      next_free_(static_cast<std::uint32_t>(std::uint64_t{view.slots()} * index / pool::kParticipants)) {
  cached_.reserve(kMostCached);
}

std::optional<std::uint32_t> Participant::acquire(std::span<const SlotRange> ranges) {
  if (auto slot = take_cached(ranges)) return slot;
  // A look at a reader's head costs both ends a transfer of its cache line, so it should free more than one slot. So a
  // few slots rotate, unless they are too big for the processor's caches. A slot that this process has just freed is
  // usually still free.
  const bool one_is_free = within(std::exchange(freed_, pool::kNone), ranges);
  const bool searched = one_is_free || (!ranges.empty() && in_flight_ < rotation(ranges.front().first));
  if (searched)
    if (auto slot = take_free(ranges)) return slot;
  reclaim();
  if (auto slot = take_cached(ranges)) return slot;
  if (searched && freed_ == pool::kNone) return std::nullopt;  // no slot came back here since
  return take_free(ranges);
}

std::optional<std::uint32_t> Participant::look_ahead(std::uint32_t slot) {
  constexpr std::uint32_t kSpare = 8;
  if (cached_.empty() && in_flight_ >= rotation(slot)) {
    if (looks_spared_ > 0) --looks_spared_;
    else {
      reclaim();
      if (cached_.empty() && freed_ == pool::kNone) looks_spared_ = kSpare;
    }
  }
  if (!cached_.empty()) return cached_.back().slot;
  if (freed_ != pool::kNone) return freed_;  // there are too few slots to keep one idle here
  return std::nullopt;
}

std::uint32_t Participant::rotation(std::uint32_t slot) {
  const std::uint64_t size = std::max<std::uint64_t>(slot_size(slot).value_or(1), 1);
  const std::uint64_t slots = std::max<std::uint64_t>(kRotationBytes / size, kLeastRotation);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(slots, cache_limit(size)));
}

std::optional<std::uint32_t> Participant::take_free(std::span<const SlotRange> ranges) {
  for (const SlotRange& range : ranges)
    if (auto slot = take_free(range)) return slot;
  return std::nullopt;
}

std::optional<std::uint32_t> Participant::take_cached(std::span<const SlotRange> ranges) {
  for (std::size_t i = cached_.size(); i-- > 0;) {
    const std::uint32_t slot = cached_[i].slot;
    if (!within(slot, ranges) || !mine_alone(slot)) continue;
    if (i + 1 == cached_.size()) cached_.pop_back();
    else cached_.erase(cached_.begin() + static_cast<std::ptrdiff_t>(i));
    return begin_use(slot);
  }
  return std::nullopt;
}

std::optional<std::uint32_t> Participant::take_free(SlotRange range) {
  if (range.first >= view_.slots()) return std::nullopt;
  const std::uint32_t count = std::min(range.count, view_.slots() - range.first);
  const std::uint32_t end = range.first + count;
  std::uint32_t at = next_free_ - range.first < count ? next_free_ : range.first;
  // The rest of the group in which the search begins comes last.
  for (std::uint32_t left = count; left > 0;) {
    while (at % kGroupSlots == 0 && std::min(left, end - at) > kGroupSlots && passed_over(at / kGroupSlots)) {
      at += kGroupSlots;
      left -= kGroupSlots;
    }
    const std::uint32_t group = at / kGroupSlots, bit = at % kGroupSlots;
    const std::uint32_t here = std::min({kGroupSlots - bit, end - at, left});
    if (auto slot = take_free(group, (~std::uint64_t{0} >> (kGroupSlots - here)) << bit)) return slot;
    left -= here;
    at = at + here == end ? range.first : at + here;
  }
  return std::nullopt;
}

// No slot in the group can be free.
bool Participant::passed_over(std::uint32_t group) {
  SHMB_STEP(A0);
  const std::uint64_t freed = view_.freed(group).load(std::memory_order_acquire);
  SHMB_STEP(A0_done);
  return freed == freed_seen_[group] && taken_[group] == ~std::uint64_t{0};
}

// The slots of one group whose bits are `wanted`. A held slot is free again only after the count has moved. The
// participant that leaves a slot without a holder counts it after P1. If it died in between, the broker counts it.
std::optional<std::uint32_t> Participant::take_free(std::uint32_t group, std::uint64_t wanted) {
  std::uint64_t uncounted = 0;
  std::uint64_t& taken = taken_.empty() ? uncounted : taken_[group];
  if (!taken_.empty()) {
    SHMB_STEP(A0);
    const std::uint64_t freed = view_.freed(group).load(std::memory_order_acquire);
    SHMB_STEP(A0_done);
    if (std::exchange(freed_seen_[group], freed) != freed) taken = 0;
  }
  for (wanted &= ~taken; wanted != 0; wanted &= wanted - 1) {
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(wanted));
    const std::uint32_t slot = group * kGroupSlots + bit;
    taken |= std::uint64_t{1} << bit;
    const Book& book = books_[slot];
    if (book.references > 0 || (book.flags & kCached)) continue;
    auto& holders = view_.slot(slot).holders;
    SHMB_STEP(A1);
    std::uint64_t mask = holders.load(std::memory_order_acquire);
    SHMB_STEP(A1_done);
    if (mask != 0) continue;
    SHMB_STEP(A2);
    const bool mine = holders.compare_exchange_strong(mask, bit_, std::memory_order_acq_rel, std::memory_order_relaxed);
    SHMB_STEP(A2_done);
    if (!mine) continue;
    next_free_ = slot + 1;
    return begin_use(slot);
  }
  return std::nullopt;
}

bool Participant::mine_alone_locked(std::uint32_t slot) {
  std::uint64_t mask = bit_;
  SHMB_STEP(A2l);
  const bool alone = view_.slot(slot).holders.compare_exchange_strong(mask, bit_, std::memory_order_acq_rel,
                                                                      std::memory_order_relaxed);
  SHMB_STEP(A2l_done);
  return alone;
}

void Participant::dropped(std::uint32_t slot) {
  Book& book = books_[slot];
  // No fence before this look. So a slot that became idle just before a participant began to wait stays here too.
  const bool wanted = view_.control().slot_waiters.mask.load(std::memory_order_relaxed) != 0;
  if ((book.flags & kMine) && !wanted) {
    const std::uint64_t size = slot_size(slot).value_or(0);
    if (may_cache(size)) {
      book.flags |= kCached;
      cached_.push_back({slot, size});
      return;
    }
  }
  free_slot(slot);
  if (wanted) flush_cache();
}

void Participant::drop_overwritten(std::uint32_t slot) {
  books_[slot].flags |= kLookLocked;
  drop(slot);
}

void Participant::free_slot(std::uint32_t slot) {
  books_[slot].flags = 0;
  next_free_ = freed_ = slot;
  SHMB_STEP(P1);
  // seq_cst, where release would do for the slot: with the seq_cst look at the waiters it replaces the fence S4.
  const std::uint64_t before = view_.slot(slot).holders.fetch_and(~bit_, std::memory_order_seq_cst);
  SHMB_STEP(P1_done);
  if ((before & ~bit_) == 0 && !taken_.empty()) {
    SHMB_STEP(P2);
    view_.freed(slot / kGroupSlots).fetch_add(1, std::memory_order_seq_cst);
    SHMB_STEP(P2_done);
  }
  sleeper_.wake_all_after_exchange(view_.control().slot_waiters);
}

bool Participant::keep(std::uint32_t slot, std::uint32_t generation) {
  if (slot >= books_.size()) return false;
  Book& book = books_[slot];
  const bool bit_is_set = book.references > 0 || (book.flags & kCached);
  if (!bit_is_set) {
    SHMB_STEP(R3);
    view_.slot(slot).holders.fetch_or(bit_, std::memory_order_acq_rel);
    SHMB_STEP(R3_done);
  }
  if (view_.slot(slot).generation.load(std::memory_order_relaxed) != generation) {
    if (bit_is_set) return false;
    SHMB_STEP(R3u);
    free_slot(slot);
    SHMB_STEP(R3u_done);
    return false;
  }
  if (book.flags & kCached) {
    std::erase_if(cached_, [slot](const Cached& one) { return one.slot == slot; });
    book.flags &= ~kCached;
  }
  ++book.references;
  return true;
}

void Participant::undo(std::uint32_t slot) {
  if (--books_[slot].references > 0) return;
  SHMB_STEP(R3u);
  free_slot(slot);
  SHMB_STEP(R3u_done);
}

// Idle slots must never starve others. The n-th participant keeps at most slots / 8n of each size. So all together keep
// less than 0.6 of them, in any order of their arrival: 1/8 (1 + 1/2 + .. + 1/64) = 0.593.
std::uint32_t Participant::cache_limit(std::uint64_t size) {
  if (fixed_limit_) return *fixed_limit_;
  const std::uint32_t change = view_.header().change.load(std::memory_order_relaxed);
  if (change == limits_at_change_ && !limits_.empty() && limits_.front().size == size) return limits_.front().slots;
  if (change != limits_at_change_) limits_.clear();
  limits_at_change_ = change;
  auto known = std::find_if(limits_.begin(), limits_.end(), [size](const Limit& one) { return one.size == size; });
  if (known == limits_.end()) {
    std::uint32_t slots = 0;
    for (const KnownSegment& segment : segments())
      if (segment.size == size) slots += segment.slots;
    std::uint32_t participants = 0;
    for (std::size_t i = 0; i < pool::kParticipants; ++i) {
      const auto stamp = pool::Stamp::of(view_.participant(i).stamp.load(std::memory_order_relaxed));
      participants += stamp.state != static_cast<std::uint8_t>(pool::ParticipantState::free);
    }
    known = limits_.insert(known, {size, std::min(kMostCached, slots / (8 * std::max(participants, 1U)))});
  }
  return known->slots;
}

bool Participant::may_cache(std::uint64_t size) {
  const std::uint32_t limit = cache_limit(size);
  if (cached_.size() < limit) return true;
  if (fixed_limit_ || cached_.size() >= kMostCached) return false;
  return std::count_if(cached_.begin(), cached_.end(), [size](const Cached& one) { return one.size == size; }) < limit;
}

void Participant::set_cache_limit(std::uint32_t slots) {
  fixed_limit_ = slots;
  if (cached_.size() > slots) flush_cache();
}

void Participant::flush_cache() {
  while (!cached_.empty()) {
    const std::uint32_t slot = cached_.back().slot;
    cached_.pop_back();
    free_slot(slot);
  }
}

void Participant::reclaim() {
  for (LaneSender* sender : senders_) sender->reclaim();
}

Deadline Participant::expiry() {
  constexpr std::int64_t kAgain = 10'000'000;  // a reader has claimed it: it is done soon, or gives it back
  std::int64_t earliest = INT64_MAX;
  for (const LaneSender* sender : senders_) earliest = std::min(earliest, sender->earliest());
  if (earliest == INT64_MAX) return Deadline::after(kForever);
  const std::int64_t left = earliest - sys::now_monotonic();
  return Deadline::after(left > 0 ? left : rescue_interval(kAgain));
}

void Participant::slot_sources(std::vector<std::atomic<std::uint64_t>*>& masks) {
  masks.push_back(&view_.control().slot_waiters.mask);
  for (const LaneSender* sender : senders_)
    if (sender->holding()) masks.push_back(&view_.queue_waiters(sender->queue()).writers.mask);
}

std::span<const KnownSegment> Participant::segments() const {
  while (segments_.size() < view_.segments()) {
    const pool::SegmentEntry& entry = view_.segment(segments_.size());
    if (entry.in_use.load(std::memory_order_acquire) == 0) break;
    const KnownSegment next{entry.first_slot, entry.slots,     entry.slots_limit, entry.generation,
                            entry.region,     entry.slot_size, entry.stride};
    const std::uint32_t begin = segments_.empty() ? 0 : segments_.back().first + segments_.back().slots;
    if (next.first != begin || next.slots == 0 || next.slots > view_.slots() - begin) break;
    if (next.size == 0 || next.size > next.stride || next.stride != pool::stride_of(next.size)) break;
    if (next.stride > UINT64_MAX / next.slots) break;
    segments_.push_back(next);
  }
  return segments_;
}

bool Participant::find_segment(std::uint32_t slot) const {
  for (const KnownSegment& segment : segments()) {
    if (slot - segment.first >= segment.slots) continue;
    segment_ = segment;
    return true;
  }
  return false;
}

}  // namespace shmb::client
