// SPDX-License-Identifier: Apache-2.0
// Waiting on several queues. See queue_set.hpp; the doorbell that ends a wait on a descriptor is in doorbell.hpp.
#include "client/queue/queue_set.hpp"

#include <algorithm>
#include <cerrno>

#include "base/rescue.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "client/region/obtain.hpp"
#include "client/session/closed.hpp"

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
  unwatch(pool->doorbell().descriptor());
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
    pool->doorbell().disarm(*this);
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
  SHMB_TRY(bell, pool.doorbell().open());
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
      if (!pool->doorbell().ring_heard(*this)) unwatch(pool->doorbell().descriptor());
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
    if (!pool->doorbell().arm(*this)) return false;
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

}  // namespace shmb::client
