// SPDX-License-Identifier: Apache-2.0
// See outbox.hpp. The peer reads in order. So "the reply is unread" follows from "something is unread, and a reply was
// sent since the buffer was empty".
#include "daemon/transport/outbox.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/sys_socket.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {
namespace {

// sock_wfree() in the kernel gives a packet's bytes back in two steps and wakes the writer between them. So at the
// moment of the edge the last packet still counts 1. The smallest packet counts 768, so anything up to 128 is an empty
// queue. Waiting for 0 would wait for an edge that never comes (dbus-broker uses the same bound).
constexpr int kEmptyQueue = 128;

// The socket or the kernel has no room now, and the event is sent later. Every other error means that the peer is gone.
bool passing(Errno error) { return error.value == EAGAIN || error.value == ENOBUFS || error.value == ENOMEM; }

// A look at a socket takes about 0.2 us. So a process over its share costs others a few per cent at most.
constexpr std::int64_t kLookPause = 5'000'000, kLookPausePerSocket = 10'000;

constexpr std::size_t kFew = 4;  // the most descriptors of a reply that is not to a batch

constexpr std::size_t kSequenceOffset = sizeof(shmbw_header);  // every event's fixed part begins with its sequence

std::uint64_t sequence_of(wire::Bytes event) {
  std::uint64_t sequence = 0;
  if (event.size() >= kSequenceOffset + sizeof sequence)
    std::memcpy(&sequence, event.data() + kSequenceOffset, sizeof sequence);
  return sequence;
}

}  // namespace

Outbox* InFlight::oldest() const { return list_.first(); }

void InFlight::look_again() {
  list_.each([](Outbox& outbox) { outbox.notice(); });
}

void InFlight::count(Outbox& outbox, std::uint64_t Holder::* which, std::int64_t change) {
  outbox.process_->second.*which += static_cast<std::uint64_t>(change);
  outbox.user_->second.*which += static_cast<std::uint64_t>(change);
}

void InFlight::add(Outbox& outbox, std::size_t descriptors) {
  if (outbox.descriptors_ == 0) list_.push_back(outbox);
  outbox.descriptors_ += static_cast<std::uint32_t>(descriptors);
  count(outbox, &Holder::unread, static_cast<std::int64_t>(descriptors));
  descriptors_ += descriptors;
}

void InFlight::remove(Outbox& outbox) {
  if (outbox.descriptors_ == 0) return;
  list_.remove(outbox);
  descriptors_ -= outbox.descriptors_;
  count(outbox, &Holder::unread, -std::int64_t{outbox.descriptors_});
  if (outbox.owner_ == nullptr) abandoned_ -= outbox.descriptors_;
  outbox.descriptors_ = 0;
}

// A process may have half of all while there is plenty. Once more than half is used, each has a sixteenth, and at least
// one full packet unless the table is tiny.
std::uint64_t InFlight::share_of_process() const {
  if (descriptors_ <= allowance_ / 2) return std::max<std::uint64_t>(1, allowance_ / 2);
  return std::max({std::uint64_t{1}, std::min<std::uint64_t>(sys::kMaxFdsPerMessage, allowance_ / 4), allowance_ / 16});
}

// With n users, each may leave unread 1/(n + 1) of what is left and what it has unread, however many processes it has.
// Root may use all.
std::uint64_t InFlight::share_of_user(const Outbox& outbox) const {
  const auto& [uid, user] = *outbox.user_;
  if (uid == 0) return allowance_;
  const std::uint64_t used = descriptors_ + promised_;
  const std::uint64_t left = allowance_ > used ? allowance_ - used : 0;
  return (left + user.used()) / (users_.size() + 1);
}

// A reply that the kernel would refuse is not made, because while it waits it needs as many descriptors again. The
// kernel refuses once more than the allowance is unread. So a quarter is kept for replies that are promised already.
bool InFlight::fits(const Outbox& outbox, std::size_t wanted) const {
  if (outbox.process_->second.used() >= share_of_process()) return false;
  if (outbox.user_->second.used() > share_of_user(outbox)) return false;
  return wanted <= kFew || descriptors_ + promised_ <= allowance_ - allowance_ / 4;
}

bool InFlight::within_share(Outbox& outbox, std::size_t wanted, std::int64_t now) {
  if (fits(outbox, wanted)) return true;
  if (now < look_after_) return false;
  look_after_ = now + std::max(kLookPause, kLookPausePerSocket * std::int64_t{list_.size()});
  look_again();
  return fits(outbox, wanted);
}

bool InFlight::over_share(const Outbox& outbox) const { return outbox.process_->second.unread > share_of_process(); }

void EventQueue::push(wire::Bytes packet) {
  // Reuses the room of packets that were sent, once they are the larger part.
  if (first_ > memory_.size() / 2) {
    memory_.erase(memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
  const auto size = static_cast<std::uint32_t>(packet.size());
  const auto head = std::as_bytes(std::span(&size, 1));
  memory_.insert(memory_.end(), head.begin(), head.end());
  memory_.insert(memory_.end(), packet.begin(), packet.end());
  ++count_;
}

wire::Bytes EventQueue::front() const {
  std::uint32_t size = 0;
  std::memcpy(&size, memory_.data() + first_, sizeof size);
  return wire::Bytes(memory_).subspan(first_ + sizeof size, size);
}

void EventQueue::pop() {
  constexpr std::size_t kKept = 512;  // so that a session that gets events one by one costs no allocation for each
  first_ += cost(front());
  if (--count_ != 0) return;
  first_ = 0;
  memory_.clear();
  if (memory_.capacity() > kKept) memory_ = {};
}

Outbox::Outbox(int socket, std::size_t events_queued, InFlight& in_flight, void* owner, Sharer sharer)
    : socket_(socket),
      events_queued_(events_queued),
      in_flight_(in_flight),
      owner_(owner),
      process_(in_flight.processes_.try_emplace(std::uint64_t{sharer.uid} << 32 | sharer.pid).first),
      user_(in_flight.users_.try_emplace(sharer.uid).first) {
  ++process_->second.sessions;
  ++user_->second.sessions;
}

Outbox::~Outbox() {
  in_flight_.remove(*this);
  promise(0);
  in_flight_.kept_ -= kept_fds_.size();
  drop_events();
  if (--user_->second.sessions == 0) in_flight_.users_.erase(user_);
  if (--process_->second.sessions == 0) in_flight_.processes_.erase(process_);
}

void Outbox::abandon() {
  if (owner_ == nullptr) return;
  in_flight_.abandoned_ += descriptors_;
  owner_ = nullptr;
  promise(0);
  in_flight_.kept_ -= kept_fds_.size();
  kept_fds_.clear();
  kept_reply_ = false;
  drop_events();
  lost_events_ = 0;
}

void Outbox::drop_event() {
  user_->second.event_bytes -= EventQueue::cost(events_.front());
  events_.pop();
}

void Outbox::drop_events() {
  user_->second.event_bytes -= events_.bytes();
  events_.clear();
}

void Outbox::promise(std::size_t descriptors) {
  const std::int64_t change = static_cast<std::int64_t>(descriptors) - static_cast<std::int64_t>(promised_);
  promised_ = descriptors;
  in_flight_.count(*this, &InFlight::Holder::promised, change);
  in_flight_.promised_ += static_cast<std::uint64_t>(change);
}

bool Outbox::nothing_unread() {
  auto bytes = sys::unread_bytes(socket_);
  // If the kernel does not answer, the session must not wait for ever. The socket's buffer remains the bound.
  return !bytes || *bytes <= kEmptyQueue;
}

void Outbox::notice() {
  if (!reply_unread_ && !event_unread_) return;
  if (!nothing_unread()) return;
  reply_unread_ = event_unread_ = false;
  in_flight_.remove(*this);
}

bool Outbox::open() {
  if (kept_reply_) return false;
  if (reply_unread_) notice();
  return !reply_unread_;
}

Outbox::Sent Outbox::send(wire::Bytes packet, std::span<const int> fds, std::int64_t now) {
  auto sent = sys::send(socket_, packet, {}, fds, false);
  if (sent) {
    reply_unread_ = true;
    if (!fds.empty()) {
      if (descriptors_ == 0) since_ = now;
      in_flight_.add(*this, fds.size());
    }
    return Sent::sent;
  }
  switch (sent.error().value) {
    case EAGAIN:   // an unread event fills the buffer
    case ENOBUFS:  // the kernel is short of memory
    case ENOMEM:
    case ETOOMANYREFS:  // unread descriptors of all the broker's sessions, and of all processes of its user
      return Sent::kept;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
      return Sent::peer_gone;
    default:
      return Sent::lost;
  }
}

Outbox::Sent Outbox::reply(wire::Bytes packet, std::span<const int> fds, std::int64_t now) {
  promise(0);
  Sent sent = send(packet, fds, now);
  if (sent != Sent::kept) return sent;
  kept_fds_.clear();
  for (int fd : fds) {
    auto copy = Fd::adopt(fd);
    auto own = copy.dup();
    (void)copy.release();
    if (!own) {
      kept_fds_.clear();
      return Sent::lost;
    }
    kept_fds_.push_back(std::move(*own));
  }
  in_flight_.kept_ += kept_fds_.size();
  promise(kept_fds_.size());
  kept_packet_.assign(packet.begin(), packet.end());
  kept_reply_ = true;
  return Sent::kept;
}

// A peer that reads gets its events, however much others of its user leave unread: only queued events are bounded. An
// event that can go at once is sent after the commit. If the kernel has no room then, it stays beyond the bounds: one
// packet for each session.
void Outbox::event(wire::Bytes packet) {
  const bool goes = events_.empty() && lost_events_ == 0 && may_send_event();
  // Once some events are lost, all are lost until the peer has the gap. So the peer never misses an event without a
  // gap.
  std::uint64_t& used = user_->second.event_bytes;
  const std::size_t cost = EventQueue::cost(packet);
  const std::size_t most = events_queued_ + (first_goes_ ? 1 : 0);
  if (!goes && (events_.count() >= most || lost_events_ > 0 || used + cost > InFlight::kEventBytesOfUser)) {
    ++lost_events_;
    last_lost_ = sequence_of(packet);
    return;
  }
  first_goes_ = first_goes_ || goes;
  used += cost;
  events_.push(packet);
}

Outbox::Sent Outbox::flush(std::int64_t now) {
  notice();
  if (kept_reply_) {
    int numbers[sys::kMaxFdsPerMessage];
    for (std::size_t i = 0; i < kept_fds_.size(); ++i) numbers[i] = kept_fds_[i].get();
    Sent sent = send(kept_packet_, std::span<const int>(numbers, kept_fds_.size()), now);
    if (sent == Sent::kept) return sent;
    promise(0);
    kept_reply_ = false;
    in_flight_.kept_ -= kept_fds_.size();
    kept_fds_.clear();
    if (sent != Sent::sent) return sent;
  }
  send_events();
  return Sent::sent;
}

bool Outbox::may_send_event() {
  if (kept_reply_) return false;
  notice();
  return !reply_unread_ && !event_unread_;
}

// False: there is no room now. For a peer that is gone every packet counts as sent.
bool Outbox::send_event(wire::Bytes packet) {
  if (auto sent = sys::send(socket_, packet, {}, {}, false); !sent && passing(sent.error())) return false;
  return event_unread_ = true;
}

void Outbox::send_events() {
  first_goes_ = false;
  if (!has_events() || !may_send_event()) return;
  if (!events_.empty()) {
    if (send_event(events_.front())) drop_event();
    return;
  }
  std::byte buffer[128];
  wire::Writer writer(buffer);
  shmbw_gap_event gap{};
  gap.sequence = last_lost_;
  gap.lost = lost_events_;
  writer.begin(SHMBW_EVENT | SHMBW_EVENT_GAP, 0, Status::ok, gap);
  if (send_event(writer.finish(0))) lost_events_ = 0;
}

std::uint32_t Outbox::unread_descriptors() {
  notice();
  return descriptors_;
}

}  // namespace shmb::daemon
