// SPDX-License-Identifier: Apache-2.0
// The slots' memory, as this process has mapped it.
//
// A segment is a region cut into slots of one size. The pool's directory lists the segments. One that is entered stays
// there while the pool lives, so what was read of it stays true. Segments with the same slot size form a size class.
// A class grows by further segments, up to its limit.
//
// A segment is mapped when it is first needed. A mapping that fails is tried again the next time. So this process knows
// the segment of each slot of the directory, but may not have mapped it yet.
//
// The lock of the pool's participant must be held for all functions, from the moment that the pool is shared.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "client/lane/participant.hpp"
#include "client/queue/pool_spec.hpp"
#include "client/region/region.hpp"
#include "client/session/session.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::client {

class Segments {
 public:
  struct Class {
    std::uint64_t slot_size = 0;
    std::uint32_t slots = 0, limit = 0;
    std::vector<SlotRange> ranges;
  };

  // `me` has read them from the directory.
  Segments(const std::shared_ptr<Session>& session, const pool::View& view, const std::unique_ptr<Participant>& me,
           bool read_only)
      : session_(session), view_(view), me_(me), read_only_(read_only) {}

  void expect(std::span<const SizeClass> later);  // classes that may have no segment yet
  void read();                                    // segments that the directory has got since
  // Maps the segments that are not mapped yet. The error is that of the last one that failed; without a sentence: none.
  Error attach(std::int64_t timeout);
  // The region is this process' own mapping of that segment. False: the directory has no such segment. Another thread
  // may have found it there and attached it meanwhile. Then slots lie in that mapping already, and it stays.
  bool adopt(std::uint32_t segment, Region::Handle region);
  void unmap_all() { segments_.clear(); }

  // The address of a slot's bytes. nullptr: its segment cannot be mapped (the reason is in `why`). `timeout` is for the
  // broker.
  std::byte* data(std::uint32_t slot, Error* why, std::int64_t timeout) {
    if (!segments_.empty() && segments_.front().region) [[likely]] {
      const Segment& first = segments_.front();
      if (slot - first.first < first.slots) return first.region->data() + (slot - first.first) * first.stride;
    }
    return find_data(slot, why, timeout);
  }
  std::byte* data_if_mapped(std::uint32_t slot) const {  // as data(), without asking the broker
    for (const Segment& segment : segments_) {
      if (slot - segment.first >= segment.slots) continue;
      return segment.region ? segment.region->data() + (slot - segment.first) * segment.stride : nullptr;
    }
    return nullptr;
  }

  // The smallest class for so many bytes. nullptr: none is large enough.
  const Class* class_for(std::uint64_t length) const {
    for (const Class& one : classes_)
      if (one.slot_size >= length) return &one;
    return nullptr;
  }
  const std::vector<Class>& classes() const { return classes_; }
  std::uint64_t largest() const { return classes_.empty() ? 0 : classes_.back().slot_size; }
  std::uint64_t limits() const;                       // of all classes together
  std::uint32_t may_grow(const Class& wanted) const;  // by so many slots
  std::uint32_t slots() const { return slots_; }
  std::size_t count() const { return segments_.size(); }
  std::uint64_t bytes() const;
  std::uint32_t count_used(const std::vector<SlotRange>& ranges) const;

 private:
  struct Segment {
    std::uint32_t first = 0, slots = 0;
    std::uint64_t stride = 0, bytes = 0;
    Region::Handle region;
  };
  std::byte* find_data(std::uint32_t slot, Error* why, std::int64_t timeout);

  const std::shared_ptr<Session>& session_;
  const pool::View& view_;
  const std::unique_ptr<Participant>& me_;
  const bool read_only_;
  std::vector<Segment> segments_;
  std::vector<Class> classes_;  // by size
  std::uint32_t slots_ = 0;
};

}  // namespace shmb::client
