// SPDX-License-Identifier: Apache-2.0
// A Queue is this process' handle of one queue: its reader end, its writer end, or both.
//
// The pool's directory, which only the broker writes, says which queues, participants and lanes there are. When its
// change word moves, the ends look again (look_around). A reader has one lane per writer (`ins_`); a writer has one
// lane (`out_`).
//
// States: open; closed (shutdown was called: no sends, readers take what is left); broken (a peer wrote something
// impossible, reported once). In a forked child the handle is stale: its first call opens ends of its own.
//
// A send takes memory, lets the lane hold the regions, finds room, publishes, and wakes. A receive looks at the lanes
// in turn, copies the message, and delivers it. A delivered message is borrowed (its cell is done later) or kept (own
// bits on its slots, then the cell is done).
//
// Invariants:
// - A message is sent whole or not at all. Everything that can fail comes before the publication.
// - What a message names is held from before its publication until its receiver is done.
// - Nothing on the path of a message makes a system call or allocates, except for lists, regions and wakes.
// - The participant's lock guards all of it. Waits and calls to the broker release the lock, so the caller must check
//   again afterwards what it had looked at.
// - Several threads may wait in one handle. Each of them gets the reason that ended its wait (Ended).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/queue/message.hpp"
#include "client/queue/pool.hpp"

namespace shmb::client {

class QueueSet;

struct QueueSpec {
  std::string name;
  pool::QueueKind kind = pool::QueueKind::none;
  bool reader = false, writer = false, create_only = false, open_only = false;
  std::uint32_t flags = 0;                 // pool::kQueue*
  std::uint32_t cells = 0, cell_size = 0;  // 0: those of the existing queue; 256 and 64 in a new one
  std::int64_t spin = Sleeper::kDefaultSpin;
  bool spin_always = false;  // see Sleeper::set_spin
  std::int64_t wait = 0, timeout = 0;
};

struct QueueFacts {
  pool::QueueKind kind = pool::QueueKind::none;
  bool reader = false, writer = false, closed = false;
  std::uint32_t flags = 0, cells = 0, inline_bytes = 0, readers = 0, writers = 0, lanes = 0, deaths = 0;
  std::uint64_t depth = 0, lost = 0, sent = 0, received = 0, expired = 0, in_regions = 0, pool = 0;
  std::string name;
};

class Queue {
 public:
  static Result<std::unique_ptr<Queue>> open(const std::shared_ptr<Pool>& pool, const QueueSpec& spec);
  static Result<std::unique_ptr<Queue>> open_alone(const std::shared_ptr<Session>& session, const std::string& address,
                                                   QueueSpec spec);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

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
  using Plain = std::function<std::optional<std::span<const std::byte>>(std::size_t)>;
  Result<void> send_many(std::size_t count, const std::function<Result<Outgoing>(std::size_t)>& next, std::int64_t wait,
                         std::size_t& sent, const Plain& plain = {});
  Result<void> receive(Message& message, bool keep, std::int64_t wait);
  // The shortest path, for an ordinary message: inline or one slot, with room, on a lane that is read in order and
  // drops nothing. False: nothing was sent or taken, and the caller uses the functions above.
  bool send_at_once(std::span<const std::byte> bytes);
  bool send_at_once(const Slot& slot);
  bool receive_at_once(Message& message, bool keep, std::int64_t wait);
  // Waits for one message and takes what else is there, as kept messages, with one lock, and one wake for all that were
  // taken.
  Result<std::size_t> receive_many(std::span<Message* const> messages, std::int64_t wait);
  Result<void> shutdown(bool remove);
  Result<void> drain(std::int64_t wait);
  Result<void> close(bool all, bool remove);  // the handle is invalid afterwards
  Result<QueueFacts> facts();
  Result<int> descriptor();

  Pool& pool() { return *pool_; }
  const std::shared_ptr<Pool>& shared_pool() const { return pool_; }
  bool at_least_once() const { return (flags_ & pool::kQueueAtLeastOnce) != 0; }
  bool reads() const { return spec_.reader; }
  std::atomic<std::uint64_t>& reader_mask() const { return pool_->view().queue_waiters(index_).readers.mask; }
  std::atomic<std::uint64_t>& writer_mask() const { return pool_->view().queue_waiters(index_).writers.mask; }
  Result<void> enter() {
    SHMB_TRY_VOID(pool_->enter());
    if (incarnation_ == pool_->incarnation()) [[likely]]
      return {};
    return open_in_child();
  }
  // How long a receive waits for the broker where the message itself lies in memory that is not mapped yet. 0: as long
  // as the spec says. For callers that retry anyway, because the pool's lock is held meanwhile.
  void wait_for_mapping(std::int64_t timeout);
  void set_spin() { pool_->me().sleeper().set_spin(spec_.spin, spec_.spin_always); }

  // The lock must be held for all functions below.
  // A receive would not wait. `taken`: the caller is a receive, and takes what was seen.
  bool something_there(bool taken);
  bool room_there();  // a send would not wait: there is room, or an error to report
  void pass_on();     // claim: if another consumer sleeps while an unclaimed message is there, wakes it
  enum class Settle : std::uint8_t { done, give_back };
  void settle(Message& message, Settle how);
  std::uint32_t borrowed_container() const { return borrowed_container_; }
  std::uint32_t borrowed_generation() const { return borrowed_generation_; }

 private:
  struct In {
    std::uint32_t lane = 0, serial = 0, from = 0, from_life = 0;
    bool writer_closed = false, over = false;
    bool unwoken = false;  // its writers have not been woken yet for done cells
    std::unique_ptr<LaneReceiver> it;
  };
  struct Out {
    std::uint32_t lane = pool::kNone, serial = 0, to = pool::kNone, to_life = 0;
    std::unique_ptr<LaneSender> it;
  };
  struct Peer {
    std::uint32_t index, life;
    bool died = false;
    friend bool operator==(const Peer& a, const Peer& b) { return a.index == b.index && a.life == b.life; }
  };
  struct LaneHold {
    std::uint32_t generation = 0;
    std::uint32_t in_flight = 0;  // messages that name it, including those that are being sent
    std::uint64_t bytes = 0,
                  handle = 0;  // Region::serial(), 0: not held yet. While it lives, the broker keeps the hold
  };
  // The holds of a message, from the first look at them until its publication. hold_regions() releases the lock, and a
  // send of another thread must not drop them meanwhile.
  struct Claims {
    Queue& queue;
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
    std::uint32_t readers_gone = 0, readers_died = 0, writers_told = 0, given_up = 0;
  };
  enum class Delivery : std::uint8_t { delivered, lost, broken };

  Queue(std::shared_ptr<Pool> pool, QueueSpec spec);
  Result<void> open_ends(bool again);
  Result<void> open_in_child();
  Result<void> ask_to_close(std::uint32_t flags);
  void look_around();  // after the directory has changed
  void look_for_lanes_to_read();
  void leave_read_lanes();
  void look_for_reader();
  bool has_died(const Peer& peer) const;  // the peer is gone, and did not leave in order
  void follow_peers(std::vector<Peer>& known, std::uint64_t mask, std::vector<Peer>& gone);
  void adopt_out(std::uint32_t lane, std::uint32_t serial);
  void drop_out();
  std::optional<pool::LaneView> lane_view(std::uint32_t lane, std::uint32_t serial, pool::LaneEntry* copy) const;

  Result<void> publish(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline,
                       std::span<Region* const> regions, Wait& wait, Pool::Lock& lock);
  Result<bool> find_room(Claims& claims, const Ended& before);
  bool readers_have_gone(const Ended& before);
  Result<void> may_send() const;
  // Call after messages were published. Returns how many of the last ones do not count as sent, because the queue was
  // closed meanwhile.
  std::uint64_t closed_meanwhile(std::uint64_t last = 1);
  struct Batch {
    std::size_t sent = 0;
    std::uint64_t unshown = 0;  // published, but the readers are not woken yet
  };
  // Ends the batch, if there is one. Call it before this thread waits, calls the broker or releases the lock.
  Result<void> show_batch();
  void put_plain(const Plain& plain, std::size_t count, Batch& batch);
  Result<void> send_parts(std::span<const OutPart> given, std::uint64_t type, std::int64_t lifetime, Wait& wait,
                          Pool::Lock& lock);
  Result<bool> has_slots_for(std::uint64_t bytes, Wait& wait, Pool::Lock& lock);
  Result<std::uint32_t> take_slot(std::uint64_t bytes, Wait& wait, Pool::Lock& lock);
  std::unexpected<Error> closed_error() const;
  bool room_at_once() {
    return seen_change_ == pool_->change() && out_.it && !closed_ && !readers_gone_ && !pool_->broken() &&
           idle_holds_.empty() && out_.it->room() == LaneSender::Room::yes;
  }
  bool as_opened() const { return !pool_->is_fresh_child() && incarnation_ == pool_->incarnation(); }
  Result<void> send_in_slot(std::span<const std::byte> bytes, std::uint64_t type, std::int64_t deadline, Wait& wait,
                            Pool::Lock& lock);
  std::unexpected<Error> too_large(std::uint64_t bytes) const;
  Result<void> send_list(std::span<OutPart> parts, std::uint64_t type, std::int64_t deadline, Wait& wait,
                         Pool::Lock& lock);
  Result<void> check_part(OutPart& part);
  void let_go(Held&& held);
  void let_go_region(std::uint64_t id);
  Result<void> hold_regions(const Claims& claims);
  void drop_idle_holds();
  std::unexpected<Error> broken_error(const char* what) const;

  bool try_look();
  bool message_waits();
  bool read_to_its_end() const;  // closed, and nothing can come back: the reader gets CLOSED
  bool finish_after(In& in, LaneReceiver::Look look, bool again);
  void finish(In& in, bool tell);
  void done(In& in, std::uint64_t position);
  void wake_writers(In& in);
  bool may_ask_broker(const LaneReceiver::Received& message) const;  // to deliver the message
  void end_taking();                                                 // finishes what receive_many() has put off
  void empty(Message& message);
  Result<void> next_message(Message& message, bool keep, Wait& until);
  void refuse(In& in);
  Result<Delivery> deliver(Message& message, bool keep);
  void lend(Message& message);
  bool empty_at_once(Message& message);
  bool reads_in_order() const {  // one lane, and nothing in it is dropped
    return kind_ != pool::QueueKind::mpmc && (flags_ & pool::kQueueDropOldest) == 0 && ins_.size() == 1;
  }
  void fill(Message& message, std::uint32_t bytes, const In& in);
  bool take_in_order(Message& message, bool keep, std::int64_t wait);
  bool take_claimed(Message& message);
  std::size_t take_plain(std::span<Message* const> messages);
  Result<Delivery> deliver_list(Message& message, In& in, bool keep);
  bool keep_slot(Message::Part& part, In& in);
  void attach_parts(Message& message, const Error* unanswered);
  void attach_wanted(Message& message, const Error* unanswered, std::vector<Message::Sharers>& too_much);
  std::optional<Error> news();  // CLOSED, PEER_GONE or BROKEN: the result for a reader that finds nothing
  void let_borrowed_go();
  QueueSet* own_set();  // behind descriptor(), once that was called
  // The queue was found empty: its descriptor, if there is one, reports the next message. SESSION_LOST: it cannot.
  Result<void> rearm();
  std::uint32_t body_room() const { return cell_size_ - 8 - ((flags_ & pool::kQueueExpiring) != 0 ? 8 : 0); }

  const std::shared_ptr<Pool> pool_;
  const QueueSpec spec_;
  std::atomic<std::uint64_t> incarnation_ = 0;  // of the pool, when the ends were opened
  std::uint32_t index_ = 0, serial_ = 0, flags_ = 0, cells_ = 0, cell_size_ = 64, seen_change_ = 0, deaths_ = 0;
  pool::QueueKind kind_ = pool::QueueKind::none;
  bool open_ = false, closed_ = false, readers_gone_ = false;
  // readers that are gone did not take all that this handle sent, and no call has reported it yet
  bool given_up_ = false;
  std::uint64_t drained_ = 0;  // of sent_: certainly taken
  Ended ended_;
  Error last_of_writers_;  // the last error that raised writers_told
  void give_up() {
    given_up_ = true;
    ++ended_.given_up;
  }
  const char* broken_ = nullptr;  // what was found impossible, until a call reports it

  std::shared_ptr<Queue*> self_;  // null inside once closed: lanes may outlive their queue in the pool
  Out out_;
  std::unordered_map<std::uint64_t, LaneHold> holds_;
  std::vector<std::uint64_t> idle_holds_;
  std::uint64_t idle_bytes_ = 0;
  Batch* batch_ = nullptr;  // of the thread that has the lock

  std::vector<std::unique_ptr<In>> ins_;
  std::size_t next_in_ = 0;
  bool taking_many_ = false;
  std::int64_t map_timeout_ = 0;
  In* pending_ = nullptr;  // received_ is a message of this lane that no receive has taken
  LaneReceiver::Received received_;

  Message* borrowed_ = nullptr;
  In* borrowed_in_ = nullptr;  // the lane whose cell is not done; null: own bits hold the contents of the message
  std::uint64_t borrowed_position_ = 0;
  std::uint32_t borrowed_container_ = pool::kNone, borrowed_generation_ = 0;

  std::vector<Peer> readers_, writers_, gone_writers_;
  std::uint64_t sent_ = 0, received_count_ = 0, expired_ = 0, in_regions_ = 0;
  std::unique_ptr<QueueSet> descriptor_;  // made under the lock, never replaced
};

}  // namespace shmb::client
