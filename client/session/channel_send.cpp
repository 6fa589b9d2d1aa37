// SPDX-License-Identifier: Apache-2.0
// The way out of a channel. A packet that finds the socket full goes before the next one. What the next broker may miss
// is sent again.
#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "base/rescue.hpp"
#include "base/sys_epoll.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"
#include "client/session/call.hpp"
#include "client/session/channel.hpp"
#include "client/session/closed.hpp"
#include "client/session/packet_fields.hpp"

namespace shmb::client {
namespace {

constexpr std::int64_t kLongestPause = 50'000'000, kMemoryPause = 1'000'000;
constexpr std::int64_t kSendAgain = 10'000'000;  // a rescue: the leader tells of room
// Of packets that the broker has not read for longer than their callers waited.
constexpr std::size_t kMaxUnsent = 4096;

// Tags of requests that wait for room: no packet has such a number.
constexpr std::uint64_t kWaitsForRoom = std::uint64_t{1} << 63;

// Errors after which the packet is sent later: the socket is full, the kernel lacks memory, or too many descriptors of
// this user lie unread in sockets.
bool passes(int code) { return code == EAGAIN || code == ENOBUFS || code == ENOMEM || code == ETOOMANYREFS; }

// The other end is gone.
bool hangs_up(int code) { return code == EPIPE || code == ECONNRESET || code == ENOTCONN; }

}  // namespace

// There is room in the socket, so the set is ready, and the kernel has no memory to send with: only time helps.
void Channel::rest_for_memory(Lock& lock) {
  if (auto sent = send_unsent(); sent || lost_ || sent.error().value == EAGAIN) return;
  lock.unlock();
  sys::rest(kMemoryPause);
  lock.lock();
}

// For packets that no thread waits for. A packet that finds the socket full goes before the next one.
void Channel::send_later(std::span<const std::byte> packet) {
  outgoing_.add(packet);
  (void)send_unsent();
}

// An error that passes is returned, and the packets stay. After another error one message is lost. With numbers that
// would be a gap: the broker would wait for it, and would serve nothing behind it. So the session ends.
Sys<void> Channel::send_unsent() {
  while (outgoing_.waits()) {
    const Outgoing::Packet& packet = outgoing_.first();
    std::array<int, sys::kMaxFdsPerMessage> numbers;
    std::ranges::transform(packet.fds, numbers.begin(), [](const Fd& fd) { return fd.get(); });
    auto sent = sys::send(socket_.get(), packet.bytes, {}, std::span(numbers).first(packet.fds.size()), false);
    if (!sent && passes(sent.error().value)) {
      want_room(true);
      return sent;
    }
    if (!sent && outgoing_.keeps()) {
      lose_at_sending(sent.error());
      return sent;
    }
    outgoing_.first_was_sent();
  }
  want_room(sender_waits_);
  return {};
}

void Channel::lose_at_sending(Errno failed) noexcept {
  try {
    hung_up_ = hangs_up(failed.value);
    lose(hung_up_ ? "the broker closed the connection" : "sending to the broker: " + errno_text(failed.value));
  } catch (const std::bad_alloc&) {
    lost_reason_ = "out of memory";  // short enough to need none
    end();
  }
}

bool Channel::keep_unsent(std::span<const std::byte> packet) {
  if (outgoing_.waiting() >= kMaxUnsent) return false;
  try {
    send_later(packet);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void Channel::want_room(bool wanted) {
  if (wants_room_.exchange(wanted, std::memory_order_relaxed) != wanted)
    sys::epoll_watch_room(watch_.get(), socket_.get(), wanted);
}

// A request gets its number when it is sent, since others may be sent while it waits for room. It is pending from the
// beginning.
void Channel::move_pending(std::uint64_t from, std::uint64_t to) noexcept {
  auto moved = pending_.extract(from);
  if (!moved) return;  // a broker has answered what it cannot have
  moved.key() = to;
  pending_.insert(std::move(moved));
}

Result<std::uint64_t> Channel::send(Lock& lock, std::span<std::byte> packet, Deadline deadline,
                                    std::span<const int> descriptors, const Pending* pending) {
  std::uint64_t tag = 0;
  const auto forget = [&] {
    if (tag != 0) pending_.erase(tag);
  };
  try {
    auto sent = send_in_turn(lock, packet, deadline, descriptors, pending, tag);
    if (!sent) forget();
    return sent;
  } catch (const std::bad_alloc&) {
    forget();  // its caller is about to go, and what it waits with
    throw;
  }
}

// `tag`: under which `pending` is in the table, also after an error; 0: it is not.
Result<std::uint64_t> Channel::send_in_turn(Lock& lock, std::span<std::byte> packet, Deadline deadline,
                                            std::span<const int> descriptors, const Pending* pending,
                                            std::uint64_t& tag) {
  for (std::int64_t pause = 1'000'000;; pause = std::min(2 * pause, kLongestPause)) {
    if (lost_) return lost_error();
    auto sent = send_unsent();
    if (lost_) return lost_error();
    if (sent) {
      const std::uint64_t number = outgoing_.next_number();
      outgoing_.stamp(packet);
      if (tag != 0) move_pending(tag, number);
      else if (pending != nullptr) pending_[number] = *pending;
      if (pending != nullptr) tag = number;
      sent = sys::send(socket_.get(), packet, {}, descriptors, false);
      if (sent) {
        outgoing_.was_sent(packet, descriptors);
        return number;
      }
    }
    const int code = sent.error().value;
    if (pending != nullptr) {
      const std::uint64_t place = kWaitsForRoom | ++last_place_;
      if (tag != 0) move_pending(tag, place);
      else pending_[place] = *pending;
      tag = place;
    }
    if (passes(code)) {
      // The broker serves one request at a time and the kernel holds a bounded number: replies must be read on.
      if (deadline.passed()) {
        if (code == ETOOMANYREFS)
          return error(Status::no_descriptors,
                       "the request's descriptors could not be sent before the deadline: more descriptors of this user "
                       "lie unread in sockets than one process may have open (ulimit -n): raise that, or end the "
                       "processes that do not read theirs");
        return error(Status::deadline, "the broker did not take the request before the deadline");
      }
      const Deadline soon = earlier(deadline, Deadline::after(code == EAGAIN ? rescue_interval(kSendAgain) : pause));
      if (!reading_) {
        // Without memory in the kernel the socket is writable all the same: only time helps.
        read_once(lock, soon, code == EAGAIN);
      } else {
        if (code == EAGAIN) {
          sender_waits_ = true;
          want_room(true);
        }
        Waiter me;
        add(me);
        me.wake.wait(lock, soon);
        remove(me);
      }
      pass_the_lead();
      continue;
    }
    if (hangs_up(code)) {
      hung_up_ = true;
      lose("the broker closed the connection");
      return lost_error();
    }
    // A descriptor to be sent is no reason.
    if ((code == EBADF || code == ENOTSOCK) && !has_socket()) {
      lose(kClosedDescriptor);
      return lost_error();
    }
    return system_failure(sent.error(), "sending to the broker");
  }
}

Result<void> Channel::post(std::span<std::byte> packet, Deadline deadline) {
  if (packet.empty()) return error(Status::invalid, "the request does not fit into one message");
  Lock lock(mutex_);
  if (!lost_) {
    // If earlier packets still wait for room, this one joins them without a wait of its own.
    (void)send_unsent();
    if (outgoing_.waits() && keep_unsent(packet)) return {};
  }
  const auto sent = send(lock, packet, deadline, {}, nullptr);
  if (!sent && sent.error().status == Status::deadline && keep_unsent(packet)) return {};
  if (!sent) return std::unexpected(sent.error());
  bound_one_ways(lock);
  return {};
}

// A thread that only sends, and never waits, gets no answer that tells what it need not keep any longer. It asks for
// one only: behind a second request, the broker would serve nothing before the first answer has been read.
void Channel::bound_one_ways(Lock& lock) {
  if (outgoing_.wants_answer()) {
    try {
      const shmbw_status status{};
      const std::uint64_t number = outgoing_.next_number();
      ask_for_nobody(RequestPacket<SHMBW_OP_STATUS>(std::span(&status, 1), Texts{}, 0).bytes());
      outgoing_.asked(number);
    } catch (const std::bad_alloc&) {  // the next time
    }
  } else if (outgoing_.awaits_answer() && !reading_ && !lost_) {
    read_once(lock, Deadline::now(), false);
    pass_the_lead();
  }
}

// Its answer finds no pending request.
void Channel::ask_for_nobody(std::span<const std::byte> packet) { send_later(packet); }

// Another broker has taken the session over.
void Channel::resume(const wire::PacketView& view) {
  if (!outgoing_.keeps()) return;
  const std::string why = outgoing_.resume(fixed_part<shmbw_resume_event>(view).number);
  if (!why.empty()) return lose("the broker cannot resume it: " + why);
  (void)send_unsent();
}

}  // namespace shmb::client
