// SPDX-License-Identifier: Apache-2.0
// Setting, fetching, ringing and hearing doorbells. See doorbell.hpp.
#include "client/queue/doorbell.hpp"

#include <algorithm>
#include <bit>

#include "base/rescue.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "client/queue/pool.hpp"
#include "client/queue/queue_set.hpp"
#include "client/region/obtain.hpp"
#include "client/session/call.hpp"
#include "client/session/late_reply.hpp"

namespace shmb::client {

void Doorbell::forget_parent() {
  set_ = false;
  ours_ = Fd();
  theirs_ = Fd();
  peers_ = {};
  asked_ = {};
  armed_.clear();
}

Result<int> Doorbell::open() {
  if (set_) return ours_.get();
  // The pair is kept also after a SET whose reply did not come in time. The broker may have given the other end to
  // peers, which keep it.
  if (!ours_) {
    auto pair = sys::seqpacket_pair();
    if (!pair) return system_failure(pair.error(), "a socket pair for the doorbell");
    ours_ = std::move((*pair)[0]);
    theirs_ = std::move((*pair)[1]);
  }
  const int theirs[] = {theirs_.get()};
  SHMB_TRY_VOID(call<SHMBW_OP_POOL_DOORBELL>(*pool_.session(), request(SHMBW_DOORBELL_SET, 0, 0), {},
                                             Deadline::after(0), {.fds = theirs}));
  set_ = true;
  return ours_.get();
}

shmbw_pool_doorbell Doorbell::request(std::uint32_t flag, std::uint32_t participant, std::uint32_t life) const {
  return {pool_.id(), flag, participant, life, 0};
}

void Doorbell::note(std::uint32_t participant, std::uint32_t life, std::vector<Fd>& fds) {
  Peer& peer = peers_[participant];
  peer = {life, 0, 0, {}};
  if (!fds.empty()) peer.fd = std::move(fds.front());
  else peer.not_before = sys::now_monotonic() + rescue_interval(kAskAgainAfter);
}

void Doorbell::take_asked() {
  if (!asked_.answer || !pool_.session()->has_come(*asked_.answer)) return;
  const Asked asked = std::exchange(asked_, {});
  if (!has(asked.participant, asked.life)) note(asked.participant, asked.life, asked.answer->fds);
}

// One at a time: the broker answers the next request only after the last answer is read, and this process may not call
// soon.
void Doorbell::ask_for(std::uint32_t participant, std::uint32_t life) {
  if (asked_.answer || has(participant, life)) return;
  const Peer& peer = peers_[participant];
  if (peer.life == life && peer.not_before != 0 && sys::now_monotonic() < peer.not_before) return;
  if (auto asked = ask<SHMBW_OP_POOL_DOORBELL>(*pool_.session(), request(SHMBW_DOORBELL_GET, participant, life)))
    asked_ = {participant, life, std::move(*asked)};
}

// A doorbell that came too late for the call that wanted to ring it: its peer still sleeps.
void undo_pool_doorbell(LateReply& late) {
  constexpr std::byte one{1};
  if (!late.fds.empty()) (void)sys::send(late.fds.front().get(), {&one, 1}, {}, {}, false);
}

template <class F>
void Doorbell::for_missing(std::uint64_t participants, F&& act) {
  std::uint64_t mask =
      participants & pool_.view().header().doorbells.load(std::memory_order_acquire) & ~pool_.me().bit();
  for (; mask != 0; mask &= mask - 1) {
    const auto index = static_cast<std::uint32_t>(std::countr_zero(mask));
    const auto stamp = pool::Stamp::of(pool_.view().participant(index).stamp.load(std::memory_order_acquire));
    if (stamp.state == static_cast<std::uint8_t>(pool::ParticipantState::live) && !has(index, stamp.serial))
      if (!act(index, stamp.serial)) return;
  }
}

void Doorbell::want(std::uint64_t participants) {
  take_asked();
  for_missing(participants, [&](std::uint32_t index, std::uint32_t life) {
    ask_for(index, life);
    return true;
  });
}

void Doorbell::fetch(std::uint64_t participants, Deadline deadline, Pool::Lock& lock) {
  take_asked();
  for_missing(participants, [&](std::uint32_t index, std::uint32_t life) {
    lock.unlock();
    auto answer =
        call<SHMBW_OP_POOL_DOORBELL>(*pool_.session(), request(SHMBW_DOORBELL_GET, index, life), {}, deadline);
    lock.lock();
    if (!answer && answer.error().status != Status::not_found) return false;  // it is asked for again when needed
    std::vector<Fd> none;
    if (!has(index, life)) note(index, life, answer ? answer->reply.fds : none);
    return true;
  });
}

// On the path of a message: nothing here waits. A process without the peer's doorbell asks the broker to ring, once for
// each sleep. That request needs no reply, so it works however long the broker is stopped, and even if this process
// never calls again. It waits here only while the socket to the broker is full. The flag stays for wakers that have the
// doorbell.
//
// `dead`: the known descriptor has no other end any more. Its owner may have a new doorbell, or a process has shut it
// down. So it is not asked for at each ring.
int Doorbell::of(std::uint32_t participant, std::uint32_t life, bool dead) {
  if (participant >= peers_.size()) return -1;
  take_asked();
  if (dead && has(participant, life)) {
    peers_[participant].fd = Fd();
    peers_[participant].not_before = sys::now_monotonic() + rescue_interval(kAskAgainAfter);
  }
  if (has(participant, life)) return peers_[participant].fd.get();
  if ((pool_.view().header().doorbells.load(std::memory_order_acquire) >> participant & 1) == 0) return -1;
  const std::uint64_t sleep = pool_.view().wait(participant).sleep.load(std::memory_order_relaxed);
  if (peers_[participant].rung == sleep) {  // a token is never 0 and never repeats
    pool_.session()->flush();               // where the request still waits for room
    return -1;
  }
  const shmbw_pool_doorbell ring = request(SHMBW_DOORBELL_RING, participant, life);
  if (post<SHMBW_OP_POOL_DOORBELL>(*pool_.session(), ring, Deadline::now())) peers_[participant].rung = sleep;
  ask_for(participant, life);
  return -1;
}

bool Doorbell::arm(QueueSet& set) {
  if (std::ranges::find(armed_, &set) == armed_.end()) armed_.push_back(&set);
  std::vector<std::atomic<std::uint64_t>*> masks;
  for (QueueSet* one : armed_) one->collect_masks(pool_, masks);
  std::ranges::sort(masks);
  masks.erase(std::ranges::unique(masks).begin(), masks.end());
  bool found = false;
  (void)pool_.me().sleeper().arm_doorbell(masks, [&] {
    for (QueueSet* one : armed_) {
      if (!one->something_there(pool_)) continue;
      if (one == &set) found = true;
      else one->signal();  // armed once, and it would get no second ring
    }
    return found && armed_.size() == 1;
  });
  if (found) std::erase(armed_, &set);
  return !found;
}

void Doorbell::disarm(QueueSet& set) {
  std::erase(armed_, &set);
  if (armed_.empty() && pool_.me().sleeper().armed()) pool_.me().sleeper().disarm_doorbell();
}

void Doorbell::pass_on() {
  for (QueueSet* one : armed_) one->pass_on(pool_);
}

bool Doorbell::ring_heard(QueueSet& set) {
  constexpr int kMost = 64;  // a peer may ring without end: the rest is read the next time
  if (!ours_) return true;
  bool rang = false, open = true;
  std::array<std::byte, 16> bytes;
  for (int i = 0; i < kMost && open; ++i) {
    auto heard = sys::receive_data(ours_.get(), bytes);
    if (!heard) break;
    open = !heard->end_of_file;
    rang |= open;
  }
  for (QueueSet* one : armed_)
    if (rang && one != &set) one->signal();
  return open;
}

}  // namespace shmb::client
