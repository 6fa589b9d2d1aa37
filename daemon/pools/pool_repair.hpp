// SPDX-License-Identifier: Apache-2.0
// Repair: what the broker does in a pool's memory when a participant is dead or has left (steps D1 to D6 of
// docs/pools.md). One Repair object serves one life of one participant.
//
// The participant may have stopped between any two instructions. Its bits are still in the holder words of slots, its
// claims are in lanes, and its unread messages name slots. The steps run in this order:
// 1. declare (D1): the directory shows the participant as dead or left, so that all who join or send afterwards see it.
// 2. give_back (D2): messages that it had claimed are full again. Its places in rings are cleared.
// 3. look (D3): every slot that its unread messages name is noted, because a reader may still take the message.
// 4. sweep (D4): its bit is cleared on all other slots, and freed slots are counted. Then peers are woken (D5).
// 5. rest (D6): clean if no slot has its bit, else waiting. A reader that is through makes it look again from step 3.
//
// These rules hold:
// - Each step is one load, one compare-and-swap that is not retried, or one store to the directory. So the work can
//   stop between any two, and starts again at D1, also in a later life of the broker. Nothing needed for that is kept
//   here.
// - The broker trusts no word of the control area (law 4). Numbers are checked before they are used, and loops are as
//   long as its own tables say. An impossible value is reported and protects nothing.
// - Nothing waits. run() does a bounded portion of work, and the pool's timer calls it again (law 8).
// - The look comes before the sweep. A bit that is cleared too early lets a sender reuse the slot of an unread
//   message. A bit that stays too long only delays the reuse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/pools/pool_tables.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::daemon {

// Facts that are not in the control area.
class RepairFacts {
 public:
  // No process can take a message from this lane any more.
  virtual bool receivers_done(std::uint32_t lane) = 0;
  virtual void wake_peers() = 0;

 protected:
  ~RepairFacts() = default;
};

class Repair {
 public:
  // `tables` outlive it. `life`: of the participant.
  Repair(PoolTables& tables, std::uint32_t participant, std::uint32_t life, pool::ParticipantState as);
  enum class State { working, waiting, clean };
  // Does at most about `lines` cache lines of work. `monotonic` is the clock of deadlines. waiting: unread messages
  // name slots that its bit protects; call look_again() when a reader is through. clean: no word names the participant
  // any more.
  State run(std::size_t lines, std::int64_t monotonic, RepairFacts& facts);
  std::size_t left() const { return left_; }  // rest of `lines`, for other repairs
  void look_again();
  State state() const { return state_; }
  bool found_impossible() const { return impossible_; }
  std::uint32_t slots_used() const { return used_; }  // with any holder, as of the last sweep

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

  PoolTables& tables_;
  const pool::View& view_;  // for words of the control area
  std::uint32_t participant_, life_;
  pool::ParticipantState as_;
  Step step_ = Step::declare;
  State state_ = State::working;
  std::uint32_t lane_ = 0, cell_ = 0, slot_ = 0, serial_ = 0;  // where the work continues
  std::uint64_t head_ = 0;
  std::size_t left_ = 0;
  std::vector<bool> keep_, swept_;  // swept_, swept_all_: those of the last sweep
  bool swept_once_ = false, swept_all_ = false;
  bool in_lane_ = false, keep_all_ = false, again_ = false, impossible_ = false;
  bool free_in_group_ = false;  // the sweep has seen a free slot in this group
  std::uint32_t held_ = 0, used_ = 0, used_now_ = 0;
};

// Whether any of these participants is attached to a broadcast lane. A fence comes first, against a participant that
// joins (J3).
bool attached(const pool::LaneView& lane, std::uint64_t participants);
// Mpmc lanes: no cell is full or claimed.
bool all_done(const pool::LaneView& lane);
// The number of messages in the lane that wait for receivers, at most as many as it has cells.
std::uint32_t unread(const pool::LaneView& lane, pool::QueueKind kind);
// Whether any message waits for one of these participants. In a ring the messages that were read stay full.
bool unread_by(const KnownLane& lane, std::uint64_t participants);

}  // namespace shmb::daemon
