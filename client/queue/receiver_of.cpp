// SPDX-License-Identifier: Apache-2.0
// Looking at lanes and taking from them, by their kind. This file has the only look at the kind of a queue that is
// read.
#include "client/queue/receiver_of.hpp"

#include <sys/single_threaded.h>

#include <algorithm>

namespace shmb::client {

using Look = LaneReceiver::Look;

// The short ways

template <Lane L>
Now ReceiverOf<L>::receive_now(Message& message, bool keep, std::int64_t wait) {
  if (!state_.as_opened()) return Now::ask;
  const std::lock_guard lock(state_.me().lock());
  if (!nothing_to_report()) return Now::ask;  // receive() passes on what others may take
  if constexpr (L::competing) return take_claimed(message, wait);
  else return ins_.size() == 1 && !state_.drops_oldest() ? take_in_order(message, keep, wait) : Now::ask;
}

// A thread that has just sent something expects the answer at once.
template <Lane L>
bool ReceiverOf<L>::await_answer(In& in, std::int64_t wait) {
  constexpr int kLooks = 400;
  Sleeper& sleeper = state_.me().sleeper();
  if (wait < kForever || state_.spec.spin <= 0 || !sleeper.answer_expected() || !sleeper.peer_runs_elsewhere() ||
      !__libc_single_threaded)
    return false;
  if constexpr (OrderedLane<L>)
    for (int looks = kLooks; !end(in).is_there(); --looks)
      if (looks == 0) return false;
  sleeper.expect_stream();
  return true;
}

// Empty, if a call that does not wait has nothing else to report.
template <Lane L>
Now ReceiverOf<L>::why_nothing(Message& message, In& in, std::int64_t wait) {
  if (wait != kNoWait || in.writer_closed || !is_quiet()) return Now::ask;
  const Look look = end(in).look(received_);
  if (look == Look::refused) note_refused(in);
  return look == Look::empty ? left_empty(message) : Now::ask;
}

template <Lane L>
Now ReceiverOf<L>::take_in_order(Message& message, bool keep, std::int64_t wait) {
  if constexpr (OrderedLane<L>) {
    In& in = *ins_.front();
    End& lane = end(in);
    if (in.over || !empty_now(message)) return Now::ask;
    if (!lane.is_there() && !await_answer(in, wait)) return why_nothing(message, in, wait);
    pool::Handle handle;
    std::uint32_t bytes = 0;
    const auto what = lane.look_plain(body_of(message), bytes, handle);
    if (what == LaneReceiver::Plain::nothing) return Now::ask;
    if (what == LaneReceiver::Plain::bytes) {
      forget_pool(message);
      fill(message, bytes, in);
      lane.mark_done(lane.position());
      lane.wake_writers();
      return Now::done;
    }
    const std::byte* const base = keep ? nullptr : state_.pool->data_if_mapped(handle.slot);
    if (base == nullptr) return Now::ask;
    __builtin_prefetch(base + handle.offset);
    fill(message, handle, base, in);
    return Now::done;
  }
  return Now::ask;
}

// A claimed message that is not bytes stays the next one. The caller's receive delivers it.
template <Lane L>
Now ReceiverOf<L>::take_claimed(Message& message, std::int64_t wait) {
  if (at_least_once() || borrowed_ != nullptr || holds_something(message)) return Now::ask;
  if (!try_look()) return wait == kNoWait && broken_ == nullptr && is_quiet() ? left_empty(message) : Now::ask;
  if (received_.tag > pool::kTagMaxInline) return Now::ask;
  pass_on();
  In& in = *std::exchange(pending_, nullptr);
  fill_received(message, in);
  done(in, received_.position);
  return Now::done;
}

template <Lane L>
std::size_t ReceiverOf<L>::take_plain(std::span<Message* const> messages) {
  std::size_t count = 0;
  if constexpr (OrderedLane<L>) {
    if (ins_.size() != 1 || state_.drops_oldest() || pending_ != nullptr || broken_ != nullptr || state_.changed())
      return 0;
    In& in = *ins_.front();
    if (in.over) return 0;
    pool::Handle slot;
    for (std::uint32_t bytes = 0; count < messages.size(); ++count) {
      Message& message = *messages[count];
      if (!empty_now(message) || holds_something(message)) break;
      if (end(in).look_plain(body_of(message), bytes, slot) != LaneReceiver::Plain::bytes) break;
      fill(message, bytes, in);
      end(in).mark_done(end(in).position());
      in.unwoken = true;
    }
  }
  return count;
}

// The general way

template <Lane L>
bool ReceiverOf<L>::try_look() {
  if (pending_ != nullptr) return true;
  for (std::size_t n = 0; n < ins_.size(); ++n) {
    std::uint32_t too_late = 0;
    // The writers of a broadcast follow each other: the later ring is read after the earlier one.
    const std::size_t at = L::ring ? n : (next_in_ + n) % ins_.size();
    In& in = *ins_[at];
    if (in.over || &in == borrowed_in_) continue;
    for (bool again = false;;) {
      const Look look = end(in).look(received_);
      if (look == Look::message) {
        if (is_expired(received_)) {
          note_expired(in);
          // A whole lap was too old. Anything behind it came during this look, and its sender wakes readers that sleep.
          if (++too_late == state_.cells) break;
          continue;
        }
        pending_ = &in;
        next_in_ = (at + 1) % ins_.size();  // not the next lane: lanes that are over must be seen too
        return true;
      }
      if (look == Look::refused) {
        note_refused(in);
        return false;
      }
      if (!finish_after(in, look, again)) break;
      again = true;
    }
    if (L::ring && !in.over) return false;
  }
  return false;
}

template <Lane L>
bool ReceiverOf<L>::message_waits() {
  if (pending_ != nullptr || broken_ != nullptr) return true;
  if (borrowed_ != nullptr && at_least_once()) return false;  // a receive would be refused
  for (auto& one : ins_) {
    In& in = *one;
    if (in.over) continue;
    if constexpr (L::competing)
      if (end(in).unclaimed()) return true;
    if (&in == borrowed_in_) {
      if (behind_borrowed(in)) return true;
      if (L::ring) return false;  // a later ring is not read before
      continue;
    }
    for (bool again = false;;) {
      const Look look = end(in).look(received_);
      if (look == Look::message) {
        if constexpr (L::competing) {  // it came, or came back, in this moment
          end(in).give_back();
          return true;
        }
        if (is_expired(received_)) note_expired(in);
        return true;  // the receive sees what is behind an expired one
      }
      if (look == Look::refused) {
        note_refused(in);
        return true;
      }
      if (!finish_after(in, look, again)) break;
      again = true;
    }
    if (L::ring && !in.over) return false;
  }
  return false;
}

// Whether a receive, which says done for the borrowed message, would find something in its lane. Its writer may have
// gone: that is reported once the borrowed message is done.
template <Lane L>
bool ReceiverOf<L>::behind_borrowed(In& in) {
  if (writer_is_gone(in)) return true;
  if constexpr (OrderedLane<L>) return end(in).another_behind();
  else return false;
}

// A lane is free only once each reader is through with it, also one that sends and never receives. Such a reader looks
// here, whenever the directory has changed, at the lanes of writers that are gone. It takes nothing.
template <Lane L>
void ReceiverOf<L>::leave_read_lanes() {
  if constexpr (L::competing) {
    if (pending_ != nullptr || borrowed_in_ != nullptr) return;
    for (auto& one : ins_) {
      In& in = *one;
      if (in.over || !writer_is_gone(in) || end(in).unfinished()) continue;
      LaneReceiver::Received unused;
      for (bool again = false;; again = true) {
        const Look look = end(in).look(unused);
        if (look == Look::message) end(in).give_back(unused.position);  // it came back in this moment
        if (look != Look::empty && look != Look::drained) break;        // a receive reports it
        if (!finish_after(in, look, again)) break;
      }
    }
  }
}

// A message that another consumer has claimed comes back if that one dies or gives it back. A reader must be there to
// take it.
template <Lane L>
bool ReceiverOf<L>::read_to_its_end() const {
  if (!state_.closed) return false;
  if constexpr (L::competing)
    return std::ranges::none_of(ins_, [](const auto& in) { return !in->over && end(*in).unfinished(); });
  return true;
}

// Each waker of an mpmc queue wakes one consumer. Several may have chosen this process, which takes one message now and
// may be busy for long. It is fully awake here, after the fence of Sleeper::wake_up. So it sees all that was published
// by wakers that chose it, and every participant that slept before they looked.
template <Lane L>
void ReceiverOf<L>::pass_on() {
  if constexpr (L::competing) {
    pool::Waiters& readers = state_.readers();
    if ((readers.mask.load(std::memory_order_relaxed) & ~state_.me().bit()) == 0) [[likely]]
      return;
    if (std::ranges::any_of(ins_, [](const auto& in) { return !in->over && end(*in).unclaimed(); }))
      state_.me().sleeper().wake_another(readers);
  }
}

template <Lane L>
void ReceiverOf<L>::give_back(In& in, std::uint64_t position) {
  if constexpr (L::competing) end(in).give_back(position);
}

// The rest of done(). It may have been the last message of a gone writer, or of a closed queue. Then the other
// consumers are through with its lane too: claims that they saw do not come back. The states themselves are checked,
// after the fence with which the lane looks for writers. This process may not have looked around since, and the broker
// wakes all of them after it has stored the state.
template <Lane L>
void ReceiverOf<L>::wake_writers(In& in) {
  end(in).wake_writers();
  in.unwoken = false;
  if constexpr (L::competing) {
    const pool::View& view = state_.pool->view();
    const pool::Stamp lane = pool::Stamp::of(view.lane(in.lane).stamp.load(std::memory_order_acquire));
    const pool::Stamp queue = pool::Stamp::of(state_.entry().stamp.load(std::memory_order_acquire));
    if (lane.serial == in.serial && lane.state == static_cast<std::uint8_t>(pool::LaneState::open) &&
        queue.state == static_cast<std::uint8_t>(pool::QueueState::open)) [[likely]]
      return;
    state_.me().sleeper().wake_all(state_.readers());
  }
}

template <Lane L>
void ReceiverOf<L>::look_for_lanes() {
  const pool::View& view = state_.pool->view();
  Participant& me = state_.me();
  for (std::uint32_t i = 0; i < view.lanes(); ++i) {
    const pool::Stamp stamp = pool::Stamp::of(view.lane(i).stamp.load(std::memory_order_acquire));
    const auto lane_state = static_cast<pool::LaneState>(stamp.state);
    if (lane_state != pool::LaneState::open && lane_state != pool::LaneState::writer_gone) continue;
    // a lane that belongs to another queue by now has moved the change word too
    if (view.lane(i).queue != state_.index) continue;
    if (std::ranges::any_of(ins_, [&](auto& in) { return in->lane == i && in->serial == stamp.serial; })) continue;
    pool::LaneEntry copy{};
    const auto lane = state_.lane_view(i, stamp.serial, &copy);
    if (!lane || copy.queue != state_.index || copy.queue_serial != state_.serial) continue;
    if (L::one_receiver && (copy.to != me.index() || copy.to_life != me.life())) continue;
    // An old ring is read only if the broker attached this reader before the ring's first message.
    if constexpr (L::ring)
      if ((lane_state != pool::LaneState::open || state_.entry().writer_lane.load(std::memory_order_acquire) != i) &&
          lane->reader(me.index()).position.load(std::memory_order_relaxed) == 0)
        continue;
    add_lane(copy, i, stamp, std::make_unique<End>(me, *lane, state_.flags, state_.index, copy.from, copy.from_life));
  }
  // Rings are read one after the other, in the order of their writers.
  if constexpr (L::ring)
    std::ranges::sort(
        ins_, [](const auto& a, const auto& b) { return static_cast<std::int32_t>(a->serial - b->serial) < 0; });
}

template class ReceiverOf<SpscLane>;
template class ReceiverOf<MpmcLane>;
template class ReceiverOf<BroadcastLane>;

std::unique_ptr<Receiver> Receiver::of(QueueState& state) {
  switch (state.kind) {
    case pool::QueueKind::spsc:
      return std::make_unique<ReceiverOf<SpscLane>>(state);
    case pool::QueueKind::mpmc:
      return std::make_unique<ReceiverOf<MpmcLane>>(state);
    default:
      return std::make_unique<ReceiverOf<BroadcastLane>>(state);
  }
}

}  // namespace shmb::client
