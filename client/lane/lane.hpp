// SPDX-License-Identifier: Apache-2.0
// A lane: a ring of cells in a pool's control area, with one sender and its receivers. LaneSender and LaneReceiver are
// the two ends as one process has them.
//
// The kinds of lanes:
// - line: one receiver. Its path is inline, without a locked instruction except the fence before the look for sleepers.
// - claim: receivers compete, and each message is taken once.
// - broadcast: every receiver gets every message, or with kQueueDropOldest the newest ones.
//
// A cell's word holds its state, the tag of the message and the position. The sender writes the body, then stores the
// word: empty becomes full. In claim lanes a receiver changes full to claimed. A done cell is empty again; in line and
// broadcast lanes the receiver's own position says so. A broadcast writer marks a cell busy while it overwrites it.
//
// Invariants:
// - One store publishes a message. A process that is killed at any instruction has published it or not.
// - What a message names is held by its sender's own bits until the receiver says that it is done. A receiver that
//   needs it longer sets its own bit first. So at no moment is it without a holder.
// - Peers may write anything into a lane's words. Each end copies and checks what it uses, answers `broken` in bounded
//   time, and touches nothing outside the lane.
// - A lane belongs to one life of each end. Ends are not inherited over fork.
//
// The participant's lock must be held for all functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "client/lane/participant.hpp"
#include "client/lane/steps.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::client {

// The holdings of a message in flight: one slot, or a list of slots and regions. A slot that is named twice is held
// twice.
struct HeldList {
  std::vector<std::uint32_t> slots;
  std::vector<std::uint64_t> regions;
};
struct Held {
  std::uint32_t slot = pool::kNone;
  std::unique_ptr<HeldList> list;
  bool nothing() const { return slot == pool::kNone && list == nullptr; }
};

class LaneSender {
 public:
  using LetGoRegions = std::function<void(Held&&)>;  // gets messages with regions, after their slots were dropped
  enum class Room { yes, full, broken };

  // `start`: the position of the first message, 0 in every lane that a broker made.
  LaneSender(Participant& participant, pool::LaneView lane, pool::QueueKind kind, std::uint32_t queue_flags,
             std::uint32_t queue, LetGoRegions let_go_regions, std::uint64_t start = 0);
  ~LaneSender();
  LaneSender(const LaneSender&) = delete;
  LaneSender& operator=(const LaneSender&) = delete;

  // Bytes of an inline message; a Handle always fits.
  std::uint32_t body_room() const { return body_room_; }
  // Whether a message may be published now. Drops the references of done cells where it must look at them anyway. A
  // broadcast lane without readers always has room, and so has one that drops its oldest.
  Room room();
  // Call only after room() returned yes. For a tag up to 120, `body` has as many bytes as the tag. Otherwise it is a
  // Handle and what follows it, at most body_room() bytes. Each slot in `held` has had one hold() for this message. The
  // references in `held` are dropped when the cell is done. `deadline` (CLOCK_MONOTONIC, 0 none) goes into the cell
  // only with kQueueExpiring. Wakes the readers.
  void publish(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline = 0) {
    put(tag, body, std::move(held), deadline);
    wake_readers();
  }
  // The two halves of publish(), for several messages and one wake. The wake must come before this process waits for
  // anything.
  void put(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline);
  void wake_readers(std::uint64_t messages = 1);
  void count_in_region() {  // only this end writes it
    auto& count = lane_.in_regions();
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void reclaim();  // drops the references of all cells that are done or expired
  // Claim lanes: takes back the n-th message from the end (0: the last), unless a receiver has claimed it.
  bool take_back(std::uint64_t n = 0);
  void expire(std::int64_t now);  // claim lanes: takes back expired messages that no receiver has claimed
  std::uint64_t in_flight();      // messages that some receiver is not done with
  std::uint64_t expired() const { return expired_; }
  std::int64_t earliest() const { return earliest_; }  // when the next message may expire (INT64_MAX: none)
  bool holding() const { return holding_ > 0; }        // as far as known, a message in flight holds something
  std::uint32_t queue() const { return queue_; }
  // L3: the receiver is gone for good. Drops everything in flight; the lane must not be used any more.
  void give_up_all();

 private:
  Room room_line();
  Room room_claim();
  Room room_broadcast();
  void publish_claim(std::uint8_t tag, std::span<const std::byte> body, std::int64_t deadline);
  void publish_broadcast(std::uint8_t tag, std::span<const std::byte> body, std::int64_t deadline, Held held);
  Room advance_line();
  std::uint64_t reclaim_claim();
  std::uint64_t reclaim_broadcast();
  std::uint64_t slowest_reader();
  void done_until(std::uint64_t position);
  void let_go(std::uint64_t position, bool overwritten = false);
  bool cell_done(std::uint64_t position) const;
  std::size_t place(std::uint64_t position) const { return position & (lane_.cells() - 1); }
  void keep_held(Held&& held) {
    if (held.nothing()) return;
    held_[place(next_)] = std::move(held);
    ++holding_;
    ++participant_.in_flight_;
  }
  template <Step half>
  void write_body(std::byte* to, std::span<const std::byte> body, std::int64_t deadline);

  Participant& participant_;
  const pool::LaneView lane_;
  const pool::QueueKind kind_;
  const bool expiring_, drop_oldest_;
  const std::uint32_t queue_, body_room_;
  pool::Waiters& readers_;
  std::uint64_t next_;   // position of the next message
  std::uint64_t done_;   // every message before it is done, and its references are dropped
  std::uint64_t limit_;  // broadcast: the first position that must not be written yet
  std::uint64_t holding_ = 0, expired_ = 0;
  std::vector<Held> held_;               // by cell; a done cell holds nothing
  std::vector<std::int64_t> deadlines_;  // claim with kQueueExpiring: by cell
  std::int64_t earliest_ = INT64_MAX;    // the earliest of those in flight
  LetGoRegions let_go_regions_;
};

class LaneReceiver {
 public:
  // drained: the sender is gone, and everything was seen. refused: a malformed message was dropped, and reading
  // continues with the next one. broken: the lane's own words are corrupt, so reading cannot continue.
  enum class Look { message, empty, drained, refused, broken };
  struct Received {
    std::uint8_t tag = 0;
    std::uint32_t bytes = 0;     // of body: for tags to 120 those of the message, else all from the handle on
    std::uint64_t position = 0;  // of the message in its lane
    std::int64_t deadline = 0;   // CLOCK_MONOTONIC, 0 none
    alignas(8) std::byte body[pool::kTagMaxInline];
  };

  LaneReceiver(Participant& participant, pool::LaneView lane, pool::QueueKind kind, std::uint32_t queue_flags,
               std::uint32_t queue, std::uint32_t from, std::uint32_t from_life, std::uint64_t start = 0);
  LaneReceiver(const LaneReceiver&) = delete;
  LaneReceiver& operator=(const LaneReceiver&) = delete;

  // Returns a private copy of the next message. For kTagSlot and kTagListInSlot the handle has been checked
  // (Participant::fits). A claim lane claims the message for this process: done() or give_back() must follow, and
  // look() may be called again before that. The other kinds return the same message until done().
  Look look(Received& out);
  bool is_there() const;        // spsc, broadcast: whether look() would return a message
  bool another_behind() const;  // spsc, broadcast: whether there is one more after this one
  // Line, and broadcast that drops nothing: the next message by the shortest path. It must be there, and be bytes
  // (copied to `to`, room for kTagMaxInline) or one slot. Nothing: call look() for the reason. done() must follow.
  enum class Plain { nothing, bytes, slot };
  Plain look_plain(std::byte* to, std::uint32_t& bytes, pool::Handle& slot);
  std::uint64_t position() const { return position_; }  // of the message that was looked at last
  bool unclaimed() const;                 // claim: whether there is a message that no receiver has claimed
  std::uint64_t count_unclaimed() const;  // claim: how many of them
  bool unfinished() const;                // claim: or one that another receiver has claimed and may give back
  // Call it after keeping the slots of the message. False (drop-oldest only): the message was overwritten meanwhile and
  // counts as lost. Then undo() what was kept and look again.
  bool confirm();
  void done() { done(position_); }     // the last message of look(). Then wakes writers that wait for room.
  void done(std::uint64_t position) {  // line and broadcast: in order
    mark_done(position);
    wake_writers();
  }
  // The two halves of done(), for several messages and one wake.
  void mark_done(std::uint64_t position);
  void wake_writers();
  void give_back() { give_back(position_); }  // claim: the message is available again, for any consumer
  void give_back(std::uint64_t position);

  // Claim: the last look found only messages that others have claimed. They may come back.
  bool claimed_by_others() const { return claimed_by_others_; }
  std::uint64_t lost() const { return lost_; }  // drop-oldest: overwritten before this reader saw them
  std::uint64_t lag() const;                    // messages that wait; not mpmc: by the sender's hint
  // Broadcast: J1 to J7. Reading starts with the next message, or with the first if the broker has attached this reader
  // before the ring was used. False: the writer is gone, and the caller looks for its next generation.
  bool attach();
  void detach();  // L4; no effect for other kinds

 private:
  Look look_again(std::uint64_t word, Received& out);
  Look look_claim(Received& out);
  Look find_claim(Received& out);
  std::uint64_t first_open() const;
  Look look_broadcast(Received& out);
  Look read_broadcast(Received& out);
  Plain look_plain_broadcast(std::byte* to, std::uint32_t& bytes, pool::Handle& slot);
  Plain copy_plain(const std::byte* body, std::uint8_t tag, std::byte* to, std::uint32_t& bytes, pool::Handle& slot);
  void skip_to(std::uint64_t position);
  void wake_writer_of_broadcast();
  bool was_slowest() const;
  bool copy_body(const std::byte* body, std::uint64_t word, std::uint64_t position, Received& out);
  Look refuse(std::uint64_t position);
  bool sender_alive() const { return participant_.alive(from_, from_life_); }
  pool::ReaderEntry& reader() const { return lane_.reader(participant_.index()); }

  Participant& participant_;
  const pool::LaneView lane_;
  const pool::QueueKind kind_;
  const bool expiring_, drop_oldest_;
  const std::uint32_t queue_, from_, from_life_, body_room_;
  pool::Waiters &readers_, &writers_;
  std::uint64_t next_;          // spsc, broadcast: the next position to look at
  std::uint64_t position_ = 0;  // of the last message of look()
  std::uint64_t word_ = 0;      // broadcast: the word of its cell
  std::uint64_t shown_ = 0;     // broadcast: the position when it last looked for writers to wake
  std::uint64_t lost_ = 0;
  std::uint64_t done_ = 0;  // claim: every message before it was seen done
  bool claimed_by_others_ = false;
};

// ---------------------------------------------------------------- the inline path

inline constexpr std::uint64_t kWithoutTag = (std::uint64_t{1} << 56) - 1;

template <Step half>
inline void LaneSender::write_body(std::byte* to, std::span<const std::byte> body, std::int64_t deadline) {
  if (expiring_) {
    std::memcpy(to, &deadline, sizeof(deadline));
    to += sizeof(deadline);
  }
#ifdef SHMB_TEST_SEAM
  std::memcpy(to, body.data(), body.size() / 2);
  at_step(half);
  std::memcpy(to + body.size() / 2, body.data() + body.size() / 2, body.size() - body.size() / 2);
#else
  // The two sizes known at compile time become a few moves each. All others are a call.
  if (body.size() == 56) std::memcpy(to, body.data(), 56);
  else if (body.size() == sizeof(pool::Handle)) std::memcpy(to, body.data(), sizeof(pool::Handle));
  else if (!body.empty()) std::memcpy(to, body.data(), body.size());
#endif
}

inline LaneSender::Room LaneSender::room() {
  if (kind_ != pool::QueueKind::spsc) return kind_ == pool::QueueKind::mpmc ? room_claim() : room_broadcast();
  return next_ - done_ < lane_.cells() ? Room::yes : room_line();
}

inline void LaneSender::put(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline) {
  if (kind_ == pool::QueueKind::spsc) [[likely]] {
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
  } else if (kind_ == pool::QueueKind::mpmc) {
    keep_held(std::move(held));
    publish_claim(tag, body, deadline);
  } else {
    // The old contents of the cell are dropped only when it is marked busy. So the new ones are stored after that.
    publish_broadcast(tag, body, deadline, std::move(held));
  }
}

// A mpmc queue's consumer that wakes passes on messages that it does not take.
inline void LaneSender::wake_readers(std::uint64_t messages) {
  participant_.sleeper().expect_answer();
  if (kind_ == pool::QueueKind::mpmc && messages == 1) participant_.sleeper().wake_one(readers_);
  else participant_.sleeper().wake_all(readers_);
}

inline bool LaneReceiver::copy_body(const std::byte* body, std::uint64_t word, std::uint64_t position, Received& out) {
  const auto tag = static_cast<std::uint8_t>(word >> 56);
  out.tag = tag;
  out.position = position_ = position;
  if (expiring_) {
    std::memcpy(&out.deadline, body, sizeof(out.deadline));
    body += sizeof(out.deadline);
  } else {
    out.deadline = 0;
  }
  // Whole words of one cache line, or of two: moves instead of a call.
  const std::size_t first_line = expiring_ ? 48 : 56;
  if (tag <= first_line || body_room_ <= 56) {
    if (expiring_) std::memcpy(out.body, body, 48);
    else std::memcpy(out.body, body, 56);
  } else {
    std::memcpy(out.body, body, body_room_);
  }
  if (tag <= pool::kTagMaxInline) {
    out.bytes = tag;
    return tag <= body_room_;
  }
  out.bytes = body_room_;
  if (tag == pool::kTagSlot || tag == pool::kTagListInSlot) {
    pool::Handle handle;
    std::memcpy(&handle, out.body, sizeof(handle));
    return participant_.fits(handle);
  }
  return tag == pool::kTagListInline || tag == pool::kTagListInRegion;
}

inline bool LaneReceiver::is_there() const {
  return (lane_.cell(next_).word.load(std::memory_order_acquire) & kWithoutTag) == pool::CellWord::full(next_, 0);
}

inline bool LaneReceiver::another_behind() const {
  const std::uint64_t word = lane_.cell(next_ + 1).word.load(std::memory_order_acquire) & kWithoutTag;
  return word == pool::CellWord::full(next_ + 1, 0);
}

inline LaneReceiver::Plain LaneReceiver::copy_plain(const std::byte* body, std::uint8_t tag, std::byte* to,
                                                    std::uint32_t& bytes, pool::Handle& slot) {
  if (tag <= body_room_) {
    if (body_room_ == 56) std::memcpy(to, body, 56);
    else std::memcpy(to, body, pool::kTagMaxInline);
    bytes = tag;
    return Plain::bytes;
  }
  if (tag != pool::kTagSlot) return Plain::nothing;
  std::memcpy(&slot, body, sizeof(slot));
  return participant_.fits(slot) ? Plain::slot : Plain::nothing;
}

inline LaneReceiver::Plain LaneReceiver::look_plain(std::byte* to, std::uint32_t& bytes, pool::Handle& slot) {
  if (expiring_) return Plain::nothing;
  if (kind_ == pool::QueueKind::broadcast) return look_plain_broadcast(to, bytes, slot);
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

inline LaneReceiver::Look LaneReceiver::look(Received& out) {
  if (kind_ != pool::QueueKind::spsc) return kind_ == pool::QueueKind::mpmc ? look_claim(out) : look_broadcast(out);
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

inline void LaneReceiver::mark_done(std::uint64_t position) {
  if (kind_ == pool::QueueKind::spsc) {
    next_ = position + 1;
    SHMB_STEP(R4);
    lane_.head().store(next_, std::memory_order_release);
    SHMB_STEP(R4_done);
  } else if (kind_ == pool::QueueKind::mpmc) {
    SHMB_STEP(C6);
    lane_.cell(position).word.store(pool::CellWord::empty(position + lane_.cells()), std::memory_order_release);
    SHMB_STEP(C6_done);
  } else {
    next_ = position + 1;
    SHMB_STEP(Q5);
    reader().position.store(next_ + 1, std::memory_order_release);
    SHMB_STEP(Q5_done);
  }
}

inline void LaneReceiver::wake_writers() {
  if (kind_ == pool::QueueKind::broadcast && !drop_oldest_) wake_writer_of_broadcast();
  else participant_.sleeper().wake_all(writers_);
  // A participant waits for a slot, and the sender that holds one for this message may be asleep.
  if (participant_.view().control().slot_waiters.mask.load(std::memory_order_relaxed) != 0) [[unlikely]]
    participant_.sleeper().wake_if_asleep(from_);
}

}  // namespace shmb::client
