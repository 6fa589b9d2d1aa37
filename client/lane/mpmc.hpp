// SPDX-License-Identifier: Apache-2.0
// Mpmc lanes: one sender, and receivers that compete. Exactly one of them takes each message, also when some of them
// die. A queue with several senders has one such lane for each of them.
//
// The word of cell p tells the whole state of its message:
//   empty(p)            it may be written: the message of the lap before is done
//   full(p)             it is published, and no receiver has it
//   claimed(p, i)       participant i has taken it, and is not done
//   empty(p + cells)    it is done
//
// Sending the message of position p:
//   K1  Load the word. Only empty(p) is room. Full or claimed words of the lap before mean a full lane.
//   K2  Write the body.   K3  Store full(p), with release: the message is published.   S3  Store the hint `tail`.
//   S4  Pass a fence and wake one receiver. A receiver that wakes passes on messages that it does not take.
//   KR  When slots are wanted back: each cell that shows empty(p + cells) is done, in any order.
//   KX  An expired message, or one of a closed queue, is taken back by one compare-and-swap from full to done.
//
// Receiving:
//   C1  Load `head`. It is a hint: every message before it is done.
//   C3  Look at the cells from there on, or from where this receiver has seen that all before are done.
//   C4  Compare-and-swap full(p) to claimed(p, i). One receiver wins. The word holds the position, so a receiver that
//       was stopped before C4 cannot take the message of another lap.
//   C5  Copy the body, and check the copy.
//   C6  Store empty(p + cells), with release: done.   C7  Or store full(p) again: given back.
//   C2  Now and then move `head` past cells that were seen done. Done is for ever, so a claim that is given back behind
//       the head does not exist.
//
// Why a kill at any step is harmless: a sender has published the message or not (K3). A receiver that dies between C4
// and C6 leaves a word that names it, and the broker makes it full again. Every other step is one store or one swap.
//
// Why a hostile peer is harmless: a look covers one lap of cells behind those that are done, and makes a bounded number
// of tries. A word of an earlier lap, a busy word or a participant that cannot exist is `broken`.
#pragma once

#include <algorithm>

#include "client/lane/lane.hpp"

namespace shmb::client {

class MpmcSender final : public LaneSender {
 public:
  MpmcSender(Participant& participant, pool::LaneView lane, std::uint32_t queue_flags, std::uint32_t queue,
             LetGoRegions let_go_regions, std::uint64_t start = 0)
      : LaneSender(participant, lane, queue_flags, queue, std::move(let_go_regions), start),
        deadlines_(expiring_ ? lane.cells() : 0) {}

  Room room() override {
    SHMB_STEP(K1);
    const std::uint64_t word = lane_.cell(next_).word.load(std::memory_order_acquire);
    SHMB_STEP(K1_done);
    if (word != pool::CellWord::empty(next_)) return why_no_room(word);
    if (next_ - done_ == lane_.cells()) let_go(done_++);
    return Room::yes;
  }
  void put(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline) override {
    keep_held(std::move(held));
    pool::Cell& cell = lane_.cell(next_);
    if (expiring_) {
      deadlines_[place(next_)] = deadline;
      if (deadline != 0) earliest_ = std::min(earliest_, deadline);
    }
    SHMB_STEP(K2);
    write_body<Step::K2_half>(cell.body(), body, deadline);
    SHMB_STEP(K2_done);
    SHMB_STEP(K3);
    cell.word.store(pool::CellWord::full(next_, tag), std::memory_order_release);
    SHMB_STEP(K3_done);
    ++next_;
    SHMB_STEP(S3);
    lane_.tail().store(next_, std::memory_order_relaxed);
    SHMB_STEP(S3_done);
  }
  void wake_readers(std::uint64_t messages) override {
    participant_.sleeper().expect_answer();
    if (messages == 1) participant_.sleeper().wake_one(readers_);
    else participant_.sleeper().wake_all(readers_);
  }
  std::uint64_t in_flight() override;
  std::uint64_t unsend(std::uint64_t last) override;
  // Takes back the n-th message from the end (0: the last), unless a receiver has claimed it.
  bool take_back(std::uint64_t n = 0);
  bool expire(std::int64_t now) override;
  std::int64_t earliest() const override { return earliest_; }
  std::uint64_t expired() const override { return expired_; }

 private:
  Room why_no_room(std::uint64_t word);
  void reclaim_cells() override;
  std::uint64_t reclaim_done();
  bool cell_done(std::uint64_t position) const;

  std::uint64_t expired_ = 0;
  std::vector<std::int64_t> deadlines_;  // with kQueueExpiring: by cell
  std::int64_t earliest_ = INT64_MAX;    // the earliest of those in flight
};

class MpmcReceiver final : public LaneReceiver {
 public:
  MpmcReceiver(Participant& participant, pool::LaneView lane, std::uint32_t queue_flags, std::uint32_t queue,
               std::uint32_t from, std::uint32_t from_life)
      : LaneReceiver(participant, lane, queue_flags, queue, from, from_life) {}

  Look look(Received& out) override;
  void mark_done(std::uint64_t position) override {
    SHMB_STEP(C6);
    lane_.cell(position).word.store(pool::CellWord::empty(position + lane_.cells()), std::memory_order_release);
    SHMB_STEP(C6_done);
  }
  void wake_writers() override {
    participant_.sleeper().wake_all(writers_);
    wake_sender_for_slots();
  }
  void give_back() { give_back(position_); }  // the message is available again, for any consumer
  void give_back(std::uint64_t position);
  bool unclaimed() const;   // whether there is a message that no receiver has claimed
  bool unfinished() const;  // or one that another receiver has claimed and may give back
  bool claimed_by_others() const override { return claimed_by_others_; }
  std::uint64_t lag() const override;  // messages that no receiver has claimed

 private:
  Look find_claim(Received& out);
  std::uint64_t first_open() const;

  std::uint64_t done_ = 0;  // every message before it was seen done
  bool claimed_by_others_ = false;
};

struct MpmcLane {
  using Sender = MpmcSender;
  using Receiver = MpmcReceiver;
  static constexpr pool::QueueKind kind = pool::QueueKind::mpmc;
  static constexpr bool one_receiver = false, competing = true, ring = false;
};
static_assert(CompetingLane<MpmcLane>);

}  // namespace shmb::client
