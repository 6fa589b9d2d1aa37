// SPDX-License-Identifier: Apache-2.0
// What the broker does when a participant of a pool is dead or has left: steps D1 to D6 of docs/pools.md, over the two
// areas alone. Each step is one load, one change of a word that is not tried again, or one store to the directory; the
// work can stop between any two of them and begin again from D1, here or in a later life of the broker. Nothing that
// stands in the control area is believed: numbers are checked before they are used, loops are as long as the directory
// says, nothing waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proto/pool_layout.hpp"

namespace shmb::daemon {

// What the control area does not tell.
class RepairFacts {
 public:
  // Nobody can take a message from this lane any more.
  virtual bool receivers_done(std::uint32_t lane) = 0;
  virtual void wake_peers() = 0;

 protected:
  ~RepairFacts() = default;
};

class Repair {
 public:
  Repair(const pool::View& view, std::uint32_t participant, pool::ParticipantState as);
  enum class State { working, waiting, clean };
  // At most about `lines` cache lines of work. `monotonic` is the clock of deadlines. waiting: unread messages name
  // slots that its bit protects; ask to look again when a reader is through. clean: no word names it any more.
  State run(std::size_t lines, std::int64_t monotonic, RepairFacts& facts);
  std::size_t left() const { return left_; }  // of `lines`, for others
  void look_again();
  State state() const { return state_; }
  bool found_impossible() const { return impossible_; }
  std::uint32_t slots_used() const { return used_; }  // with any holder, as the last sweep saw it

 private:
  enum class Step : std::uint8_t { declare, give_back, look, sweep, rest };
  State go_on(std::size_t& lines, std::int64_t monotonic, RepairFacts& facts);
  void declare();
  bool enter_lane(std::size_t& lines);
  bool give_back(std::size_t& lines);
  bool look(std::size_t& lines, std::int64_t monotonic, RepairFacts& facts);
  bool sweep(std::size_t& lines);
  void look_at(const pool::LaneView& lane, pool::QueueKind kind, std::uint32_t flags, pool::Cell& cell,
               std::int64_t monotonic);
  void keep(const pool::LaneView& lane, std::uint32_t flags, pool::Cell& cell, std::uint8_t tag);

  pool::View view_;
  std::uint32_t participant_, life_;
  pool::ParticipantState as_;
  Step step_ = Step::declare;
  State state_ = State::working;
  std::uint32_t lane_ = 0, cell_ = 0, slot_ = 0, serial_ = 0;  // where the work stands
  std::uint64_t head_ = 0;
  std::size_t left_ = 0;
  std::vector<bool> keep_, swept_;  // swept_, swept_all_: those of the last sweep
  bool swept_once_ = false, swept_all_ = false;
  bool in_lane_ = false, keep_all_ = false, again_ = false, impossible_ = false;
  bool free_in_group_ = false;  // of the slots of this group that the sweep has passed
  std::uint32_t held_ = 0, used_ = 0, used_now_ = 0;
};

// A lane's words, if its entry in the directory is in use and lies where it says.
struct KnownLane {
  pool::LaneView words;
  pool::QueueKind kind = pool::QueueKind::none;
  std::uint32_t flags = 0;
  explicit operator bool() const { return static_cast<bool>(words); }
};
KnownLane known_lane(const pool::View& view, std::uint32_t lane);
// Whether any of these participants is attached to a broadcast lane. A fence first, against the one that joins (J3).
bool attached(const pool::LaneView& lane, std::uint64_t participants);
// Claim lanes: no cell is full or claimed.
bool all_done(const pool::LaneView& lane);
// Messages in the lane that wait for receivers, at most as many as it has cells.
std::uint32_t unread(const pool::LaneView& lane, pool::QueueKind kind);
// Whether any message waits for one of these participants: in a ring the read ones stay full.
bool unread_by(const KnownLane& lane, std::uint64_t participants);

}  // namespace shmb::daemon
