// SPDX-License-Identifier: Apache-2.0
// Opening and closing the ends of a queue. Sending is in sender.cpp, receiving in receiver.cpp.
#include "client/queue/queue.hpp"

#include <algorithm>
#include <bit>
#include <new>

#include "client/queue/queue_set.hpp"
#include "client/region/obtain.hpp"
#include "client/session/call.hpp"
#include "client/session/late_reply.hpp"

namespace shmb::client {
namespace {

// The broker declares a participant dead before it takes its ends away. A process that has the event of the death must
// not count it any more.
std::uint32_t count_live(const pool::View& view, std::uint64_t ends) {
  std::uint32_t count = 0;
  for (; ends != 0; ends &= ends - 1) {
    const auto index = static_cast<std::size_t>(std::countr_zero(ends));
    const auto stamp = pool::Stamp::of(view.participant(index).stamp.load(std::memory_order_acquire));
    count += stamp.state == static_cast<std::uint8_t>(pool::ParticipantState::live);
  }
  return count;
}

}  // namespace

Result<std::unique_ptr<Queue>> Queue::open(const std::shared_ptr<Pool>& pool, const QueueSpec& given) {
  const QueueSpec spec = with_wait(given);
  SHMB_TRY_VOID(checked(spec));
  SHMB_TRY_VOID(pool->enter());
  if (spec.writer && pool->read_only())
    return error(Status::denied, "this process opened the pool read-only: it cannot write to its queues");
  std::unique_ptr<Queue> queue(new Queue(pool, spec));
  const Deadline until = spec.open_only ? Deadline::after(spec.wait, SHMB_NAME_WAIT) : Deadline::now();
  for (bool late = false;;) {
    const std::uint32_t before = pool->change();
    auto opened = queue->open_ends(false);
    if (opened) return queue;
    if (opened.error().status != Status::not_found || !spec.open_only || !waits_for_name(spec.wait))
      return std::unexpected(opened.error());
    // The broker moves the directory's change word, and wakes, when a queue is made.
    Pool::Lock lock(pool->me().lock());
    SHMB_TRY(moved, pool->sleep({}, [&] { return pool->change() != before; }, until));
    // Other queues of the pool move it too, so the clock counts. Changes made meanwhile are checked once more.
    if (!moved || late)
      return error(Status::deadline, "the queue did not appear before the deadline: " + opened.error().sentence);
    late = until.passed();
  }
}

Result<std::unique_ptr<Queue>> Queue::open_alone(const std::shared_ptr<Session>& session, const std::string& address,
                                                 QueueSpec spec) {
  if (session->is_local()) return needs_broker("pools and queues");
  SHMB_TRY(parsed, names::parse_region(address));
  spec.name = parsed.name;
  spec = with_wait(std::move(spec));
  SHMB_TRY_VOID(checked(spec));
  Pool::Opening opening;
  opening.address = address;
  opening.timeout = spec.timeout;
  if (spec.open_only) opening.wait = spec.wait;
  const Deadline until = Deadline::after(spec.wait);
  for (int attempt = 0;; ++attempt) {
    auto pool = Pool::open(session, opening);
    if (!pool && pool.error().status == Status::not_found && !spec.open_only) {
      if (parsed.owner_uid || !parsed.group.empty())
        return error(Status::not_found, "there is no queue at '" + address +
                                            "', and it is made in the session's own group only: say '" + parsed.name +
                                            "', or join the group first");
      PoolSpec made;
      made.name = parsed.name;
      // Room for the lanes that the queue's own settings need, one for each participant of many.
      const std::uint64_t lane =
          pool::lane_bytes(spec.kind, spec.cells != 0 ? spec.cells : 256, spec.cell_size != 0 ? spec.cell_size : 64);
      made.lane_bytes = std::clamp<std::uint64_t>(lane * 16, std::uint64_t{1} << 20, std::uint64_t{15} << 20);
      made.queues = 1;
      pool = Pool::create(session, made, spec.timeout);
    }
    if (!pool && pool.error().status == Status::exists && attempt < 8) continue;  // another process was faster
    if (!pool) return std::unexpected(pool.error());
    if (spec.wait > 0) spec.wait = std::max<std::int64_t>(until.left(), 1);  // the rest of the wait for the pool
    return open(*pool, spec);
  }
}

namespace {

std::uint32_t ends_of(const QueueSpec& spec) {
  return (spec.reader ? unsigned{SHMBW_QUEUE_CLOSE_READER} : 0U) |
         (spec.writer ? unsigned{SHMBW_QUEUE_CLOSE_WRITER} : 0U);
}
// As undo_queue_open() does it.
std::uint32_t made_by(const QueueSpec& spec) { return spec.create_only ? unsigned{SHMBW_QUEUE_CLOSE_REMOVE} : 0U; }

}  // namespace

Result<void> Queue::open_ends(bool again) {
  shmbw_queue_open request{};
  request.pool = state_.pool->id();
  request.kind = again ? static_cast<std::uint32_t>(state_.kind) : static_cast<std::uint32_t>(state_.spec.kind);
  const std::uint32_t flags = again ? state_.flags : state_.spec.flags;
  if (state_.spec.reader) request.flags |= SHMBW_QUEUE_OPEN_READER;
  if (state_.spec.writer) request.flags |= SHMBW_QUEUE_OPEN_WRITER;
  if ((flags & pool::kQueueDropOldest) != 0) request.flags |= SHMBW_QUEUE_OPEN_DROP_OLDEST;
  if ((flags & pool::kQueueExpiring) != 0) request.flags |= SHMBW_QUEUE_OPEN_EXPIRING;
  if ((flags & pool::kQueueAtLeastOnce) != 0) request.flags |= SHMBW_QUEUE_OPEN_AT_LEAST_ONCE;
  if (state_.spec.create_only && !again) request.flags |= SHMBW_QUEUE_OPEN_CREATE_ONLY;
  if (state_.spec.open_only || again) request.flags |= SHMBW_QUEUE_OPEN_OPEN_ONLY;
  request.cells = again ? state_.cells : state_.spec.cells;
  request.cell_size = again ? state_.cell_size : state_.spec.cell_size;
  if (request.kind == SHMBW_QUEUE_KIND_NONE) request.cells = request.cell_size = 0;
  request.name_len = static_cast<std::uint16_t>(state_.spec.name.size());
  Session& session = *state_.pool->session();
  const auto ask = [&] {
    return call<SHMBW_OP_QUEUE_OPEN>(session, request, {state_.spec.name}, Deadline::after(state_.spec.timeout));
  };
  std::uint64_t given_back = session.ends_given_back();
  auto answer = ask();
  while (!answer && answer.error().status == Status::busy) {
    // An end that an earlier call asked for may be in the way. Its reply has just come, too late.
    const std::uint64_t now = session.ends_given_back();
    if (std::exchange(given_back, now) == now) break;
    answer = ask();
  }
  if (!answer) {
    Error failure = answer.error();
    if (failure.status == Status::exists && !state_.spec.create_only)
      if (const std::string what = difference(state_.pool->view(), state_.spec); !what.empty())
        failure.sentence = "queue '" + state_.spec.name + "' exists with other settings: " + what +
                           ". Open it with the same ones, or as it is (SHMB_QUEUE_AS_IS with SHMB_QUEUE_OPEN_ONLY)";
    return std::unexpected(std::move(failure));
  }
  const shmbw_queue_open_reply& opened = answer->fixed;
  if (opened.queue >= state_.pool->view().queues() ||
      (opened.lane != pool::kNone && opened.lane >= state_.pool->view().lanes()))
    return error(Status::protocol, "the broker's answer names a queue or a lane that the pool cannot have");
  const auto undo = [&] {
    open_ = false;
    (void)ask_to_close(ends_of(state_.spec) | (again ? 0U : made_by(state_.spec)));
  };
  try {
    if (use_ends(opened)) return {};
  } catch (const std::bad_alloc&) {
    undo();
    throw;
  }
  undo();
  return state_.broken_error("the entry");
}

// The ends as the broker has given them. False: the directory says something impossible of the queue.
bool Queue::use_ends(const shmbw_queue_open_reply& opened) {
  Pool::Lock lock(state_.pool->me().lock());
  state_.index = opened.queue;
  state_.serial = opened.serial;
  if (!state_.read_settings()) return false;
  if (state_.spec.writer && !sender_) sender_ = Sender::of(state_);
  if (state_.spec.reader && !receiver_) receiver_ = Receiver::of(state_);
  state_.sender = sender_.get();
  state_.receiver = receiver_.get();
  open_ = true;
  state_.incarnation = state_.pool->incarnation();  // other threads need not come here any more
  if (sender_ && opened.lane != pool::kNone) sender_->adopt(opened.lane, opened.lane_serial);
  state_.look_around();
  // A ring whose writer died during the join may already belong to another writer. Of that one nothing is missed.
  state_.look_if_changed();
  if (state_.spec.writer)
    state_.pool->doorbell().fetch(state_.entry().readers.load(std::memory_order_acquire),
                                  Deadline::after(state_.spec.timeout), lock);
  return true;
}

void undo_queue_open(LateReply& late) {
  const auto asked = late.request<shmbw_queue_open>();
  const auto opened = late.fixed<shmbw_queue_open_reply>();
  shmbw_queue_close close{asked.pool, opened.queue, opened.serial, 0, 0};
  if ((asked.flags & SHMBW_QUEUE_OPEN_READER) != 0) close.flags |= SHMBW_QUEUE_CLOSE_READER;
  if ((asked.flags & SHMBW_QUEUE_OPEN_WRITER) != 0) close.flags |= SHMBW_QUEUE_CLOSE_WRITER;
  if ((asked.flags & SHMBW_QUEUE_OPEN_CREATE_ONLY) != 0) close.flags |= SHMBW_QUEUE_CLOSE_REMOVE;  // it made the queue
  late.ask<SHMBW_OP_QUEUE_CLOSE>(close);
}

// A forked child's ends are opened again, by one of its threads. Messages that the parent had in hand stay the
// parent's.
Result<void> Queue::open_in_child() {
  const std::lock_guard one_by_one(state_.pool->held_over_fork());
  if (state_.incarnation == state_.pool->incarnation()) return {};
  if (open_) {
    descriptor_.reset();
    Pool::Lock lock(state_.pool->me().lock());
    open_ = false;
    if (sender_) sender_->forget_parent();
    if (receiver_) receiver_->forget_parent();
  }
  const interrupt::Shield shield;
  if (auto opened = open_ends(true); !opened)
    return error(opened.error().status, "the forked child could not open its own end: " + opened.error().sentence);
  return {};
}

Queue::Queue(std::shared_ptr<Pool> pool, QueueSpec spec) : state_(std::move(pool), std::move(spec)) {}

Queue::~Queue() { (void)close(false, false); }

Result<void> Queue::close(bool all, bool remove) {
  descriptor_.reset();
  if (!std::exchange(open_, false)) return {};
  if (!state_.as_opened()) return {};  // the parent's ends: forgotten, not closed
  if (receiver_) {
    Pool::Lock lock(state_.pool->me().lock());
    receiver_->leave_lanes();
  }
  auto closed = ask_to_close(ends_of(state_.spec) | (all ? unsigned{SHMBW_QUEUE_CLOSE_ALL} : 0U) |
                             (remove ? unsigned{SHMBW_QUEUE_CLOSE_REMOVE} : 0U));
  Pool::Lock lock(state_.pool->me().lock());
  if (receiver_) receiver_->forget_lanes();
  if (sender_) sender_->retire();
  return closed;
}

Result<void> Queue::ask_to_close(std::uint32_t flags) {
  shmbw_queue_close request{};
  request.pool = state_.pool->id();
  request.queue = state_.index;
  request.serial = state_.serial;
  request.flags = flags;
  return insist([&]() -> Result<void> {
    SHMB_TRY_VOID(
        call<SHMBW_OP_QUEUE_CLOSE>(*state_.pool->session(), request, {}, Deadline::after(state_.spec.timeout)));
    return {};
  });
}

Result<void> Queue::shutdown(bool remove) {
  SHMB_TRY_VOID(enter());
  return ask_to_close(SHMBW_QUEUE_CLOSE_ALL | (remove ? unsigned{SHMBW_QUEUE_CLOSE_REMOVE} : 0U));
}

// The two ends

Result<void> Queue::as_writer() {
  SHMB_TRY_VOID(enter());
  if (!sender_) return error(Status::denied, "this handle is no writer of queue '" + state_.spec.name + "'");
  return {};
}

Result<void> Queue::as_reader() {
  SHMB_TRY_VOID(enter());
  if (!receiver_) return error(Status::denied, "this handle is no reader of queue '" + state_.spec.name + "'");
  return {};
}

Error Queue::why(Now now) {
  Pool::Lock lock(state_.me().lock());
  if (now == Now::full) return {Status::full, 0, {}, sender_->why_full()};
  return {Status::empty, 0, {}, "queue '" + state_.spec.name + "' has no message"};
}

Result<void> Queue::send(std::span<const std::byte> bytes, std::int64_t wait) {
  SHMB_TRY_VOID(as_writer());
  return sender_->send(bytes, wait);
}

Result<void> Queue::send(const Slot& slot, std::int64_t wait) {
  SHMB_TRY_VOID(as_writer());
  return sender_->send(slot, wait);
}

Result<void> Queue::send(std::span<const OutPart> parts, std::uint64_t type, std::int64_t lifetime, std::int64_t wait) {
  SHMB_TRY_VOID(as_writer());
  return sender_->send(parts, type, lifetime, wait);
}

Result<void> Queue::send_many(std::size_t count, const Sender::Next& next, std::int64_t wait, std::size_t& sent,
                              const Sender::Plain& plain) {
  sent = 0;
  SHMB_TRY_VOID(as_writer());
  return sender_->send_many(count, next, wait, sent, plain);
}

Result<void> Queue::drain(std::int64_t wait) {
  SHMB_TRY_VOID(as_writer());
  return sender_->drain(wait);
}

Result<void> Queue::receive(Message& message, bool keep, std::int64_t wait) {
  SHMB_TRY_VOID(as_reader());
  auto received = receiver_->receive(message, keep, wait);
  if (!received && received.error().status == Status::empty) SHMB_TRY_VOID(rearm());
  return received;
}

Result<std::size_t> Queue::receive_many(std::span<Message* const> messages, std::int64_t wait) {
  if (messages.empty()) return error(Status::invalid, "no messages to receive into were given");
  if (state_.at_least_once())
    return error(Status::invalid,
                 "a SHMB_QUEUE_AT_LEAST_ONCE queue gives one message at a time: use shmb_queue_receive");
  SHMB_TRY_VOID(as_reader());
  auto received = receiver_->receive_many(messages, wait);
  if (!received && received.error().status == Status::empty) SHMB_TRY_VOID(rearm());
  return received;
}

Result<QueueFacts> Queue::facts() {
  SHMB_TRY_VOID(enter());
  Pool::Lock lock(state_.pool->me().lock());
  state_.look_around();
  const pool::QueueEntry& entry = state_.entry();
  QueueFacts out;
  out.kind = state_.kind;
  out.reader = state_.spec.reader;
  out.writer = state_.spec.writer;
  out.closed = state_.closed;
  out.flags = state_.flags;
  out.cells = state_.cells;
  out.inline_bytes = state_.cell_size - 8;
  if (!state_.closed || pool::Stamp::of(entry.stamp.load(std::memory_order_acquire)).serial == state_.serial) {
    out.readers = count_live(state_.pool->view(), entry.readers.load(std::memory_order_acquire));
    out.writers = count_live(state_.pool->view(), entry.writers.load(std::memory_order_acquire));
    out.deaths = entry.deaths.load(std::memory_order_relaxed);
  }
  if (receiver_) receiver_->add_to(out);
  if (sender_) sender_->add_to(out);
  out.pool = state_.pool->id();
  out.name = state_.spec.name;
  return out;
}

Result<int> Queue::descriptor() {
  SHMB_TRY_VOID(enter());
  if (!state_.spec.reader) return error(Status::denied, "this handle is no reader of the queue");
  if (QueueSet* const set = own_set()) return set->descriptor();
  auto set = std::make_unique<QueueSet>();
  SHMB_TRY_VOID(set->add(*this, nullptr));
  auto fd = set->descriptor();
  if (!fd) return fd;
  {
    Pool::Lock lock(state_.pool->me().lock());
    if (!descriptor_) {
      descriptor_ = std::move(set);
      return fd;
    }
  }
  return own_set()->descriptor();  // another thread was faster: its caller polls that one already
}

QueueSet* Queue::own_set() {
  Pool::Lock lock(state_.pool->me().lock());
  return descriptor_.get();
}

Result<void> Queue::rearm() {
  QueueSet* const set = own_set();
  return set != nullptr ? set->rearm() : Result<void>();
}

}  // namespace shmb::client
