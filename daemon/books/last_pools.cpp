// SPDX-License-Identifier: Apache-2.0
// See last_pools.hpp. Each check returns a sentence about what is wrong, or an empty one.
#include "daemon/books/last_pools.hpp"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/sys_memory.hpp"
#include "base/sys_socket.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon::books {
namespace {

using pool::kNone;
using pool::LaneState;
using pool::ParticipantState;
using pool::QueueKind;
using pool::QueueState;

using FindRegion = std::function<const RegionRecord*(std::uint64_t)>;

std::uint64_t bit(std::uint32_t participant) { return std::uint64_t{1} << participant; }
ParticipantState state_of(const ParticipantRecord& who) { return static_cast<ParticipantState>(who.state); }
QueueState state_of(const QueueRecord& queue) { return static_cast<QueueState>(queue.state); }
LaneState state_of(const LaneRecord& lane) { return static_cast<LaneState>(lane.state); }
QueueKind kind_of(const QueueRecord& queue) { return static_cast<QueueKind>(queue.kind); }

// A later broker maps it for writing, which the seal against writing would refuse.
bool is_area(int fd, std::uint64_t bytes) {
  constexpr int kSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
  constexpr int kAgainstWriting = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
  const auto found = sys::seals(fd);
  if (!found || (*found & kSeals) != kSeals || (*found & kAgainstWriting) != 0) return false;
  const auto facts = sys::file_facts(fd);
  return facts && facts->size == bytes;
}

std::string check_areas(const LastPool& last) {
  const pool::Shape shape = last.shape();
  if (last.pool.group == 0) return "it has no group";
  if (!pool::valid(shape)) return "no pool has so many slots, lanes, queues or segments";
  if (last.pool.broken > static_cast<std::uint8_t>(pool::Broken::broker_ended)) return "it is over for no known reason";
  const auto not_its = [](std::int32_t fd, std::string_view what, std::uint64_t bytes) {
    return "descriptor " + std::to_string(fd) + " is not its " + std::string(what) + " of " + std::to_string(bytes) +
           " bytes";
  };
  if (const auto bytes = pool::directory_bytes(shape); !is_area(last.pool.directory, bytes))
    return not_its(last.pool.directory, "directory", bytes);
  if (const auto bytes = pool::control_bytes(shape); !is_area(last.pool.control, bytes))
    return not_its(last.pool.control, "control area", bytes);
  return {};
}

std::string check_participants(const LastPool& last) {
  std::uint64_t seen = 0;
  std::set<std::uint64_t> sessions;
  for (const ParticipantRecord& who : last.participants) {
    const auto wrong = [&](std::string_view what) {
      return "participant " + std::to_string(who.index) + " " + std::string(what);
    };
    if (who.index >= pool::kParticipants || (seen & bit(who.index)) != 0) return wrong("has no place of its own");
    seen |= bit(who.index);
    if (who.life == 0) return wrong("has no life");
    const ParticipantState state = state_of(who);
    if (state == ParticipantState::joining || state > ParticipantState::left) return wrong("is in no state");
    if (state != ParticipantState::live && (who.session != 0 || who.doorbell >= 0))
      return wrong("is not there, and has a session or a doorbell");
    if (who.session != 0 && !sessions.insert(who.session).second) return wrong("has the session of another one");
  }
  return {};
}

std::string check_segments(const LastPool& last, const FindRegion& region_of) {
  std::uint64_t slots = 0;
  for (std::size_t i = 0; i < last.segments.size(); ++i) {
    const SegmentRecord& segment = last.segments[i];
    const auto wrong = [&](std::string_view what) {
      return "segment " + std::to_string(segment.index) + " " + std::string(what);
    };
    if (segment.index != i || i >= last.pool.most_segments) return wrong("has no place of its own");
    if (segment.first_slot != slots || segment.slots == 0 || segment.slots > last.pool.most_slots - slots)
      return wrong("has the slots of another one, or none");
    slots += segment.slots;
    if (segment.slots_limit < segment.slots) return wrong("has more slots than its limit");
    const RegionRecord* const region = region_of(segment.id);
    if (!region) return wrong("is region " + std::to_string(segment.id) + ", which is lost");
    if (region->group != last.pool.group || region->segment_of != last.pool.id ||
        region->state == SHMBW_REGION_STATE_CACHED)
      return wrong("is region " + std::to_string(segment.id) + ", which says something else");
    if (segment.slot_size == 0 || segment.slot_size > region->bytes ||
        pool::stride_of(segment.slot_size) > region->bytes / segment.slots)
      return wrong("does not fit into its region");
  }
  return slots == last.pool.slots
             ? ""
             : "its segments have " + std::to_string(slots) + " slots, and not " + std::to_string(last.pool.slots);
}

std::uint64_t live(const LastPool& last) {
  std::uint64_t mask = 0;
  for (const ParticipantRecord& who : last.participants)
    if (state_of(who) == ParticipantState::live) mask |= bit(who.index);
  return mask;
}

std::string check_queues(const LastPool& last) {
  constexpr std::uint32_t kFlags = pool::kQueueDropOldest | pool::kQueueExpiring | pool::kQueueAtLeastOnce;
  std::set<std::uint32_t> places;
  std::set<std::string_view> names;
  for (const QueueRecord& queue : last.queues) {
    const auto wrong = [&](std::string_view what) {
      return "queue " + std::to_string(queue.index) + " " + std::string(what);
    };
    if (queue.index >= last.pool.most_queues || !places.insert(queue.index).second)
      return wrong("has no place of its own");
    if (state_of(queue) > QueueState::closed || kind_of(queue) < QueueKind::spsc ||
        kind_of(queue) > QueueKind::broadcast)
      return wrong("is of no kind, or in no state");
    if (queue.serial == 0 || (queue.flags & ~kFlags) != 0) return wrong("has no serial, or unknown flags");
    if (!std::has_single_bit(queue.cells) || queue.cells < 2 || queue.cells > 65536 ||
        (queue.cell_size != 64 && queue.cell_size != 128))
      return wrong("has cells that no queue has");
    if (((queue.readers | queue.writers) & ~live(last)) != 0)
      return wrong("has an end of a participant that is not there");
    if (state_of(queue) == QueueState::free) {
      if ((queue.readers | queue.writers) != 0) return wrong("is free, and has ends");
      continue;
    }
    if (!queue.removed && !names.insert(text_of(queue.name)).second) return wrong("has the name of another one");
  }
  return {};
}

std::string check_lane(const LastPool& last, const LaneRecord& lane, const QueueRecord& queue) {
  const bool in_use = state_of(lane) != LaneState::free, spsc = kind_of(queue) == QueueKind::spsc;
  if (state_of(lane) > LaneState::reader_gone || (state_of(lane) == LaneState::reader_gone && !spsc))
    return "is in no state of a lane of its kind";
  if (state_of(queue) == QueueState::free || (!in_use && kind_of(queue) != QueueKind::broadcast))
    return "has memory that it may not have";
  if (lane.cells != queue.cells || lane.cell_size != queue.cell_size) return "has other cells than its queue";
  if (lane.serial == 0 || lane.serial > last.pool.last_lane_serial) return "has a serial that was not given out";
  if (lane.from >= pool::kParticipants || lane.from_life == 0) return "has no sender";
  if (spsc ? lane.to >= pool::kParticipants || lane.to_life == 0 : lane.to != kNone) return "has a wrong receiver";
  return {};
}

std::string check_lanes(const LastPool& last) {
  const std::uint64_t begin = pool::lane_memory_at(last.shape()), end = pool::control_bytes(last.shape());
  std::set<std::uint32_t> places, serials;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;  // offset, end
  std::map<std::uint32_t, const LaneRecord*> by_index;
  for (const LaneRecord& lane : last.lanes) {
    const auto wrong = [&](std::string_view what) {
      return "lane " + std::to_string(lane.index) + " " + std::string(what);
    };
    if (lane.index >= last.pool.most_lanes || !places.insert(lane.index).second)
      return wrong("has no place of its own");
    const QueueRecord* const queue = last.queue_of(lane);
    if (!queue) return wrong("has no queue of its pool");
    if (std::string what = check_lane(last, lane, *queue); !what.empty()) return wrong(what);
    if (!serials.insert(lane.serial).second) return wrong("has the serial of another one");
    const std::uint64_t bytes = pool::lane_bytes(kind_of(*queue), lane.cells, lane.cell_size);
    if (lane.offset % pool::kApart != 0 || lane.offset < begin || lane.offset > end || bytes > end - lane.offset)
      return wrong("does not lie in the memory of lanes");
    taken.emplace_back(lane.offset, lane.offset + bytes);
    by_index[lane.index] = &lane;
  }
  std::ranges::sort(taken);
  for (std::size_t i = 1; i < taken.size(); ++i)
    if (taken[i].first < taken[i - 1].second) return "two of its lanes overlap";
  for (const QueueRecord& queue : last.queues) {
    if (queue.writer_lane == kNone || kind_of(queue) != QueueKind::broadcast) continue;
    const auto at = by_index.find(queue.writer_lane);
    if (at == by_index.end() || at->second->queue != queue.id || state_of(*at->second) == LaneState::free)
      return "queue " + std::to_string(queue.index) + " names a lane of its writer that is not there";
  }
  return {};
}

std::string check_holds(const LastPool& last) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  for (const HoldRecord& hold : last.holds) {
    if (!seen.emplace(hold.lane, hold.region).second)
      return "a lane holds region " + std::to_string(hold.region) + " twice";
    const auto lane = std::ranges::find(last.lanes, hold.lane, &LaneRecord::id);
    if (state_of(*lane) == LaneState::free) return "a lane that is free holds region " + std::to_string(hold.region);
  }
  return {};
}

std::string check(const LastPool& last, const FindRegion& region) {
  std::string why = check_areas(last);
  if (why.empty()) why = check_participants(last);
  if (why.empty()) why = check_segments(last, region);
  if (why.empty()) why = check_queues(last);
  if (why.empty()) why = check_lanes(last);
  if (why.empty()) why = check_holds(last);
  return why;
}

}  // namespace

const QueueRecord* LastPool::queue_of(const LaneRecord& lane) const {
  const auto at = std::ranges::find(queues, lane.queue, &QueueRecord::id);
  return at == queues.end() ? nullptr : &*at;
}

LastPools::LastPools(const Reader& reader, const FindRegion& region) {
  std::map<std::uint64_t, LastPool> all;
  std::map<std::uint64_t, LastPool*> of_lane;
  reader.each<PoolRecord>([&](const PoolRecord& record) { all[record.id].pool = record; });
  if (all.empty()) return;
  // The reader has seen that each record names a pool, a lane or a region that is there, or none.
  const auto collect = [&]<class Record>(std::vector<Record> LastPool::* list) {
    reader.each<Record>([&](const Record& record) {
      if (const auto at = all.find(record.pool); at != all.end()) (at->second.*list).push_back(record);
    });
  };
  collect(&LastPool::participants);
  collect(&LastPool::segments);
  collect(&LastPool::queues);
  collect(&LastPool::lanes);
  for (auto& [id, last] : all)
    for (const LaneRecord& lane : last.lanes) of_lane[lane.id] = &last;
  reader.each<HoldRecord>([&](const HoldRecord& hold) {
    if (const auto at = of_lane.find(hold.lane); at != of_lane.end()) at->second->holds.push_back(hold);
  });
  std::set<std::pair<std::uint64_t, std::string_view>> names;
  for (auto& [id, last] : all) {
    std::ranges::sort(last.segments, {}, &SegmentRecord::index);
    std::string why = check(last, region);
    const std::string_view name = text_of(last.pool.name);
    if (why.empty() && !name.empty() && !names.emplace(last.pool.group, name).second) why = "another pool has its name";
    if (!why.empty()) {
      losses_.push_back("pool " + std::to_string(id) + " cannot go on: " + why);
      continue;
    }
    numbers_.push_back(last.pool.directory);
    numbers_.push_back(last.pool.control);
    for (ParticipantRecord& who : last.participants) {
      if (who.doorbell < 0) continue;
      if (sys::is_pair_end(who.doorbell)) {
        numbers_.push_back(who.doorbell);
        continue;
      }
      losses_.push_back("pool " + std::to_string(id) + ": descriptor " + std::to_string(who.doorbell) +
                        " is not the doorbell of participant " + std::to_string(who.index));
      who.doorbell = -1;
    }
    whole_.push_back(std::move(last));
  }
}

}  // namespace shmb::daemon::books
