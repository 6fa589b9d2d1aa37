// SPDX-License-Identifier: Apache-2.0
// A lane: a ring of cells in a pool's control area, with one sender and its receivers. LaneSender and LaneReceiver are
// the common parts of the two ends of all lanes. Each kind of lane has a file with its own two ends:
//
// - spsc.hpp: one receiver.
// - mpmc.hpp: receivers compete, and each message is taken once.
// - broadcast.hpp: every receiver gets every message, or with kQueueDropOldest the newest ones.
//
// The kind is chosen when an end is opened. From there on it is a type: SenderOf and ReceiverOf (client/queue) are
// templates over these classes, and no function below asks which kind it has. Concepts at the end of this file say what
// such a class must offer.
//
// A cell's word holds its state, the tag of the message and the position. The sender writes the body, then stores the
// word: empty becomes full. In mpmc lanes a receiver changes full to claimed. A done cell is empty again; in spsc and
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

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
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

inline constexpr std::uint64_t kWithoutTag = (std::uint64_t{1} << 56) - 1;

// The common part of the senders of all kinds: the books of the messages in flight, and what each of them holds.
class LaneSender {
 public:
  using LetGoRegions = std::function<void(Held&&)>;  // gets messages with regions, after their slots were dropped
  enum class Room { yes, full, broken };

  virtual ~LaneSender();
  LaneSender(const LaneSender&) = delete;
  LaneSender& operator=(const LaneSender&) = delete;

  // Bytes of an inline message; a Handle always fits.
  std::uint32_t body_room() const { return body_room_; }
  // Whether a message may be published now. Drops the references of done cells where it must look at them anyway. A
  // broadcast lane without readers always has room, and so has one that drops its oldest.
  virtual Room room() = 0;
  // Publishes a message. Call it only after room() returned yes. For a tag up to 120, `body` has as many bytes as the
  // tag. Otherwise it is a Handle and what follows it, at most body_room() bytes. Each slot in `held` has had one
  // hold() for this message. The references in `held` are dropped when the cell is done. `deadline` (CLOCK_MONOTONIC, 0
  // none) goes into the cell only with kQueueExpiring. wake_readers() must follow before this process waits for
  // anything.
  virtual void put(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline) = 0;
  virtual void wake_readers(std::uint64_t messages) = 0;  // that were put since the last call
  void publish(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline = 0) {
    put(tag, body, std::move(held), deadline);
    wake_readers(1);
  }
  void count_in_region() {  // only this end writes it
    auto& count = lane_.in_regions();
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void reclaim() {  // drops the references of all cells that are done or expired
    if (holding_ != 0 || expiring_) reclaim_cells();
  }
  virtual std::uint64_t in_flight() = 0;  // messages that some receiver is not done with
  // The queue was closed after the last `last` messages were put. How many of them do not count as sent? The lane takes
  // back what no reader can have.
  virtual std::uint64_t unsend(std::uint64_t last) { return last; }
  // Takes back messages that have expired and that no receiver can have. Whether there were any.
  virtual bool expire(std::int64_t) { return false; }
  virtual std::int64_t earliest() const { return INT64_MAX; }  // when the next message may expire (INT64_MAX: none)
  virtual std::uint64_t expired() const { return 0; }
  bool holding() const { return holding_ > 0; }  // as far as known, a message in flight holds something
  std::uint32_t queue() const { return queue_; }
  // L3: the receiver is gone for good. Drops everything in flight; the lane must not be used any more.
  void give_up_all();

 protected:
  // `start`: the position of the first message, 0 in every lane that a broker made.
  LaneSender(Participant& participant, pool::LaneView lane, std::uint32_t queue_flags, std::uint32_t queue,
             LetGoRegions let_go_regions, std::uint64_t start);

  virtual void reclaim_cells() = 0;
  void done_until(std::uint64_t position);  // every message before it is done
  void let_go(std::uint64_t position, bool overwritten = false);
  void keep_held(Held&& held) {
    if (held.nothing()) return;
    held_[place(next_)] = std::move(held);
    ++holding_;
    ++participant_.in_flight_;
  }
  std::size_t place(std::uint64_t position) const { return position & (lane_.cells() - 1); }
  template <Step half>
  void write_body(std::byte* to, std::span<const std::byte> body, std::int64_t deadline);

  Participant& participant_;
  const pool::LaneView lane_;
  const bool expiring_, drop_oldest_;
  const std::uint32_t queue_, body_room_;
  pool::Waiters& readers_;
  std::uint64_t next_;  // position of the next message
  std::uint64_t done_;  // every message before it is done, and its references are dropped
  std::uint64_t holding_ = 0;

 private:
  std::vector<Held> held_;  // by cell; a done cell holds nothing
  LetGoRegions let_go_regions_;
};

// The common part of the receivers of all kinds: where they read, and how a cell is copied and checked.
class LaneReceiver {
 public:
  // drained: the sender is gone, and all its messages were read. refused: a malformed message was dropped, and reading
  // continues with the next one. broken: the lane's own words are corrupt, so reading cannot continue.
  enum class Look { message, empty, drained, refused, broken };
  struct Received {
    std::uint8_t tag = 0;
    std::uint32_t bytes = 0;     // of body: for tags to 120 those of the message, else all from the handle on
    std::uint64_t position = 0;  // of the message in its lane
    std::int64_t deadline = 0;   // CLOCK_MONOTONIC, 0 none
    alignas(8) std::byte body[pool::kTagMaxInline];
  };
  // Of the short way: bytes were copied, or the message is one slot. Nothing: call look() for the reason.
  enum class Plain { nothing, bytes, slot };

  virtual ~LaneReceiver() = default;
  LaneReceiver(const LaneReceiver&) = delete;
  LaneReceiver& operator=(const LaneReceiver&) = delete;

  // Makes a private copy of the next message in `out`. For kTagSlot and kTagListInSlot the handle has been checked
  // (Participant::fits). An mpmc lane claims the message for this process: done() or give_back() must follow, and
  // look() may be called again before that. The other kinds return the same message until done().
  virtual Look look(Received& out) = 0;
  std::uint64_t position() const { return position_; }  // of the message that was looked at last
  // Call it after keeping the slots of the message. False (drop-oldest only): the message was overwritten meanwhile and
  // counts as lost. Then undo() what was kept and look again.
  virtual bool confirm() { return true; }
  void done() { done(position_); }     // the last message of look(). Then wakes writers that wait for room.
  void done(std::uint64_t position) {  // spsc and broadcast: in order
    mark_done(position);
    wake_writers();
  }
  // The two halves of done(), for several messages and one wake.
  virtual void mark_done(std::uint64_t position) = 0;
  virtual void wake_writers() = 0;
  virtual std::uint64_t lag() const = 0;            // messages that wait; not mpmc: by the sender's hint
  virtual std::uint64_t lost() const { return 0; }  // drop-oldest: overwritten before this reader saw them
  // Mpmc: the last look found only messages that others have claimed. They may come back.
  virtual bool claimed_by_others() const { return false; }
  // Begins and ends reading. False: the writer is gone, and the caller looks for its next generation.
  virtual bool attach() { return true; }
  virtual void detach() {}

 protected:
  LaneReceiver(Participant& participant, pool::LaneView lane, std::uint32_t queue_flags, std::uint32_t queue,
               std::uint32_t from, std::uint32_t from_life);

  bool copy_body(const std::byte* body, std::uint64_t word, std::uint64_t position, Received& out);
  Plain copy_plain(const std::byte* body, std::uint8_t tag, std::byte* to, std::uint32_t& bytes, pool::Handle& slot);
  // The message is malformed. No receiver can have it, and it must not stay claimed.
  Look refuse(std::uint64_t position) {
    done(position);
    return Look::refused;
  }
  std::uint64_t waiting(std::uint64_t next, std::uint64_t most) const;  // by the sender's hint
  // A participant waits for a slot, and the sender that holds one for a message of this lane may be asleep.
  void wake_sender_for_slots() {
    if (participant_.view().control().slot_waiters.mask.load(std::memory_order_relaxed) != 0) [[unlikely]]
      participant_.sleeper().wake_if_asleep(from_);
  }
  bool sender_alive() const { return participant_.alive(from_, from_life_); }

  Participant& participant_;
  const pool::LaneView lane_;
  const bool expiring_, drop_oldest_;
  const std::uint32_t queue_, from_, from_life_, body_room_;
  pool::Waiters &readers_, &writers_;
  std::uint64_t position_ = 0;  // of the last message of look()
};

// A kind of lane, as the queues above see it. SpscLane, MpmcLane and BroadcastLane name their two ends, and how several
// lanes of one reader are read.
template <class L>
concept Lane = std::derived_from<typename L::Sender, LaneSender> &&
               std::derived_from<typename L::Receiver, LaneReceiver> && requires {
                 { L::kind } -> std::convertible_to<pool::QueueKind>;
                 { L::one_receiver } -> std::convertible_to<bool>;  // the broker gives each lane its receiver
                 { L::competing } -> std::convertible_to<bool>;     // several receivers take from one lane
                 // Each receiver has a position of its own in the lane, and lanes are read one after the other.
                 { L::ring } -> std::convertible_to<bool>;
               };
// Its receiver says without a claim whether there are messages that it could claim, and gives claims back.
template <class L>
concept CompetingLane =
    Lane<L> && L::competing && requires(typename L::Receiver receiver, const typename L::Receiver seen) {
      receiver.give_back(std::uint64_t{});
      { seen.unclaimed() } -> std::same_as<bool>;
      { seen.unfinished() } -> std::same_as<bool>;
    };
// Its receiver knows which message is the next one, and has a short way to it.
template <class L>
concept OrderedLane = Lane<L> && !L::competing &&
                      requires(typename L::Receiver receiver, std::byte* to, std::uint32_t& bytes, pool::Handle& slot) {
                        { receiver.is_there() } -> std::same_as<bool>;
                        { receiver.another_behind() } -> std::same_as<bool>;
                        { receiver.look_plain(to, bytes, slot) } -> std::same_as<LaneReceiver::Plain>;
                      };

// ---------------------------------------------------------------- the inline path

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

}  // namespace shmb::client
