// SPDX-License-Identifier: Apache-2.0
// Packets that one session was sent and has not read: law 8's gate. At most one reply is unread, so a peer that does
// not read holds the descriptors of one reply and no more. Events wait here, bounded, and never count as unread
// replies. A reply may be impossible to send now: the socket's buffer is full, or others have used up the allowance of
// descriptors in flight. Then it is kept with its own copies of the descriptors and sent later, while all others are
// served.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/fd.hpp"
#include "daemon/kit/list.hpp"
#include "proto/codec.hpp"

namespace shmb::daemon {

class Outbox;
struct Unread;

// Descriptors that were sent and not read, over all sessions, oldest first. The kernel counts them per sending user.
// Past RLIMIT_NOFILE it refuses to send any more (ETOOMANYREFS). Closing the broker's end of a socket gives nothing
// back; only the peer can, by reading or closing (measured on 6.18). So the broker bounds what it sends: each process
// and each user has a share. One that has used up its share gets no more descriptors until it reads.
class InFlight {
 public:
  explicit InFlight(std::uint64_t allowance) : allowance_(allowance) {}
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  std::uint64_t descriptors() const { return descriptors_; }  // an upper bound: some may have been read unnoticed
  // More than half of the allowance is in use, without sessions that were disconnected for it.
  bool crowded() const { return descriptors_ - abandoned_ > allowance_ / 2; }
  Outbox* oldest() const;
  void look_again();  // asks every socket; afterwards the count is exact
  // Whether the session's process may be sent `wanted` descriptors. A process over its share asks again and again. So
  // the sockets are looked at only at intervals, which grow with their number.
  bool within_share(Outbox& outbox, std::size_t wanted, std::int64_t now);
  bool over_share(const Outbox& outbox) const;  // as far as known without asking the sockets
  std::uint64_t kept() const { return kept_; }  // copies held for replies that wait to be sent

  // Limit on the bytes of queued events of all sessions of one user. Events beyond it are lost, each session's with its
  // gap. So a user that opens many sessions and reads nothing cannot fill the broker's memory, which never shrinks.
  static constexpr std::uint64_t kEventBytesOfUser = 4 << 20;

 private:
  friend class Outbox;
  struct Holder {
    std::uint64_t unread = 0, promised = 0;
    std::uint32_t sessions = 0;
    std::uint64_t used() const { return unread + promised; }
  };
  using Processes = std::map<std::uint64_t, Holder>;
  struct User : Holder {
    std::uint64_t event_bytes = 0;
  };
  using Users = std::map<std::uint32_t, User>;

  void add(Outbox& outbox, std::size_t descriptors);
  void remove(Outbox& outbox);
  void count(Outbox& outbox, std::uint64_t Holder::* which, std::int64_t change);
  std::uint64_t share_of_process() const;
  std::uint64_t share_of_user(const Outbox& outbox) const;
  bool fits(const Outbox& outbox, std::size_t wanted) const;

  std::uint64_t allowance_;
  List<Outbox, Unread> list_;
  Processes processes_;
  Users users_;
  std::uint64_t descriptors_ = 0, promised_ = 0, abandoned_ = 0, kept_ = 0;
  std::int64_t look_after_ = 0;
};

// The process (uid and pid) and the user that share allowances with a session.
struct Sharer {
  std::uint32_t uid = 0, pid = 0;
};

// Packets one behind the other in one block of memory. An empty queue gives the block back.
class EventQueue {
 public:
  bool empty() const { return count_ == 0; }
  std::size_t count() const { return count_; }
  std::size_t bytes() const { return memory_.size() - first_; }  // with the cost of each packet's head
  static std::size_t cost(wire::Bytes packet) { return packet.size() + sizeof(std::uint32_t); }
  void push(wire::Bytes packet);
  wire::Bytes front() const;
  void pop();
  void clear() { *this = EventQueue(); }

 private:
  std::vector<std::byte> memory_;
  std::size_t first_ = 0, count_ = 0;
};

class Outbox : public Hook<Outbox, Unread> {
 public:
  // owner() returns `owner`.
  Outbox(int socket, std::size_t events_queued, InFlight& in_flight, void* owner, Sharer sharer);
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  ~Outbox();

  // The gate: true when no reply waits to be sent or to be read. Then the next request may be served.
  bool open();
  // The broker before this one may have sent a reply that is not read yet. Its descriptors are counted by the kernel
  // alone.
  void may_be_unread() { reply_unread_ = true; }
  enum class Sent { sent, kept, peer_gone, lost };
  // `lost`: the reply can neither be sent nor kept, so the session cannot continue. `fds` are borrowed.
  Sent reply(wire::Bytes packet, std::span<const int> fds, std::int64_t now);
  void event(wire::Bytes packet);  // queued only
  bool has_events() const { return !events_.empty() || lost_events_ > 0; }
  void send_events();
  // A reply with so many descriptors is being made in several turns. They count for its process from now on.
  void promise(std::size_t descriptors);
  // Call after the peer has read something, or some time later. Sends what waits, as far as it may.
  Sent flush(std::int64_t now);
  bool wants_edge() const { return kept_reply_ || has_events(); }
  // No edge of this socket reports that the allowance, or the kernel's memory, is free again.
  bool wants_timer() const { return kept_reply_ || (wants_edge() && !reply_unread_ && !event_unread_); }

  std::uint32_t unread_descriptors();  // asks the kernel
  std::int64_t unread_since() const { return since_; }
  void* owner() const { return owner_; }  // null once abandoned
  // The session is disconnected. The socket stays open only so that the count stays true.
  void abandon();

 private:
  void notice();  // asks SIOCOUTQ and forgets what has been read
  bool nothing_unread();
  Sent send(wire::Bytes packet, std::span<const int> fds, std::int64_t now);
  bool may_send_event();
  bool send_event(wire::Bytes packet);
  void drop_event();
  void drop_events();

  int socket_;
  std::size_t events_queued_;
  InFlight& in_flight_;
  void* owner_;
  InFlight::Processes::iterator process_;
  InFlight::Users::iterator user_;

  bool reply_unread_ = false, event_unread_ = false;
  std::uint32_t descriptors_ = 0;
  std::uint64_t promised_ = 0;
  std::int64_t since_ = 0;

  bool kept_reply_ = false;
  std::vector<std::byte> kept_packet_;
  std::vector<Fd> kept_fds_;

  EventQueue events_;
  bool first_goes_ = false;  // nothing was unread when the first of them came, so it does not count as queued
  std::uint64_t lost_events_ = 0, last_lost_ = 0;

  friend class InFlight;
};

}  // namespace shmb::daemon
