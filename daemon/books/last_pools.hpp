// SPDX-License-Identifier: Apache-2.0
// The pools in the books of the last broker, each with all of its records, and which of them can go on.
//
// A pool is a small world of numbers that point at each other: places, lives, bits, ranges of slots, offsets in its
// memory. The broker takes its own numbers as right and never checks them again. So all of them are checked here once,
// before any object is made. A pool whose records contradict each other is left out with a sentence, and so is one
// whose memory or whose segment is not there. Other pools are not affected, nor are the regions of that one.
//
// Of the directory only size, seals and mode count. What is in it is written again from the records.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/books/reader.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::daemon::books {

template <std::size_t n>
std::string_view text_of(const std::array<char, n>& field) {
  const std::string_view all(field.data(), n);
  return all.substr(0, all.find('\0'));
}

struct LastPool {
  PoolRecord pool;
  std::vector<ParticipantRecord> participants;
  std::vector<SegmentRecord> segments;  // by index
  std::vector<QueueRecord> queues;
  std::vector<LaneRecord> lanes;
  std::vector<HoldRecord> holds;

  pool::Shape shape() const {
    return {pool.most_slots, pool.most_lanes, pool.most_queues, pool.most_segments, pool.lane_bytes};
  }
  const QueueRecord* queue_of(const LaneRecord& lane) const;
};

class LastPools {
 public:
  LastPools() = default;
  // `region`: the record of a region whose memory is there, nullptr for another one.
  LastPools(const Reader& reader, const std::function<const RegionRecord*(std::uint64_t)>& region);

  const std::vector<LastPool>& whole() const { return whole_; }
  // Of the memory of these pools, and of doorbells of their participants.
  const std::vector<int>& numbers() const { return numbers_; }
  // Why other pools cannot go on, and which doorbells are lost.
  const std::vector<std::string>& losses() const { return losses_; }

 private:
  std::vector<LastPool> whole_;
  std::vector<int> numbers_;
  std::vector<std::string> losses_;
};

}  // namespace shmb::daemon::books
