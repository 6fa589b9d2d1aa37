// SPDX-License-Identifier: Apache-2.0
// Where each table lies. Broker and library compute it from the same shape, so nothing but the shape has to be trusted.
#include "proto/pool_layout.hpp"

#include <algorithm>
#include <cstring>

namespace shmb::pool {
namespace {

constexpr std::uint64_t kPage = 4096, kHugePage = std::uint64_t{2} << 20;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

struct Places {
  std::uint64_t participants, segments, queues, lanes, directory_end;
  std::uint64_t wait, queue_waiters, slots, freed, lane_memory, control_end;
};

Places places(const Shape& shape) {
  Places p{};
  std::uint64_t at = sizeof(DirectoryHeader);
  auto table = [&](std::uint64_t size, std::uint64_t count) {
    at = round_up(at, kApart);
    const std::uint64_t here = at;
    at += size * count;
    return here;
  };
  p.participants = table(sizeof(ParticipantEntry), kParticipants);
  p.segments = table(sizeof(SegmentEntry), shape.segments);
  p.queues = table(sizeof(QueueEntry), shape.queues);
  p.lanes = table(sizeof(LaneEntry), shape.lanes);
  p.directory_end = round_up(at, kPage);
  at = sizeof(ControlHeader);
  p.wait = table(sizeof(WaitEntry), kParticipants);
  p.queue_waiters = table(sizeof(QueueWaiters), shape.queues);
  p.slots = table(sizeof(SlotEntry), shape.slots);
  p.freed = table(sizeof(std::uint64_t), (shape.slots + kGroupSlots - 1) / kGroupSlots);
  p.lane_memory = table(1, shape.lane_bytes);
  p.control_end = round_up(at, kPage);
  return p;
}

Shape shape_of(const DirectoryHeader& header) {
  Shape shape;
  shape.slots = header.slots;
  shape.lanes = header.lanes;
  shape.queues = header.queues;
  shape.segments = header.segments;
  shape.lane_bytes = header.control_bytes - header.lane_memory;
  return shape;
}

}  // namespace

std::uint64_t stride_of(std::uint64_t slot_size) {
  return round_up(slot_size, slot_size >= kHugePage ? kHugePage : slot_size >= kPage ? kPage : kLine);
}

std::uint64_t lane_bytes(QueueKind kind, std::uint32_t cells, std::uint32_t cell_size) {
  return round_up(LaneView::cells_offset(kind) + std::uint64_t{cells} * cell_size, kApart);
}

std::uint64_t directory_bytes(const Shape& shape) { return places(shape).directory_end; }
std::uint64_t control_bytes(const Shape& shape) { return places(shape).control_end; }
std::uint64_t lane_memory_at(const Shape& shape) { return places(shape).lane_memory; }

bool valid(const Shape& shape) {
  return shape.slots <= kMaxSlots && shape.lanes >= 1 && shape.lanes <= kMaxLanes && shape.queues >= 1 &&
         shape.queues <= kMaxQueues && shape.segments <= kMaxSegments && shape.lane_bytes <= kMaxControlBytes &&
         control_bytes(shape) <= kMaxControlBytes;
}

View::View(const Shape& shape, std::byte* directory, std::byte* control)
    : directory_(directory), control_(control), shape_(shape) {
  const Places p = places(shape);
  control_bytes_ = p.control_end;
  lane_memory_ = p.lane_memory;
  participants_ = p.participants;
  segments_at_ = p.segments;
  queues_at_ = p.queues;
  lanes_at_ = p.lanes;
  wait_at_ = p.wait;
  queue_waiters_at_ = p.queue_waiters;
  slots_at_ = p.slots;
  freed_at_ = p.freed;
}

std::optional<View> View::open(std::span<std::byte> directory, std::span<std::byte> control) {
  if (directory.size() < sizeof(DirectoryHeader)) return std::nullopt;
  const auto& header = *reinterpret_cast<const DirectoryHeader*>(directory.data());
  if (header.magic != kMagic || header.version != kVersion) return std::nullopt;
  if (header.lane_memory > header.control_bytes) return std::nullopt;
  const Shape shape = shape_of(header);
  if (!valid(shape)) return std::nullopt;
  const Places p = places(shape);
  if (p.directory_end > directory.size() || p.control_end > control.size() || p.lane_memory != header.lane_memory)
    return std::nullopt;
  return View(shape, directory.data(), control.data());
}

bool View::lane_fits(std::uint64_t offset, QueueKind kind, std::uint32_t cells, std::uint32_t cell_size) const {
  if (!std::has_single_bit(cells) || (cell_size != 64 && cell_size != 128) || offset % kApart != 0) return false;
  const std::uint64_t bytes = pool::lane_bytes(kind, cells, cell_size);
  return offset >= lane_memory_ && offset <= control_bytes_ && bytes <= control_bytes_ - offset;
}

View lay_out(const Shape& shape, std::uint64_t epoch, std::uint64_t pool, std::span<std::byte> directory,
             std::span<std::byte> control) {
  const Places p = places(shape);
  auto& header = *reinterpret_cast<DirectoryHeader*>(directory.data());
  header.version = kVersion;
  header.slots = shape.slots;
  header.lanes = shape.lanes;
  header.queues = shape.queues;
  header.segments = shape.segments;
  header.epoch = epoch;
  header.pool = pool;
  header.directory_bytes = p.directory_end;
  header.control_bytes = p.lane_memory + shape.lane_bytes;
  header.lane_memory = p.lane_memory;
  header.magic = kMagic;
  return View(shape, directory.data(), control.data());
}

void prepare_lane(std::byte* memory, QueueKind kind, std::uint32_t cells, std::uint32_t cell_size) {
  prepare_cells(memory, kind, cells, cell_size, 0, cells);
}

void prepare_cells(std::byte* memory, QueueKind kind, std::uint32_t cells, std::uint32_t cell_size, std::uint32_t from,
                   std::uint32_t count) {
  const std::uint32_t end = std::min(cells, from + count);
  const std::uint64_t head = LaneView::cells_offset(kind);
  const std::uint64_t begins = from == 0 ? 0 : head + std::uint64_t{from} * cell_size;
  const std::uint64_t ends = end == cells ? lane_bytes(kind, cells, cell_size) : head + std::uint64_t{end} * cell_size;
  std::memset(memory + begins, 0, ends - begins);
  if (kind != QueueKind::mpmc) return;
  const LaneView lane(memory, kind, cells, cell_size);
  for (std::uint64_t k = from; k < end; ++k) lane.cell(k).word.store(CellWord::empty(k), std::memory_order_relaxed);
}

}  // namespace shmb::pool
