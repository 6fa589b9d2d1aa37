// SPDX-License-Identifier: Apache-2.0
// This process in one pool: joined once for each session, shared by all its handles and queues, left with the last of
// them. It maps the areas and the segments, and adds segments where a class of slots is used up. It notices fork: at
// its first call a child joins again, as another participant. No slot of the parent belongs to the child.
//
// One lock, the participant's, guards everything here and in the queues. It is taken before those of the session.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "base/mapping.hpp"
#include "client/lane/lane.hpp"
#include "client/lane/participant.hpp"
#include "client/queue/doorbell.hpp"
#include "client/queue/pool_spec.hpp"
#include "client/queue/segments.hpp"
#include "client/region/kept_mappings.hpp"
#include "client/region/region.hpp"
#include "client/session/session.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::client {

// The answer of the short ways. The caller has the whole outcome with all but `ask`. `ask`: nothing was changed, and
// the general way does the work or gives the reason.
enum class Now : std::uint8_t { done, full, empty, ask };

// How long a call may wait, over all its waits. Only a call that has to wait reads the clock.
class Wait {
 public:
  explicit Wait(std::int64_t given) : none(given == kNoWait), given_(given) {}
  const bool none;  // no wait at all: FULL or EMPTY instead of DEADLINE
  Deadline until() {
    if (!asked_) deadline_ = none ? Deadline::now() : Deadline::after(given_);
    asked_ = true;
    return deadline_;
  }

 private:
  const std::int64_t given_;
  bool asked_ = false;
  Deadline deadline_ = Deadline::now();
};

// A slot as this process holds it.
struct Slot {
  std::byte* data = nullptr;
  std::uint64_t size = 0, length = 0;
  std::uint64_t pool = 0, stamp = 0;
  std::uint32_t index = 0, generation = 0;
};

class Pool final : public ForkGuarded, public std::enable_shared_from_this<Pool> {
 public:
  using Lock = std::unique_lock<LocalLock>;

  static Result<std::shared_ptr<Pool>> create(const std::shared_ptr<Session>& session, const PoolSpec& spec,
                                              std::int64_t timeout);
  struct Opening {
    std::string address;
    std::uint64_t id = 0;  // with an empty address
    bool read_only = false;
    std::int64_t wait = 0, timeout = 0;
    std::span<const SizeClass> later{};  // see PoolSpec
  };
  static Result<std::shared_ptr<Pool>> open(const std::shared_ptr<Session>& session, const Opening& opening);
  Result<std::shared_ptr<Pool>> for_opening(const Opening& opening);  // one more handle of this pool
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // `timeout` is for the broker, where more slots have to be made.
  Result<Slot> acquire(std::uint64_t length, std::int64_t wait, std::int64_t timeout = 0);
  Result<void> retain(const Slot& slot);
  Result<void> release(const Slot& slot);
  // The short ways: nothing has to be waited for or made. GCC does not inline the first one by itself, which costs a
  // caller 25 instructions of 190.
  [[gnu::always_inline]] Now acquire_now(std::uint64_t length, Slot& slot) {
    if (is_fresh_child() || read_only_ || broken()) return Now::ask;
    const std::lock_guard lock(me_->lock());
    const Segments::Class* const wanted = segments_.class_for(length);
    if (wanted == nullptr) return Now::ask;
    auto taken = me_->acquire_last(wanted->slot_size);
    if (!taken) taken = me_->acquire(wanted->ranges);
    if (!taken) return Now::ask;
    std::byte* const at = data_if_mapped(*taken);
    if (at == nullptr) {
      me_->drop(*taken);
      return Now::ask;
    }
    prefetch_to_write(at);
    ++users_[*taken];
    slot = {at, wanted->slot_size, length, id_, stamp(), *taken, me_->generation(*taken)};
    return Now::done;
  }
  Now release_now(const Slot& slot) {
    if (is_fresh_child()) return Now::ask;
    const std::lock_guard lock(me_->lock());
    if (!usable(slot)) return Now::ask;
    --users_[slot.index];
    me_->drop(slot.index);
    return Now::done;
  }
  Result<PoolFacts> facts();
  Result<void> remove();  // its name is free at once; the pool ends with its last participant

  // For queues and messages.
  std::uint64_t id() const { return id_; }
  std::uint64_t group() const { return group_; }
  bool read_only() const { return read_only_; }
  const std::shared_ptr<Session>& session() const { return session_; }
  Participant& me() { return *me_; }
  const pool::View& view() const { return view_; }
  std::uint64_t stamp() const { return std::uint64_t{me_->index()} << 32 | me_->life(); }
  std::uint64_t incarnation() const { return incarnation_; }
  // Notices a fork. It costs one load, unless there was one.
  Result<void> enter() {
    if (mark_.intact()) [[likely]]
      return {};
    return rejoin();
  }
  bool is_fresh_child() const { return !mark_.intact(); }
  // Held while one thread of a forked child joins, or opens an end of a queue again. It is taken before the lock.
  std::mutex& held_over_fork() { return held_over_fork_; }
  std::uint32_t change() const { return view_.header().change.load(std::memory_order_acquire); }
  bool broken() const { return view_.header().broken.load(std::memory_order_relaxed) != 0; }
  Error why_broken() const;
  // No event reports peers that die after the broker. So every wait for a peer also looks at the broker.
  static constexpr std::int64_t kLookAtBroker = 2'000'000'000, kLookForRoom = 10'000'000;
  Result<void> broker_there() const;

  // The lock must be held for all functions below.
  // Sleeper::wait(), which ends with SESSION_LOST when the broker is gone.
  template <class F>
  Result<bool> sleep(Sleeper::Masks masks, F&& something_there, Deadline deadline, bool rouse = false) {
    auto woken = me_->sleeper().wait(masks, something_there, deadline, rouse);
    if (woken && !*woken) SHMB_TRY_VOID(broker_there());
    return woken;
  }
  Result<std::uint32_t> take(std::uint64_t length, Wait& wait, Lock& lock, std::int64_t timeout = 0);
  // A slot that is free now. nullopt: call take(), which waits, grows, or gives the reason.
  std::optional<std::uint32_t> take_free(std::uint64_t length);
  // See Segments::data.
  std::byte* data(std::uint32_t slot, Error* why = nullptr, std::int64_t timeout = 0) {
    return segments_.data(slot, why, timeout);
  }
  std::byte* data_if_mapped(std::uint32_t slot) const { return segments_.data_if_mapped(slot); }
  // Call after publishing a message with this slot, see Participant::look_ahead.
  void look_ahead(std::uint32_t slot) {
    const auto next = me_->look_ahead(slot);
    if (next && is_mapped(*next)) prefetch_to_write(data(*next));
  }
  bool is_mapped(std::uint32_t slot) const { return data_if_mapped(slot) != nullptr; }
  std::uint64_t slot_size(std::uint32_t slot) { return me_->slot_size(slot).value_or(0); }
  // An existing reference becomes the user's. References of messages in flight are separate: a user that releases once
  // too often must not take them.
  Slot give_to_user(std::uint32_t slot, std::uint64_t length);
  Result<void> check(const Slot& slot);
  bool usable(const Slot& slot) const {  // as check()
    return slot.pool == id_ && slot.stamp == stamp() && slot.index < view_.slots() && users_[slot.index] != 0 &&
           slot.generation == me_->generation(slot.index);
  }
  // Whether the pool has slots of that size. Waits while its maker still adds them.
  Result<bool> has_slots_for(std::uint64_t length, Wait& wait, Lock& lock);
  std::uint64_t largest_class() const { return segments_.largest(); }
  void notice();  // maps new segments, and drops lanes of closed queues that were read
  KeptMappings& kept_mappings() { return kept_mappings_; }
  // A lane that this process does not write any more. Its messages stay held until they are read.
  void retire(std::unique_ptr<LaneSender> sender, std::uint32_t lane, std::uint32_t serial);
  void post_finished(std::uint32_t lane, std::uint32_t serial, shmbw_lane_end end);

  Doorbell& doorbell() { return doorbell_; }

  // A forked child joins under the first of these locks. It also keeps `me_` the same.
  void lock_for_fork() override {
    held_over_fork_.lock();
    me_->lock().lock();
  }
  void unlock_after_fork() override {
    me_->lock().unlock();
    held_over_fork_.unlock();
  }

 private:
  struct Retired {
    std::unique_ptr<LaneSender> sender;
    std::uint32_t lane, serial;
  };

  Pool(std::shared_ptr<Session> session, bool read_only) : session_(std::move(session)), read_only_(read_only) {}
  Result<void> map(Reply& reply, std::uint64_t directory_bytes, std::uint64_t control_bytes);
  void begin(std::uint32_t index, std::uint32_t life);
  Result<void> rejoin();
  Result<void> add_segment(std::uint64_t slot_size, std::uint32_t slots, std::uint32_t limit, std::int64_t timeout);
  Result<void> grow(std::uint64_t slot_size, std::uint32_t slots, std::uint32_t limit, std::int64_t timeout,
                    Lock& lock);
  Result<void> await_whole(Deadline deadline);
  bool is_being_made() const;

  const std::shared_ptr<Session> session_;
  const bool read_only_;
  ForkMark mark_;
  std::mutex held_over_fork_;
  std::uint64_t id_ = 0, group_ = 0, parent_stamp_ = 0;
  std::atomic<std::uint64_t> incarnation_ = 1;
  Mapping directory_, control_;
  pool::View view_;
  std::vector<std::unique_ptr<Participant>> former_;  // those of the parent, to which handles may still refer
  std::unique_ptr<Participant> me_;
  std::vector<Retired> retired_;
  KeptMappings kept_mappings_;
  std::vector<std::uint32_t> users_;  // references that the user has, by slot
  Segments segments_{session_, view_, me_, read_only_};
  std::uint32_t seen_change_ = 0, slots_high_ = 0;
  std::uint32_t leave_flags_ = 0;
  bool small_pages_ = false, no_populate_ = false, growing_ = false, enrolled_ = false;
  Doorbell doorbell_{*this};
};

}  // namespace shmb::client
