// SPDX-License-Identifier: Apache-2.0
// The writing end of a queue, as one handle has it. It writes one lane.
//
// A message is sent by send_now() if that needs no wait, no memory and no look at the directory: one look at the lane,
// one publication, one look for sleepers. All else takes the general way (send), in this order:
//   1. Take memory: a slot, or a region, for what does not fit into a cell.
//   2. Have the lane hold the regions that the message names (LaneHolds).
//   3. Find room, and wait for it if the caller may wait.
//   4. Publish: LaneSender::put, one store.
//   5. Wake readers, and look whether the queue was closed meanwhile.
//
// Invariants:
// - A message is sent whole or not at all. Everything that can fail comes before the publication. Memory that was taken
//   for a message that is not sent is given back.
// - What a message names is held from before its publication until its receiver is done.
// - A wait releases the lock, and so does a call to the broker. Afterwards all that was looked at is looked at again.
// - Several threads may wait in one handle. Each gets the reason that ended its wait (Ended).
//
// SenderOf adds what depends on the kind of lane: the lane itself, and the short ways, in which the compiler knows it.
//
// The lock must be held for the functions that say so.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/lane/lane.hpp"
#include "client/queue/lane_holds.hpp"
#include "client/queue/message.hpp"
#include "client/queue/queue_state.hpp"

namespace shmb::client {

class Sender {
 public:
  static std::unique_ptr<Sender> of(QueueState& state);  // for the queue's kind
  virtual ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // The short way, for bytes that fit into a cell, and for a slot. `full`: there is no room now.
  virtual Now send_now(std::span<const std::byte> bytes) = 0;
  virtual Now send_now(const Slot& slot) = 0;
  Result<void> send(std::span<const std::byte> bytes, std::int64_t wait);
  Result<void> send(const Slot& slot, std::int64_t wait);
  Result<void> send(std::span<const OutPart> parts, std::uint64_t type, std::int64_t lifetime, std::int64_t wait);
  struct Outgoing {
    std::span<const OutPart> parts;  // borrowed until the next call of `next`
    std::uint64_t type = 0;
    std::int64_t lifetime = 0;
  };
  // Sends in order, with one lock, and one wake for all messages between two waits. `sent` is the number sent, also
  // with an error. `plain` returns the bytes of messages that are one part of bytes, of type 0, without a lifetime.
  // They take the shortest path; `next` is called for all others.
  using Next = std::function<Result<Outgoing>(std::size_t)>;
  using Plain = std::function<std::optional<std::span<const std::byte>>(std::size_t)>;
  Result<void> send_many(std::size_t count, const Next& next, std::int64_t wait, std::size_t& sent, const Plain& plain);
  Result<void> drain(std::int64_t wait);
  std::string why_full() const;

  // The lock must be held for all functions below.
  bool room_there();  // a send would not wait: there is room, or an error to report
  virtual void adopt(std::uint32_t lane, std::uint32_t serial) = 0;  // the lane that the broker has given to this end
  virtual void follow() = 0;                                         // after the directory has changed
  void retire();         // at the close: the messages of the lane stay held until they are read
  void forget_parent();  // in a forked child: the lane is the parent's
  void add_to(QueueFacts& facts);

 protected:
  explicit Sender(QueueState& state) : state_(state), self_(std::make_shared<Sender*>(this)) {}

  struct Out {
    std::uint32_t lane = pool::kNone, serial = 0, to = pool::kNone, to_life = 0;
    std::unique_ptr<LaneSender> it;
  };
  // The holds of a message, from the first look at them until its publication. hold_regions() releases the lock, and a
  // send of another thread must not drop them meanwhile.
  struct Claims {
    Sender& sender;
    const std::span<Region* const> regions;
    Pool::Lock& lock;
    std::uint32_t lane = pool::kNone, serial = 0;  // the lane that holds them; another lane has none of them
    void take();
    void keep() { lane = pool::kNone; }  // the message has them now
    ~Claims();
  };
  // Counts of events that end waits. Several threads may wait here, and each must get the event, whichever thread saw
  // it first. So a wait compares these counts with those at its beginning.
  struct Ended {
    std::uint32_t readers_gone = 0, readers_died = 0, given_up = 0;
  };
  struct Batch {
    std::size_t sent = 0;
    std::uint64_t unshown = 0;  // published, but the readers are not woken yet
  };

  // As many as follow each other and find room, after one look at the queue.
  virtual void put_plain(const Plain& plain, std::size_t count, Batch& batch) = 0;
  std::uint32_t follow_readers();  // returns how many have died
  void drop_out();
  void let_go(Held&& held) {
    if (!held.list) return;
    for (const std::uint64_t id : held.list->regions) holds_.let_go(id);
  }
  LaneSender::LetGoRegions let_go_regions() {  // the lane may outlive this end in the pool
    return [self = self_](Held&& held) {
      if (*self != nullptr) (*self)->let_go(std::move(held));
    };
  }
  bool all_drained() const { return sent_ == drained_; }
  void give_up() {
    given_up_ = true;
    ++ended_.given_up;
  }
  // Nothing but the lane itself stands between this end and a message that is sent at once.
  bool is_clear() const {
    return !state_.changed() && out_.it && !state_.closed && !readers_gone_ && !state_.pool->broken() &&
           !holds_.has_idle();
  }
  // Call after messages were published. Returns how many of the last ones do not count as sent, because the queue was
  // closed meanwhile. A reader that sees the queue closed looks at its lanes once more before it reports that. Both
  // looks come after a fence (here S4). So either that look finds the message, or this one reports it.
  std::uint64_t closed_meanwhile(std::uint64_t last = 1) {
    if (state_.is_open()) [[likely]]
      return 0;
    state_.closed = true;
    return out_.it->unsend(last);
  }

  QueueState& state_;
  Out out_;
  bool readers_gone_ = false;
  std::uint64_t sent_ = 0;
  std::vector<QueueState::Peer> readers_;

 private:
  Result<void> may_send() const;
  std::unexpected<Error> closed_error() const;
  std::unexpected<Error> too_large(std::uint64_t bytes) const;
  Result<void> publish(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline,
                       std::span<Region* const> regions, Wait& wait, Pool::Lock& lock);
  Result<bool> find_room(Claims& claims, const Ended& before);
  bool readers_have_gone(const Ended& before);
  // Ends the batch, if there is one. Call it before this thread waits, calls the broker or releases the lock.
  Result<void> show_batch();
  Result<void> send_parts(std::span<const OutPart> given, std::uint64_t type, std::int64_t lifetime, Wait& wait,
                          Pool::Lock& lock);
  Result<void> send_slot(const Slot& slot, std::uint64_t offset, std::uint64_t length, std::uint64_t type,
                         std::int64_t deadline, Wait& wait, Pool::Lock& lock);
  Result<void> send_in_slot(std::span<const std::byte> bytes, std::uint64_t type, std::int64_t deadline, Wait& wait,
                            Pool::Lock& lock);
  Result<void> send_list(std::span<OutPart> parts, std::uint64_t type, std::int64_t deadline, Wait& wait,
                         Pool::Lock& lock);
  Result<void> check_part(OutPart& part);
  Result<bool> has_slots_for(std::uint64_t bytes, Wait& wait, Pool::Lock& lock);
  Result<std::uint32_t> take_slot(std::uint64_t bytes, Wait& wait, Pool::Lock& lock);
  Result<void> hold_regions(const Claims& claims);

  std::shared_ptr<Sender*> self_;  // null inside once this end is gone
  LaneHolds holds_;
  Batch* batch_ = nullptr;  // of the thread that has the lock
  // readers that are gone did not take all that this handle sent, and no call has reported it yet
  bool given_up_ = false;
  std::uint64_t drained_ = 0;  // of sent_: certainly taken
  std::uint64_t in_regions_ = 0;
  Ended ended_;
};

}  // namespace shmb::client
