// SPDX-License-Identifier: Apache-2.0
// What one session has been sent and has not read: law 8's gate. At most one reply is unread, so a peer that does not
// read holds one reply's descriptors of ours and no more; events wait here, bounded, and never count as unread replies.
// A reply that the kernel does not take now (full buffer, the allowance of descriptors in flight used up by somebody
// else) is kept with its own copies of the descriptors and sent later, while everybody else is served.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/fd.hpp"
#include "daemon/list.hpp"
#include "proto/codec.hpp"

namespace shmb::daemon {

class Outbox;
struct Unread;

// Descriptors that were sent and not read, over all sessions, oldest first. The kernel counts them per sending user
// and, past RLIMIT_NOFILE, refuses to send to anybody (ETOOMANYREFS). Measured on 6.18: closing our end of a socket
// gives nothing back, only the peer can, by reading or closing. So what matters is what is sent in the first place:
// each process and each user has a share. One that has used it up is served no more descriptors until it reads.
class InFlight {
 public:
  explicit InFlight(std::uint64_t allowance) : allowance_(allowance) {}
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  std::uint64_t descriptors() const { return descriptors_; }  // an upper bound: read ones may not have been noticed yet
  // More than half of the allowance, not counting sessions that were disconnected for it.
  bool crowded() const { return descriptors_ - abandoned_ > allowance_ / 2; }
  Outbox* oldest() const;
  void look_again();  // asks every socket; afterwards the count is exact
  // May its process be sent `wanted` descriptors? One over its share asks again and again, so every socket is looked at
  // only now and then, the more seldom the more there are.
  bool within_share(Outbox& outbox, std::size_t wanted, std::int64_t now);
  bool over_share(const Outbox& outbox) const;  // as far as is known without asking the sockets
  std::uint64_t kept() const { return kept_; }  // copies held for replies that wait to be sent

  // Bytes of queued events of all sessions of one user. More are lost, each session's with its gap: a user that opens
  // sessions and reads nothing must not fill the broker's memory, which never shrinks by as much as it grew.
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

// Who shares allowances with a session: its process, by uid and pid, and its user.
struct Sharer {
  std::uint32_t uid = 0, pid = 0;
};

// Packets one behind the other in one block of memory, which is given back when there are none.
class EventQueue {
 public:
  bool empty() const { return count_ == 0; }
  std::size_t count() const { return count_; }
  std::size_t bytes() const { return memory_.size() - first_; }  // with what each packet costs besides
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
  // `owner` is handed out again by owner().
  Outbox(int socket, std::size_t events_queued, InFlight& in_flight, void* owner, Sharer sharer);
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  ~Outbox();

  // The gate: true when no reply waits to be sent or to be read, so that the next request may be served.
  bool open();
  enum class Sent { sent, kept, peer_gone, lost };
  // `lost`: it can neither be sent nor kept; the session cannot go on. `fds` are borrowed.
  Sent reply(wire::Bytes packet, std::span<const int> fds, std::int64_t now);
  void event(wire::Bytes packet);
  // A reply with so many descriptors is being made, in several turns: they count for its process already.
  void promise(std::size_t descriptors);
  // After the peer has read something, or some time later: sends what waits, as far as it may go.
  Sent flush(std::int64_t now);
  bool wants_edge() const { return kept_reply_ || !events_.empty() || lost_events_ > 0; }
  // No edge of this socket tells when the allowance is free again, or the kernel's memory.
  bool wants_timer() const { return kept_reply_ || (wants_edge() && !reply_unread_ && !event_unread_); }

  std::uint32_t unread_descriptors();  // asks the kernel
  std::int64_t unread_since() const { return since_; }
  void* owner() const { return owner_; }  // null once abandoned
  // The session is disconnected, the socket stays open only so that the count stays true.
  void abandon();

 private:
  void notice();  // SIOCOUTQ: forgets what has been read
  bool nothing_unread();
  Sent send(wire::Bytes packet, std::span<const int> fds, std::int64_t now);
  bool may_send_event();
  bool send_event(wire::Bytes packet);
  void send_events();
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
  std::uint64_t lost_events_ = 0, last_lost_ = 0;

  friend class InFlight;
};

}  // namespace shmb::daemon
