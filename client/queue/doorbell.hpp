// SPDX-License-Identifier: Apache-2.0
// The doorbell of this process in one pool, and the doorbells of its peers.
//
// A thread that waits in a queue sleeps on a futex. An event loop cannot: it needs a descriptor that becomes readable.
// So a process has one socket pair in a pool. It keeps one end, and polls it. It gives the other end to the broker, and
// each peer that may have to wake it fetches that end there. A ring is one byte, sent without waiting.
//
// A socket and not an eventfd: any peer could clear O_NONBLOCK of a shared eventfd, and a full one would then block
// every writer. A full socket refuses the byte, and then the owner has rings to read anyway.
//
// A sender fetches the doorbells of its readers ahead: when it opens its end, and when the directory says that a reader
// has one. A sender without the doorbell asks the broker to ring, once for each sleep. That request needs no reply. So
// while the broker is stopped all messages ring, except the first between two processes that have not met.
//
// The doorbell is armed by the sets of queues that wait (QueueSet). They share it: a set that hears a ring notifies the
// others. Arming is the Sleeper's protocol (Z0 to Z4) with the socket in the place of the futex.
//
// The lock of the pool's participant must be held for all functions.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "client/lane/participant.hpp"
#include "client/session/channel.hpp"
#include "client/session/deadline.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::client {

class Pool;
class QueueSet;

class Doorbell {
 public:
  explicit Doorbell(Pool& pool) : pool_(pool) {}
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  // The end that this process polls. Sets the doorbell at the broker the first time.
  Result<int> open();
  int descriptor() const { return ours_ ? ours_.get() : -1; }  // -1: it was never opened
  bool arm(QueueSet& set);                                     // false: it has something already
  void disarm(QueueSet& set);
  void pass_on();                  // see QueueSet::pass_on, for all that are armed
  bool ring_heard(QueueSet& set);  // false: it is at its end, because a peer has shut it down

  // Asks for the doorbells of these participants ahead, so that a later message needs only its reader. One request is
  // open at a time. For a doorbell that is missing when needed, the broker rings.
  void want(std::uint64_t participants);
  // Waits for them until the deadline, without the lock.
  void fetch(std::uint64_t participants, Deadline deadline, std::unique_lock<LocalLock>& lock);
  // The descriptor of a peer's doorbell; see Sleeper::FindDoorbell. -1: the broker was asked to ring, or the peer has
  // none.
  int of(std::uint32_t participant, std::uint32_t life, bool dead);
  void forget_parent();  // in a forked child: the sockets are the parent's

 private:
  struct Peer {
    std::uint32_t life = 0;
    std::int64_t not_before = 0;  // the request was refused: the next time to ask
    std::uint64_t rung = 0;       // the sleep for which the broker was asked to ring
    Fd fd;
  };
  struct Asked {
    std::uint32_t participant = 0, life = 0;
    std::shared_ptr<Channel::Later> answer;  // null: no request is open
  };
  static constexpr std::int64_t kAskAgainAfter = 10'000'000'000;  // after a request for a peer's doorbell that failed

  bool has(std::uint32_t participant, std::uint32_t life) const {
    return peers_[participant].fd && peers_[participant].life == life;
  }
  shmbw_pool_doorbell request(std::uint32_t flag, std::uint32_t participant, std::uint32_t life) const;
  void ask_for(std::uint32_t participant, std::uint32_t life);
  void take_asked();
  void note(std::uint32_t participant, std::uint32_t life, std::vector<Fd>& fds);
  template <class F>
  void for_missing(std::uint64_t participants, F&& act);

  Pool& pool_;
  // The broker gives `theirs_` to peers. It is kept here: without any holder but the broker, `ours_` would read as
  // closed while peers come and go.
  Fd ours_, theirs_;
  bool set_ = false;  // the broker has confirmed it
  std::array<Peer, pool::kParticipants> peers_;
  Asked asked_;
  std::vector<QueueSet*> armed_;
};

}  // namespace shmb::client
