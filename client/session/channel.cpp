// SPDX-License-Identifier: Apache-2.0
// All state is under one mutex; only poll(2) and recvmsg(2) of the leader run outside of it. Only the leader touches
// the inbox.
#include "client/session/channel.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/rescue.hpp"
#include "base/sys_epoll.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"
#include "client/session/call.hpp"
#include "client/session/closed.hpp"
#include "client/session/hurry.hpp"
#include "client/session/late_reply.hpp"
#include "client/session/packet_fields.hpp"
#include "proto/refusal.hpp"

namespace shmb::client {
namespace {

constexpr std::int64_t kShortPause = 1'000'000;
// A broker that runs answers sooner. So a signal ends a call only where the broker does not, and hardly ever leaves a
// request behind whose name is taken until its late reply has been given back.
constexpr std::int64_t kGraceAfterSignal = 100'000'000;
constexpr std::size_t kMaxQueuedEvents = 4096;  // of a caller that never asks for them; then the oldest go

// How long a call looks for its answer before it sleeps. A broker that was asleep answers in 15 to 30 us.
constexpr std::int64_t kLook = 40'000;

// Room for an answer is made before the request is sent: without memory later, the session would be lost. Only
// sentences about many elements may be longer.
constexpr std::size_t kRoomForReply = 512, kRoomForElement = 256;

std::size_t room_for_reply(std::span<const std::byte> packet) {
  const std::uint16_t op = op_of(packet);
  if (op == SHMBW_OP_LIST) return SHMBW_MAX_MESSAGE;
  if (!wire::traits_of(op).batch) return kRoomForReply;
  const auto body = body_of<sizeof(shmbw_batch)>(packet);
  shmbw_batch batch;
  std::memcpy(&batch, body.data(), sizeof batch);
  return std::min<std::size_t>(kRoomForReply + batch.count * kRoomForElement, SHMBW_MAX_MESSAGE);
}

bool offers_resume(std::span<const std::byte> packet) {
  shmbw_hello hello{};
  const auto body = packet.subspan(sizeof(shmbw_header));
  std::memcpy(&hello, body.data(), std::min(sizeof hello, body.size()));
  return (hello.features & SHMBW_FEATURE_RESUME) != 0;
}

// Whether the set is still a set of the socket. Adding what is in it already changes nothing.
bool watches(const Fd& set, const Fd& socket) {
  const auto added = sys::epoll_watch(set.get(), socket.get());
  if (added) sys::epoll_forget(set.get(), socket.get());  // a set of the program has the number
  // Where memory is short the kernel has not looked.
  return !added && (added.error().value == EEXIST || added.error().value == ENOMEM);
}

using Undo = void (*)(LateReply&);

constexpr auto kUndo = [] {
  std::array<Undo, wire::kTraits.size()> table{};
#define SHMB_ROW(op, name) table[op] = undo_##name;
  SHMBW_REQUESTS_TO_UNDO(SHMB_ROW)
#undef SHMB_ROW
  return table;
}();

}  // namespace

Result<void> Channel::open(Fd socket) {
  auto watch = sys::epoll();
  if (!watch) return system_failure(watch.error(), "epoll for the socket to the broker");
  if (auto added = sys::epoll_watch(watch->get(), socket.get()); !added)
    return system_failure(added.error(), "epoll_ctl for the socket to the broker");
  auto facts = sys::file_facts(socket.get());
  if (!facts) return system_failure(facts.error(), "fstat of the socket to the broker");
  Lock lock(mutex_);
  device_ = facts->device;
  inode_ = facts->inode;
  socket_ = std::move(socket);
  watch_ = std::move(*watch);
  inbox_.resize(SHMBW_MAX_MESSAGE);
  lost_ = hung_up_ = false;
  return {};
}

std::vector<Fd> Channel::forget() {
  Lock lock(mutex_);
  std::vector<Fd> inherited;
  for (Fd* fd : {&socket_, &watch_, &epoll_, &event_})
    if (*fd) inherited.push_back(std::move(*fd));
  reading_ = false;  // the leader, if there was one, is a thread of the parent
  first_waiter_ = last_waiter_ = nullptr;
  pending_.clear();
  subscriptions_.clear();
  event_waiters_.clear();
  listeners_.clear();
  events_.clear();
  remote_events_.clear();
  remote_gap_ = false;
  gpu_events_.clear();
  gpu_lost_ = false;
  outgoing_.clear();
  wants_room_ = sender_waits_ = false;
  groups.late = {};
  dropped_ = 0;
  lost_ = false;
  return inherited;
}

std::uint64_t Channel::ends_given_back() {
  Lock lock(mutex_);
  return ends_given_back_;
}

bool Channel::lost() {
  Lock lock(mutex_);
  return lost_;
}

bool Channel::hung_up() {
  Lock lock(mutex_);
  return hung_up_;
}

std::string Channel::lost_reason() {
  Lock lock(mutex_);
  return lost_reason_;
}

void Channel::set_lost_reason(std::string reason) {
  Lock lock(mutex_);
  lost_reason_ = std::move(reason);
  end();
}

std::unexpected<Error> Channel::lost_error() const {
  return error(Status::session_lost, "the session is lost: " + lost_reason_ + "; mappings stay valid, connect again");
}

// Every way to lose the session ends here, and nothing of it needs memory.
void Channel::end() noexcept {
  lost_ = true;
  outgoing_.clear();  // with its copies of descriptors
  // A socket at its end stays readable: in the set it would wake the caller's loop for ever.
  if (epoll_) sys::epoll_forget(epoll_.get(), watch_.get());
  want_room(false);
  // next_event() does not drain it any more: so every consumer of the descriptor sees the end.
  if (event_) sys::event_signal(event_.get());
  for (const int listener : listeners_) sys::event_signal(listener);
  wake_all();
}

void Channel::lose(std::string why) {
  if (lost_) return;
  lost_reason_ = std::move(why);
  if (!has_socket()) {  // what ended is a file of the program
    lost_reason_ = kClosedDescriptor;
    hung_up_ = false;
  }
  end();
  Event away;
  away.kind = Event::Kind::broker_away;
  away.text = lost_reason_;
  queue(std::move(away));
  forget_closed();
}

bool Channel::has_socket() const {
  const auto facts = sys::file_facts(socket_.get());
  return facts ? facts->device == device_ && facts->inode == inode_ : facts.error().value != EBADF;
}

// The program has closed a descriptor of the channel, and may use its number for another file. So the number is
// forgotten, and that file is not closed.
void Channel::forget_closed() {
  std::array open{pollfd{watch_.get(), 0, 0}};
  (void)sys::poll_all(open, 0);
  const bool no_socket = !has_socket();
  if ((open[0].revents & POLLNVAL) != 0 || (!no_socket && !watches(watch_, socket_))) (void)watch_.release();
  if (no_socket) (void)socket_.release();
}

void Channel::add(Waiter& waiter) {
  waiter.before = last_waiter_;
  waiter.after = nullptr;
  (last_waiter_ != nullptr ? last_waiter_->after : first_waiter_) = &waiter;
  last_waiter_ = &waiter;
}

void Channel::remove(Waiter& waiter) {
  (waiter.before != nullptr ? waiter.before->after : first_waiter_) = waiter.after;
  (waiter.after != nullptr ? waiter.after->before : last_waiter_) = waiter.before;
}

void Channel::pass_the_lead() {
  if (!reading_ && first_waiter_ != nullptr) first_waiter_->wake.notify_one();
}

void Channel::wake_all() {
  for (Waiter* waiter = first_waiter_; waiter != nullptr; waiter = waiter->after) waiter->wake.notify_one();
}

template <class Done>
bool Channel::wait(Lock& lock, Deadline deadline, Waiter& me, Done done, bool soon) noexcept {
  add(me);
  bool reached = done();
  if (!lost_) (void)send_unsent();
  while (!reached) {
    if (reading_) {
      if (deadline.passed()) break;
      me.wake.wait(lock, deadline);
    } else {
      const bool last = deadline.passed();  // looked at before: a caller that cannot wait still reads what is there
      soon = read_once(lock, deadline, false, soon && !last) == Read::at_once && soon;
      if (last && !done()) break;
    }
    reached = done();
  }
  remove(me);
  pass_the_lead();
  return reached;
}

// A running broker answers before this thread would be asleep and awake again, so a caller looks for a while first. As
// between a request and the sleep before, a signal is not seen here.
wire::Incoming Channel::look(int socket, Deadline deadline) {
  wire::Incoming incoming;
  const Deadline until = earlier(deadline, Deadline::after(kLook));
  do incoming = wire::receive_packet(socket, inbox_, wire::Direction::from_broker, false);
  while (incoming.kind == wire::Incoming::Kind::would_block && !until.passed());
  if (incoming.kind == wire::Incoming::Kind::would_block) habit_.found_nothing();
  else habit_.found();
  return incoming;
}

Channel::Read Channel::read_once(Lock& lock, Deadline deadline, bool or_writable, bool soon) {
  reading_ = true;
  // The set tells of room also when another thread leaves packets behind while this one waits.
  std::array watched{pollfd{socket_.get(), static_cast<short>(or_writable ? POLLIN | POLLOUT : POLLIN), 0},
                     pollfd{watch_.get(), POLLIN, 0}};
  lock.unlock();
  Sys<int> ready = 0;
  wire::Incoming incoming;
  bool slept = false, out_of_memory = false;
  try {
    const bool looks = soon && !habit_.spared();
    if (looks) incoming = look(watched[0].fd, deadline);
    else if (soon) habit_.sleep_at_once();
    if (incoming.kind == wire::Incoming::Kind::would_block) {
      slept = true;
      const std::int64_t since = soon ? sys::now_monotonic() : 0;
      ready = sys::poll_all(watched, deadline.left());
      // poll(2) takes no more descriptors than a process may open: a program may have lowered that to one.
      if (!ready && ready.error().value == EINVAL) ready = sys::poll_all(std::span(watched).first(1), deadline.left());
      if (ready && (watched[0].revents & ~(POLLOUT | POLLNVAL)) != 0) {
        if (soon) habit_.slept(looks, sys::now_monotonic() - since < kLook);
        incoming = wire::receive_packet(watched[0].fd, inbox_, wire::Direction::from_broker, false);
        // The kernel has no memory for what is there, and the socket stays readable: only time helps.
        if (incoming.kind == wire::Incoming::Kind::would_block)
          sys::rest(earlier(deadline, Deadline::after(kShortPause)).left());
      }
    }
  } catch (const std::bad_alloc&) {
    out_of_memory = true;
  }
  lock.lock();
  reading_ = false;
  const bool came = incoming.kind != wire::Incoming::Kind::would_block;
  try {
    if (!ready) lose("poll: " + errno_text(ready.error().value));
    else if (((watched[0].revents | watched[1].revents) & POLLNVAL) != 0) lose(kClosedDescriptor);
    else if (!came && watched[1].revents != 0 && !watches(watch_, socket_)) lose(kClosedDescriptor);
    if (out_of_memory) throw std::bad_alloc();
    take_packet(std::move(incoming));
  } catch (const std::bad_alloc&) {
    // A packet, perhaps another thread's answer, is gone for good. That thread must not wait for it for ever.
    lost_reason_ = "out of memory";  // short enough to need none
    end();
  }
  if (std::exchange(sender_waits_, false)) wake_all();  // those that find no room after all say so again
  if (!came && !lost_) rest_for_memory(lock);
  else if (!lost_) (void)send_unsent();
  return !came ? Read::nothing : slept ? Read::later : Read::at_once;
}

Result<Reply> Channel::call(std::span<std::byte> packet, Deadline deadline, Subscription* subscription,
                            std::span<const int> descriptors) {
  if (packet.empty()) return error(Status::invalid, "the request does not fit into one message");
  if (Hurry::on()) deadline = Deadline::now();
  Lock lock(mutex_);
  if (lost_) return lost_error();
  Call mine;
  mine.reply.bytes.reserve(room_for_reply(packet));
  const std::uint16_t op = op_of(packet);
  if (op == SHMBW_OP_HELLO) outgoing_.keep(offers_resume(packet));
  const Pending pending{op, body_of<kKeptOfRequest>(packet), &mine, subscription};
  const auto sent = send(lock, packet, deadline, descriptors, &pending);
  if (!sent) {
    if (sent.error().status == Status::deadline && wire::traits_of(op).spends) (void)keep_unsent(packet);
    if (!lost_) leave_late_groups();  // they may have waited for this one
    return std::unexpected(sent.error());
  }
  const std::uint64_t tag = *sent;
  const auto answered = [&] { return mine.done || lost_; };
  if (!wait(lock, deadline, mine.waiter, answered, true) && interrupt::cuts()) {
    const interrupt::Shield shield;
    wait(lock, earlier(deadline, Deadline::after(kGraceAfterSignal)), mine.waiter, answered);
  }
  if (!mine.done) {
    if (lost_) {
      pending_.erase(tag);
      return lost_error();
    }
    auto& left_behind = pending_[tag];
    left_behind.call = nullptr;
    return error(Status::deadline, "the broker did not answer before the deadline");
  }
  lock.unlock();
  if (mine.descriptors_lost) {
    const auto limit = sys::descriptor_limit();
    return error(
        Status::no_descriptors,
        "the descriptor could not be received: this process (pid " + std::to_string(::getpid()) +
            ") has as many files open as it may (" + (limit ? std::to_string(limit->soft) : "its limit") +
            "), or no memory to note it, or a security module refused it; close some, or raise `ulimit -n`; what "
            "was granted has been given back");
  }
  if (mine.reply.view.header.status != 0) return std::unexpected(wire::read_error_reply(mine.reply.view));
  return std::move(mine.reply);
}

Result<std::shared_ptr<Channel::Later>> Channel::ask(std::span<std::byte> packet) {
  if (packet.empty()) return error(Status::invalid, "the request does not fit into one message");
  auto later = std::make_shared<Later>();
  Lock lock(mutex_);
  const Pending pending{op_of(packet), {}, nullptr, nullptr, later};
  SHMB_TRY_VOID(send(lock, packet, Deadline::now(), {}, &pending));
  return later;
}

bool Channel::has_come(Later& later) {
  (void)pump();
  Lock lock(mutex_);
  if (lost_) later.came = true;  // and what another thread is about to take in is not put into it any more
  return later.came;
}

Result<Event> Channel::await(Subscription& subscription, Deadline deadline) {
  Subscription* const only[] = {&subscription};
  return await_any(only, deadline);
}

Result<Event> Channel::await_any(std::span<Subscription* const> subscriptions, Deadline deadline,
                                 std::optional<std::uint64_t> group) {
  Lock lock(mutex_);
  Waiter me;
  event_waiters_.push_back(&me);
  const auto full = [&] {
    return std::ranges::find_if(subscriptions, [](const Subscription* one) { return !one->events.empty(); });
  };
  const auto moved = [&] { return group && groups.member != *group; };
  (void)wait(lock, deadline, me, [&] { return lost_ || full() != subscriptions.end() || moved(); });
  std::erase(event_waiters_, &me);
  if (const auto found = full(); found != subscriptions.end()) {
    std::vector<Event>& events = (*found)->events;
    Event first = std::move(events.front());
    events.erase(events.begin());
    return first;
  }
  if (lost_) return lost_error();
  if (moved()) return Event{};
  return error(Status::deadline, "what was waited for did not happen before the deadline");
}

void Channel::note_group(std::uint64_t group) {
  Lock lock(mutex_);
  if (groups.member != 0) return;
  groups.member = group;
  for (Waiter* waiter : event_waiters_) waiter->wake.notify_one();
}

void Channel::cancel_watch(std::uint64_t watch) {
  shmbw_watch cancel{};
  cancel.kind = SHMBW_WATCH_KIND_CANCEL;
  cancel.watch = watch;
  ask_for_nobody(RequestPacket<SHMBW_OP_WATCH>(std::span(&cancel, 1), Texts{}, 0).bytes());
}

void Channel::unsubscribe(Subscription& subscription) noexcept {
  Lock lock(mutex_);
  if (subscription.watch == 0) return;
  subscriptions_.erase(subscription.watch);
  try {
    if (!lost_) cancel_watch(subscription.watch);
  } catch (const std::bad_alloc&) {  // the broker goes on sending: those events are then the user's to pass over
  }
  subscription.watch = 0;
}

void Channel::take_packet(wire::Incoming incoming) {
  switch (incoming.kind) {
    case wire::Incoming::Kind::would_block:
      return;
    case wire::Incoming::Kind::end_of_file:
      hung_up_ = true;
      lose("the broker closed the connection");
      return;
    case wire::Incoming::Kind::malformed: {
      if (!incoming.descriptors_lost) {
        lose("the broker broke the protocol: " + incoming.reason);
        return;
      }
      // MSG_CTRUNC: the kernel dropped descriptors, but the bytes arrived. Their grants are given back.
      shmbw_header header;
      std::memcpy(&header, inbox_.data(), sizeof header);
      const std::size_t size = std::min<std::size_t>(header.size, inbox_.size());
      auto view = wire::open_packet(wire::Bytes(inbox_.data(), size), header.n_fds, wire::Direction::from_broker);
      if (!view) lose("a packet of the broker lost its descriptors: " + incoming.reason);
      else take_reply(*view, {}, true);
      return;
    }
    case wire::Incoming::Kind::packet:
      if ((incoming.view.header.op & SHMBW_EVENT) != 0) take_event(incoming.view);
      else take_reply(incoming.view, std::move(incoming.fds), false);
      return;
  }
}

void Channel::take_reply(const wire::PacketView& view, std::vector<Fd> fds, bool descriptors_lost) {
  outgoing_.answered(view.header.tag);
  // None: no thread has asked, or the answer has come before. Then its descriptors are only closed.
  const auto found = pending_.find(view.header.tag);
  if (found == pending_.end()) return;
  const Pending pending = found->second;
  pending_.erase(found);
  const bool granted = view.header.status == 0;
  if (granted && pending.op == SHMBW_OP_HELLO)
    outgoing_.keep((fixed_part<shmbw_hello_reply>(view).features & SHMBW_FEATURE_RESUME) != 0);
  if (pending.later) {
    if (!std::exchange(pending.later->came, true) && granted && !descriptors_lost) pending.later->fds = std::move(fds);
    return;
  }
  const bool told = pending.call != nullptr && !descriptors_lost;
  if (granted) {
    if (!told) give_back(view, pending, fds);
    const std::uint64_t before = groups.member;
    groups.note(pending.op, view, pending.request, told);
    if (groups.member != before)
      for (Waiter* waiter : event_waiters_) waiter->wake.notify_one();
  }
  leave_late_groups();
  if (pending.call == nullptr) return;
  if (granted && pending.subscription != nullptr) {
    // The reply to GPU_DEVICE opens in the same way; watch 0: no event will come.
    static_assert(offsetof(shmbw_watch_reply, watch) == offsetof(shmbw_gpu_device_reply, watch) &&
                  offsetof(shmbw_watch_reply, state) == offsetof(shmbw_gpu_device_reply, hold));
    const auto watch = fixed_part<shmbw_watch_reply>(view);
    pending.subscription->watch = watch.watch;
    pending.subscription->state = watch.state;
    if (watch.watch != 0) subscriptions_[watch.watch] = pending.subscription;
  }
  Call& call = *pending.call;
  call.descriptors_lost = descriptors_lost;
  // The inbox is written again by the next leader.
  const std::byte* const begin = inbox_.data();
  call.reply.bytes.assign(begin, begin + view.header.size);
  call.reply.view = view;
  call.reply.view.fixed = wire::Bytes(call.reply.bytes.data() + (view.fixed.data() - begin), view.fixed.size());
  call.reply.view.rest = wire::Bytes(call.reply.bytes.data() + (view.rest.data() - begin), view.rest.size());
  call.reply.fds = std::move(fds);
  call.done = true;
  call.waiter.wake.notify_one();
}

// A reply that no caller takes, or whose descriptors were cut off. A PUBLISH cannot be undone: Region::publish says how
// its caller learns of it.
void Channel::give_back(const wire::PacketView& view, const Pending& pending, std::span<const Fd> fds) {
  const Undo undo = kUndo[pending.op < kUndo.size() ? pending.op : 0];
  if (undo == nullptr) return;
  LateReply late(*this, pending.request, view, fds);
  undo(late);
  if (pending.op == SHMBW_OP_QUEUE_OPEN) ++ends_given_back_;
}

void Channel::leave_late_groups() {
  if (groups.late.none()) return;
  if (std::ranges::any_of(pending_, [](const auto& one) { return brings_group(one.second.op); })) return;
  for (const std::uint64_t group : groups.take_late()) {
    const shmbw_group_leave leave{group};
    ask_for_nobody(RequestPacket<SHMBW_OP_GROUP_LEAVE>(std::span(&leave, 1), Texts{}, 0).bytes());
  }
}

void Channel::take_event(const wire::PacketView& view) {
  Event event;
  const auto kind = view.header.op & static_cast<std::uint16_t>(~SHMBW_EVENT);
  event.kind = static_cast<Event::Kind>(kind);
  switch (event.kind) {
    case Event::Kind::region_ready:
    case Event::Kind::region_published:
    case Event::Kind::region_gone: {
      const auto fixed = fixed_part<shmbw_region_ready_event>(view);
      event.sequence = fixed.sequence, event.watch = fixed.watch, event.region = fixed.region;
      break;
    }
    case Event::Kind::name_appeared: {
      const auto fixed = fixed_part<shmbw_name_appeared_event>(view);
      event.sequence = fixed.sequence, event.watch = fixed.watch, event.region = fixed.region;
      event.text = text_of(view, fixed.name_len);
      break;
    }
    case Event::Kind::group_ended: {
      const auto fixed = fixed_part<shmbw_group_ended_event>(view);
      event.sequence = fixed.sequence, event.watch = fixed.watch;
      event.group = fixed.group, event.bytes = fixed.bytes_freed;
      break;
    }
    case Event::Kind::reclaim: {
      const auto fixed = fixed_part<shmbw_reclaim_event>(view);
      event.sequence = fixed.sequence, event.watch = fixed.watch, event.group = fixed.group, event.bytes = fixed.bytes;
      event.uid = fixed.uid, event.pid = fixed.pid, event.regions = fixed.regions, event.how = fixed.how;
      event.code = fixed.code;
      event.text = text_of(view, fixed.text_len);
      break;
    }
    case Event::Kind::gap: {
      const auto fixed = fixed_part<shmbw_gap_event>(view);
      event.sequence = fixed.sequence, event.lost = fixed.lost;
      // The lost events may include those that the library itself waits for. So each waiting call looks again.
      for (auto& [watch, subscription] : subscriptions_) subscription->events.push_back(event);
      remote_gap_ = true;
      gpu_lost_ = true;
      asked_.clear();
      asked_count_.fetch_add(1, std::memory_order_release);
      tell_listeners();
      break;
    }
    case Event::Kind::gpu_state: {
      const auto fixed = fixed_part<shmbw_gpu_state_event>(view);
      if (fixed.watch == 0)
        return queue_gpu({GpuEvent::Kind::state, fixed.region, static_cast<shmbw_gpu_state>(fixed.state),
                          static_cast<shmbw_gpu_kind>(fixed.kind), fixed.code, fixed.pid});
      event.sequence = fixed.sequence, event.watch = fixed.watch, event.region = fixed.region;
      event.how = fixed.state, event.code = fixed.code, event.pid = fixed.pid;
      break;
    }
    default:
      if (kind == SHMBW_EVENT_GPU_DRAINED)
        return queue_gpu({.kind = GpuEvent::Kind::drained, .region = fixed_part<shmbw_gpu_drained_event>(view).region});
      if (kind == SHMBW_EVENT_GPU_DEVICE) return take_device_event(view);
      if (kind == SHMBW_EVENT_RESUME) return resume(view);
      if (kind == SHMBW_EVENT_GIVE_UP) {
        asked_.push_back(fixed_part<shmbw_give_up_event>(view).region.id);
        if (asked_.size() > kMostAsked) asked_.pop_front();
        asked_count_.fetch_add(1, std::memory_order_release);
        return tell_listeners();
      }
      // The pool's directory holds the change; this event only announces it. Other events are of a newer broker.
      if (kind == SHMBW_EVENT_POOL_CHANGED) tell_listeners();
      else take_remote_event(view);
      return;
  }
  if (const auto own = subscriptions_.find(event.watch); own != subscriptions_.end() && event.watch != 0) {
    own->second->events.push_back(std::move(event));
    for (Waiter* waiter : event_waiters_) waiter->wake.notify_one();
    return;
  }
  queue(std::move(event));
}

void Channel::take_remote_event(const wire::PacketView& view) {
  RemoteEvent event;
  switch (view.header.op & static_cast<std::uint16_t>(~SHMBW_EVENT)) {
    case SHMBW_EVENT_WORLD_CHANGED: {
      const auto fixed = fixed_part<shmbw_world_changed_event>(view);
      event.kind = RemoteEvent::Kind::world_changed;
      event.world = fixed.world, event.change = static_cast<shmbw_world_change>(fixed.change);
      event.rank = fixed.rank, event.life = fixed.life, event.present = fixed.present;
      break;
    }
    case SHMBW_EVENT_REF_UNUSED: {
      const auto fixed = fixed_part<shmbw_ref_unused_event>(view);
      event.kind = RemoteEvent::Kind::ref_unused;
      event.world = fixed.world, event.reference = {fixed.reference.counter, fixed.reference.creator};
      break;
    }
    case SHMBW_EVENT_REF_CHANGED: {
      const auto fixed = fixed_part<shmbw_ref_changed_event>(view);
      event.kind = RemoteEvent::Kind::ref_changed;
      event.world = fixed.world, event.reference = {fixed.reference.counter, fixed.reference.creator};
      event.state = static_cast<shmbw_ref_state>(fixed.state), event.owner = fixed.owner;
      break;
    }
    default:
      return;
  }
  if (remote_events_.size() >= kMaxQueuedEvents) {
    remote_events_.clear();  // no thread takes them; a later one reads the lists
    remote_gap_ = true;
  } else {
    remote_events_.push_back(event);
  }
  tell_listeners();
}

void Channel::tell_listeners() {
  for (const int listener : listeners_) sys::event_signal(listener);
  for (Waiter* waiter : event_waiters_) waiter->wake.notify_one();
}

Result<std::optional<RemoteEvent>> Channel::next_remote_event(Deadline deadline) {
  Lock lock(mutex_);
  const auto some = [&] { return remote_gap_ || !remote_events_.empty(); };
  if (!some()) {
    if (lost_) return lost_error();
    Waiter me;
    event_waiters_.push_back(&me);
    const bool reached = wait(lock, deadline, me, [&] { return lost_ || some(); });
    std::erase(event_waiters_, &me);
    if (!reached) return std::nullopt;
    if (!some()) return lost_error();
  }
  if (std::exchange(remote_gap_, false)) {
    remote_events_.clear();  // older than what the lists will say
    return RemoteEvent{};
  }
  const RemoteEvent event = remote_events_.front();
  remote_events_.pop_front();
  return event;
}

// For the one call that waits for it. No other call has asked.
void Channel::take_device_event(const wire::PacketView& view) {
  const auto fixed = fixed_part<shmbw_gpu_device_event>(view);
  const auto waiting = subscriptions_.find(fixed.watch);
  if (waiting == subscriptions_.end()) return;
  Event event;
  event.kind = Event::Kind::gpu_device;
  event.sequence = fixed.sequence, event.watch = fixed.watch;
  event.how = fixed.hold, event.pid = fixed.minor;
  event.code = static_cast<std::int32_t>(fixed.system_errno);
  event.text = text_of(view, fixed.text_len);
  Subscription& subscription = *waiting->second;
  subscriptions_.erase(waiting);
  subscription.watch = 0;  // over: there is nothing to cancel
  subscription.events.push_back(std::move(event));
  for (Waiter* waiter : event_waiters_) waiter->wake.notify_one();
}

void Channel::queue_gpu(GpuEvent event) {
  if (gpu_events_.size() >= kMaxQueuedEvents) gpu_lost_ = true;
  else gpu_events_.push_back(event);
  for (const int listener : listeners_) sys::event_signal(listener);
}

bool Channel::take_asked_back(std::uint64_t& seen, std::vector<std::uint64_t>& ids) {
  Lock lock(mutex_);
  const std::uint64_t count = asked_count_.load(std::memory_order_relaxed);
  const std::uint64_t behind = count - std::exchange(seen, count);
  if (behind > asked_.size()) return false;
  ids.assign(asked_.end() - static_cast<std::ptrdiff_t>(behind), asked_.end());
  return true;
}

std::vector<GpuEvent> Channel::take_gpu_events() {
  (void)pump();
  Lock lock(mutex_);
  std::vector<GpuEvent> events = std::exchange(gpu_events_, {});
  if (std::exchange(gpu_lost_, false)) events.push_back({});
  return events;
}

void Channel::queue(Event event) {
  if (events_.size() >= kMaxQueuedEvents) {
    events_.pop_front();
    ++dropped_;
  }
  events_.push_back(std::move(event));
  if (event_) sys::event_signal(event_.get());  // private to this process and non-blocking: cannot stall
  for (Waiter* waiter : event_waiters_) waiter->wake.notify_one();
}

Result<Event> Channel::next_event(Deadline deadline) {
  Lock lock(mutex_);
  if (events_.empty() && dropped_ == 0) {
    if (lost_) return lost_error();
    Waiter me;
    event_waiters_.push_back(&me);
    const bool reached = wait(lock, deadline, me, [&] { return lost_ || !events_.empty(); });
    std::erase(event_waiters_, &me);
    if (!reached) return error(Status::deadline, "no event came before the deadline");
  }
  if (dropped_ != 0) {
    Event gap;
    gap.lost = std::exchange(dropped_, 0);
    return gap;
  }
  if (events_.empty()) return lost_error();
  Event event = std::move(events_.front());
  events_.pop_front();
  if (events_.empty() && event_ && !lost_) sys::event_drain(event_.get());
  return event;
}

bool Channel::pump() {
  Lock lock(mutex_);
  if (reading_ && !lost_) rest_for_memory(lock);
  // Events may wait before the end of the connection; a broker that sends without end must not keep us.
  for (std::size_t i = 0; i < kMaxQueuedEvents && !lost_ && !reading_; ++i)
    if (read_once(lock, Deadline::now(), false) == Read::nothing) break;
  pass_the_lead();
  return !lost_;
}

void Channel::flush() {
  if (!wants_room()) return;
  Lock lock(mutex_);
  if (!lost_) (void)send_unsent();
}

void Channel::add_listener(int event) {
  Lock lock(mutex_);
  if (std::ranges::find(listeners_, event) == listeners_.end()) listeners_.push_back(event);
}

void Channel::remove_listener(int event) {
  Lock lock(mutex_);
  std::erase(listeners_, event);
}

int Channel::socket_descriptor() {
  Lock lock(mutex_);
  return lost_ ? -1 : socket_.get();
}

int Channel::watch_descriptor() {
  Lock lock(mutex_);
  return lost_ ? -1 : watch_.get();
}

Result<int> Channel::event_descriptor() {
  Lock lock(mutex_);
  if (epoll_) return epoll_.get();
  if (lost_ && events_.empty()) return lost_error();
  auto event = sys::event_fd();
  if (!event) return system_failure(event.error(), "eventfd for the event descriptor");
  auto epoll = sys::epoll();
  if (!epoll) return system_failure(epoll.error(), "epoll for the event descriptor");
  for (int fd : {watch_.get(), event->get()}) {
    if (fd == watch_.get() && lost_) continue;
    if (auto added = sys::epoll_watch(epoll->get(), fd); !added)
      return system_failure(added.error(), "epoll_ctl for the event descriptor");
  }
  event_ = std::move(*event);
  epoll_ = std::move(*epoll);
  if (!events_.empty() || lost_) sys::event_signal(event_.get());
  return epoll_.get();
}

}  // namespace shmb::client
