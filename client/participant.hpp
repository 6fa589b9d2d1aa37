// SPDX-License-Identifier: Apache-2.0
// This process' private books in one pool: which slots it holds, and how often. The shared mask of a slot says only
// whether this process holds it, and only this process changes its bit: set at the first reference, cleared after the
// last. The books die with the process and need no repair.
//
// Everything but `alive` expects lock() to be held.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/sleeper.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::client {

class LaneSender;

struct SlotRange {
  std::uint32_t first = 0, count = 0;
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

  // A1..A3: a slot of one of the ranges, mine alone: one reference, a new generation. Idle own slots first, then what
  // the lanes of this process are done with, then any free one.
  std::optional<std::uint32_t> acquire(std::span<const SlotRange> ranges);
  void hold(std::uint32_t slot) { ++books_[slot].references; }  // one more; there is one already
  void drop(std::uint32_t slot);                                // one less; at none the slot is idle, or free (P1)
  // R3, Q3, C5: a reference to a slot that a message names. False: the generation is not that one, and nothing was
  // changed. That is a broken lane, unless the lane drops its oldest and confirm() says the message is lost.
  bool keep(std::uint32_t slot, std::uint32_t generation);
  void undo(std::uint32_t slot);  // takes a keep() back after confirm() has failed: never idle, always P1
  bool holds(std::uint32_t slot) const { return books_[slot].references > 0; }
  std::uint32_t generation(std::uint32_t slot) const {
    return view_.slot(slot).generation.load(std::memory_order_relaxed);
  }
  // Slots that this process acquired and nothing refers to any more may stay with it, for the next acquire without a
  // locked instruction. By default at most 16, and so few that all participants together leave 0.4 of each size; no
  // further ones while somebody waits for a slot, and none while this process sleeps.
  void set_cache_limit(std::uint32_t slots);
  void flush_cache();
  // Behind the publication of a message with this slot: what the next acquire would have to ask readers for is asked
  // while this process waits for an answer anyway. The slot that will probably be taken next.
  std::optional<std::uint32_t> look_ahead(std::uint32_t slot);
  void reclaim();     // drops what the readers of all this process' lanes are done with, or what is too old for them
  Deadline expiry();  // when the next message of all lanes is too old
  // What a sleeper that waits for a slot waits for: a free one, or a reader that is done with a message of ours.
  void slot_sources(std::vector<std::atomic<std::uint64_t>*>& masks);

  // How long a user may write into this slot; nullopt: no such slot (yet).
  std::optional<std::uint64_t> slot_size(std::uint32_t slot) const {
    if (slot - segment_.first >= segment_.slots && !find_segment(slot)) return std::nullopt;
    return segment_.size;
  }
  // Is the handle of a message possible: its slot exists, and offset and length lie within it.
  bool fits(const pool::Handle& handle) const {
    const auto size = slot_size(handle.slot);
    return size && handle.offset <= *size && handle.length <= *size - handle.offset;
  }

  // Is part[index] that life, and live? (acquire: what the dead wrote is visible to who sees it dead)
  bool alive(std::uint32_t index, std::uint32_t life) const {
    return view_.participant(index).stamp.load(std::memory_order_acquire) ==
           pool::Stamp{life, static_cast<std::uint8_t>(pool::ParticipantState::live)}.word();
  }

 private:
  friend class LaneSender;
  enum : std::uint8_t {
    kMine = 1,       // acquired here: worth keeping when idle. What came from others goes back to them.
    kCached = 2,     // idle: no reference, but the bit is set
    kLookLocked = 4  // came out of a cell that was overwritten: a plain look at its mask proves nothing (A2l)
  };
  struct Book {
    std::uint32_t references = 0;
    std::uint8_t flags = 0;
  };
  struct Segment {
    std::uint32_t first = 0, slots = 0;
    std::uint64_t size = 0;
  };
  void drop_overwritten(std::uint32_t slot);  // drop of a slot whose cell drop-oldest has marked busy
  void free_slot(std::uint32_t slot);         // P1, P2, and the wake
  std::optional<std::uint32_t> take_cached(std::span<const SlotRange> ranges);
  std::optional<std::uint32_t> take_free(std::span<const SlotRange> ranges);
  std::optional<std::uint32_t> take_free(SlotRange range);
  std::optional<std::uint32_t> take_free(std::uint32_t group, std::uint64_t wanted);
  bool passed_over(std::uint32_t group);
  std::uint32_t rotation(std::uint32_t slot);
  bool mine_alone(std::uint32_t slot);
  std::uint32_t begin_use(std::uint32_t slot);
  std::uint32_t cache_limit(std::uint64_t size);
  bool may_cache(std::uint64_t size);
  bool find_segment(std::uint32_t slot) const;

  const pool::View view_;
  const std::uint32_t index_, life_;
  const std::uint64_t bit_;
  LocalLock lock_;
  Sleeper sleeper_;
  std::vector<Book> books_;
  // What the last searches learned, by group, so that one in vain does not look at every slot of a large pool again: a
  // bit in taken_ for each slot that was held, which holds as long as the group's shared count is that of freed_seen_.
  // A pool of one group is looked at sooner than counted, and has none of this.
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
  std::uint32_t freed_ = pool::kNone;  // the last one that this process freed, until it acquires
  mutable Segment segment_;            // the one that was asked for last
  std::vector<LaneSender*> senders_;
  std::uint32_t looks_spared_ = 0;  // so many times look_ahead() does not look: the last look was for nothing
  std::uint32_t in_flight_ = 0;     // messages of all senders that hold something, as far as is known
};

}  // namespace shmb::client
