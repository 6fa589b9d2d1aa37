// SPDX-License-Identifier: Apache-2.0
// Receiving with everything that can happen. See receiver.hpp.
#include "client/queue/receiver.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/interrupt.hpp"
#include "base/sys_process.hpp"

namespace shmb::client {
namespace {

constexpr unsigned kOverruns = 64;  // overwritten messages before a receive looks at the clock

}  // namespace

// In a forked child `borrowed_` may be a message of the parent that the child has freed. It is not looked at: a message
// that is stale asks for no receiver.
Receiver::~Receiver() = default;

Result<void> Receiver::receive(Message& message, bool keep, std::int64_t wait) {
  if (at_least_once()) {
    Pool::Lock lock(state_.me().lock());
    if (borrowed_ == &message)
      return error(Status::busy, "this message is not done: say shmb_message_done or shmb_message_give_back first");
    if (borrowed_ != nullptr)
      return error(Status::busy,
                   "the message before is not done: say shmb_message_done or shmb_message_give_back first");
  }
  SHMB_TRY_VOID(message.done());
  Wait until(wait);
  Pool::Lock lock(state_.me().lock());
  if (!at_least_once()) let_borrowed_go();
  return next_message(message, keep, until);
}

// The message is empty, and the lock is held. A wait releases it, so facts that the caller checked before may have
// changed.
Result<void> Receiver::next_message(Message& message, bool keep, Wait& until) {
  const std::string& name = state_.spec.name;
  const std::uint32_t told_before = writers_told_;
  const auto taken_by_another = [&] { return at_least_once() && borrowed_ != nullptr; };
  for (unsigned overruns = 0;;) {
    if (taken_by_another()) {
      if (pending_ != nullptr) give_back(*std::exchange(pending_, nullptr), received_.position);
      return error(Status::busy, "another thread has received a message that is not done");
    }
    state_.look_if_changed();
    if (broken_ == nullptr && try_look()) {  // a fault that the call before has found is reported first
      if (state_.me().sleeper().armed()) state_.pool->doorbell().pass_on();
      pass_on();
      SHMB_TRY(delivered, deliver(message, keep));
      if (delivered == Delivery::Outcome::broken) return state_.broken_error("a message");
      if (delivered != Delivery::Outcome::lost) return {};
      // Overwritten before it was copied. A writer that never stops must not keep this thread beyond the deadline.
      if (++overruns % kOverruns != 0) continue;
      if (until.none) break;
      if (until.until().passed())
        return error(Status::deadline, "every message of queue '" + name + "' was overwritten before it was read");
      continue;
    }
    if (auto told = news()) return std::unexpected(std::move(*told));
    // Another thread that waited here got the error. This thread has waited for the same event.
    if (writers_told_ != told_before) return std::unexpected(last_of_writers_);
    if (until.none) break;
    state_.set_spin();
    std::atomic<std::uint64_t>* const masks[] = {&state_.readers().mask};
    SHMB_TRY(woken,
             state_.pool->sleep(
                 masks, [&] { return taken_by_another() || writers_told_ != told_before || something_there(true); },
                 until.until()));
    if (!woken) return error(Status::deadline, "no message came through queue '" + name + "' before the deadline");
  }
  return error(Status::empty, "queue '" + name + "' has no message");
}

// Delivers the pending message, and does with its cell what the outcome says. An error: it stays the pending one.
Result<Delivery::Outcome> Receiver::deliver(Message& message, bool keep) {
  const interrupt::Shield shield;  // the message is taken: its slots and regions are taken in with it
  In& in = *pending_;
  message.writer_ = {in.from, in.from_life};
  Delivery delivery(state_, message, received_, *in.it, competes(), map_timeout_);
  SHMB_TRY(outcome, delivery.deliver(keep));
  pending_ = nullptr;
  const std::uint64_t position = received_.position;
  switch (outcome) {
    case Delivery::Outcome::taken:
      done(in, position);
      break;
    case Delivery::Outcome::lent:
      done(in, position);
      lend(message, nullptr, 0);
      break;
    case Delivery::Outcome::borrowed:
      lend(message, &in, position);
      container_ = delivery.container();
      break;
    case Delivery::Outcome::broken:
      done(in, position);
      return outcome;
    case Delivery::Outcome::lost:
      return outcome;
  }
  ++received_count_;
  return outcome;
}

// The message belongs to the application until its next receive.
void Receiver::lend(Message& message, In* in, std::uint64_t position) {
  message.receiver_ = this;
  borrowed_ = &message;
  borrowed_in_ = in;
  borrowed_position_ = position;
}

Result<std::size_t> Receiver::receive_many(std::span<Message* const> messages, std::int64_t wait) {
  for (Message* message : messages)
    if (message->pool_ != nullptr && (message->pool_ != state_.pool || message->stale())) (void)message->done();
  Wait until(wait);
  Pool::Lock lock(state_.me().lock());
  let_borrowed_go();
  std::size_t count = take_plain(messages), lost = 0;
  if (count == 0) {
    empty(*messages[0]);
    SHMB_TRY_VOID(next_message(*messages[0], true, until));
    count = 1 + take_plain(messages.subspan(1));
  }
  struct Taking {  // also if a delivery throws
    Receiver& receiver;
    explicit Taking(Receiver& of) : receiver(of) { receiver.taking_many_ = true; }
    ~Taking() {
      if (!receiver.taking_many_) return;
      try {
        receiver.end_taking();
      } catch (...) {  // a wake may ask the broker; the caller gets the first exception
      }
      receiver.taking_many_ = false;
    }
  } const taking(*this);
  // An event that moves the directory may take lanes away: the next call looks.
  while (count < messages.size() && !state_.changed() && try_look()) {
    Message& message = *messages[count];
    empty(message);
    if (may_ask_broker(received_)) {
      end_taking();
      taking_many_ = true;
    }
    auto delivered = deliver(message, true);
    if (!delivered) break;  // it stays the next one, and its receive reports the reason
    if (*delivered == Delivery::Outcome::broken) broken_ = "a message";
    else if (*delivered != Delivery::Outcome::lost) ++count;
    else if (++lost == state_.cells) break;
    if (broken_ != nullptr) break;
  }
  end_taking();
  return count;
}

bool Receiver::may_ask_broker(const LaneReceiver::Received& message) const {
  if (message.tag <= pool::kTagMaxInline) return false;
  if (message.tag != pool::kTagSlot) return true;
  pool::Handle handle;
  std::memcpy(&handle, message.body, sizeof handle);
  return !state_.pool->is_mapped(handle.slot);
}

void Receiver::end_taking() {
  for (const auto& in : ins_)
    if (in->unwoken) wake_writers(*in);
  if (state_.me().sleeper().armed()) state_.pool->doorbell().pass_on();
  pass_on();
  taking_many_ = false;
}

void Receiver::wait_for_mapping(std::int64_t timeout) {
  const std::lock_guard lock(state_.me().lock());
  map_timeout_ = timeout;
}

// Messages

// Empties the message as done() would, if it holds no more than one slot borrowed through this queue.
bool Receiver::empty_now(Message& message) {
  if (borrowed_ == nullptr) return message.pool_ == nullptr && message.count_ <= 1 && !message.container_region_;
  if (borrowed_ != &message || borrowed_in_ != ins_.front().get() || message.count_ != 1) return false;
  if (message.parts_.front().kind != PartKind::slot || message.parts_.front().kept) return false;
  if (message.container_ != pool::kNone || message.container_region_ || container_.slot != pool::kNone) return false;
  settle(message, Settle::done);
  message.count_ = 0;
  message.type_ = 0;
  return true;
}

// As Message::done(), with the lock held: the message holds nothing, or something of this pool.
void Receiver::empty(Message& message) {
  if (message.pool_ != nullptr) {
    if (message.receiver_ != nullptr) message.receiver_->settle(message, Settle::done);
    message.drop_kept(*state_.pool);
  }
  message.clear();
  message.pool_.reset();  // the queue still knows the pool
}

void Receiver::settle(Message& message, Settle how) {
  if (borrowed_ != &message) return;
  if (borrowed_in_ != nullptr && !borrowed_in_->over) {
    if (how == Settle::give_back) give_back(*borrowed_in_, borrowed_position_);
    else done(*borrowed_in_, borrowed_position_);
  }
  borrowed_ = nullptr;
  borrowed_in_ = nullptr;
  container_ = {};
  message.receiver_ = nullptr;
  // Another thread may wait with a set until this queue can be received from again.
  pool::Waiters& readers = state_.readers();
  if (at_least_once() && (readers.mask.load(std::memory_order_relaxed) & state_.me().bit()) != 0)
    state_.me().sleeper().wake_all(readers);
}

void Receiver::let_borrowed_go() {
  if (borrowed_ == nullptr) return;
  Message& message = *borrowed_;
  // Its reader did not say done: with at-least-once another consumer gets it.
  settle(message, at_least_once() ? Settle::give_back : Settle::done);
  empty(message);
}

bool Receiver::is_expired(const LaneReceiver::Received& message) const {
  return message.deadline != 0 && message.deadline <= sys::now_monotonic();
}

// Events

std::optional<Error> Receiver::news() {
  if (broken_ != nullptr) return state_.broken_error(std::exchange(broken_, nullptr)).error();
  if (state_.pool->broken()) return state_.pool->why_broken();
  const std::string& name = state_.spec.name;
  for (auto gone = gone_writers_.begin(); gone != gone_writers_.end();) {
    if (is_unread(*gone)) {
      ++gone;
      continue;
    }
    const bool died = gone->died;
    gone = gone_writers_.erase(gone);
    if (died || (writers_.empty() && gone_writers_.empty() && !state_.closed)) {
      ++writers_told_;
      last_of_writers_ = {
          Status::peer_gone,
          died ? EOWNERDEAD : 0,
          {},
          died ? "a writer of queue '" + name + "' has died; receive again to go on"
               : "the last writer of queue '" + name + "' has left; receive again to wait for newcomers"};
      return last_of_writers_;
    }
  }
  if (read_to_its_end())
    return Error{Status::closed, 0, {}, "queue '" + name + "' is closed, and everything in it was taken"};
  return std::nullopt;
}

bool Receiver::is_unread(const QueueState::Peer& writer) const {
  return std::ranges::any_of(
      ins_, [&](const auto& in) { return !in->over && in->from == writer.index && in->from_life == writer.life; });
}

bool Receiver::something_there(bool taken) {
  state_.look_if_changed();
  if ((taken ? try_look() : message_waits()) || broken_ != nullptr) return true;
  if (read_to_its_end() || state_.pool->broken()) return true;
  // The same condition as news(), without taking the error.
  return std::ranges::any_of(
      gone_writers_, [&](const QueueState::Peer& gone) { return !is_unread(gone) && (gone.died || writers_.empty()); });
}

// Lanes

// A look found no message. Is the lane over? True: look once more first.
bool Receiver::finish_after(In& in, LaneReceiver::Look look, bool again) {
  if (look == LaneReceiver::Look::broken) broken_ = "a lane";
  else if (look == LaneReceiver::Look::empty) {
    if (!in.writer_closed || in.it->claimed_by_others()) return false;
    // Its writer was seen to have closed. A look after that sees all that it sent.
    if (!again) return true;
  }
  finish(in);
  return false;
}

void Receiver::finish(In& in) {
  in.it->detach();
  in.over = true;
  state_.pool->post_finished(in.lane, in.serial, SHMBW_LANE_END_RECEIVER);
}

void Receiver::follow() {
  state_.follow_peers(writers_, state_.entry().writers.load(std::memory_order_acquire), gone_writers_);
  forget_finished_lanes();
  look_for_lanes();
  leave_read_lanes();
}

// Ends that are over stay known until the broker has taken the lane back, so that they are not opened again.
void Receiver::forget_finished_lanes() {
  const pool::View& view = state_.pool->view();
  std::erase_if(ins_, [&](const std::unique_ptr<In>& in) {
    const pool::Stamp stamp = pool::Stamp::of(view.lane(in->lane).stamp.load(std::memory_order_acquire));
    if (stamp.serial == in->serial && stamp.state != static_cast<std::uint8_t>(pool::LaneState::free)) {
      const bool closed = stamp.state == static_cast<std::uint8_t>(pool::LaneState::writer_gone);
      // For a lane that was given up as broken, the broker gets no report while its writer is there.
      if (in->over && closed && !in->writer_closed)
        state_.pool->post_finished(in->lane, in->serial, SHMBW_LANE_END_RECEIVER);
      in->writer_closed = closed;
      return false;
    }
    return in->over && in.get() != pending_ && in.get() != borrowed_in_;
  });
}

void Receiver::add_lane(const pool::LaneEntry& entry, std::uint32_t lane, pool::Stamp stamp,
                        std::unique_ptr<LaneReceiver> it) {
  if (!it->attach()) return;
  auto in = std::make_unique<In>();
  in->lane = lane;
  in->serial = stamp.serial;
  in->from = entry.from;
  in->from_life = entry.from_life;
  in->writer_closed = stamp.state == static_cast<std::uint8_t>(pool::LaneState::writer_gone);
  in->it = std::move(it);
  // The writer came and went between two looks.
  if (const QueueState::Peer writer{entry.from, entry.from_life};
      std::ranges::find(writers_, writer) == writers_.end() &&
      std::ranges::find(gone_writers_, writer) == gone_writers_.end())
    gone_writers_.push_back({writer.index, writer.life, state_.has_died(writer)});
  ins_.push_back(std::move(in));
}

void Receiver::leave_lanes() {
  let_borrowed_go();
  if (pending_ != nullptr && competes()) give_back(*pending_, received_.position);
  pending_ = nullptr;
  for (auto& in : ins_)
    if (!in->over) in->it->detach();
}

void Receiver::forget_lanes() { ins_.clear(); }

void Receiver::forget_parent() {
  ins_.clear();
  pending_ = nullptr;
  borrowed_ = nullptr;
  borrowed_in_ = nullptr;
  container_ = {};
  writers_.clear();
  gone_writers_.clear();
  received_count_ = 0;
}

void Receiver::add_to(QueueFacts& facts) const {
  for (const auto& in : ins_) {
    if (in->over) continue;
    ++facts.lanes;
    facts.depth += in->it->lag();
    facts.lost += in->it->lost();
  }
  facts.received = received_count_;
  facts.expired += expired_;
}

}  // namespace shmb::client
