// SPDX-License-Identifier: Apache-2.0
// Receiving. A borrowed message's cell is not done until the caller is. A kept message has own bits on its slots before
// its cell is done. Data of a peer is used only from private copies that were checked.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/sys_process.hpp"
#include "client/queue/queue.hpp"
#include "client/queue/queue_set.hpp"
#include "client/region/kept_mappings.hpp"
#include "client/region/obtain.hpp"

namespace shmb::client {
namespace {

constexpr unsigned kOverruns = 64;  // overwritten messages before a receive looks at the clock

// The lane holds what its messages name, and the region of a list belongs to the pool's group. A sender that names
// anything else breaks the rules.
bool never_held(const Error& error) {
  return error.status == Status::not_found || error.status == Status::stale || error.status == Status::invalid;
}

}  // namespace

// Afterwards received_ is the next message of pending_, or pending_ is null.
bool Queue::try_look() {
  if (pending_ != nullptr) return true;
  for (std::size_t n = 0; n < ins_.size(); ++n) {
    std::uint32_t too_late = 0;
    // The writers of a broadcast follow each other: the later ring is read after the earlier one.
    const std::size_t at = kind_ == pool::QueueKind::broadcast ? n : (next_in_ + n) % ins_.size();
    In& in = *ins_[at];
    if (in.over || &in == borrowed_in_) continue;
    for (bool again = false;;) {
      const auto look = in.it->look(received_);
      if (look == LaneReceiver::Look::message) {
        if (received_.deadline != 0 && received_.deadline <= sys::now_monotonic()) {
          done(in, received_.position);
          ++expired_;
          // A whole lap was too old. Anything behind it came during this look, and its sender wakes readers that sleep.
          if (++too_late == cells_) break;
          continue;
        }
        pending_ = &in;
        next_in_ = (at + 1) % ins_.size();  // not the next lane: lanes that are over must be seen too
        return true;
      }
      if (look == LaneReceiver::Look::refused) {  // reported now; the next receive continues after it
        wake_writers(in);
        broken_ = "a message";
        return false;
      }
      if (!finish_after(in, look, again)) break;
      again = true;
    }
    if (kind_ == pool::QueueKind::broadcast && !in.over) return false;
  }
  return false;
}

// A look found no message. Is the lane over? True: look once more first.
bool Queue::finish_after(In& in, LaneReceiver::Look look, bool again) {
  if (look == LaneReceiver::Look::broken) broken_ = "a lane";
  else if (look == LaneReceiver::Look::empty) {
    if (!in.writer_closed || in.it->claimed_by_others()) return false;
    // Its writer was seen to have closed. A look after that sees all that it sent.
    if (!again) return true;
  }
  finish(in, true);
  return false;
}

// As try_look(), for a wait that is not part of a receive. A message is not claimed, unless no other consumer could
// have it meanwhile. Behind a borrowed message its successor counts, because a receive says done for the borrowed one.
bool Queue::message_waits() {
  if (pending_ != nullptr || broken_ != nullptr) return true;
  if (borrowed_ != nullptr && at_least_once()) return false;  // a receive would be refused
  for (auto& one : ins_) {
    In& in = *one;
    if (in.over) continue;
    if (kind_ == pool::QueueKind::mpmc && in.it->unclaimed()) return true;
    if (&in == borrowed_in_) {
      // Its writer may have gone: that is reported once the borrowed message is done.
      if (in.writer_closed || !pool_->me().alive(in.from, in.from_life)) return true;
      if (kind_ == pool::QueueKind::mpmc) continue;
      if (in.it->another_behind()) return true;
      if (kind_ == pool::QueueKind::broadcast) return false;  // a later ring is not read before
      continue;
    }
    for (bool again = false;;) {
      const auto look = in.it->look(received_);
      if (look == LaneReceiver::Look::message) {
        if (kind_ == pool::QueueKind::mpmc) {  // it came, or came back, in this moment
          in.it->give_back();
          return true;
        }
        if (received_.deadline == 0 || received_.deadline > sys::now_monotonic()) return true;
        done(in, received_.position);
        ++expired_;
        return true;  // the receive sees what is behind it
      }
      if (look == LaneReceiver::Look::refused) {
        wake_writers(in);
        broken_ = "a message";
        return true;
      }
      if (!finish_after(in, look, again)) break;
      again = true;
    }
    if (kind_ == pool::QueueKind::broadcast && !in.over) return false;
  }
  return false;
}

// A lane is free only once each reader is through with it, also one that sends and never receives. Such a reader looks
// here, whenever the directory has changed, at the lanes of writers that are gone. It takes nothing.
void Queue::leave_read_lanes() {
  if (kind_ != pool::QueueKind::mpmc || pending_ != nullptr || borrowed_in_ != nullptr) return;
  for (auto& one : ins_) {
    In& in = *one;
    const bool gone = in.writer_closed || !pool_->me().alive(in.from, in.from_life);
    if (in.over || !gone || in.it->unfinished()) continue;
    LaneReceiver::Received unused;
    for (bool again = false;; again = true) {
      const auto look = in.it->look(unused);
      if (look == LaneReceiver::Look::message) in.it->give_back(unused.position);  // it came back in this moment
      if (look != LaneReceiver::Look::empty && look != LaneReceiver::Look::drained) break;  // a receive reports it
      if (!finish_after(in, look, again)) break;
    }
  }
}

void Queue::finish(In& in, bool tell) {
  in.it->detach();
  in.over = true;
  if (tell) pool_->post_finished(in.lane, in.serial, SHMBW_LANE_END_RECEIVER);
}

// The message is malformed: drops it and continues with the next one from this writer.
void Queue::refuse(In& in) { done(in, received_.position); }

std::optional<Error> Queue::news() {
  if (broken_ != nullptr) return broken_error(std::exchange(broken_, nullptr)).error();
  if (pool_->broken()) return pool_->why_broken();
  for (auto gone = gone_writers_.begin(); gone != gone_writers_.end();) {
    const bool unread = std::ranges::any_of(
        ins_, [&](const auto& in) { return !in->over && in->from == gone->index && in->from_life == gone->life; });
    if (unread) {
      ++gone;
      continue;
    }
    const bool died = gone->died;
    gone = gone_writers_.erase(gone);
    if (died || (writers_.empty() && gone_writers_.empty() && !closed_)) {
      ++ended_.writers_told;
      last_of_writers_ = {
          Status::peer_gone,
          died ? EOWNERDEAD : 0,
          {},
          died ? "a writer of queue '" + spec_.name + "' has died; receive again to go on"
               : "the last writer of queue '" + spec_.name + "' has left; receive again to wait for newcomers"};
      return last_of_writers_;
    }
  }
  if (read_to_its_end())
    return Error{Status::closed, 0, {}, "queue '" + spec_.name + "' is closed, and everything in it was taken"};
  return std::nullopt;
}

// A message that another consumer has claimed comes back if that one dies or gives it back. A reader must be there to
// take it.
bool Queue::read_to_its_end() const {
  if (!closed_) return false;
  return kind_ != pool::QueueKind::mpmc ||
         std::ranges::none_of(ins_, [](const auto& in) { return !in->over && in->it->unfinished(); });
}

bool Queue::something_there(bool taken) {
  if (seen_change_ != pool_->change()) look_around();
  if ((taken ? try_look() : message_waits()) || broken_ != nullptr || read_to_its_end() || pool_->broken()) return true;
  // The same condition as news(), without taking the error.
  return std::ranges::any_of(gone_writers_, [&](const Peer& gone) {
    const bool unread = std::ranges::any_of(
        ins_, [&](const auto& in) { return !in->over && in->from == gone.index && in->from_life == gone.life; });
    return !unread && (gone.died || writers_.empty());
  });
}

// Each waker of a mpmc queue wakes one consumer. Several may have chosen this process, which takes one message now and
// may be busy for long. It is fully awake here, after the fence of Sleeper::wake_up. So it sees all that was published
// by wakers that chose it, and every participant that slept before they looked.
void Queue::pass_on() {
  if (kind_ != pool::QueueKind::mpmc || !spec_.reader) return;
  pool::Waiters& readers = pool_->view().queue_waiters(index_).readers;
  if ((readers.mask.load(std::memory_order_relaxed) & ~pool_->me().bit()) == 0) [[likely]]
    return;
  if (std::ranges::any_of(ins_, [](const auto& in) { return !in->over && in->it->unclaimed(); }))
    pool_->me().sleeper().wake_another(readers);
}

// The rest of done(). It may have been the last message of a gone writer, or of a closed queue. Then the other
// consumers are through with its lane too: claims that they saw do not come back. The states themselves are checked,
// after the fence with which wake_writers() looks for writers. This process may not have looked around since, and the
// broker wakes all of them after it has stored the state.
void Queue::done(In& in, std::uint64_t position) {
  in.it->mark_done(position);
  if (taking_many_) in.unwoken = true;
  else wake_writers(in);
}

void Queue::wake_writers(In& in) {
  in.it->wake_writers();
  in.unwoken = false;
  if (kind_ != pool::QueueKind::mpmc) return;
  const pool::Stamp lane = pool::Stamp::of(pool_->view().lane(in.lane).stamp.load(std::memory_order_acquire));
  const pool::Stamp queue = pool::Stamp::of(pool_->view().queue(index_).stamp.load(std::memory_order_acquire));
  if (lane.serial == in.serial && lane.state == static_cast<std::uint8_t>(pool::LaneState::open) &&
      queue.state == static_cast<std::uint8_t>(pool::QueueState::open)) [[likely]]
    return;
  pool_->me().sleeper().wake_all(pool_->view().queue_waiters(index_).readers);
}

void Queue::settle(Message& message, Settle how) {
  if (borrowed_ != &message) return;
  if (borrowed_in_ != nullptr && !borrowed_in_->over) {
    if (how == Settle::give_back) borrowed_in_->it->give_back(borrowed_position_);
    else done(*borrowed_in_, borrowed_position_);
  }
  borrowed_ = nullptr;
  borrowed_in_ = nullptr;
  borrowed_container_ = pool::kNone;
  message.queue_ = nullptr;
  // Another thread may wait with a set until this queue can be received from again.
  pool::Waiters& readers = pool_->view().queue_waiters(index_).readers;
  if (at_least_once() && (readers.mask.load(std::memory_order_relaxed) & pool_->me().bit()) != 0)
    pool_->me().sleeper().wake_all(readers);
}

void Queue::let_borrowed_go() {
  if (borrowed_ == nullptr) return;
  Message& message = *borrowed_;
  // Its reader did not say done: with at-least-once another consumer gets it.
  settle(message, at_least_once() ? Settle::give_back : Settle::done);
  empty(message);
}

Result<void> Queue::receive(Message& message, bool keep, std::int64_t wait) {
  SHMB_TRY_VOID(enter());
  if (!spec_.reader) return error(Status::denied, "this handle is no reader of queue '" + spec_.name + "'");
  if (at_least_once()) {
    Pool::Lock lock(pool_->me().lock());
    if (borrowed_ == &message)
      return error(Status::busy, "this message is not done: say shmb_message_done or shmb_message_give_back first");
    if (borrowed_ != nullptr)
      return error(Status::busy,
                   "the message before is not done: say shmb_message_done or shmb_message_give_back first");
  }
  SHMB_TRY_VOID(message.done());
  Wait until(wait);
  Result<void> received;
  {
    Pool::Lock lock(pool_->me().lock());
    if (!at_least_once()) let_borrowed_go();
    received = next_message(message, keep, until);
  }
  if (!received && received.error().status == Status::empty)
    if (auto armed = rearm(); !armed) return armed;
  return received;
}

// The message is empty, and the lock is held. A wait releases it, so facts that the caller checked before may have
// changed.
Result<void> Queue::next_message(Message& message, bool keep, Wait& until) {
  const std::uint32_t told_before = ended_.writers_told;
  const auto taken_by_another = [&] { return at_least_once() && borrowed_ != nullptr; };
  for (unsigned overruns = 0;;) {
    if (taken_by_another()) {
      if (pending_ != nullptr) std::exchange(pending_, nullptr)->it->give_back(received_.position);
      return error(Status::busy, "another thread has received a message that is not done");
    }
    if (seen_change_ != pool_->change()) look_around();
    if (broken_ == nullptr && try_look()) {  // what the call before has found is reported first
      if (pool_->me().sleeper().armed()) pool_->pass_on();
      pass_on();
      message.writer_ = {pending_->from, pending_->from_life};
      SHMB_TRY(delivered, deliver(message, keep));
      if (delivered == Delivery::delivered) {
        ++received_count_;
        return {};
      }
      if (delivered == Delivery::broken) return broken_error("a message");
      // Overwritten before it was copied. A writer that never stops must not keep this thread beyond the deadline.
      if (++overruns % kOverruns != 0) continue;
      if (until.none) break;
      if (until.until().passed())
        return error(Status::deadline,
                     "every message of queue '" + spec_.name + "' was overwritten before it was read");
      continue;
    }
    if (auto told = news()) return std::unexpected(std::move(*told));
    // Another thread that waited here got the error. This thread has waited for the same event.
    if (ended_.writers_told != told_before) return std::unexpected(last_of_writers_);
    if (until.none) break;
    set_spin();
    std::atomic<std::uint64_t>* const masks[] = {&reader_mask()};
    SHMB_TRY(
        woken,
        pool_->sleep(
            masks, [&] { return taken_by_another() || ended_.writers_told != told_before || something_there(true); },
            until.until()));
    if (!woken)
      return error(Status::deadline, "no message came through queue '" + spec_.name + "' before the deadline");
  }
  return error(Status::empty, "queue '" + spec_.name + "' has no message");
}

// Empties the message as done() would, if it holds no more than one slot borrowed through this queue.
bool Queue::empty_at_once(Message& message) {
  if (borrowed_ == nullptr) return message.pool_ == nullptr && message.count_ <= 1 && !message.container_region_;
  if (borrowed_ != &message || borrowed_in_ != ins_.front().get() || message.count_ != 1) return false;
  if (message.parts_.front().kind != PartKind::slot || message.parts_.front().kept) return false;
  if (message.container_ != pool::kNone || message.container_region_ || borrowed_container_ != pool::kNone)
    return false;
  settle(message, Settle::done);
  message.count_ = 0;
  message.type_ = 0;
  return true;
}

// The message becomes these bytes, which are in its body.
void Queue::fill(Message& message, std::uint32_t bytes, const In& in) {
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

bool Queue::receive_at_once(Message& message, bool keep, std::int64_t wait) {
  if (!as_opened()) return false;
  const std::lock_guard lock(pool_->me().lock());
  if (pending_ != nullptr || broken_ != nullptr || seen_change_ != pool_->change()) return false;
  if (pool_->me().sleeper().armed()) return false;  // receive() passes on what others may take
  if (reads_in_order()) return take_in_order(message, keep, wait);
  return kind_ == pool::QueueKind::mpmc && take_claimed(message);
}

bool Queue::take_in_order(Message& message, bool keep, std::int64_t wait) {
  constexpr int kLooks = 400;  // a thread that has just sent something expects the answer at once
  Sleeper& sleeper = pool_->me().sleeper();
  In& in = *ins_.front();
  if (in.over || !empty_at_once(message)) return false;
  if (!in.it->is_there()) {
    if (wait < kForever || spec_.spin <= 0 || !sleeper.answer_expected() || !sleeper.peer_runs_elsewhere() ||
        !__libc_single_threaded)
      return false;
    for (int looks = kLooks; !in.it->is_there(); --looks)
      if (looks == 0) return false;
    sleeper.expect_stream();
  }
  pool::Handle handle;
  std::uint32_t bytes = 0;
  switch (in.it->look_plain(message.body_.data(), bytes, handle)) {
    case LaneReceiver::Plain::nothing:
      return false;
    case LaneReceiver::Plain::bytes:
      if (message.pool_ != nullptr) message.pool_.reset();
      fill(message, bytes, in);
      in.it->done(in.it->position());
      return true;
    case LaneReceiver::Plain::slot:
      break;
  }
  const std::byte* const base = keep ? nullptr : pool_->data_if_mapped(handle.slot);
  if (base == nullptr) return false;
  __builtin_prefetch(base + handle.offset);
  fill(message, 0, in);
  Message::Part& part = message.parts_.front();
  part.data = base + handle.offset;
  part.kind = PartKind::slot;
  part.slot = handle.slot;
  part.generation = handle.generation;
  part.offset = handle.offset;
  part.length = handle.length;
  message.type_ = handle.type;
  message.incarnation_ = incarnation_;
  if (message.pool_ != pool_) message.pool_ = pool_;
  message.queue_ = this;
  borrowed_ = &message;
  borrowed_in_ = &in;
  borrowed_position_ = in.it->position();
  return true;
}

// A claimed message that is not bytes stays the next one. The caller's receive delivers it.
bool Queue::take_claimed(Message& message) {
  if (at_least_once() || borrowed_ != nullptr || message.pool_ != nullptr || !try_look()) return false;
  if (received_.tag > pool::kTagMaxInline) return false;
  pass_on();
  In& in = *std::exchange(pending_, nullptr);
  std::memcpy(message.body_.data(), received_.body, received_.bytes);
  message.clear();
  fill(message, received_.bytes, in);
  done(in, received_.position);
  return true;
}

// The messages of receive_many(), until the first one that is not bytes alone. Their writers are not woken yet.
std::size_t Queue::take_plain(std::span<Message* const> messages) {
  if (!reads_in_order() || pending_ != nullptr || broken_ != nullptr || seen_change_ != pool_->change()) return 0;
  In& in = *ins_.front();
  if (in.over) return 0;
  std::size_t count = 0;
  pool::Handle slot;
  for (std::uint32_t bytes = 0; count < messages.size(); ++count) {
    Message& message = *messages[count];
    if (!empty_at_once(message) || message.pool_ != nullptr) break;
    if (in.it->look_plain(message.body_.data(), bytes, slot) != LaneReceiver::Plain::bytes) break;
    fill(message, bytes, in);
    in.it->mark_done(in.it->position());
    in.unwoken = true;
  }
  return count;
}

Result<std::size_t> Queue::receive_many(std::span<Message* const> messages, std::int64_t wait) {
  if (messages.empty()) return error(Status::invalid, "no messages to receive into were given");
  if (at_least_once())
    return error(Status::invalid,
                 "a SHMB_QUEUE_AT_LEAST_ONCE queue gives one message at a time: use shmb_queue_receive");
  SHMB_TRY_VOID(enter());
  if (!spec_.reader) return error(Status::denied, "this handle is no reader of queue '" + spec_.name + "'");
  for (Message* message : messages)
    if (message->pool_ != nullptr && (message->pool_ != pool_ || message->stale())) (void)message->done();
  Wait until(wait);
  std::size_t count = 0, lost = 0;
  Result<void> first;
  {
    Pool::Lock lock(pool_->me().lock());
    let_borrowed_go();
    count = take_plain(messages);
    if (count == 0) {
      empty(*messages[0]);
      first = next_message(*messages[0], true, until);
      if (first) count = 1 + take_plain(messages.subspan(1));
    }
    struct Taking {  // also if a delivery throws
      Queue& queue;
      explicit Taking(Queue& of) : queue(of) { queue.taking_many_ = true; }
      ~Taking() {
        if (!queue.taking_many_) return;
        try {
          queue.end_taking();
        } catch (...) {  // a wake may ask the broker; the caller gets the first exception
        }
        queue.taking_many_ = false;
      }
    };
    if (first) {
      const Taking taking(*this);
      // An event that moves the directory may take lanes away: the next call looks.
      while (count < messages.size() && seen_change_ == pool_->change() && try_look()) {
        Message& message = *messages[count];
        empty(message);
        if (may_ask_broker(received_)) {
          end_taking();
          taking_many_ = true;
        }
        message.writer_ = {pending_->from, pending_->from_life};
        auto delivered = deliver(message, true);
        if (!delivered) break;  // it stays the next one, and its receive reports the reason
        if (*delivered == Delivery::broken) broken_ = "a message";
        if (*delivered == Delivery::delivered) ++received_count_, ++count;
        else if (broken_ != nullptr || ++lost == cells_) break;
      }
      end_taking();
    }
  }
  if (first) return count;
  if (first.error().status == Status::empty)
    if (auto armed = rearm(); !armed) return std::unexpected(armed.error());
  return std::unexpected(first.error());
}

bool Queue::may_ask_broker(const LaneReceiver::Received& message) const {
  if (message.tag <= pool::kTagMaxInline) return false;
  if (message.tag != pool::kTagSlot) return true;
  pool::Handle handle;
  std::memcpy(&handle, message.body, sizeof handle);
  return !pool_->is_mapped(handle.slot);
}

void Queue::end_taking() {
  for (const auto& in : ins_)
    if (in->unwoken) wake_writers(*in);
  if (pool_->me().sleeper().armed()) pool_->pass_on();
  pass_on();
  taking_many_ = false;
}

// As Message::done(), with the lock held: the message holds nothing, or something of this pool.
void Queue::empty(Message& message) {
  if (message.pool_ != nullptr) {
    if (message.queue_ != nullptr) message.queue_->settle(message, Settle::done);
    message.drop_kept(*pool_);
  }
  message.clear();
  message.pool_.reset();  // the queue still knows the pool
}

void Queue::wait_for_mapping(std::int64_t timeout) {
  const std::lock_guard lock(pool_->me().lock());
  map_timeout_ = timeout;
}

bool Queue::keep_slot(Message::Part& part, In&) {
  if (!pool_->me().keep(part.slot, part.generation)) return false;
  part.kept = true;
  return true;
}

Result<Queue::Delivery> Queue::deliver(Message& message, bool keep) {
  const interrupt::Shield shield;  // the message is taken: its slots and regions are taken in with it
  In& in = *pending_;
  const LaneReceiver::Received& got = received_;
  const bool overwritten = (flags_ & pool::kQueueDropOldest) != 0;
  const bool once = at_least_once();
  const bool lasting = (keep || overwritten) && !once;
  // A claimed cell goes to another consumer when this process dies. So it is done before the application has it.
  keep = lasting || (kind_ == pool::QueueKind::mpmc && !once);
  message.epoch_ = pool_->session()->epoch();
  message.incarnation_ = incarnation_;

  auto own = [&] {  // the message refers to this pool from now on
    if (message.pool_ != pool_) message.pool_ = pool_;
  };
  auto borrow = [&] {
    own();
    lend(message);
    borrowed_in_ = &in;
    borrowed_position_ = got.position;
    pending_ = nullptr;
  };
  auto done = [&] {
    pending_ = nullptr;
    this->done(in, got.position);
  };

  if (got.tag <= pool::kTagMaxInline) {
    Message::Part& part = message.add();
    part.kind = PartKind::bytes;
    std::memcpy(message.body_.data(), got.body, got.bytes);
    part.data = message.body_.data();
    part.length = got.bytes;
    if (once) borrow();
    else done();
    return Delivery::delivered;
  }
  if (got.tag != pool::kTagSlot) {
    auto delivered = deliver_list(message, in, keep);
    if (keep && !lasting && delivered == Delivery::delivered) lend(message);
    return delivered;
  }

  pool::Handle handle;
  std::memcpy(&handle, got.body, sizeof handle);
  Error why;
  const std::byte* const base = pool_->data(handle.slot, &why, map_timeout_ != 0 ? map_timeout_ : spec_.timeout);
  if (base == nullptr) return std::unexpected(std::move(why));  // not taken: the receive can be repeated
  Message::Part& part = message.add();
  part.kind = PartKind::slot;
  part.slot = handle.slot;
  part.generation = handle.generation;
  part.offset = handle.offset;
  part.length = handle.length;
  part.data = base + handle.offset;
  message.type_ = handle.type;
  if (!keep) {
    borrow();
    return Delivery::delivered;
  }
  const bool held = keep_slot(part, in);
  if (!held || !in.it->confirm()) {
    const bool lost = overwritten && (held || !in.it->confirm());
    if (held) pool_->me().undo(part.slot);
    part.kept = false;
    message.clear();
    pending_ = nullptr;
    if (lost) return Delivery::lost;
    refuse(in);
    return Delivery::broken;
  }
  own();
  done();
  if (!lasting) lend(message);
  return Delivery::delivered;
}

// The message belongs to the application until its next receive. Where the cell is done, own bits hold its contents.
void Queue::lend(Message& message) {
  message.queue_ = this;
  borrowed_ = &message;
  borrowed_in_ = nullptr;
}

// Takes kept mappings, and asks the broker for the others. `unanswered`: the broker has just let a deadline pass, and
// is not waited for again. `too_much`: the parts of regions that the broker refuses with the rights of all parts
// together.
void Queue::attach_wanted(Message& message, const Error* unanswered, std::vector<Message::Sharers>& too_much) {
  KeptMappings& kept = pool_->kept_mappings();
  std::vector<const Message::Wanted*> asked;
  for (const Message::Wanted& one : message.wanted_)
    if (auto handle = kept.take(one.region, one.rights)) message.share(one, handle);
    else asked.push_back(&one);
  if (asked.empty()) return;
  std::vector<AttachItem> items(asked.size());
  for (std::size_t i = 0; i < asked.size(); ++i) {
    items[i].target = Target::with_id(asked[i]->region);
    items[i].rights = asked[i]->rights;
  }
  Handles handles;
  if (unanswered == nullptr) handles = attach_regions(pool_->session(), items, spec_.timeout);
  else
    for (std::size_t i = 0; i < items.size(); ++i) handles.emplace_back(std::unexpected(*unanswered));
  const auto fails = [](const Result<Region::Handle>& one, auto... why) {
    return !one && ((one.error().status == why) || ...);
  };
  // Where leases run short, mappings that are only kept go first.
  const auto is_short = [&](const Result<Region::Handle>& one) { return fails(one, Status::limit); };
  if (kept.size() != 0 && std::ranges::any_of(handles, is_short)) {
    kept.give_up_all();
    for (std::size_t i = 0; i < items.size(); ++i)
      if (is_short(handles[i])) handles[i] = attach_region(pool_->session(), items[i], spec_.timeout);
  }
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const Message::Wanted& one = *asked[i];
    const bool mixed =
        std::ranges::any_of(one.parts, [&](auto number) { return message.parts_[number].rights != one.rights; });
    if (mixed && fails(handles[i], Status::write_closed, Status::denied)) too_much.push_back(one.parts);
    else if (handles[i]) message.share(one, *handles[i]);
    else message.refuse(one, handles[i].error());
  }
}

// The parts of one region share one mapping, with the rights of all of them together. So a region is attached once,
// however often it comes. A part that only reads does not close writing for one that writes. Where this process cannot
// have all these rights together, parts with the same rights share.
void Queue::attach_parts(Message& message, const Error* unanswered) {
  pool_->kept_mappings().give_up_asked(*pool_->session());
  auto& order = message.by_region_;
  order.clear();
  for (std::size_t i = 0; i < message.count_; ++i) {
    Message::Part& part = message.parts_[i];
    if (part.kind != PartKind::region) continue;
    if (part.rights == 0) part.rights = SHMBW_RIGHT_MAP_READ;
    order.push_back(static_cast<std::uint32_t>(i));
  }
  if (order.empty()) return;
  const auto region_of = [&](std::uint32_t number) {
    const shmbw_region_ref& region = message.parts_[number].region;
    return std::pair(region.id, region.generation);
  };
  const auto rights_of = [&](std::uint32_t number) { return message.parts_[number].rights; };
  std::vector<Message::Sharers> too_much;
  std::ranges::sort(order, {}, [&](auto number) { return std::pair(region_of(number), number); });
  message.wanted_.clear();
  message.want(order, region_of);
  attach_wanted(message, unanswered, too_much);
  if (too_much.empty()) return;
  message.wanted_.clear();
  for (const Message::Sharers parts : too_much) {
    std::ranges::sort(parts, {}, [&](auto number) { return std::pair(rights_of(number), number); });
    message.want(parts, rights_of);
  }
  attach_wanted(message, unanswered, too_much);
}

Result<Queue::Delivery> Queue::deliver_list(Message& message, In& in, bool keep) {
  const LaneReceiver::Received& got = received_;
  const bool overwritten = (flags_ & pool::kQueueDropOldest) != 0;
  Participant& me = pool_->me();
  std::span<const std::byte> from;
  pool::Handle handle{};
  handle.slot = pool::kNone;
  std::uint64_t parts = 0;
  bool possible = true;

  if (got.tag == pool::kTagListInline) {
    std::memcpy(message.body_.data(), got.body, got.bytes);
    from = std::span(message.body_).first(got.bytes);
    ListHeader header{};
    if (from.size() >= sizeof header) std::memcpy(&header, from.data(), sizeof header);
    parts = header.parts;
  } else {
    std::memcpy(&handle, got.body, sizeof handle);
    parts = handle.parts;
    if (got.tag == pool::kTagListInSlot) {
      Error why;
      const std::byte* const base = pool_->data(handle.slot, &why, map_timeout_ != 0 ? map_timeout_ : spec_.timeout);
      if (base == nullptr) return std::unexpected(std::move(why));
      from = {base + handle.offset, handle.length};
      if (keep) {
        possible = me.keep(handle.slot, handle.generation);
        if (possible) message.container_ = handle.slot;
      }
    } else {
      AttachItem item;
      item.target = Target::with_id({handle.region, handle.generation, 0});
      item.rights = SHMBW_RIGHT_MAP_READ;
      auto region = attach_region(pool_->session(), item, spec_.timeout);
      if (!region && !overwritten && !never_held(region.error()))
        return std::unexpected(region.error());  // not taken: the receive can be repeated
      if (!region || handle.offset > (*region)->length() || handle.length > (*region)->length() - handle.offset) {
        possible = false;
      } else {
        from = {(*region)->data() + handle.offset, handle.length};
        message.container_region_ = std::move(*region);
      }
    }
  }
  ListHeader header{};
  possible = possible && read_list(from, parts, me, message.table_, header);
  std::optional<Error> unmapped;  // the broker is asked for a segment once, not for each slot in it
  if (possible) {
    message.type_ = header.type;
    for (const ListEntry& entry : message.table_) {
      Message::Part& part = message.add();
      part.kind = entry.kind();
      part.rights = entry.rights();
      part.offset = entry.offset;
      part.length = entry.length;
      if (part.kind == PartKind::bytes) {
        part.data = from.data() + entry.offset;
        part.offset = 0;
      } else if (part.kind == PartKind::region) {
        part.region = {entry.id, entry.number, 0};
      } else {
        part.slot = entry.number;
        part.generation = static_cast<std::uint32_t>(entry.id);
        Error why;
        const std::byte* const base =
            unmapped ? pool_->data_if_mapped(part.slot) : pool_->data(part.slot, &why, spec_.timeout);
        if (base != nullptr) {
          part.data = base + entry.offset;
        } else if (!unmapped && why.sentence.empty()) {
          possible = false;  // it is in no segment
        } else {             // not the sender's fault: as with a region, the message arrives with the reason
          if (!unmapped) unmapped = std::move(why);
          part.failure = *unmapped;
          part.status = unmapped->status;
        }
        if (possible && keep && !keep_slot(part, in)) possible = false;
      }
      if (!possible) break;
    }
  }
  if (possible) attach_parts(message, unmapped && unmapped->status == Status::deadline ? &*unmapped : nullptr);
  const bool lost = !in.it->confirm();
  if (lost || !possible) {
    for (std::size_t i = 0; i < message.count_; ++i)
      if (std::exchange(message.parts_[i].kept, false)) me.undo(message.parts_[i].slot);
    if (message.container_ != pool::kNone) me.undo(std::exchange(message.container_, pool::kNone));
    message.clear();
    pending_ = nullptr;
    if (lost) return Delivery::lost;
    refuse(in);
    return Delivery::broken;
  }
  message.pool_ = pool_;
  if (keep) {
    pending_ = nullptr;
    done(in, got.position);
    return Delivery::delivered;
  }
  lend(message);
  borrowed_in_ = &in;
  borrowed_position_ = got.position;
  if (got.tag == pool::kTagListInSlot) {
    borrowed_container_ = handle.slot;
    borrowed_generation_ = handle.generation;
  }
  pending_ = nullptr;
  return Delivery::delivered;
}

}  // namespace shmb::client
