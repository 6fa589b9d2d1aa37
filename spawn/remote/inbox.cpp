// SPDX-License-Identifier: Apache-2.0
// See inbox.hpp.
#include "spawn/remote/inbox.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <iterator>

#include "base/sys_process.hpp"
#include "client/session/closed.hpp"

namespace shmb::remote {
namespace {

using client::Deadline;
using client::OutPart;
using client::Pool;

constexpr std::int64_t kSpin = 20'000, kLongestSpin = 200'000;
// The deadline of a request to the broker, and then the pause until the next one. Longer each time, because a slow
// broker must get the time to answer. The wait holds the pool's lock, which all threads need.
constexpr std::int64_t kPause = 20'000'000, kLongestPause = 1'280'000'000;
constexpr std::size_t kBatch = 64;
constexpr std::uint64_t kMostLaneBytes = std::uint64_t{12} << 20;

// Up to 64 KiB a message's bytes lie in slots, too; beside these, workers together hold at most kMostHeld of them.
constexpr std::uint32_t kSlots64 = 2560, kMostHeld = 2048, kLeastHeld = 8;

// Arguments and results that pass between workers lie in slots that are used again. A region for each would be made,
// populated, mapped and given back for a single call. The slots are made when first needed and live as long as the
// world: 40 MiB at most. When all are taken, and for larger bytes, the sender makes a region.
constexpr std::uint64_t kLargestSlot = std::uint64_t{2} << 20;
constexpr client::SizeClass kPassing[] = {{std::uint64_t{512} << 10, 0, 16}, {kLargestSlot, 0, 16}};

// So many that every worker may write to every other one, also where what a few dead ones have written is not read yet.
client::PoolSpec pool_of(std::uint64_t group, std::uint32_t workers, std::uint32_t cells) {
  client::PoolSpec spec;
  spec.group = group;
  spec.classes = {{512, 256, 8192}, {8192, 32, 2560}, {kInline, 4, kSlots64}};
  spec.later.assign(std::begin(kPassing), std::end(kPassing));
  spec.queues = std::max(workers, 2U);
  spec.lanes = std::min(workers * (workers + 1), pool::kMaxLanes);
  spec.lane_bytes = std::min(kMostLaneBytes, spec.lanes * pool::lane_bytes(pool::QueueKind::mpmc, cells, 128) + 65536);
  return spec;
}

std::uint32_t cells_for(std::uint32_t workers) {
  return workers <= 8 ? 256 : workers <= 16 ? 128 : workers <= 32 ? 64 : 16;
}

std::string queue_name(std::uint32_t rank) { return "worker-" + std::to_string(rank); }

}  // namespace

Result<std::unique_ptr<Inbox>> Inbox::open(const std::shared_ptr<client::Session>& session, std::uint64_t group,
                                           std::uint64_t pool, std::uint32_t rank, std::uint32_t world_size,
                                           std::int64_t timeout) {
  std::unique_ptr<Inbox> inbox(new Inbox);
  inbox->rank_ = rank;
  inbox->spec_.kind = pool::QueueKind::mpmc;
  inbox->spec_.cells = cells_for(world_size);
  inbox->spec_.cell_size = 128;
  inbox->spec_.timeout = timeout;
  inbox->budget_ = std::make_shared<SlotBudget>(std::max(kMostHeld / world_size, kLeastHeld));
  inbox->spins_ = ::sysconf(_SC_NPROCESSORS_ONLN) > 1;
  inbox->spin_ = kSpin;
  auto event = sys::event_fd();
  if (!event) return system_failure(event.error(), "eventfd for a worker");
  inbox->interrupt_ = std::move(*event);
  if (pool == 0) {
    SHMB_TRY(made, Pool::create(session, pool_of(group, world_size, inbox->spec_.cells), timeout));
    inbox->pool_ = std::move(made);
  } else {
    Pool::Opening opening;
    opening.id = pool;
    opening.timeout = timeout;
    opening.later = kPassing;
    SHMB_TRY(joined, Pool::open(session, opening));
    inbox->pool_ = std::move(joined);
  }
  client::QueueSpec spec = inbox->spec_;
  spec.name = queue_name(rank);
  spec.reader = true;
  SHMB_TRY(own, client::Queue::open(inbox->pool_, spec));
  inbox->own_ = std::move(own);
  inbox->be_patient(kPause);
  SHMB_TRY_VOID(inbox->set_.add(*inbox->own_, nullptr));
  SHMB_TRY(descriptor, inbox->set_.descriptor());
  auto wait = sys::epoll();
  if (!wait) return system_failure(wait.error(), "epoll for a worker");
  for (const int fd : {descriptor, inbox->interrupt_.get()})
    if (auto added = sys::epoll_watch(wait->get(), fd); !added)
      return system_failure(added.error(), "epoll_ctl for a worker");
  inbox->wait_ = std::move(*wait);
  return inbox;
}

Result<bool> Inbox::send(std::uint32_t to, std::span<const OutPart> parts) {
  Peer& peer = peers_[to];
  if (!peer.opened.load(std::memory_order_acquire)) {
    const std::lock_guard lock(opening_);
    if (!peer.queue) {
      const std::uint32_t before = pool_->change();
      client::QueueSpec spec = spec_;
      spec.name = queue_name(to);
      spec.writer = true;
      auto opened = client::Queue::open(pool_, spec);
      // Lanes of dead workers are given out again when everybody has read them. The directory tells of that.
      if (!opened && opened.error().status == Status::limit) {
        peer.had_no_lane_at.store(before);
        return false;
      }
      if (!opened) return std::unexpected(opened.error());
      peer.queue = std::move(*opened);
      peer.opened.store(peer.queue.get(), std::memory_order_release);
    }
  }
  auto sent = peer.queue->send(parts, 0, 0, client::kNoWait);
  if (sent) return true;
  if (sent.error().status == Status::full || sent.error().status == Status::peer_gone) return false;
  return std::unexpected(sent.error());
}

std::uint64_t Inbox::room_there(std::uint64_t wanted) {
  if (wanted == 0) return 0;
  std::uint64_t roomy = 0;
  Pool::Lock lock(pool_->me().lock());
  for (std::uint64_t rest = wanted; rest != 0; rest &= rest - 1) {
    Peer& peer = peers_[static_cast<std::size_t>(std::countr_zero(rest))];
    client::Queue* const queue = peer.opened.load(std::memory_order_acquire);
    if (queue != nullptr ? queue->room_there() : peer.had_no_lane_at.load() != pool_->change()) roomy |= rest & -rest;
  }
  return roomy;
}

Result<std::uint32_t> Inbox::participants() {
  SHMB_TRY(facts, pool_->facts());
  return facts.participants;
}

SlotBytes Inbox::room_for(std::uint64_t bytes, std::int64_t timeout) {
  client::Slot slot;
  if (bytes > kLargestSlot) return {};
  if (pool_->acquire_now(bytes, slot) != client::Now::done) {
    auto taken = pool_->acquire(bytes, client::kNoWait, timeout);
    if (!taken) return {};
    slot = *taken;
  }
  return {pool_, slot, slot.data, bytes};
}

void Inbox::be_patient(std::int64_t timeout) {
  patience_ = timeout;
  own_->wait_for_mapping(timeout);
}

bool Inbox::something_there() {
  Pool::Lock lock(pool_->me().lock());
  return own_->something_there(false);
}

Result<Inbox::Taken> Inbox::take(Deadline deadline, std::uint64_t wanted, bool may_spin) {
  Taken out;
  out.roomy = room_there(wanted);
  if (out.roomy != 0) deadline = Deadline::now();
  SHMB_TRY_VOID(own_->enter());
  const std::int64_t began = spins_ && !deadline.passed() ? sys::now_monotonic() : 0;
  const std::int64_t spin_until = began != 0 && may_spin ? began + spin_ : 0;
  for (;;) {
    bool there = something_there();
    while (!there && out.messages.empty() && !interrupted_.load(std::memory_order_relaxed) &&
           sys::now_monotonic() < spin_until && (out.roomy = room_there(wanted)) == 0)
      there = something_there();
    if (out.roomy != 0) deadline = Deadline::now();
    if (!there && !out.messages.empty()) return out;
    auto received = own_->receive(message_, false, client::kNoWait);
    if (received) {
      if (began != 0 && out.messages.empty()) {
        const std::int64_t waited = sys::now_monotonic() - began;
        spin_ = waited <= kLongestSpin ? std::clamp(2 * waited, kSpin, kLongestSpin) : kSpin;
      }
      if (patience_ != kPause) be_patient(kPause);
      if (auto one = read_message(message_, budget_)) out.messages.push_back(std::move(*one));
      (void)message_.done();
      if (out.messages.size() == kBatch) return out;
      continue;
    }
    switch (received.error().status) {
      case Status::peer_gone:  // the broker tells who
      case Status::broken:     // one message that cannot be: what is behind it is read
        if (pool_->broken()) return std::unexpected(received.error());
        out.quiet = true;
        continue;
      case Status::empty:
        break;
      case Status::no_descriptors:
      case Status::no_memory:
      case Status::deadline:  // the slot with the message's own words cannot be mapped now: it stays the next one
        out.quiet = true;
        sys::rest(earlier(deadline, Deadline::after(patience_)).left());
        be_patient(std::min(2 * patience_, kLongestPause));
        return out;
      default:
        return std::unexpected(received.error());
    }
    if (!out.messages.empty()) return out;
    out.quiet = true;
    if (out.roomy != 0) return out;
    std::vector<client::Queue*> for_room;
    for (std::uint64_t rest = wanted; rest != 0; rest &= rest - 1)
      if (client::Queue* queue = peers_[static_cast<std::size_t>(std::countr_zero(rest))].opened.load())
        for_room.push_back(queue);
    set_.tell_of_room(std::move(for_room));
    (void)set_.rearm();  // the loss of the session is told by the session itself
    // The look that found the queue empty took in what the broker had sent, too: nothing rings for that again.
    SHMB_TRY(told, pool_->session()->next_remote_event(Deadline::now()));
    if (told) {
      out.told = *told;
      return out;
    }
    asleep_.store(true);
    const bool stays = !interrupted_.load();
    auto ready = Sys<bool>(true);
    if (stays) {
      const std::int64_t left = deadline.left();
      const interrupt::Exposed exposed;
      ready = sys::poll_readable(wait_.get(), left);
    }
    asleep_.store(false);
    if (!ready && ready.error().value == EBADF)
      return std::unexpected(Error{Status::system, EBADF, {}, client::kClosedDescriptor});
    if (!ready) return system_failure(ready.error(), "poll in a worker");
    if (stays) sys::event_drain(interrupt_.get());
    // An interruption is heard even if the look below finds a message that cannot be received.
    if (interrupted_.exchange(false)) deadline = Deadline::now();
    if (out.roomy == 0) out.roomy = room_there(wanted);
    if (!something_there()) return out;  // the deadline, an interruption, room, or an event
  }
}

void Inbox::interrupt() {
  if (interrupted_.exchange(true)) return;
  if (asleep_.load()) sys::event_signal(interrupt_.get());
}

}  // namespace shmb::remote
