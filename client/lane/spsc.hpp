// SPDX-License-Identifier: Apache-2.0
// Spsc lanes: one sender, one receiver.
//
// Sending the message of position p. `next_` is p, and both ends count it in private memory:
//   S0  Only if the lane seems full: load `head`. Every message before it is done, and its slots come back.
//   S1  Write the body into cell p. The receiver does not look at it: the cell's word still names position p - cells.
//   S2  Store the word full(p, tag), with release. That publishes the message: body, slot contents and generation.
//   S3  Store `tail` = p + 1. It is a hint for the books, and no reader depends on it.
//   S4  Pass a fence and look for sleepers (Sleeper). This is the only locked instruction of a send.
//
// Receiving the message of position p:
//   R1  Load the word of cell p, with acquire. If it is full(p), the message is there.
//   R2  Copy the body to private memory, and check the copy: tag, slot number, offset and length.
//   R3  Only to keep a slot: set this process' bit (Participant::keep).
//   R4  Store `head` = p + 1, with release. From here on the sender may overwrite the cell and use its slots again.
//   S4  Look for a sender that waits for room.
//
// Why a kill at any step is harmless: before S2 the message does not exist, and after S2 it is whole. Before R4 the
// message is still the sender's, and after R4 what the receiver needs is held by its own bit. Nothing is half done, so
// the broker repairs nothing in the lane itself.
//
// Why a hostile peer is harmless: a word that is neither full(p) nor the word of the lap before is an impossible word,
// and the receiver answers `broken` (look_again). A head beyond the sender's own count, or behind what it was before,
// is an impossible head, and the sender answers `broken` (advance).
//
// In a steady stream neither end reads a line that the other writes, except the cell. L1 and L2: a sender that is gone
// may have published between the receiver's first look and its end. So the receiver looks once more after its end.
#pragma once

#include "client/lane/lane.hpp"

namespace shmb::client {

class SpscSender final : public LaneSender {
 public:
  SpscSender(Participant& participant, pool::LaneView lane, std::uint32_t queue_flags, std::uint32_t queue,
             LetGoRegions let_go_regions, std::uint64_t start = 0)
      : LaneSender(participant, lane, queue_flags, queue, std::move(let_go_regions), start) {}

  Room room() override { return next_ - done_ < lane_.cells() ? Room::yes : advance(); }
  void put(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline) override {
    keep_held(std::move(held));
    pool::Cell& cell = lane_.cell(next_);
    SHMB_STEP(S1);
    write_body<Step::S1_half>(cell.body(), body, deadline);
    SHMB_STEP(S1_done);
    SHMB_STEP(S2);
    cell.word.store(pool::CellWord::full(next_, tag), std::memory_order_release);
    SHMB_STEP(S2_done);
    ++next_;
    SHMB_STEP(S3);
    lane_.tail().store(next_, std::memory_order_relaxed);
    SHMB_STEP(S3_done);
  }
  void wake_readers(std::uint64_t) override {
    participant_.sleeper().expect_answer();
    participant_.sleeper().wake_all(readers_);
  }
  std::uint64_t in_flight() override {
    advance();
    return next_ - done_;
  }

 private:
  Room advance();
  void reclaim_cells() override {
    if (holding_ != 0) advance();
  }
};

class SpscReceiver final : public LaneReceiver {
 public:
  SpscReceiver(Participant& participant, pool::LaneView lane, std::uint32_t queue_flags, std::uint32_t queue,
               std::uint32_t from, std::uint32_t from_life, std::uint64_t start = 0)
      : LaneReceiver(participant, lane, queue_flags, queue, from, from_life), next_(start) {}

  Look look(Received& out) override {
    pool::Cell& cell = lane_.cell(next_);
    SHMB_STEP(R1);
    const std::uint64_t word = cell.word.load(std::memory_order_acquire);
    SHMB_STEP(R1_done);
    if ((word & kWithoutTag) != pool::CellWord::full(next_, 0)) return look_again(word, out);
    SHMB_STEP(R2);
    const bool possible = copy_body(cell.body(), word, next_, out);
    SHMB_STEP(R2_done);
    return possible ? Look::message : refuse(next_);
  }
  bool is_there() const { return is_full(next_); }            // whether look() would return a message
  bool another_behind() const { return is_full(next_ + 1); }  // whether there is one more after this one
  // The next message by the shortest path. It must be there, and be bytes (copied to `to`, room for kTagMaxInline) or
  // one slot. Nothing: call look() for the reason. done() must follow.
  Plain look_plain(std::byte* to, std::uint32_t& bytes, pool::Handle& slot) {
    if (expiring_) return Plain::nothing;
    pool::Cell& cell = lane_.cell(next_);
    SHMB_STEP(R1);
    const std::uint64_t word = cell.word.load(std::memory_order_acquire);
    SHMB_STEP(R1_done);
    if ((word & kWithoutTag) != pool::CellWord::full(next_, 0)) return Plain::nothing;
    SHMB_STEP(R2);
    const Plain what = copy_plain(cell.body(), static_cast<std::uint8_t>(word >> 56), to, bytes, slot);
    SHMB_STEP(R2_done);
    position_ = next_;
    return what;
  }
  void mark_done(std::uint64_t position) override {
    next_ = position + 1;
    SHMB_STEP(R4);
    lane_.head().store(next_, std::memory_order_release);
    SHMB_STEP(R4_done);
  }
  void wake_writers() override {
    participant_.sleeper().wake_all(writers_);
    wake_sender_for_slots();
  }
  std::uint64_t lag() const override { return waiting(next_, lane_.cells()); }

 private:
  bool is_full(std::uint64_t position) const {
    const std::uint64_t word = lane_.cell(position).word.load(std::memory_order_acquire);
    return (word & kWithoutTag) == pool::CellWord::full(position, 0);
  }
  Look look_again(std::uint64_t word, Received& out);

  std::uint64_t next_;  // the next position to look at
};

struct SpscLane {
  using Sender = SpscSender;
  using Receiver = SpscReceiver;
  static constexpr pool::QueueKind kind = pool::QueueKind::spsc;
  static constexpr bool one_receiver = true, competing = false, ring = false;
};
static_assert(OrderedLane<SpscLane>);

}  // namespace shmb::client
