// SPDX-License-Identifier: Apache-2.0
// A Queue is this process' handle of one queue: its reading end (Receiver), its writing end (Sender), or both. It opens
// and closes the ends, tells facts, and has the descriptor for event loops. The kind of the queue becomes known when it
// is opened, and chooses the classes of the ends. Nothing behind them asks for it again.
//
// States: open; closed (shutdown was called: no sends, readers take what is left); broken (a peer wrote something
// impossible, reported once). In a forked child the handle is stale: its first call opens ends of its own.
//
// Nothing on the path of a message makes a system call or allocates, except for lists, regions and wakes. The
// participant's lock guards all of it. Waits and calls to the broker release the lock.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "client/queue/message.hpp"
#include "client/queue/pool.hpp"
#include "client/queue/queue_spec.hpp"
#include "client/queue/queue_state.hpp"
#include "client/queue/receiver.hpp"
#include "client/queue/sender.hpp"

namespace shmb::client {

class QueueSet;

class Queue {
 public:
  using Outgoing = Sender::Outgoing;

  static Result<std::unique_ptr<Queue>> open(const std::shared_ptr<Pool>& pool, const QueueSpec& spec);
  static Result<std::unique_ptr<Queue>> open_alone(const std::shared_ptr<Session>& session, const std::string& address,
                                                   QueueSpec spec);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // The short ways, for an ordinary message: inline or one slot, with room, on a lane that is read in order and drops
  // nothing. They never wait, and make no sentence.
  Now send_now(std::span<const std::byte> bytes) { return sender_ ? sender_->send_now(bytes) : Now::ask; }
  Now send_now(const Slot& slot) { return sender_ ? sender_->send_now(slot) : Now::ask; }
  Now receive_now(Message& message, bool keep, std::int64_t wait) {
    if (!receiver_) return Now::ask;
    const Now now = receiver_->receive_now(message, keep, wait);
    return now == Now::empty && own_set() != nullptr ? Now::ask : now;  // the descriptor has to be armed
  }
  Error why(Now now);  // the sentence for `full` and `empty`
  // The general ways; see Sender and Receiver.
  Result<void> send(std::span<const std::byte> bytes, std::int64_t wait);
  Result<void> send(const Slot& slot, std::int64_t wait);
  Result<void> send(std::span<const OutPart> parts, std::uint64_t type, std::int64_t lifetime, std::int64_t wait);
  Result<void> send_many(std::size_t count, const Sender::Next& next, std::int64_t wait, std::size_t& sent,
                         const Sender::Plain& plain = {});
  Result<void> drain(std::int64_t wait);
  Result<void> receive(Message& message, bool keep, std::int64_t wait);
  Result<std::size_t> receive_many(std::span<Message* const> messages, std::int64_t wait);
  Result<void> shutdown(bool remove);
  Result<void> close(bool all, bool remove);  // the handle is invalid afterwards
  Result<QueueFacts> facts();
  Result<int> descriptor();

  Pool& pool() { return *state_.pool; }
  const std::shared_ptr<Pool>& shared_pool() const { return state_.pool; }
  bool reads() const { return state_.spec.reader; }
  std::atomic<std::uint64_t>& reader_mask() const { return state_.readers().mask; }
  std::atomic<std::uint64_t>& writer_mask() const { return state_.writers().mask; }
  Result<void> enter() {
    SHMB_TRY_VOID(state_.pool->enter());
    if (state_.incarnation == state_.pool->incarnation()) [[likely]]
      return {};
    return open_in_child();
  }
  void wait_for_mapping(std::int64_t timeout) {  // see Receiver
    if (receiver_) receiver_->wait_for_mapping(timeout);
  }
  void set_spin() { state_.set_spin(); }

  // The lock must be held for all functions below.
  bool something_there(bool taken) { return receiver_ && receiver_->something_there(taken); }
  bool room_there() { return sender_ && sender_->room_there(); }
  void pass_on() {
    if (receiver_) receiver_->pass_on();
  }

 private:
  Queue(std::shared_ptr<Pool> pool, QueueSpec spec);
  Result<void> open_ends(bool again);
  bool use_ends(const shmbw_queue_open_reply& opened);
  Result<void> open_in_child();
  Result<void> ask_to_close(std::uint32_t flags);
  Result<void> as_reader();  // refuses a handle that is none
  Result<void> as_writer();
  QueueSet* own_set();  // behind descriptor(), once that was called
  // The queue was found empty: its descriptor, if there is one, reports the next message. SESSION_LOST: it cannot.
  Result<void> rearm();

  QueueState state_;
  bool open_ = false;
  std::unique_ptr<Sender> sender_;        // null: this handle does not write
  std::unique_ptr<Receiver> receiver_;    // null: this handle does not read
  std::unique_ptr<QueueSet> descriptor_;  // made under the lock, never replaced
};

}  // namespace shmb::client
