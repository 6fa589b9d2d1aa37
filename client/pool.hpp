// SPDX-License-Identifier: Apache-2.0
// This process in one pool: joined once for each session, shared by all its handles and queues, left with the last of
// them. It maps the areas and the segments, adds segments where a class of slots is used up, and notices fork: a child
// joins anew at its first call, with an index of its own, and none of the parent's slots is the child's.
//
// One lock, the participant's, guards everything here and in the queues; it is taken before those of the session.
#pragma once

#include <array>
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
#include "client/kept_mappings.hpp"
#include "client/lane.hpp"
#include "client/participant.hpp"
#include "client/region.hpp"
#include "client/session.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::client {

class QueueSet;

struct SizeClass {
  std::uint64_t slot_size = 0;
  std::uint32_t slots = 0, slots_limit = 0;
};
struct PoolSpec {
  std::string name;
  std::vector<SizeClass> classes;
  std::uint64_t group = 0;
  std::optional<std::int64_t> keep;
  bool small_pages = false, no_populate = false, replace = false;
  std::uint32_t lanes = 0, queues = 0;
  std::uint64_t lane_bytes = 0;
  // The first slots of these are made by whoever needs one first: `slots` is 0. All who open the pool name the same.
  std::vector<SizeClass> later{};
};

// How long a call may wait, all its waits together. The clock is asked only by who has to wait.
class Wait {
 public:
  explicit Wait(std::int64_t given) : none(given == kNoWait), given_(given) {}
  const bool none;  // not at all: FULL or EMPTY instead of DEADLINE
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

struct PoolFacts {
  std::uint64_t id = 0, group = 0, bytes = 0;
  std::uint32_t participant = 0, participants = 0;
  std::uint32_t slots = 0, slots_limit = 0, slots_used = 0, slots_own = 0, slots_high = 0, segments = 0;
  std::uint32_t queues = 0, queues_limit = 0, lanes = 0, lanes_limit = 0;
  bool read_only = false, broken = false;
  struct Class {
    std::uint64_t slot_size;
    std::uint32_t slots, slots_used;
  };
  std::vector<Class> classes;
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
  Result<std::shared_ptr<Pool>> for_opening(const Opening& opening);  // one more handle of this
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // `timeout` is the broker's, where more slots have to be made.
  Result<Slot> acquire(std::uint64_t length, std::int64_t wait, std::int64_t timeout = 0);
  Result<void> retain(const Slot& slot);
  Result<void> release(const Slot& slot);
  // The same where nothing stands in the way. False: nothing was changed, and the calls above say why.
  bool acquire_at_once(std::uint64_t length, Slot& slot);
  bool release_at_once(const Slot& slot);
  Result<PoolFacts> facts();
  Result<void> remove();  // its name is free at once; it goes with its last participant

  // For queues and messages.
  std::uint64_t id() const { return id_; }
  std::uint64_t group() const { return group_; }
  bool read_only() const { return read_only_; }
  const std::shared_ptr<Session>& session() const { return session_; }
  Participant& me() { return *me_; }
  const pool::View& view() const { return view_; }
  std::uint64_t stamp() const { return std::uint64_t{me_->index()} << 32 | me_->life(); }
  std::uint64_t incarnation() const { return incarnation_; }
  // Notices a fork. One load, unless there was one.
  Result<void> enter() {
    if (mark_.intact()) [[likely]]
      return {};
    return rejoin();
  }
  bool is_fresh_child() const { return !mark_.intact(); }
  // While one thread of a forked child joins, or opens an end of a queue anew. Taken before the lock.
  std::mutex& held_over_fork() { return held_over_fork_; }
  std::uint32_t change() const { return view_.header().change.load(std::memory_order_acquire); }
  bool broken() const { return view_.header().broken.load(std::memory_order_relaxed) != 0; }
  Error why_broken() const;
  // Peers that die after the broker are told of by nobody: every wait for a peer is one of looks at the broker, too.
  static constexpr std::int64_t kLookAtBroker = 2'000'000'000, kLookForRoom = 10'000'000;
  Result<void> broker_there() const;

  // All below: the lock is held.
  // Sleeper::wait(), which a broker that is gone ends with SESSION_LOST.
  template <class F>
  Result<bool> sleep(Sleeper::Masks masks, F&& something_there, Deadline deadline, bool rouse = false) {
    auto woken = me_->sleeper().wait(masks, something_there, deadline, rouse);
    if (woken && !*woken)
      if (auto there = broker_there(); !there) return std::unexpected(there.error());
    return woken;
  }
  Result<std::uint32_t> take(std::uint64_t length, Wait& wait, Lock& lock, std::int64_t timeout = 0);
  std::optional<std::uint32_t> take_at_once(std::uint64_t length);  // nullopt: take() waits, grows, or says why not
  // Where a slot's bytes are here; nullptr: its segment cannot be mapped (`why` tells). `timeout` is the broker's.
  std::byte* data(std::uint32_t slot, Error* why = nullptr, std::int64_t timeout = 0) {
    if (!segments_.empty() && segments_.front().region) [[likely]] {
      const Segment& first = segments_.front();
      if (slot - first.first < first.slots) return first.region->data() + (slot - first.first) * first.stride;
    }
    return find_data(slot, why, timeout);
  }
  // Behind the publication of a message with this slot, see Participant::look_ahead.
  void look_ahead(std::uint32_t slot) {
    const auto next = me_->look_ahead(slot);
    if (next && is_mapped(*next)) prefetch_to_write(data(*next));
  }
  std::byte* data_if_mapped(std::uint32_t slot) const;  // as data(), and asks the broker for nothing
  bool is_mapped(std::uint32_t slot) const { return data_if_mapped(slot) != nullptr; }
  std::uint64_t slot_size(std::uint32_t slot) { return me_->slot_size(slot).value_or(0); }
  // A reference that is there already becomes the user's. What messages under way hold is not: a user who releases
  // once too often must not take it from them.
  Slot give_to_user(std::uint32_t slot, std::uint64_t length);
  Result<void> check(const Slot& slot);
  bool usable(const Slot& slot) const {  // as check()
    return slot.pool == id_ && slot.stamp == stamp() && slot.index < view_.slots() && users_[slot.index] != 0 &&
           slot.generation == me_->generation(slot.index);
  }
  // Has it slots of that size? While its maker still adds them, this waits.
  Result<bool> has_slots_for(std::uint64_t length, Wait& wait, Lock& lock);
  std::uint64_t largest_class() const { return classes_.empty() ? 0 : classes_.back().slot_size; }
  void notice();  // new segments, and lanes of closed queues that are read by now
  KeptMappings& kept_mappings() { return kept_mappings_; }
  // A lane that this process wrote and writes no more: its messages stay held until they are read.
  void retire(std::unique_ptr<LaneSender> sender, std::uint32_t lane, std::uint32_t serial);
  void post_through(std::uint32_t lane, std::uint32_t serial, shmbw_lane_end end);

  // Doorbells, for waiting in event loops (queue_set.cpp).
  Result<int> doorbell(Lock& lock);
  bool arm(QueueSet& set);  // false: it has something already
  void disarm(QueueSet& set);
  void pass_on();                  // see QueueSet::pass_on, for all that are armed
  bool ring_heard(QueueSet& set);  // false: it is at its end, a peer has shut it down
  // Those of these participants: asked for ahead, so that a message needs nobody but its reader. One answer is under
  // way at a time; what has not come when it is needed, the broker rings.
  void want_bells(std::uint64_t participants);
  void fetch_bells(std::uint64_t participants, Deadline deadline, Lock& lock);  // waits for them, as long as that
  int doorbell_descriptor() const { return bell_.ours ? bell_.ours.get() : -1; }

  // A forked child joins under the first of these, which keeps `me_` the same as well.
  void lock_for_fork() override {
    held_over_fork_.lock();
    me_->lock().lock();
  }
  void unlock_after_fork() override {
    me_->lock().unlock();
    held_over_fork_.unlock();
  }

 private:
  struct Segment {
    std::uint32_t first = 0, slots = 0;
    std::uint64_t stride = 0, bytes = 0;
    Region::Handle region;
  };
  struct Class {
    std::uint64_t slot_size = 0;
    std::uint32_t slots = 0, limit = 0;
    std::vector<SlotRange> ranges;
  };
  struct Retired {
    std::unique_ptr<LaneSender> sender;
    std::uint32_t lane, serial;
  };
  struct PeerBell {
    std::uint32_t life = 0;
    std::int64_t not_before = 0;  // it was refused: the next time to ask for it
    std::uint64_t rung = 0;       // the sleep for which the broker was asked to ring
    Fd fd;
  };
  static constexpr std::int64_t kAskAgainAfter = 10'000'000'000;  // for a peer's doorbell, in vain
  struct AskedBell {
    std::uint32_t participant = 0, life = 0;
    std::shared_ptr<Channel::Later> answer;  // null: none is under way
  };

  Pool(std::shared_ptr<Session> session, bool read_only) : session_(std::move(session)), read_only_(read_only) {}
  Result<void> map(Reply& reply, std::uint64_t directory_bytes, std::uint64_t control_bytes);
  void begin(std::uint32_t index, std::uint32_t life);
  void expect(std::span<const SizeClass> later);
  Result<void> rejoin();
  Result<void> add_segment(std::uint64_t slot_size, std::uint32_t slots, std::uint32_t limit, std::int64_t timeout);
  Result<void> grow(std::uint64_t slot_size, std::uint32_t slots, std::uint32_t limit, std::int64_t timeout,
                    Lock& lock);
  void read_segments();
  Result<void> await_whole(Deadline deadline);
  Error attach_segments(std::int64_t timeout);
  std::byte* find_data(std::uint32_t slot, Error* why, std::int64_t timeout);
  Class* class_for(std::uint64_t length);
  std::uint32_t may_grow(const Class& wanted) const;
  bool is_being_made() const;
  int bell_of(std::uint32_t participant, std::uint32_t life, bool dead);
  bool has_bell(std::uint32_t participant, std::uint32_t life) const {
    return bells_[participant].fd && bells_[participant].life == life;
  }
  std::span<std::byte> bell_request(std::span<std::byte> buffer, std::uint32_t flag, std::uint32_t participant,
                                    std::uint32_t life) const;
  void ask_for_bell(std::uint32_t participant, std::uint32_t life);
  void take_asked_bell();
  void note_bell(std::uint32_t participant, std::uint32_t life, std::vector<Fd>& fds);
  template <class F>
  void for_bells_missing(std::uint64_t participants, F&& act);
  std::uint32_t count_used(const std::vector<SlotRange>& ranges) const;
  std::vector<std::atomic<std::uint64_t>*> armed_masks();

  const std::shared_ptr<Session> session_;
  const bool read_only_;
  ForkMark mark_;
  std::mutex held_over_fork_;
  std::uint64_t id_ = 0, group_ = 0, parent_stamp_ = 0;
  std::atomic<std::uint64_t> incarnation_ = 1;
  Mapping directory_, control_;
  pool::View view_;
  std::vector<std::unique_ptr<Participant>> former_;  // the parent's, to which handles may still refer
  std::unique_ptr<Participant> me_;
  std::vector<Retired> retired_;
  KeptMappings kept_mappings_;
  std::vector<std::uint32_t> users_;  // references that the user has, by slot
  std::vector<Segment> segments_;
  std::vector<Class> classes_;
  std::uint32_t seen_change_ = 0, slots_ = 0, slots_high_ = 0;
  std::uint32_t leave_flags_ = 0;
  bool small_pages_ = false, no_populate_ = false, growing_ = false, enrolled_ = false;

  struct {
    // `theirs` is what the broker gives to peers. Kept: without any holder but the broker our end would read as closed
    // while peers come and go.
    Fd ours, theirs;
    bool set = false;  // the broker has said that it has it
  } bell_;
  std::array<PeerBell, pool::kParticipants> bells_;
  AskedBell asked_bell_;
  std::vector<QueueSet*> armed_;
};

}  // namespace shmb::client
