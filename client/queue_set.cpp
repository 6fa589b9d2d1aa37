// SPDX-License-Identifier: Apache-2.0
// One process has one doorbell in a pool, whoever of it waits: a set that hears it tells the others.
#include "client/queue_set.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "client/obtain.hpp"

namespace shmb::client {

QueueSet::~QueueSet() {
  for (const auto& pool : pools()) {
    if (pool->is_fresh_child()) continue;
    Pool::Lock lock(pool->me().lock());
    pool->disarm(*this);
  }
}

std::vector<std::shared_ptr<Pool>> QueueSet::pools() const {
  std::vector<std::shared_ptr<Pool>> out;
  for (const Entry& entry : entries_)
    if (std::ranges::find(out, entry.pool) == out.end()) out.push_back(entry.pool);
  return out;
}

Result<void> QueueSet::add(Queue& queue, void* tag) {
  if (auto entered = queue.enter(); !entered) return entered;
  if (!queue.reads()) return error(Status::denied, "the handle is no reader of its queue: a set waits for messages");
  if (std::ranges::any_of(entries_, [&](const Entry& entry) { return entry.queue == &queue; }))
    return error(Status::exists, "the queue is in the set already");
  entries_.push_back({&queue, tag, queue.shared_pool()});
  if (epoll_) return watch(queue.pool());
  return {};
}

Result<void> QueueSet::remove(Queue& queue) {
  const auto at = std::ranges::find(entries_, &queue, &Entry::queue);
  if (at == entries_.end()) return error(Status::not_found, "the queue is not in the set");
  const std::shared_ptr<Pool> pool = at->pool;
  entries_.erase(at);
  if (!pool->is_fresh_child() &&
      std::ranges::none_of(entries_, [&](const Entry& entry) { return entry.pool == pool; })) {
    Pool::Lock lock(pool->me().lock());
    pool->disarm(*this);
  }
  return {};
}

bool QueueSet::something_there(Pool& pool) {
  return std::ranges::any_of(
      entries_, [&](const Entry& entry) { return entry.pool.get() == &pool && entry.queue->something_there(); });
}

void QueueSet::collect_masks(Pool& pool, std::vector<std::atomic<std::uint64_t>*>& masks) {
  for (const Entry& entry : entries_)
    if (entry.pool.get() == &pool) masks.push_back(&entry.queue->reader_mask());
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
    if (!entry.queue->something_there()) continue;
    next_ = at + 1;
    return &entry;
  }
  return nullptr;
}

// The parent's descriptors are shared with it: closed, never read.
void QueueSet::forget_parent() {
  std::uint64_t now = 0;
  for (const Entry& entry : entries_) now += entry.pool->incarnation();
  if (incarnation_ != 0 && now != incarnation_ && epoll_) {
    epoll_ = Fd();
    event_ = Fd();
    watched_.clear();
  }
  incarnation_ = now;
}

Result<void> QueueSet::watch(Pool& pool) {
  Pool::Lock lock(pool.me().lock());
  auto bell = pool.doorbell(lock);
  if (!bell) return std::unexpected(bell.error());
  for (int fd : {*bell, pool.session()->socket_descriptor()}) {
    if (fd < 0 || std::ranges::find(watched_, fd) != watched_.end()) continue;
    epoll_event watched{};
    watched.events = EPOLLIN;
    watched.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &watched) != 0)
      return system_failure(Errno{errno}, "epoll_ctl for a queue's descriptor");
    watched_.push_back(fd);
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
  epoll_event watched{};
  watched.events = EPOLLIN;
  watched.data.fd = event->get();
  if (::epoll_ctl(epoll->get(), EPOLL_CTL_ADD, event->get(), &watched) != 0)
    return system_failure(Errno{errno}, "epoll_ctl for a queue's descriptor");
  epoll_ = std::move(*epoll);
  event_ = std::move(*event);
  for (const auto& pool : pools())
    if (auto done = watch(*pool); !done) {
      epoll_ = Fd();
      event_ = Fd();
      watched_.clear();
      return done;
    }
  return {};
}

Result<int> QueueSet::descriptor() {
  for (const Entry& entry : entries_)
    if (auto entered = entry.queue->enter(); !entered) return std::unexpected(entered.error());
  const bool fresh = !epoll_;
  if (auto made = make_descriptor(); !made) return std::unexpected(made.error());
  if (fresh) signal();  // until somebody has looked and armed it
  return epoll_.get();
}

// Takes in what made the descriptor readable; what it means is seen by looking.
void QueueSet::quiet() {
  if (event_) sys::event_drain(event_.get());
  for (const auto& pool : pools()) {
    {
      Pool::Lock lock(pool->me().lock());
      pool->ring_heard(*this);
    }
    const int socket = pool->session()->socket_descriptor();
    if (pool->session()->pump()) continue;
    // Lost: its end stays readable for ever.
    std::erase_if(watched_, [&](int fd) {
      if (fd != socket) return false;
      (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
      return true;
    });
  }
}

bool QueueSet::arm_all() {
  for (const auto& pool : pools()) {
    Pool::Lock lock(pool->me().lock());
    if (!pool->arm(*this)) return false;
  }
  return true;
}

void QueueSet::rearm() {
  if (!epoll_) return;
  quiet();
  if (!arm_all()) signal();
}

Result<QueueSet::Entry> QueueSet::wait(std::int64_t wait) {
  if (entries_.empty()) return error(Status::invalid, "the set has no queues to wait on");
  for (const Entry& entry : entries_)
    if (auto entered = entry.queue->enter(); !entered) return std::unexpected(entered.error());
  forget_parent();
  Wait until(wait);
  if (const Entry* entry = chosen()) return *entry;
  if (until.none) {
    rearm();
    return error(Status::empty, "none of the queues has a message");
  }
  const char* const late = "none of the queues had a message before the deadline";
  const auto all = pools();
  if (all.size() == 1) {
    Pool& pool = *all[0];
    bool woken_up = false;
    {
      Pool::Lock lock(pool.me().lock());
      entries_[0].queue->set_spin();
      std::vector<std::atomic<std::uint64_t>*> masks;
      collect_masks(pool, masks);
      auto woken = pool.me().sleeper().wait(masks, [&] { return something_there(pool); }, until.until());
      if (!woken) return std::unexpected(woken.error());
      woken_up = *woken;
    }
    if (const Entry* entry = woken_up ? chosen() : nullptr) return *entry;
    return error(Status::deadline, late);
  }
  if (auto made = make_descriptor(); !made) return std::unexpected(made.error());
  for (;;) {
    quiet();
    if (!arm_all()) {
      if (const Entry* entry = chosen()) return *entry;
      if (until.until().passed()) return error(Status::deadline, late);
      continue;
    }
    auto readable = sys::poll_readable(epoll_.get(), until.until().left());
    if (!readable) return system_failure(readable.error(), "poll on a set of queues");
    if (const Entry* entry = chosen()) return *entry;
    // Also where it is readable without end: a peer may ring without a message, and shut the doorbell down.
    if (!*readable || until.until().passed()) return error(Status::deadline, late);
  }
}

// Doorbells of a pool

Result<int> Pool::doorbell(Lock&) {
  if (bell_[0]) return bell_[0].get();
  auto pair = sys::seqpacket_pair();
  if (!pair) return system_failure(pair.error(), "a socket pair for the doorbell");
  std::array<std::byte, 64> buffer;
  wire::Writer writer(buffer);
  shmbw_pool_doorbell request{};
  request.pool = id_;
  request.flags = SHMBW_DOORBELL_SET;
  writer.begin(SHMBW_OP_POOL_DOORBELL, 0, Status::ok, request);
  const auto packet = writer.finish(1);
  const int theirs[] = {(*pair)[1].get()};
  auto reply = session_->call(std::span(buffer).first(packet.size()), Deadline::after(0), nullptr, theirs);
  if (!reply) return std::unexpected(reply.error());
  bell_[0] = std::move((*pair)[0]);
  // Kept: without any holder but the broker our end would read as closed while peers come and go.
  bell_[1] = std::move((*pair)[1]);
  return bell_[0].get();
}

int Pool::bell_of(std::uint32_t participant, std::uint32_t life) {
  if (participant >= bells_.size()) return -1;
  PeerBell& bell = bells_[participant];
  if (bell.known && bell.life == life) return bell.fd ? bell.fd.get() : -1;
  std::array<std::byte, 64> buffer;
  wire::Writer writer(buffer);
  shmbw_pool_doorbell request{};
  request.pool = id_;
  request.flags = SHMBW_DOORBELL_GET;
  request.participant = participant;
  request.life = life;
  writer.begin(SHMBW_OP_POOL_DOORBELL, 0, Status::ok, request);
  const auto packet = writer.finish(0);
  auto reply = session_->call(std::span(buffer).first(packet.size()), Deadline::after(0));
  if (!reply || reply->fds.empty()) return -1;  // asked again at the next wake
  bell = {life, true, std::move(reply->fds[0])};
  return bell.fd.get();
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
      else one->signal();  // armed once, and nobody rings for it a second time
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

void Pool::ring_heard(QueueSet& set) {
  if (!bell_[0]) return;
  bool rang = false;
  std::array<std::byte, 16> bytes;
  for (;;) {
    auto heard = sys::receive_data(bell_[0].get(), bytes);
    if (!heard || heard->end_of_file) break;
    rang = true;
  }
  if (!rang) return;
  for (QueueSet* one : armed_)
    if (one != &set) one->signal();
}

}  // namespace shmb::client
