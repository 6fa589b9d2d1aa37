// SPDX-License-Identifier: Apache-2.0
// The queues and lanes of a pool as the broker knows them, and the functions that write them into the directory.
//
// Participants read the directory, and the broker only writes it. All that the broker decides, it decides by these
// tables, which no other process can reach. So a process that managed to write the directory would mislead those who
// share the pool, and nobody else: no word of it becomes an index, an offset or a length of the broker.
//
// The order is always: the tables first, then the entry in the directory, then the word `change`, then the wakes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/books/booked.hpp"
#include "daemon/kit/account.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::daemon {

struct LaneBook;
struct Pool;
struct Region;

struct QueueBook : books::Booked<QueueBook> {
  bool in_use() const { return state != pool::QueueState::free; }

  Pool* pool = nullptr;
  std::uint64_t row = 0;  // cursor of LIST, never reused
  pool::QueueState state = pool::QueueState::free;
  pool::QueueKind kind = pool::QueueKind::none;
  bool removed = false;  // goes with its last end and lane
  std::uint32_t serial = 0, flags = 0, cells = 0, cell_size = 0;
  std::uint64_t readers = 0, writers = 0;    // participants with such an end, a bit each
  std::uint32_t generation = 0, deaths = 0;  // as in pool::QueueEntry
  std::uint32_t writer_lane = pool::kNone;   // broadcast
  std::uint64_t in_regions = 0;              // sum of the lanes that are free again, see LaneView::in_regions
  std::string name;
};

// A region that messages of the lane name.
struct LaneHold : books::Booked<LaneHold> {
  std::uint64_t row = 0;
  LaneBook* lane = nullptr;
  Region* region = nullptr;
  Charge charge;
};

struct LaneBook : books::Booked<LaneBook> {
  bool in_use() const { return state != pool::LaneState::free; }
  bool keeps_memory() const { return in_use() || cells != 0; }
  // The life of its sender, or of the receiver of an spsc lane.
  bool is_from(std::uint32_t participant, std::uint32_t life) const { return from == participant && from_life == life; }
  bool is_to(std::uint32_t participant, std::uint32_t life) const { return to == participant && to_life == life; }

  Pool* pool = nullptr;
  std::uint64_t row = 0;
  pool::LaneState state = pool::LaneState::free;
  bool sender_finished = false, receiver_done = false;  // receiver_done: spsc lanes
  std::uint32_t serial = 0;
  std::uint32_t queue = 0, queue_serial = 0;
  std::uint32_t from = 0, from_life = 0, to = pool::kNone, to_life = 0;
  std::uint32_t cells = 0, cell_size = 0;
  std::uint64_t offset = 0;                 // in the control area
  std::uint64_t through = 0;                // receivers of mpmc and broadcast lanes, one bit each
  std::map<std::uint64_t, LaneHold> holds;  // by the id of the region
};

struct PoolTables {
  // The areas have been laid out, by this broker or by an earlier one. All tables are empty.
  void begin(const pool::View& fresh);

  // A new queue or lane; its stamp is written last.
  void enter_queue(std::uint32_t index);
  void enter_lane(std::uint32_t index);
  // One that is there, after a change of its ends or its state.
  void show_queue(std::uint32_t index);
  void show_lane(std::uint32_t index);
  void show_participant(std::uint32_t index, std::uint32_t life, pool::ParticipantState state);
  void show_broken();
  void show_doorbells();
  // The last step of each change, except for the wakes.
  void show_change();

  bool of_queue(const LaneBook& lane, std::uint32_t queue) const {
    return lane.queue == queue && lane.queue_serial == queues[queue].serial;
  }
  std::uint64_t bytes_of(const LaneBook& lane) const {
    return pool::lane_bytes(queues[lane.queue].kind, lane.cells, lane.cell_size);
  }

  pool::View view;                // its directory is for writing only
  std::uint64_t lane_memory = 0;  // offset in the control area where lanes begin
  std::vector<QueueBook> queues;
  std::vector<LaneBook> lanes;
  std::uint64_t doorbells = 0;  // participants that have set one, a bit each
  std::uint32_t change = 0;
  pool::Broken broken = pool::Broken::no;
};

// The words of a lane that is in use.
struct KnownLane {
  pool::LaneView words;
  pool::QueueKind kind = pool::QueueKind::none;
  std::uint32_t flags = 0;
  explicit operator bool() const { return static_cast<bool>(words); }
};
KnownLane known_lane(const PoolTables& tables, std::uint32_t lane);

}  // namespace shmb::daemon
