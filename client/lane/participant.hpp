// SPDX-License-Identifier: Apache-2.0
// This process' private counts in one pool: which slots it holds, and how often. The shared mask of a slot says only
// whether this process holds it. Only this process changes its bit: it is set at the first reference and cleared after
// the last. The counts end with the process and need no repair. Names like A1 and P2 are steps (client/lane/steps.hpp).
//
// Everything but `alive` expects lock() to be held.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/lane/sleeper.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::client {

class LaneSender;

struct SlotRange {
  std::uint32_t first = 0, count = 0;
};

// A segment as the directory had it when this process saw it first. It lies within the pool's slots and behind the
// segments before it, and its slots do not overlap. So a directory that somebody writes over later changes no address
// and no size that this process uses.
struct KnownSegment {
  std::uint32_t first = 0, slots = 0, slots_limit = 0, generation = 0;
  std::uint64_t region = 0, size = 0, stride = 0;
};

class Participant {
 public:
  Participant(pool::View view, std::uint32_t index, std::uint32_t life);
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  const pool::View& view() const { return view_; }
  std::uint32_t index() const { return index_; }
  std::uint32_t life() const { return life_; }
  std::uint64_t bit() const { return bit_; }
  LocalLock& lock() { return lock_; }
  Sleeper& sleeper() { return sleeper_; }

  // A1 to A3: a slot of one of the ranges for this process alone, with one reference and a new generation. It tries the
  // idle slots of this process first, then slots of done messages in its lanes, then any free slot.
  std::optional<std::uint32_t> acquire(std::span<const SlotRange> ranges);
  // The same without a search: the slot that became idle last, if it has this size and nobody keeps it. Else nullopt,
  // and nothing was changed.
  std::optional<std::uint32_t> acquire_last(std::uint64_t size) {
    if (cached_.empty() || cached_.back().size != size) return std::nullopt;
    const std::uint32_t slot = cached_.back().slot;
    if (!mine_alone(slot)) return std::nullopt;
    cached_.pop_back();
    return begin_use(slot);
  }
  void hold(std::uint32_t slot) { ++books_[slot].references; }  // adds one; there is one already
  void drop(std::uint32_t slot) {                               // at none left the slot is idle, or free (P1)
    if (--books_[slot].references == 0) dropped(slot);
  }
  // R3, Q3, C5: takes a reference to a slot that a message names. False: the slot has another generation, and nothing
  // was changed. Then the lane is broken, unless it drops its oldest and confirm() reports the message as lost.
  bool keep(std::uint32_t slot, std::uint32_t generation);
  void undo(std::uint32_t slot);  // undoes a keep() after confirm() has failed: never idle, always P1
  bool holds(std::uint32_t slot) const { return books_[slot].references > 0; }
  std::uint32_t generation(std::uint32_t slot) const {
    return view_.slot(slot).generation.load(std::memory_order_relaxed);
  }
  // Idle slots that this process acquired may stay with it, so that the next acquire needs no locked instruction. By
  // default it keeps at most 16, and all participants together keep at most an eighth of the slots of each size. No
  // slot is added while a participant waits for one. None is kept while this process sleeps.
  void set_cache_limit(std::uint32_t slots);
  void flush_cache();
  // Call after publishing `slot`. Checks the readers now, while this process waits for an answer anyway, so that the
  // next acquire() need not. Returns the slot that acquire() will probably pick.
  std::optional<std::uint32_t> look_ahead(std::uint32_t slot);
  void reclaim();     // drops what readers of this process' lanes are done with, and what has expired
  Deadline expiry();  // when the next message of all lanes expires
  // The sources of a sleeper that waits for a slot: a free slot, or a reader that is done with a message of this
  // process.
  void slot_sources(std::vector<std::atomic<std::uint64_t>*>& masks);

  // How many bytes a user may write into this slot. nullopt: no such slot (yet).
  std::optional<std::uint64_t> slot_size(std::uint32_t slot) const {
    if (slot - segment_.first >= segment_.slots && !find_segment(slot)) return std::nullopt;
    return segment_.size;
  }
  // All segments, also those that the directory has got since the last call. An impossible entry ends them.
  std::span<const KnownSegment> segments() const;
  // Those that the participant of the parent process knew, before any other.
  void inherit(const Participant& parent) { segments_ = parent.segments_; }
  // Whether the handle of a message is possible: its slot exists, and offset and length lie within it.
  bool fits(const pool::Handle& handle) const {
    const auto size = slot_size(handle.slot);
    return size && handle.offset <= *size && handle.length <= *size - handle.offset;
  }

  // Whether participant `index` is in that life, and live. Acquire: a process that sees it dead also sees what it
  // wrote.
  bool alive(std::uint32_t index, std::uint32_t life) const {
    return view_.participant(index).stamp.load(std::memory_order_acquire) ==
           pool::Stamp{life, static_cast<std::uint8_t>(pool::ParticipantState::live)}.word();
  }

 private:
  friend class LaneSender;
  enum : std::uint8_t {
    kMine = 1,       // acquired here: worth keeping when idle. Slots that others acquired are freed.
    kCached = 2,     // idle: no reference, but the bit is set
    kLookLocked = 4  // came out of a cell that was overwritten: a plain look at its mask proves nothing (A2l)
  };
  struct Book {
    std::uint32_t references = 0;
    std::uint8_t flags = 0;
  };
  void dropped(std::uint32_t slot);
  void drop_overwritten(std::uint32_t slot);  // drop() of a slot whose cell drop-oldest has marked busy
  void free_slot(std::uint32_t slot);         // P1, P2, and the wake
  std::optional<std::uint32_t> take_cached(std::span<const SlotRange> ranges);
  std::optional<std::uint32_t> take_free(std::span<const SlotRange> ranges);
  std::optional<std::uint32_t> take_free(SlotRange range);
  std::optional<std::uint32_t> take_free(std::uint32_t group, std::uint64_t wanted);
  bool passed_over(std::uint32_t group);
  std::uint32_t rotation(std::uint32_t slot);
  bool mine_alone(std::uint32_t slot) {
    auto& holders = view_.slot(slot).holders;
    SHMB_STEP(A1);
    const std::uint64_t mask = holders.load(std::memory_order_acquire);
    SHMB_STEP(A1_done);
    if (mask != bit_) return false;
    return (books_[slot].flags & kLookLocked) == 0 || mine_alone_locked(slot);
  }
  bool mine_alone_locked(std::uint32_t slot);
  std::uint32_t begin_use(std::uint32_t slot) {
    books_[slot] = {1, kMine};
    auto& generation = view_.slot(slot).generation;
    SHMB_STEP(A3);
    generation.store(generation.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    SHMB_STEP(A3_done);
    return slot;
  }
  std::uint32_t cache_limit(std::uint64_t size);
  bool may_cache(std::uint64_t size);
  bool find_segment(std::uint32_t slot) const;

  const pool::View view_;
  const std::uint32_t index_, life_;
  const std::uint64_t bit_;
  LocalLock lock_;
  Sleeper sleeper_;
  std::vector<Book> books_;
  // Results of the last searches, by group. So a failed search does not look at every slot of a large pool again.
  // taken_ has a bit for each slot that was held. It is valid while the group's shared count equals freed_seen_. A pool
  // of one group has no counts, because a look is cheaper.
  std::vector<std::uint64_t> freed_seen_, taken_;
  struct Cached {
    std::uint32_t slot;
    std::uint64_t size;
  };
  std::vector<Cached> cached_;  // the latest last
  std::optional<std::uint32_t> fixed_limit_;
  struct Limit {
    std::uint64_t size;
    std::uint32_t slots;
  };
  std::vector<Limit> limits_;
  std::uint32_t limits_at_change_ = 0;
  std::uint32_t next_free_;            // where the search for a free slot begins
  std::uint32_t freed_ = pool::kNone;  // the last slot that this process freed, until it acquires
  mutable KnownSegment segment_;       // the segment of the last query
  mutable std::vector<KnownSegment> segments_;
  std::vector<LaneSender*> senders_;
  std::uint32_t looks_spared_ = 0;  // so many calls of look_ahead() do nothing: the last look was useless
  std::uint32_t in_flight_ = 0;     // messages of all senders that hold something, as far as known
};

}  // namespace shmb::client
