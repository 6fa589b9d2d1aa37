// SPDX-License-Identifier: Apache-2.0
// The interface between moving packets (engine, listener, connection) and keeping books (broker, session, region, ...).
// The ledger never uses a socket: its number is only for the record. The transport never sees a lease.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "base/sys_process.hpp"
#include "daemon/start/config.hpp"
#include "proto/codec.hpp"

namespace shmb::daemon {

// How long a reclaim report waits for how its process died, in nanoseconds.
inline constexpr std::int64_t kExitWait = 1'000'000'000;

// The kernel's facts about the peer, gathered at accept.
struct Peer {
  std::uint32_t uid = 0, gid = 0;
  std::uint32_t pid = 0;  // 0: in a PID namespace that the broker cannot see
  std::vector<std::uint32_t> groups;
  bool admin = false;      // came through the admin socket
  bool has_pidfd = false;  // else only end of file shows that the peer is gone
};

// The ledger's view of one connection. All calls are made on the broker's thread.
class Link {
 public:
  virtual const Peer& peer() const = 0;
  // The numbers of its descriptors in the broker's table; -1: none, or a pidfd that HELLO has yet to confirm.
  struct Held {
    int socket = -1, pidfd = -1;
  };
  virtual Held descriptors_held() const { return {}; }
  // The one reply to the request in service. Descriptors are borrowed for the call: the link duplicates any that it
  // keeps.
  virtual void reply(wire::Bytes packet, std::span<const int> fds) = 0;
  // Instead of the reply: the request in service is kept, and nothing else of this session is read. `serve_again`
  // serves it again. A peer that goes away meanwhile withdraws it.
  virtual void hold() = 0;
  virtual void serve_again() = 0;
  // Instead of the reply: the request in service was served in part. It is served again in the session's next turn,
  // also if the peer has gone meanwhile.
  virtual void yield() = 0;
  // Queues an event. The queue is bounded; one gap event then counts those that are lost (law 8). The event leaves by
  // `send_events`, or later. Its change must be in the books before: a watcher must not know more than they do.
  virtual void event(wire::Bytes packet) = 0;
  virtual void send_events() = 0;
  // The peer broke the protocol: log `why` once, close. The ledger gets end_of_file afterwards, from the transport and
  // not from inside this call.
  virtual void drop(std::string_view why) = 0;
  virtual std::uint32_t descriptors_in_flight() const = 0;
  // For older kernels: compares the start time in HELLO with that of the pidfd's process. False drops the pidfd
  // (Peer::has_pidfd becomes false).
  virtual bool confirm_start_time(std::uint64_t start_time) = 0;
  // Whether its process has ended, though no event has reported it yet. False also where that cannot be known.
  virtual bool process_over() const { return false; }
  // Whether its process leaves so many descriptors unread that it gets no more. Asked only for a request for a
  // doorbell. Such a request would wait, and block the ring that its sender sends next. So it is refused instead.
  virtual bool over_share() const { return false; }
  // From the next request on the session may bring one descriptor, or with `many` as many as a message carries. Law 8:
  // only sessions that asked for it may.
  virtual void take_descriptors(bool /*many*/) {}
  // The descriptors that came with the request in service. Those that the handler does not take are closed after it.
  virtual std::vector<Fd>& descriptors() = 0;
  Fd descriptor() { return descriptors().empty() ? Fd() : std::move(descriptors().front()); }

 protected:
  ~Link() = default;
};

// The transport's reports to the ledger. `Broker` (broker.hpp) implements it. The session handle is opaque to the
// transport.
class Session;
class BrokerEvents {
 public:
  virtual ~BrokerEvents() = default;
  // Called before each accept. False leaves the client in the backlog until descriptors are free.
  virtual bool room_for_session(bool /*admin*/) const { return true; }
  virtual Session* connected(Link& link) = 0;  // nullptr: refuse (the transport closes)
  // Connections of sessions that the broker before this one has left open. The caller owns the descriptors.
  struct Open {
    Session* session = nullptr;
    int socket = -1, pidfd = -1;  // -1: there is none, or its process has ended
    bool admin = false;
    bool takes_descriptors = false;
  };
  virtual std::vector<Open> open_sessions() { return {}; }
  virtual void connected_again(Session&, Link&) {}
  // Called once, before any packet: sessions of the last broker that have no link by now are over.
  virtual void begun() {}
  virtual void packet(
      Session& session,
      const wire::PacketView& packet) = 0;  // calls link.reply at most once, hold, drop, or nothing (one-way)
  // Instead of `packet`: the peer of a held request has gone, and the packets behind it are served.
  virtual void given_up(Session& /*session*/, const wire::PacketView& /*packet*/) {}
  virtual bool greeted(const Session& session) const = 0;  // HELLO has been answered
  virtual void end_of_file(Session& session) = 0;          // the peer closed its socket; the link dies after this call
  virtual void process_died(
      Session& session,
      const sys::ExitInfo* how) = 0;  // the pidfd became readable; nullptr: the kernel does not tell how
  virtual void disconnected(
      Session& session) = 0;  // law 8: we closed a lazy reader; not a death. The link dies after this call, the pidfd
                              // stays watched, process_died follows, then forget
  // Called once, right after end_of_file: whether the reclaim report waits for how the process died. If so, keep the
  // pidfd watched for up to 1 s more; process_died may still come in that time.
  virtual bool wants_exit(const Session&) const { return false; }
  // Called before a pidfd is kept for that alone. It counts for its user until `pidfd_closed`. False: there is no room
  // for it. Then forget comes next, and the report has no exit status.
  virtual bool keep_pidfd(std::uint32_t /*uid*/) { return true; }
  virtual void pidfd_closed(std::uint32_t /*uid*/) {}
  // Called after wants_exit: whether the ledger must know when the process ends, however long that takes. If true,
  // process_ended comes at that moment, then what wants_exit asks for, then forget.
  virtual bool awaits_end(const Session&) const { return false; }
  // The exit that wants_exit asked for will not come: the process lives and only closed its connection.
  virtual void process_lives(Session&) {}
  // The process of a session without a connection has ended. process_died may report later how it ended.
  virtual void process_ended(Session&) {}
  // The transport's last call for a handle, exactly once each. Its socket is closed and its pidfd is not watched any
  // more (reported, given up, or never there). The handle is invalid afterwards.
  virtual void forget(Session&) {}
  virtual std::int64_t next_deadline() const = 0;  // CLOCK_BOOTTIME ns, INT64_MAX none
  virtual void tick(std::int64_t now) = 0;
  // Closes descriptors that a peer made, on another thread: the close of a file on the peer's own file system waits for
  // the peer. False: so many such closes of this uid are in progress that nothing of its sender should be read until
  // there are fewer.
  virtual bool close_elsewhere(std::uint32_t, std::vector<Fd>) { return true; }
  virtual bool closes_too_many(std::uint32_t) { return false; }
  // Descriptors that came with a waiting request count for their sender's user until `waited` is called. False: that
  // user's share or the table has no room for them, and they are not counted.
  virtual bool keep_waiting(std::uint32_t, std::size_t) { return true; }
  virtual void waited(std::uint32_t, std::size_t) {}
  // New limits apply at once. Use beyond them stays: nothing is freed, and no more is given.
  virtual void set_limits(const Limits&) {}
  virtual int wake_fd() const = 0;  // readable when a helper thread has finished something
  virtual void woken() = 0;
  virtual bool idle() const = 0;  // no session and no kept region: a private broker may end
};

}  // namespace shmb::daemon
