// SPDX-License-Identifier: Apache-2.0
// The reading end of a queue, as one handle has it. It reads one lane of each writer.
//
// A receive looks at the lanes in turn (try_look), copies the message that it finds, and delivers it (Delivery). A
// delivered message is borrowed or kept. The cell of a borrowed one is done when the message is done, at the latest at
// the next receive. A kept one holds its slots by this process' own bits, and its cell is done at once.
//
// receive_now() is the short way: bytes, or one slot that is borrowed. All else takes the general way (receive): lists,
// regions, waits, and the events that end a wait: a closed queue, a writer that is gone, impossible words.
//
// A lane ends for this reader when its writer is gone and everything in it was read. The broker is told, so that it can
// give the lane to another writer.
//
// Invariants:
// - Data of a peer is used only from private copies that were checked.
// - What was found impossible is reported once, and reading goes on behind it if the lane itself is whole.
// - A wait releases the lock, so what was looked at before is looked at again. Several threads may wait in one handle,
//   and each gets the reason that ended its wait.
//
// ReceiverOf adds what depends on the kind of lane.
//
// The lock must be held for the functions that say so.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/lane/lane.hpp"
#include "client/queue/delivery.hpp"
#include "client/queue/message.hpp"
#include "client/queue/queue_state.hpp"

namespace shmb::client {

class Receiver {
 public:
  static std::unique_ptr<Receiver> of(QueueState& state);  // for the queue's kind
  virtual ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  virtual Now receive_now(Message& message, bool keep, std::int64_t wait) = 0;
  Result<void> receive(Message& message, bool keep, std::int64_t wait);
  // Waits for one message and takes what else is there, as kept messages, with one lock, and one wake for all that were
  // taken.
  Result<std::size_t> receive_many(std::span<Message* const> messages, std::int64_t wait);
  // How long a receive waits for the broker where the message itself lies in memory that is not mapped yet. 0: as long
  // as the spec says. For callers that retry anyway, because the pool's lock is held meanwhile.
  void wait_for_mapping(std::int64_t timeout);
  bool at_least_once() const { return state_.at_least_once(); }

  // The lock must be held for all functions below.
  // A receive would not wait. `taken`: the caller is a receive, and takes what was seen.
  bool something_there(bool taken);
  // If other readers could take what this process does not take now, wakes one of them.
  virtual void pass_on() = 0;
  enum class Settle : std::uint8_t { done, give_back };
  void settle(Message& message, Settle how);  // the message's cell
  const Delivery::Container& borrowed_container() const { return container_; }
  void follow();         // after the directory has changed
  void leave_lanes();    // at the close
  void forget_lanes();   // after the close
  void forget_parent();  // in a forked child: lanes and messages are the parent's
  void add_to(QueueFacts& facts) const;

 protected:
  struct In {
    std::uint32_t lane = 0, serial = 0, from = 0, from_life = 0;
    bool writer_closed = false, over = false;
    bool unwoken = false;  // its writers have not been woken yet for done cells
    std::unique_ptr<LaneReceiver> it;
  };
  explicit Receiver(QueueState& state) : state_(state) {}

  // Afterwards received_ is the next message of pending_, or pending_ is null.
  virtual bool try_look() = 0;
  // As try_look(), for a wait that is not part of a receive. A message is not claimed, unless no other consumer could
  // have it meanwhile. Behind a borrowed message its successor counts, because a receive says done for the borrowed
  // one.
  virtual bool message_waits() = 0;
  virtual void look_for_lanes() = 0;
  virtual void leave_read_lanes() = 0;       // of writers that are gone, without taking a message
  virtual bool read_to_its_end() const = 0;  // closed, and nothing can come back: the reader gets CLOSED
  virtual void give_back(In& in, std::uint64_t position) = 0;
  virtual void wake_writers(In& in) = 0;
  virtual bool competes() const = 0;
  // The messages of receive_many(), until the first one that is not bytes alone. Their writers are not woken yet.
  virtual std::size_t take_plain(std::span<Message* const> messages) = 0;

  bool finish_after(In& in, LaneReceiver::Look look, bool again);
  void done(In& in, std::uint64_t position) {
    in.it->mark_done(position);
    if (taking_many_) in.unwoken = true;
    else wake_writers(in);
  }
  bool writer_is_gone(const In& in) const { return in.writer_closed || !state_.me().alive(in.from, in.from_life); }
  bool is_expired(const LaneReceiver::Received& message) const;
  void note_expired(In& in) {  // the message of the last look
    done(in, received_.position);
    ++expired_;
  }
  void note_refused(In& in) {  // reported now; the next receive continues after it
    wake_writers(in);
    broken_ = "a message";
  }
  void forget_finished_lanes();
  void add_lane(const pool::LaneEntry& entry, std::uint32_t lane, pool::Stamp stamp, std::unique_ptr<LaneReceiver> it);
  // For the short ways, which use the parts of a message where they are.
  static std::byte* body_of(Message& message) { return message.body_.data(); }
  static bool holds_something(const Message& message) { return message.pool_ != nullptr; }
  static void forget_pool(Message& message) {
    if (message.pool_ != nullptr) message.pool_.reset();
  }
  // The message becomes these bytes, which are in its body.
  void fill(Message& message, std::uint32_t bytes, const In& in) {
    if (message.parts_.empty()) (void)message.add();
    Message::Part& part = message.parts_.front();
    part.kind = PartKind::bytes;
    part.slot = pool::kNone;
    part.data = message.body_.data();
    part.offset = 0;
    part.length = bytes;
    part.kept = false;
    part.rights = 0;
    part.status = Status::ok;
    message.count_ = 1;
    message.type_ = 0;
    message.writer_ = {in.from, in.from_life};
    ++received_count_;
  }
  // The message becomes this slot, borrowed. `base`: where this process has the slot.
  void fill(Message& message, const pool::Handle& handle, const std::byte* base, In& in) {
    fill(message, 0, in);
    Message::Part& part = message.parts_.front();
    part.data = base + handle.offset;
    part.kind = PartKind::slot;
    part.slot = handle.slot;
    part.generation = handle.generation;
    part.offset = handle.offset;
    part.length = handle.length;
    message.type_ = handle.type;
    message.incarnation_ = state_.incarnation;
    if (message.pool_ != state_.pool) message.pool_ = state_.pool;
    lend(message, &in, in.it->position());
  }
  // The message becomes the bytes of the last look.
  void fill_received(Message& message, const In& in) {
    std::memcpy(message.body_.data(), received_.body, received_.bytes);
    message.clear();
    fill(message, received_.bytes, in);
  }
  bool empty_now(Message& message);
  // Nothing came. The message is emptied all the same.
  static Now left_empty(Message& message) {
    message.clear();
    return Now::empty;
  }
  void lend(Message& message, In* in, std::uint64_t position);
  bool nothing_to_report() const {
    return pending_ == nullptr && broken_ == nullptr && !state_.changed() && !state_.me().sleeper().armed();
  }
  // The queue is open and empty, and no event waits to be reported.
  bool is_quiet() const { return !state_.closed && gone_writers_.empty() && !state_.pool->broken(); }

  QueueState& state_;
  std::vector<std::unique_ptr<In>> ins_;
  std::size_t next_in_ = 0;
  In* pending_ = nullptr;  // received_ is a message of this lane that no receive has taken
  LaneReceiver::Received received_;
  const char* broken_ = nullptr;  // an impossible word that was found, until a call reports it
  Message* borrowed_ = nullptr;
  In* borrowed_in_ = nullptr;  // the lane whose cell is not done; null: own bits hold the contents of the message

 private:
  void finish(In& in);
  void end_taking();                                                 // finishes what receive_many() has put off
  bool may_ask_broker(const LaneReceiver::Received& message) const;  // to deliver the message
  void empty(Message& message);
  void let_borrowed_go();
  Result<void> next_message(Message& message, bool keep, Wait& until);
  Result<Delivery::Outcome> deliver(Message& message, bool keep);
  std::optional<Error> news();  // CLOSED, PEER_GONE or BROKEN: the result for a reader that finds nothing
  bool is_unread(const QueueState::Peer& writer) const;

  std::uint64_t borrowed_position_ = 0;
  Delivery::Container container_;  // of the borrowed message
  bool taking_many_ = false;
  std::int64_t map_timeout_ = 0;
  std::vector<QueueState::Peer> writers_, gone_writers_;
  std::uint32_t writers_told_ = 0;  // events that were reported. A wait compares it with its value at the beginning
  Error last_of_writers_;           // the last error that raised it
  std::uint64_t received_count_ = 0, expired_ = 0;
};

}  // namespace shmb::client
