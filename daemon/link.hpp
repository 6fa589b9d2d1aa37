// SPDX-License-Identifier: Apache-2.0
// The seam between moving packets (engine, listener, connection) and keeping books (broker, session, region, ...).
// The books never see a socket; the transport never sees a lease.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "base/sys_process.hpp"
#include "proto/codec.hpp"

namespace shmb::daemon {

// What the kernel says of the peer, gathered at accept.
struct Peer {
  std::uint32_t uid = 0, gid = 0;
  std::uint32_t pid = 0;  // 0: a PID namespace that we cannot see
  std::vector<std::uint32_t> groups;
  bool admin = false;      // came in by the admin socket
  bool has_pidfd = false;  // else only end of file tells its end
};

// What the books see of one connection. All calls are made on the broker's thread.
class Link {
 public:
  virtual const Peer& peer() const = 0;
  // The one reply to the request in service. Descriptors are borrowed for the call; the link dups what it must keep.
  virtual void reply(wire::Bytes packet, std::span<const int> fds) = 0;
  // Instead of the reply: the request in service is kept, and nothing else of this session is read, until serve_again
  // hands it in once more. A peer that goes away meanwhile takes it back.
  virtual void hold() = 0;
  virtual void serve_again() = 0;
  // Instead of the reply: the request in service was served in part, and is handed in again in the session's next turn,
  // also where the peer has gone meanwhile.
  virtual void yield() = 0;
  // Queued; one event packet in flight, then a gap event (law 8).
  virtual void event(wire::Bytes packet) = 0;
  // Protocol broken: log `why` once, close. The books hear end_of_file afterwards, from the transport, not from inside
  // the call.
  virtual void drop(std::string_view why) = 0;
  virtual std::uint32_t descriptors_in_flight() const = 0;
  // For older kernels: compares the start time that HELLO carries with the pidfd's process; false drops the pidfd
  // (Peer::has_pidfd becomes false).
  virtual bool confirm_start_time(std::uint64_t start_time) = 0;
  // Its process has ended, though no event has told so yet. False also where that cannot be known.
  virtual bool process_over() const { return false; }
  // Its process leaves so many descriptors unread that it gets no more. Only of a request that asks for a doorbell: it
  // is refused, because what has to wait for others may not stand before the ring that its sender asks for instead.
  virtual bool over_share() const { return false; }
  // From the next request on it may bring one descriptor, or as many as a message carries (law 8: only to sessions that
  // asked for it).
  virtual void take_descriptors(bool /*many*/) {}
  // Those that came with the request in service; what is not taken is closed after it.
  virtual std::vector<Fd>& descriptors() = 0;
  Fd descriptor() { return descriptors().empty() ? Fd() : std::move(descriptors().front()); }

 protected:
  ~Link() = default;
};

// What the transport tells the books. `Broker` (broker.hpp) implements it. The session handle is opaque to the
// transport.
class Session;
class Books {
 public:
  virtual ~Books() = default;
  // Asked before each accept: false leaves the client in the backlog until descriptors are free.
  virtual bool room_for_session(bool /*admin*/) const { return true; }
  virtual Session* connected(Link& link) = 0;  // nullptr: refuse (the transport closes)
  virtual void packet(
      Session& session,
      const wire::PacketView& packet) = 0;  // calls link.reply at most once, hold, drop, or nothing (one-way)
  virtual bool greeted(const Session& session) const = 0;  // HELLO has been answered
  virtual void end_of_file(Session& session) = 0;          // the peer closed its socket; the link dies after this call
  virtual void process_died(
      Session& session,
      const sys::ExitInfo* how) = 0;  // the pidfd became readable; nullptr: the kernel does not tell how
  virtual void disconnected(
      Session& session) = 0;  // law 8: we closed a lazy reader; not a death. The link dies after this call, the pidfd
                              // stays watched, process_died follows, then forget
  // Asked once, right after end_of_file: the reclaim report waits for how the process died. If true, keep the pidfd
  // watched for up to 1 s more; process_died may still come in that time.
  virtual bool wants_exit(const Session&) const { return false; }
  // Asked before a pidfd is kept for that alone: it counts for its user until `pidfd_closed`. False: there is no room
  // for it, forget comes next, and the report says nothing of an exit status.
  virtual bool keep_pidfd(std::uint32_t /*uid*/) { return true; }
  virtual void pidfd_closed(std::uint32_t /*uid*/) {}
  // Asked after wants_exit and like it: the books have to know when the process ends, however long that takes.
  // If true, process_ended comes at that very moment, then what wants_exit asks for, then forget.
  virtual bool awaits_end(const Session&) const { return false; }
  // What wants_exit asked for will not come: the process lives, it only closed its connection.
  virtual void process_lives(Session&) {}
  // The process of a session whose connection is gone has ended; how, process_died may tell later.
  virtual void process_ended(Session&) {}
  // The transport's last word on a handle, exactly once each: its socket is closed and its pidfd is not watched any
  // more (reported, given up, or never there). The handle is gone after it. Until then it stays valid.
  virtual void forget(Session&) {}
  virtual std::int64_t next_deadline() const = 0;  // CLOCK_BOOTTIME ns, INT64_MAX none
  virtual void tick(std::int64_t now) = 0;
  // Of a descriptor that a peer made: it may stand for anything, and the close of a file on the peer's own file system
  // waits for the peer. False: so many such closes of this uid are under way that nothing of its sender should be
  // read until they are fewer.
  virtual bool close_elsewhere(std::uint32_t, std::vector<Fd>) { return true; }
  virtual bool closes_too_many(std::uint32_t) { return false; }
  // Descriptors that came with a request which waits count for their sender's user, until `waited` is told. False:
  // there is no room for them in that user's share or in the table, and they are not counted.
  virtual bool keep_waiting(std::uint32_t, std::size_t) { return true; }
  virtual void waited(std::uint32_t, std::size_t) {}
  virtual int wake_fd() const = 0;  // readable when a helper thread has finished something
  virtual void woken() = 0;
  virtual bool idle() const = 0;  // no session and no kept region: a private broker may end
};

}  // namespace shmb::daemon
