// SPDX-License-Identifier: Apache-2.0
// See sender.hpp.
#include "spawn/remote/sender.hpp"

#include <utility>

#include "base/sys_process.hpp"

namespace shmb::remote {
namespace {

using client::Deadline;

constexpr std::int64_t kTryAgain = 5'000'000;  // a post that failed for another reason than want of room
// The wait for a slot before a region is made for the bytes: a region takes as long as many messages. Freeing a slot
// wakes threads that sleep, not one that polls. So the sender tries again after a pause.
constexpr std::int64_t kWaitForSlot = 20'000'000, kTrySlotAgain = 500'000;

Deadline deadline_of(const Head& head) {
  if (head.deadline == 0) return Deadline::after(client::kForever);
  const std::int64_t left = head.deadline - sys::now_monotonic();
  return left <= 0 ? Deadline::now() : Deadline::after(left);
}

}  // namespace

Result<void> Sender::send_request(std::uint32_t to, const Head& head, std::string_view function,
                                  const Payload& payload) {
  {
    const std::lock_guard lock(monitor_.mutex());
    ++requests_;
  }
  auto sent = send(to, head, function, payload);
  if (!sent) {
    const std::lock_guard lock(monitor_.mutex());
    --requests_;
  }
  return sent;
}

Result<void> Sender::send(std::uint32_t to, const Head& head, std::string_view function, const Payload& payload) {
  if (payload.regions.size() > kMostBeside || payload.references.size() > kMostBeside)
    return error(Status::invalid, "a call has at most " + std::to_string(kMostBeside) +
                                      " regions and as many references, and this one has " +
                                      std::to_string(payload.regions.size()) + " and " +
                                      std::to_string(payload.references.size()) + ": put them into several calls");
  Outgoing out;
  out.head = head;
  out.function = function;
  out.regions = payload.regions;
  client::Region::Handle bytes;
  SlotBytes slot;
  SHMB_TRY_VOID(load(out, payload, bytes, slot));
  SHMB_TRY(references, references_.fork_for(to, head.to_life, payload));
  out.references = std::move(references);
  std::string text;
  auto sent = put(to, head, parts_of(out, text));
  if (!sent && !out.references.empty()) references_.give_back(out.references);
  return sent;
}

// Where the bytes of a message lie: in its own words, in a slot, or in a region, which the user may have given.
Result<void> Sender::load(Outgoing& out, const Payload& payload, client::Region::Handle& bytes, SlotBytes& slot) {
  if (payload.data.size() <= kCopied) {
    out.data = payload.data;
    return {};
  }
  out.bytes_length = payload.data.size();
  if (payload.bytes != nullptr) {
    out.bytes = payload.bytes;
    return {};
  }
  slot = memory_.in_slot(payload.data, out.head.deadline);
  if (!slot && payload.data.size() <= kInline) slot = await_slot(payload.data, out.head.deadline);
  if (slot) {
    out.slot = &slot;
    return {};
  }
  SHMB_TRY(made, memory_.in_region(payload.data, out.head.deadline));
  bytes = std::move(made);
  out.bytes = bytes.get();
  return {};
}

// All slots of that size are in use. They come back when the receivers of messages in them read on. Meanwhile what
// arrives here is taken in, which gives back the slots of others.
SlotBytes Sender::await_slot(std::string_view bytes, std::int64_t deadline) {
  for (const Deadline patience = Deadline::after(kWaitForSlot); !patience.passed();) {
    {
      Lock lock(monitor_.mutex());
      if (!life_.open_locked()) return {};
      stepper_.step(lock, Deadline::after(kTrySlotAgain), false);
    }
    if (SlotBytes slot = memory_.in_slot(bytes, deadline)) return slot;
  }
  return {};
}

// A worker that sends many calls before it waits takes their answers in meanwhile. Else they fill its queue, and the
// worker that answers sleeps. Requests stay in the queue while enough of them wait here: a full queue holds their
// callers back. Callbacks wait until this thread waits: the caller of a send may hold locks of its own.
void Sender::look_while_sending(Lock& lock, Inbox& inbox) {
  if (++sent_since_look_ < inbox.cells() / 4 || !stepper_.may_look()) return;
  sent_since_look_ = 0;
  // This takes the lock of the pool, which a fork takes before the lock of the worker.
  lock.unlock();
  const bool there = inbox.something_there();
  lock.lock();
  if (there && life_.open_locked() && stepper_.may_look()) stepper_.look(lock);
}

// Until it is in the queue of the other one. A worker's end ends the wait for room.
Result<void> Sender::put(std::uint32_t to, const Head& head, std::span<const client::OutPart> parts) {
  Lock lock(monitor_.mutex());
  const std::shared_ptr<Inbox> inbox = monitor_.inbox();
  if (inbox && life_.open_locked()) look_while_sending(lock, *inbox);
  for (;;) {
    SHMB_TRY_VOID(life_.open_locked());
    if (!inbox) return error(Status::closed, "this worker has been shut down");
    if (!roster_.there(to, head.to_life))
      return std::unexpected(roster_.gone_error(to, head.to_life, Status::worker_gone));
    lock.unlock();
    auto sent = inbox->send(to, parts);
    lock.lock();
    if (!sent) return std::unexpected(sent.error());
    if (*sent) return {};
    if (head.deadline != 0 && sys::now_monotonic() >= head.deadline)
      return error(Status::deadline,
                   "nothing was sent to " + roster_.where(to) + ": its queue had no room until the deadline");
    want_room(to);
    while ((wanted_ >> to & 1) != 0 && roster_.there(to, head.to_life) && life_.open_locked() &&
           !deadline_of(head).passed())
      stepper_.step(lock, deadline_of(head), false);
  }
}

// The thread that leads may wait already, and not for that room.
void Sender::want_room(std::uint32_t to) {
  const std::uint64_t bit = std::uint64_t{1} << to;
  if ((std::exchange(wanted_, wanted_ | bit) & bit) == 0) monitor_.wake_leader();
}

// Posts without room come first again where room has been seen, or where it is time to try once more.
void Sender::retry_where_room() {
  if (failed_ != 0 && sys::now_monotonic() >= try_again_) failed_ = 0;
  const std::uint64_t still_full = full_ & (wanted_ | failed_);
  if (still_full == full_) return;
  posted_.insert(posted_.begin(), without_room_.begin(), without_room_.end());
  without_room_.clear();
  full_ = still_full;
}

// One thread at a time: it also sends what others post meanwhile. A shutdown waits for the end of this. A post that
// found no room is tried again when the leader has seen some: threads that wake each other here would else never stop.
void Sender::flush(Lock& lock) {
  if (flushing_) return;
  retry_where_room();
  if (posted_.empty()) return;
  flushing_ = true;
  while (!posted_.empty()) {
    const Posted one = posted_.front();
    posted_.pop_front();
    if (!put_posted(lock, one)) without_room_.push_back(one);
  }
  flushing_ = false;
  monitor_.wake();
}

// False: there is no room, or a trouble that may pass. It is tried again until the worker is gone.
bool Sender::put_posted(Lock& lock, const Posted& message) {
  const std::shared_ptr<Inbox> inbox = monitor_.inbox();
  if (!inbox || !roster_.there(message.to, message.life)) return true;
  const std::uint64_t bit = std::uint64_t{1} << message.to;
  if ((full_ & bit) != 0) return false;
  lock.unlock();
  Outgoing out;
  out.head = message.head;
  out.head.to_life = message.life;
  std::string text;
  auto sent = inbox->send(message.to, parts_of(out, text));
  lock.lock();
  if ((sent && *sent) || !roster_.there(message.to, message.life)) return true;
  if (sent) {
    want_room(message.to);
  } else {
    if (failed_ == 0) try_again_ = sys::now_monotonic() + kTryAgain;
    failed_ |= bit;
  }
  full_ |= bit;
  return false;
}

}  // namespace shmb::remote
