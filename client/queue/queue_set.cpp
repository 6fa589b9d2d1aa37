// SPDX-License-Identifier: Apache-2.0
// One process has one doorbell in a pool, shared by its threads and sets. A set that hears it notifies the others.
#include "client/queue/queue_set.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>

#include "base/rescue.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "client/region/obtain.hpp"
#include "client/session/call.hpp"
#include "client/session/closed.hpp"
#include "client/session/late_reply.hpp"

namespace shmb::client {

QueueSet::~QueueSet() { close_descriptor(); }

std::vector<std::shared_ptr<Pool>> QueueSet::pools() const {
  std::vector<std::shared_ptr<Pool>> out;
  for (const Entry& entry : entries_)
    if (std::ranges::find(out, entry.pool) == out.end()) out.push_back(entry.pool);
  return out;
}

Result<void> QueueSet::add(Queue& queue, void* tag) {
  SHMB_TRY_VOID(queue.enter());
  if (!queue.reads()) return error(Status::denied, "the handle is no reader of its queue: a set waits for messages");
  if (std::ranges::any_of(entries_, [&](const Entry& entry) { return entry.queue == &queue; }))
    return error(Status::exists, "the queue is in the set already");
  forget_parent();
  disarm_all();
  entries_.push_back({&queue, tag, queue.shared_pool(), queue.pool().incarnation()});
  if (!epoll_) return {};
  auto watched = watch(queue.pool());
  if (!watched) {  // as if it had never been here: its user may close it now
    entries_.pop_back();
    forget(queue.shared_pool());
  }
  signal();  // until a thread has looked and armed it
  return watched;
}

Result<void> QueueSet::remove(Queue& queue) {
  forget_parent();
  const auto at = std::ranges::find(entries_, &queue, &Entry::queue);
  if (at == entries_.end()) return error(Status::not_found, "the queue is not in the set");
  disarm_all();
  const std::shared_ptr<Pool> pool = at->pool;
  entries_.erase(at);
  forget(pool);
  signal();
  return {};
}

void QueueSet::forget(const std::shared_ptr<Pool>& pool) {
  if (pool->is_fresh_child() || std::ranges::find(entries_, pool, &Entry::pool) != entries_.end()) return;
  if (std::ranges::none_of(entries_, [&](const Entry& entry) { return entry.pool->session() == pool->session(); }))
    std::erase_if(told_, [&](const Told& told) {
      if (told.session != pool->session()) return false;
      unwatch(told.watched);
      told.session->remove_listener(event_.get());
      return true;
    });
  Pool::Lock lock(pool->me().lock());
  unwatch(pool->doorbell_descriptor());
}

void QueueSet::tell_of_room(std::vector<Queue*> queues) {
  if (queues == for_room_) return;
  disarm_all();
  for_room_ = std::move(queues);
}

bool QueueSet::something_there(Pool& pool) {
  const auto message_there = [&](const Entry& entry) {
    return entry.pool.get() == &pool && entry.queue->something_there(false);
  };
  return std::ranges::any_of(entries_, message_there) ||
         std::ranges::any_of(for_room_, [&](Queue* queue) { return &queue->pool() == &pool && queue->room_there(); });
}

void QueueSet::collect_masks(Pool& pool, std::vector<std::atomic<std::uint64_t>*>& masks) {
  for (const Entry& entry : entries_)
    if (entry.pool.get() == &pool) masks.push_back(&entry.queue->reader_mask());
  for (Queue* queue : for_room_)
    if (&queue->pool() == &pool) masks.push_back(&queue->writer_mask());
}

void QueueSet::pass_on(Pool& pool) {
  for (const Entry& entry : entries_)
    if (entry.pool.get() == &pool) entry.queue->pass_on();
}

const QueueSet::Entry* QueueSet::chosen() {
  const Entry* const entry = ready();
  if (entry == nullptr) return nullptr;
  for (const Entry& other : entries_) {
    Pool::Lock lock(other.pool->me().lock());
    other.queue->pass_on();
  }
  return entry;
}

void QueueSet::signal() {
  if (event_) sys::event_signal(event_.get());
}

const QueueSet::Entry* QueueSet::ready() {
  for (std::size_t n = 0; n < entries_.size(); ++n) {
    const std::size_t at = (next_ + n) % entries_.size();
    Entry& entry = entries_[at];
    Pool::Lock lock(entry.pool->me().lock());
    if (!entry.queue->something_there(false)) continue;
    next_ = at + 1;
    return &entry;
  }
  return nullptr;
}

// The parent's descriptors are shared with it. So they are closed and never read.
void QueueSet::forget_parent() {
  bool forked = false;
  for (Entry& entry : entries_) {
    forked |= entry.pool->is_fresh_child();
    if (entry.incarnation == entry.pool->incarnation()) continue;
    entry.incarnation = entry.pool->incarnation();
    forked = true;
  }
  if (forked) close_descriptor();
}

void QueueSet::disarm_all() {
  for (const auto& pool : pools()) {
    if (pool->is_fresh_child()) continue;
    Pool::Lock lock(pool->me().lock());
    pool->disarm(*this);
  }
}

// Disarmed first: the number of a closed descriptor may name another file by the time another thread signals.
void QueueSet::close_descriptor() {
  disarm_all();
  for (const Told& told : told_) told.session->remove_listener(event_.get());
  told_.clear();
  rearming_ = false;  // in a forked child: by a thread of the parent
  epoll_ = Fd();
  event_ = Fd();
  watched_.clear();
}

void QueueSet::unwatch(int fd) {
  if (std::erase(watched_, fd) != 0) sys::epoll_forget(epoll_.get(), fd);
}

Result<void> QueueSet::watch(Pool& pool) {
  const std::shared_ptr<Session>& session = pool.session();
  const int watched = session->watch_descriptor();
  Pool::Lock lock(pool.me().lock());
  SHMB_TRY(bell, pool.doorbell(lock));
  for (int fd : {bell, watched}) {
    if (fd < 0 || std::ranges::find(watched_, fd) != watched_.end()) continue;
    if (auto added = sys::epoll_watch(epoll_.get(), fd); !added)
      return system_failure(added.error(), "epoll_ctl for a queue's descriptor");
    watched_.push_back(fd);
  }
  if (std::ranges::find(told_, session, &Told::session) == told_.end()) {
    told_.push_back({session, watched});
    session->add_listener(event_.get());
  }
  return {};
}

Result<void> QueueSet::make_descriptor() {
  forget_parent();
  if (epoll_) return {};
  auto event = sys::event_fd();
  if (!event) return system_failure(event.error(), "eventfd for a queue's descriptor");
  auto epoll = sys::epoll();
  if (!epoll) return system_failure(epoll.error(), "epoll for a queue's descriptor");
  if (auto added = sys::epoll_watch(epoll->get(), event->get()); !added)
    return system_failure(added.error(), "epoll_ctl for a queue's descriptor");
  epoll_ = std::move(*epoll);
  event_ = std::move(*event);
  for (const auto& pool : pools())
    if (auto done = watch(*pool); !done) {
      close_descriptor();
      return done;
    }
  return {};
}

Result<int> QueueSet::descriptor() {
  for (const Entry& entry : entries_) SHMB_TRY_VOID(entry.queue->enter());
  forget_parent();
  const bool fresh = !epoll_;
  SHMB_TRY_VOID(make_descriptor());
  if (fresh) signal();  // until a thread has looked and armed it
  return epoll_.get();
}

// Reads what made the descriptor readable; a look finds out what it means. The event comes last, because pump() signals
// it too.
void QueueSet::quiet() {
  for (const auto& pool : pools()) {
    {
      Pool::Lock lock(pool->me().lock());
      // A doorbell at its end stays readable for ever, as after the loss of its session.
      if (!pool->ring_heard(*this)) unwatch(pool->doorbell_descriptor());
    }
  }
  for (const Told& told : told_)
    if (!told.session->pump()) unwatch(told.watched);
  for (const auto& pool : pools()) {
    Pool::Lock lock(pool->me().lock());
    pool->kept_mappings().give_up_asked(*pool->session());
  }
  if (event_) sys::event_drain(event_.get());
}

bool QueueSet::arm_all() {
  for (const auto& pool : pools()) {
    Pool::Lock lock(pool->me().lock());
    if (!pool->arm(*this)) return false;
  }
  return true;
}

Result<void> QueueSet::rearm() {
  if (!epoll_) return {};
  // The look of arm_all() comes last. So a thread that is re-arming sees what this thread would see, or gets a ring for
  // it.
  if (rearming_.exchange(true, std::memory_order_acquire)) return {};
  struct Ends {
    std::atomic<bool>& rearming;
    ~Ends() { rearming.store(false, std::memory_order_release); }
  } const ends{rearming_};
  quiet();
  if (!arm_all()) {
    signal();
    return {};
  }
  for (const auto& pool : pools())
    if (pool->session()->lost()) return pool->broker_there();
  return {};
}

// False: the deadline passed, the broker may be gone, or it is time for a rescue look.
Result<bool> QueueSet::await_descriptor(Deadline deadline) {
  for (;;) {
    const Deadline look = earlier(deadline, Deadline::after(Pool::kLookAtBroker));
    auto readable = sys::poll_readable(epoll_.get(), look.left());
    if (!readable && readable.error().value == EBADF)
      return std::unexpected(Error{Status::system, EBADF, {}, kClosedDescriptor});
    if (!readable) return system_failure(readable.error(), "poll on a set of queues");
    if (*readable || deadline.passed() || rescues()) return *readable;
    if (std::ranges::any_of(pools(), [](const auto& pool) { return !pool->broker_there(); })) return false;
  }
}

Result<QueueSet::Entry> QueueSet::wait(std::int64_t wait) {
  if (entries_.empty()) return error(Status::invalid, "the set has no queues to wait on");
  for (const Entry& entry : entries_) SHMB_TRY_VOID(entry.queue->enter());
  forget_parent();
  Wait until(wait);
  if (const Entry* entry = chosen()) return *entry;
  if (until.none) {
    if (auto armed = rearm(); !armed) return std::unexpected(armed.error());
    return error(Status::empty, "none of the queues has a message");
  }
  const char* const late = "none of the queues had a message before the deadline";
  const auto all = pools();
  if (all.size() == 1) {
    Pool& pool = *all[0];
    std::vector<std::atomic<std::uint64_t>*> masks;
    collect_masks(pool, masks);
    for (;;) {
      bool woken_up = false;
      {
        Pool::Lock lock(pool.me().lock());
        entries_[0].queue->set_spin();
        SHMB_TRY(woken, pool.sleep(masks, [&] { return something_there(pool); }, until.until()));
        woken_up = woken;
      }
      if (const Entry* entry = woken_up ? chosen() : nullptr) return *entry;
      // Another consumer was faster.
      if (!woken_up || until.until().passed()) return error(Status::deadline, late);
    }
  }
  SHMB_TRY_VOID(make_descriptor());
  for (;;) {
    quiet();
    if (!arm_all()) {
      if (const Entry* entry = chosen()) return *entry;
      if (until.until().passed()) return error(Status::deadline, late);
      continue;
    }
    SHMB_TRY(readable, await_descriptor(until.until()));
    if (readable || rescues())
      if (const Entry* entry = chosen()) return *entry;
    // Also where it stays readable: a peer may ring without a message, or shut the doorbell down.
    const bool passed = until.until().passed();
    if (readable && !passed) continue;
    for (const auto& pool : all) SHMB_TRY_VOID(pool->broker_there());
    if (passed) return error(Status::deadline, late);
  }
}

// Doorbells of a pool

Result<int> Pool::doorbell(Lock&) {
  if (bell_.set) return bell_.ours.get();
  // The pair is kept also after a SET whose reply did not come in time. The broker may have given the other end to
  // peers, which keep it.
  if (!bell_.ours) {
    auto pair = sys::seqpacket_pair();
    if (!pair) return system_failure(pair.error(), "a socket pair for the doorbell");
    bell_.ours = std::move((*pair)[0]);
    bell_.theirs = std::move((*pair)[1]);
  }
  const int theirs[] = {bell_.theirs.get()};
  SHMB_TRY_VOID(call<SHMBW_OP_POOL_DOORBELL>(*session_, bell_request(SHMBW_DOORBELL_SET, 0, 0), {}, Deadline::after(0),
                                             {.fds = theirs}));
  bell_.set = true;
  return bell_.ours.get();
}

shmbw_pool_doorbell Pool::bell_request(std::uint32_t flag, std::uint32_t participant, std::uint32_t life) const {
  return {id_, flag, participant, life, 0};
}

void Pool::note_bell(std::uint32_t participant, std::uint32_t life, std::vector<Fd>& fds) {
  PeerBell& bell = bells_[participant];
  bell = {life, 0, 0, {}};
  if (!fds.empty()) bell.fd = std::move(fds.front());
  else bell.not_before = sys::now_monotonic() + rescue_interval(kAskAgainAfter);
}

void Pool::take_asked_bell() {
  if (!asked_bell_.answer || !session_->has_come(*asked_bell_.answer)) return;
  const AskedBell asked = std::exchange(asked_bell_, {});
  if (!has_bell(asked.participant, asked.life)) note_bell(asked.participant, asked.life, asked.answer->fds);
}

// One at a time: the broker answers the next request only after the last answer is read, and this process may not call
// soon.
void Pool::ask_for_bell(std::uint32_t participant, std::uint32_t life) {
  if (asked_bell_.answer || has_bell(participant, life)) return;
  const PeerBell& bell = bells_[participant];
  if (bell.life == life && bell.not_before != 0 && sys::now_monotonic() < bell.not_before) return;
  if (auto asked = ask<SHMBW_OP_POOL_DOORBELL>(*session_, bell_request(SHMBW_DOORBELL_GET, participant, life)))
    asked_bell_ = {participant, life, std::move(*asked)};
}

// A doorbell that came too late for the call that wanted to ring it: its peer still sleeps.
void undo_pool_doorbell(LateReply& late) {
  constexpr std::byte one{1};
  if (!late.fds.empty()) (void)sys::send(late.fds.front().get(), {&one, 1}, {}, {}, false);
}

template <class F>
void Pool::for_bells_missing(std::uint64_t participants, F&& act) {
  std::uint64_t mask = participants & view_.header().doorbells.load(std::memory_order_acquire) & ~me_->bit();
  for (; mask != 0; mask &= mask - 1) {
    const auto index = static_cast<std::uint32_t>(std::countr_zero(mask));
    const auto stamp = pool::Stamp::of(view_.participant(index).stamp.load(std::memory_order_acquire));
    if (stamp.state == static_cast<std::uint8_t>(pool::ParticipantState::live) && !has_bell(index, stamp.serial))
      if (!act(index, stamp.serial)) return;
  }
}

void Pool::want_bells(std::uint64_t participants) {
  take_asked_bell();
  for_bells_missing(participants, [&](std::uint32_t index, std::uint32_t life) {
    ask_for_bell(index, life);
    return true;
  });
}

void Pool::fetch_bells(std::uint64_t participants, Deadline deadline, Lock& lock) {
  take_asked_bell();
  for_bells_missing(participants, [&](std::uint32_t index, std::uint32_t life) {
    lock.unlock();
    auto answer = call<SHMBW_OP_POOL_DOORBELL>(*session_, bell_request(SHMBW_DOORBELL_GET, index, life), {}, deadline);
    lock.lock();
    if (!answer && answer.error().status != Status::not_found) return false;  // it is asked for again when needed
    std::vector<Fd> none;
    if (!has_bell(index, life)) note_bell(index, life, answer ? answer->reply.fds : none);
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
int Pool::bell_of(std::uint32_t participant, std::uint32_t life, bool dead) {
  if (participant >= bells_.size()) return -1;
  take_asked_bell();
  if (dead && has_bell(participant, life)) {
    bells_[participant].fd = Fd();
    bells_[participant].not_before = sys::now_monotonic() + rescue_interval(kAskAgainAfter);
  }
  if (has_bell(participant, life)) return bells_[participant].fd.get();
  if ((view_.header().doorbells.load(std::memory_order_acquire) >> participant & 1) == 0) return -1;
  const std::uint64_t sleep = view_.wait(participant).sleep.load(std::memory_order_relaxed);
  if (bells_[participant].rung == sleep) {  // a token is never 0 and never repeats
    session_->flush();                      // where the request still waits for room
    return -1;
  }
  const shmbw_pool_doorbell ring = bell_request(SHMBW_DOORBELL_RING, participant, life);
  if (post<SHMBW_OP_POOL_DOORBELL>(*session_, ring, Deadline::now())) bells_[participant].rung = sleep;
  ask_for_bell(participant, life);
  return -1;
}

Result<void> Pool::broker_there() const {
  if (session_->pump()) return {};
  return error(Status::session_lost,
               "the broker is gone and nothing came: nobody would tell of a peer's death; connect again");
}

bool Pool::arm(QueueSet& set) {
  if (std::ranges::find(armed_, &set) == armed_.end()) armed_.push_back(&set);
  std::vector<std::atomic<std::uint64_t>*> masks;
  for (QueueSet* one : armed_) one->collect_masks(*this, masks);
  std::ranges::sort(masks);
  masks.erase(std::ranges::unique(masks).begin(), masks.end());
  bool found = false;
  (void)me_->sleeper().arm_doorbell(masks, [&] {
    for (QueueSet* one : armed_) {
      if (!one->something_there(*this)) continue;
      if (one == &set) found = true;
      else one->signal();  // armed once, and it would get no second ring
    }
    return found && armed_.size() == 1;
  });
  if (found) std::erase(armed_, &set);
  return !found;
}

void Pool::disarm(QueueSet& set) {
  std::erase(armed_, &set);
  if (armed_.empty() && me_->sleeper().armed()) me_->sleeper().disarm_doorbell();
}

void Pool::pass_on() {
  for (QueueSet* one : armed_) one->pass_on(*this);
}

bool Pool::ring_heard(QueueSet& set) {
  constexpr int kMost = 64;  // a peer may ring without end: the rest is read the next time
  if (!bell_.ours) return true;
  bool rang = false, open = true;
  std::array<std::byte, 16> bytes;
  for (int i = 0; i < kMost && open; ++i) {
    auto heard = sys::receive_data(bell_.ours.get(), bytes);
    if (!heard) break;
    open = !heard->end_of_file;
    rang |= open;
  }
  for (QueueSet* one : armed_)
    if (rang && one != &set) one->signal();
  return open;
}

}  // namespace shmb::client
