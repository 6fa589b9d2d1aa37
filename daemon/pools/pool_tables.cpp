// SPDX-License-Identifier: Apache-2.0
// See pool_tables.hpp. Nothing here loads a word of the directory, but begin(): it counts on from the `change` of an
// earlier broker. Whatever that word is, the next one differs from it.
#include "daemon/pools/pool_tables.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace shmb::daemon {
namespace {

constexpr auto kRelease = std::memory_order_release;
constexpr auto kInOrder = std::memory_order_seq_cst;

template <class State>
std::uint64_t stamp_word(std::uint32_t serial, State state) {
  return pool::Stamp{serial, static_cast<std::uint8_t>(state)}.word();
}

}  // namespace

void PoolTables::begin(const pool::View& fresh) {
  view = fresh;
  lane_memory = pool::lane_memory_at(fresh.shape());
  change = fresh.header().change.load(std::memory_order_relaxed);
  queues.resize(fresh.queues());
  lanes.resize(fresh.lanes());
}

void PoolTables::enter_queue(std::uint32_t index) {
  const QueueBook& queue = queues[index];
  pool::QueueEntry& entry = view.queue(index);
  entry.kind = static_cast<std::uint8_t>(queue.kind);
  entry.flags = queue.flags;
  entry.cells = queue.cells;
  entry.cell_size = queue.cell_size;
  entry.name_length = static_cast<std::uint32_t>(queue.name.size());
  std::array<char, sizeof entry.name> name{};
  std::memcpy(name.data(), queue.name.data(), std::min(queue.name.size(), name.size()));
  std::memcpy(entry.name, name.data(), name.size());
  show_queue(index);
}

void PoolTables::show_queue(std::uint32_t index) {
  const QueueBook& queue = queues[index];
  pool::QueueEntry& entry = view.queue(index);
  entry.deaths.store(queue.deaths, kRelease);
  entry.writer_lane.store(queue.writer_lane, kRelease);
  entry.generation.store(queue.generation, kRelease);
  entry.readers.store(queue.readers, kInOrder);
  entry.writers.store(queue.writers, kInOrder);
  entry.stamp.store(stamp_word(queue.serial, queue.state), kInOrder);
}

void PoolTables::enter_lane(std::uint32_t index) {
  const LaneBook& lane = lanes[index];
  pool::LaneEntry& entry = view.lane(index);
  entry.queue = lane.queue;
  entry.queue_serial = lane.queue_serial;
  entry.from = lane.from;
  entry.from_life = lane.from_life;
  entry.to = lane.to;
  entry.to_life = lane.to_life;
  entry.cells = lane.cells;
  entry.cell_size = lane.cell_size;
  entry.offset = lane.offset;
  show_lane(index);
}

// A receiver that joins a lane says so and then looks at its stamp (J3, J4). The broker looks for receivers after this
// store. Whoever sees a lane in use finds its memory in the entry.
void PoolTables::show_lane(std::uint32_t index) {
  const LaneBook& lane = lanes[index];
  pool::LaneEntry& entry = view.lane(index);
  entry.stamp.store(stamp_word(lane.serial, lane.state), kInOrder);
  if (!lane.in_use()) entry.cells = lane.cells;
}

void PoolTables::show_participant(std::uint32_t index, std::uint32_t life, pool::ParticipantState state) {
  pool::ParticipantEntry& entry = view.participant(index);
  if (state == pool::ParticipantState::dead) entry.last_death.store(life, std::memory_order_relaxed);
  entry.stamp.store(stamp_word(life, state), kInOrder);
}

void PoolTables::show_broken() { view.header().broken.store(static_cast<std::uint32_t>(broken), kInOrder); }
void PoolTables::show_doorbells() { view.header().doorbells.store(doorbells, kRelease); }
void PoolTables::show_change() { view.header().change.store(++change, kInOrder); }

// The kind of a lane is that of its queue, which stays as long as the lane is in use.
KnownLane known_lane(const PoolTables& tables, std::uint32_t index) {
  const LaneBook& lane = tables.lanes[index];
  if (!lane.in_use()) return {};
  const QueueBook& queue = tables.queues[lane.queue];
  return {pool::LaneView(tables.view.lane_memory(lane.offset), queue.kind, lane.cells, lane.cell_size), queue.kind,
          queue.flags};
}

}  // namespace shmb::daemon
