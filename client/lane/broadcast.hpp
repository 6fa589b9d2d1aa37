// SPDX-License-Identifier: Apache-2.0
// Broadcast lanes: one sender, and up to 64 receivers that each get every message. The lane is a ring of one life of
// its sender. Each receiver has a line of its own with its position. With kQueueDropOldest a receiver may be overrun.
//
// The word of cell p is full(p) or busy(p), or that of an earlier lap. Sending the message of position p:
//   W1  Only if the limit is reached: pass a fence, and load the position of each live receiver. The slowest one says
//       how far the sender may write. With drop-oldest there is no limit and no W1.
//   W2  Store busy(p), then a release fence: no receiver can take a word of the new body for one of the old message.
//       Now the sender drops its references for the message of the lap before.
//   W3  Write the body, as atomic words.   W4  Store full(p), with release: published.   W5  Store `tail` = p + 1.
//   S4  Pass a fence and wake the receivers.
//
// Receiving the message of position p:
//   Q1  Load the word, with acquire. It must be full(p). With drop-oldest a later word means that this receiver was
//       overrun.
//   Q2  Copy the body.   Q3  To keep a slot, set this process' bit (step R3).
//   Q4  Pass an acquire fence and load the word again. Another word means that the cell was overwritten meanwhile: then
//       the copy is void.
//   Q5  Store this receiver's position, with release. The sender may overwrite the cell once all have passed it.
//   S4  Wake the sender if it waits, and if this receiver was the slowest one.
//
// Joining: J2 stores position 0, so that nothing is overwritten from now on. J3 passes a fence, J4 asks whether the
// sender still lives, J6 loads `tail`, and J7 stores it as the position. The fences W1 and J3 pair: a receiver that W1
// misses begins behind all that was published before. A receiver that was there before the ring finds the position that
// the broker gave it.
//
// Why a kill at any step is harmless: before W4 nothing is published, and a cell that stays busy holds no message. A
// receiver that dies is not live any more, so W1 passes over its position. A new sender gets a new ring.
//
// Why a hostile peer is harmless: a receiver believes only a body whose word was the same before and after (Q4). Words
// ahead of `tail`, or ahead at all where nothing may be dropped, are `broken`. The sender takes positions only as a
// minimum, and never waits for one of a participant that the broker does not call live.
#pragma once

#include "client/lane/lane.hpp"

namespace shmb::client {

class BroadcastSender final : public LaneSender {
 public:
  BroadcastSender(Participant& participant, pool::LaneView lane, std::uint32_t queue_flags, std::uint32_t queue,
                  LetGoRegions let_go_regions, std::uint64_t start = 0)
      : LaneSender(participant, lane, queue_flags, queue, std::move(let_go_regions), start), limit_(start) {}

  Room room() override { return drop_oldest_ || next_ < limit_ ? Room::yes : look_for_room(); }
  void put(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline) override;
  void wake_readers(std::uint64_t) override {
    participant_.sleeper().expect_answer();
    participant_.sleeper().wake_all(readers_);
  }
  std::uint64_t in_flight() override { return reclaim_read(); }

 private:
  Room look_for_room();
  void reclaim_cells() override {
    if (holding_ != 0) reclaim_read();
  }
  std::uint64_t reclaim_read();
  std::uint64_t slowest_reader();

  std::uint64_t limit_;  // the first position that must not be written yet
};

class BroadcastReceiver final : public LaneReceiver {
 public:
  BroadcastReceiver(Participant& participant, pool::LaneView lane, std::uint32_t queue_flags, std::uint32_t queue,
                    std::uint32_t from, std::uint32_t from_life)
      : LaneReceiver(participant, lane, queue_flags, queue, from, from_life) {}

  Look look(Received& out) override;
  bool is_there() const { return is_full(next_); }            // whether look() would return a message
  bool another_behind() const { return is_full(next_ + 1); }  // whether there is one more after this one
  // As SpscReceiver::look_plain, of a lane that drops nothing: the writer waits for this reader, so the body is read as
  // it is. Q4 is for writers that break that rule.
  Plain look_plain(std::byte* to, std::uint32_t& bytes, pool::Handle& slot) {
    if (expiring_ || drop_oldest_) return Plain::nothing;
    pool::Cell& cell = lane_.cell(next_);
    SHMB_STEP(Q1);
    const std::uint64_t word = cell.word.load(std::memory_order_acquire);
    SHMB_STEP(Q1_done);
    if ((word & kWithoutTag) != pool::CellWord::full(next_, 0)) return Plain::nothing;
    SHMB_STEP(Q2);
    const Plain what = copy_plain(cell.body(), static_cast<std::uint8_t>(word >> 56), to, bytes, slot);
    SHMB_STEP(Q2_done);
    SHMB_STEP(Q4);
    std::atomic_thread_fence(std::memory_order_acquire);
    const std::uint64_t again = cell.word.load(std::memory_order_relaxed);
    SHMB_STEP(Q4_done);
    if (again != word) return Plain::nothing;
    position_ = next_;
    return what;
  }
  bool confirm() override;
  void mark_done(std::uint64_t position) override {
    next_ = position + 1;
    SHMB_STEP(Q5);
    own_line().position.store(next_ + 1, std::memory_order_release);
    SHMB_STEP(Q5_done);
  }
  void wake_writers() override {
    if (drop_oldest_) participant_.sleeper().wake_all(writers_);
    else wake_writer_that_waits();
    wake_sender_for_slots();
  }
  std::uint64_t lag() const override { return waiting(next_, static_cast<std::uint64_t>(INT64_MAX)); }
  std::uint64_t lost() const override { return lost_; }
  // J1 to J7. Reading starts with the next message, or with the first if the broker has attached this reader before the
  // ring was used.
  bool attach() override;
  void detach() override;  // L4

 private:
  bool is_full(std::uint64_t position) const {
    const std::uint64_t word = lane_.cell(position).word.load(std::memory_order_acquire);
    return (word & kWithoutTag) == pool::CellWord::full(position, 0);
  }
  Look read(Received& out);
  void skip_to(std::uint64_t position);
  void wake_writer_that_waits();
  bool was_slowest() const;
  pool::ReaderEntry& own_line() const { return lane_.reader(participant_.index()); }

  std::uint64_t next_ = 0;   // the next position to look at
  std::uint64_t word_ = 0;   // of the cell of the last message of look()
  std::uint64_t shown_ = 0;  // the position when it last looked for writers to wake
  std::uint64_t lost_ = 0;
};

struct BroadcastLane {
  using Sender = BroadcastSender;
  using Receiver = BroadcastReceiver;
  static constexpr pool::QueueKind kind = pool::QueueKind::broadcast;
  static constexpr bool one_receiver = false, competing = false, ring = true;
};
static_assert(OrderedLane<BroadcastLane>);

}  // namespace shmb::client
