// SPDX-License-Identifier: Apache-2.0
// Joining and leaving a pool, its slots, and its growth. Only `data` is on the path of a message.
#include "client/queue/pool.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "client/region/obtain.hpp"
#include "client/session/call.hpp"
#include "client/session/late_reply.hpp"
#include "client/session/name_wait.hpp"
#include "client/session/user_group.hpp"
#include "proto/refusal.hpp"

namespace shmb::client {
namespace {

constexpr std::uint32_t kMaxSegmentsOfOneClass = 40;  // doubling from one slot to all of them, with some to spare

Result<Answered<SHMBW_OP_POOL_JOIN>> join(Session& session, const Pool::Opening& opening, Deadline deadline) {
  names::Address address;
  if (opening.id == 0) {
    SHMB_TRY(parsed, names::parse_region(opening.address));
    address = std::move(parsed);
  }
  shmbw_pool_join request{};
  request.pool = opening.id;
  if (opening.read_only) request.flags |= SHMBW_POOL_READ_ONLY;
  if (address.owner_uid) {
    request.flags |= SHMBW_POOL_OWNER_GIVEN;
    request.owner_uid = *address.owner_uid;
  }
  request.name_len = static_cast<std::uint16_t>(address.name.size());
  const auto ask = [&](const names::Address& at) {
    request.group_len = static_cast<std::uint16_t>(at.group.size());
    return call<SHMBW_OP_POOL_JOIN>(session, request, {at.group, at.name}, deadline);
  };
  auto answer = ask(address);
  if (!answer && answer.error().status == Status::not_found && opening.id == 0)
    if (const auto second = in_user_group(session, address)) {
      auto there = ask(*second);
      if (there || there.error().status != Status::not_found) answer = std::move(there);
      else answer.error() = in_neither(std::move(answer.error()), *second);
    }
  if (!answer) return std::unexpected(session.of_broker(std::move(answer.error())));
  return answer;
}

Result<void> leave(Session& session, std::uint64_t pool, std::uint32_t flags) {
  auto left = insist([&]() -> Result<void> {
    SHMB_TRY_VOID(call<SHMBW_OP_POOL_LEAVE>(session, shmbw_pool_leave{pool, flags, 0}, {}, Deadline::after(0)));
    return {};
  });
  session.pool_moved();
  return left;
}

}  // namespace

// A place outside of the tables would lead to writes outside of the control area.
static Result<void> check_place(std::uint64_t asked, std::uint64_t pool, std::uint32_t participant) {
  if (pool != 0 && (asked == 0 || asked == pool) && participant < pool::kParticipants) return {};
  return error(Status::protocol, "the broker's answer names pool " + std::to_string(pool) + " and participant " +
                                     std::to_string(participant) + ", which is not what was asked for");
}

Result<void> Pool::map(Reply& reply, std::uint64_t directory_bytes, std::uint64_t control_bytes) {
  if (reply.fds.size() < 2) return error(Status::protocol, "the broker's answer lacks the pool's descriptors");
  SHMB_TRY(directory, map_whole(reply.fds[0].get(), directory_bytes, directory_bytes, Access::read));
  SHMB_TRY(control, map_whole(reply.fds[1].get(), control_bytes, control_bytes, Access::read_write));
  const auto view = pool::View::open({directory.data(), directory_bytes}, {control.data(), control_bytes});
  if (!view) return error(Status::version, "the pool's directory is not of the version that this library knows");
  directory_ = std::move(directory);
  control_ = std::move(control);
  view_ = *view;
  return {};
}

void Pool::begin(std::uint32_t index, std::uint32_t life) {
  if (me_) former_.push_back(std::move(me_));
  me_ = std::make_unique<Participant>(view_, index, life);
  if (!former_.empty()) me_->inherit(*former_.back());
  me_->sleeper().on_doorbell(
      [this](std::uint32_t peer, std::uint32_t of_life, bool dead) { return doorbell_.of(peer, of_life, dead); });
  me_->sleeper().on_look(
      [this] {
        auto there = broker_there();
        kept_mappings_.give_up_asked(*session_);
        return there;
      },
      // A futex does not report room in the socket.
      [this] { return session_->wants_room() ? kLookForRoom : kLookAtBroker; });
  users_.assign(view_.slots(), 0);
  seen_change_ = change() - 1;
}

Result<std::shared_ptr<Pool>> Pool::create(const std::shared_ptr<Session>& session, const PoolSpec& wanted,
                                           std::int64_t timeout) {
  if (session->is_local()) return needs_broker("pools and queues");
  SHMB_TRY(spec, checked(wanted));
  auto mark = ForkMark::make();
  if (!mark) return system_failure(mark.error(), "a page to notice fork with");
  shmbw_pool_create request{};
  request.group = spec.group;
  if (spec.keep) {
    request.flags |= SHMBW_POOL_KEEP_GIVEN;
    request.keep = *spec.keep;
  }
  if (spec.replace) request.flags |= SHMBW_POOL_REPLACE;
  if (spec.name_with_holders) request.flags |= SHMBW_POOL_NAME_WITH_HOLDERS;
  for (const SizeClass& one : spec.classes) request.slots += one.slots_limit;
  for (const SizeClass& one : spec.later) request.slots += one.slots_limit;
  request.lanes = spec.lanes;
  request.queues = spec.queues;
  request.segments = std::min<std::uint32_t>(
      static_cast<std::uint32_t>(std::max<std::size_t>(spec.classes.size() + spec.later.size(), 1)) *
          kMaxSegmentsOfOneClass,
      pool::kMaxSegments);
  request.lane_bytes = spec.lane_bytes;
  request.name_len = static_cast<std::uint16_t>(spec.name.size());
  std::shared_ptr<Pool> made(new Pool(session, false));  // before: once it has the id, its end leaves the pool
  SHMB_TRY(answer, call<SHMBW_OP_POOL_CREATE>(*session, request, {spec.name}, Deadline::after(timeout)));
  const shmbw_pool_create_reply& place = answer.fixed;
  SHMB_TRY_VOID(check_place(0, place.pool, place.participant));
  made->mark_ = std::move(*mark);
  made->id_ = place.pool;
  made->group_ = place.group;
  made->small_pages_ = spec.small_pages;
  made->no_populate_ = spec.no_populate;
  if (spec.group == 0) session->note_group(place.group);
  made->leave_flags_ = SHMBW_POOL_LEAVE_REMOVE;  // until it is whole: no process should find it without its slots
  SHMB_TRY_VOID(made->map(answer.reply, place.directory_bytes, place.control_bytes));
  made->begin(place.participant, place.life);
  enrol(*made, true);
  made->enrolled_ = true;
  session->note_pool(made->id_, made, false);
  made->segments_.expect(spec.classes);
  made->segments_.expect(spec.later);
  for (const SizeClass& one : spec.classes)
    SHMB_TRY_VOID(made->add_segment(one.slot_size, one.slots, one.slots_limit, timeout));
  made->leave_flags_ = 0;
  session->note_pool(made->id_, made, true);
  return made;
}

// Nobody would come to free the name of a new one.
void undo_pool_create(LateReply& late) {
  late.ask<SHMBW_OP_POOL_LEAVE>({late.fixed<shmbw_pool_create_reply>().pool, SHMBW_POOL_LEAVE_REMOVE, 0});
}
void undo_pool_join(LateReply& late) {
  late.ask<SHMBW_OP_POOL_LEAVE>({late.fixed<shmbw_pool_join_reply>().pool, 0, 0});
  late.pools.moved();
}

Result<std::shared_ptr<Pool>> Pool::open(const std::shared_ptr<Session>& session, const Opening& opening) {
  if (session->is_local()) return needs_broker("pools and queues");
  if (auto known = opening.id != 0 ? session->pool(opening.id) : nullptr) return known->for_opening(opening);
  auto mark = ForkMark::make();
  if (!mark) return system_failure(mark.error(), "a page to notice fork with");
  const Deadline until = Deadline::after(opening.wait, SHMB_NAME_WAIT);
  Deadline settled = Deadline::after(opening.timeout);
  bool made_here = false;
  std::uint64_t moves = session->pool_moves();
  std::shared_ptr<Pool> joined(new Pool(session, opening.read_only));  // as in create
  auto reply = join(*session, opening, settled);
  while (!reply) {
    if (reply.error().status == Status::busy) {
      Deadline last = settled;
      // The session is in it.
      const std::uint64_t id = reply.error().shortage.scope_id;
      if (auto known = session->pool(id)) return known->for_opening(opening);
      if (session->makes_pool(id)) {  // making it may take longer than any reply of the broker
        made_here = true;
        last = later(settled, until);
        if (last.passed())
          return error(Status::deadline,
                       "another thread of this process made the pool and was still adding its memory at the deadline");
      } else {
        // Another thread opens it right now, or leaves it, perhaps because it could not be made.
        if (std::exchange(made_here, false)) settled = Deadline::after(opening.timeout);
        if (settled.passed()) break;
        last = settled;
      }
      session->await_pool_move(moves, last);
    } else if (reply.error().status != Status::not_found || opening.id != 0 || !waits_for_name(opening.wait)) {
      break;
    } else {
      SHMB_TRY(address, names::parse_region(opening.address));
      if (auto waited = wait_for_name(*session, address, Named::pool, until); !waited) {
        if (waited.error().status != Status::deadline) return std::unexpected(waited.error());
        return error(Status::deadline, "no pool of that name appeared before the deadline: " + reply.error().sentence);
      }
    }
    moves = session->pool_moves();
    reply = join(*session, opening, Deadline::after(opening.timeout));
  }
  if (!reply) return std::unexpected(reply.error());
  const shmbw_pool_join_reply& place = reply->fixed;
  SHMB_TRY_VOID(check_place(opening.id, place.pool, place.participant));
  if (auto inherited = session->pool(place.pool); inherited && inherited->is_fresh_child()) {
    // In a forked child: this place is given back. The inherited pool joins by itself, with its parent's role.
    reply->reply.fds.clear();
    SHMB_TRY_VOID(leave(*session, place.pool, 0));
    SHMB_TRY_VOID(inherited->enter());
    return inherited->for_opening(opening);
  }
  joined->mark_ = std::move(*mark);
  joined->id_ = place.pool;
  joined->group_ = place.group;
  SHMB_TRY_VOID(joined->map(reply->reply, place.directory_bytes, place.control_bytes));
  joined->begin(place.participant, place.life);
  enrol(*joined, true);
  joined->enrolled_ = true;
  joined->seen_change_ = joined->change();
  joined->segments_.expect(opening.later);
  joined->segments_.read();
  if (opening.id == 0 && opening.later.empty()) SHMB_TRY_VOID(joined->await_whole(settled));
  (void)joined->segments_.attach(0);  // a failure here is retried when a slot of the segment is met
  session->note_pool(joined->id_, joined, true);
  return joined;
}

// The name is there before the slots are. A pool is whole once its classes make up all slots that it may have. If its
// maker has left or died, it stays as it is.
Result<void> Pool::await_whole(Deadline deadline) {
  const auto whole = [this] { return segments_.limits() >= view_.slots(); };
  const auto maker = [this] { return pool::Stamp::of(view_.participant(0).stamp.load(std::memory_order_acquire)); };
  const pool::Stamp first = maker();
  Lock lock(me_->lock());
  while (!whole()) {
    const std::uint32_t looked = change();
    const pool::Stamp now = maker();
    const bool made_on =
        now.state == static_cast<std::uint8_t>(pool::ParticipantState::live) && now.serial == first.serial;
    segments_.read();  // after the maker was seen alive: what it added before its end is in the directory
    if (!made_on || whole() || broken()) return {};
    if (deadline.passed())
      return error(Status::deadline, "another process made the pool and was still adding its memory at the deadline");
    SHMB_TRY_VOID(sleep({}, [&] { return change() != looked; }, deadline));
  }
  return {};
}

Result<std::shared_ptr<Pool>> Pool::for_opening(const Opening& opening) {
  if (read_only_ && !opening.read_only)
    return error(Status::busy,
                 "this session has opened the pool read-only: close those handles and queues first, or use another "
                 "session");
  return shared_from_this();
}

Pool::~Pool() {
  if (enrolled_) withdraw(*this);
  retired_.clear();
  if (id_ == 0 || is_fresh_child()) return;
  if (session_->lost()) {
    session_->pool_moved();
    return;
  }
  if (me_) {
    Lock lock(me_->lock());
    me_->flush_cache();
  }
  kept_mappings_.give_up_all();
  segments_.unmap_all();
  (void)leave(*session_, id_, leave_flags_);
}

Result<void> Pool::remove() {
  SHMB_TRY_VOID(enter());
  return leave(*session_, id_, SHMBW_POOL_LEAVE_REMOVE | SHMBW_POOL_LEAVE_STAY);
}

// The areas are mapped by inheritance, and the session has taken over the segments' leases.
Result<void> Pool::rejoin() {
  std::lock_guard guard(held_over_fork_);
  if (mark_.intact()) return {};
  const interrupt::Shield shield;
  SHMB_TRY_VOID(session_->enter());
  Opening again;
  again.id = id_;
  again.read_only = read_only_;
  const Deadline settled = Deadline::after(0);
  std::uint64_t moves = session_->pool_moves();
  auto reply = join(*session_, again, settled);
  // A place that a late reply granted, or that another thread opened by another name of the pool, is being left right
  // now.
  while (!reply && reply.error().status == Status::busy && !settled.passed()) {
    session_->await_pool_move(moves, settled);
    moves = session_->pool_moves();
    reply = join(*session_, again, Deadline::after(0));
  }
  if (!reply) return error(reply.error().status, "the forked child could not join the pool: " + reply.error().sentence);
  const shmbw_pool_join_reply& place = reply->fixed;
  SHMB_TRY_VOID(check_place(id_, place.pool, place.participant));
  parent_stamp_ = stamp();
  // The lanes that the parent wrote do not belong to this process. They refer to the participant that goes to former_.
  retired_.clear();
  kept_mappings_.give_up_all();
  doorbell_.forget_parent();
  growing_ = false;
  ++incarnation_;
  begin(place.participant, place.life);
  mark_.set();
  return {};
}

void Pool::notice() {
  const std::uint32_t now = change();
  if (now == seen_change_) return;
  seen_change_ = now;
  segments_.read();
  std::erase_if(retired_, [&](const Retired& lane) {
    const pool::Stamp stamp = pool::Stamp::of(view_.lane(lane.lane).stamp.load(std::memory_order_acquire));
    if (stamp.serial == lane.serial && stamp.state != static_cast<std::uint8_t>(pool::LaneState::free)) return false;
    lane.sender->give_up_all();  // recycled: everything in it was read
    return true;
  });
}

Slot Pool::give_to_user(std::uint32_t slot, std::uint64_t length) {
  ++users_[slot];
  return {data(slot), slot_size(slot), length, id_, stamp(), slot, me_->generation(slot)};
}

Result<void> Pool::add_segment(std::uint64_t slot_size, std::uint32_t slots, std::uint32_t limit,
                               std::int64_t timeout) {
  CreateItem item;
  item.length = pool::stride_of(slot_size) * slots;
  item.group = group_;
  item.flags =
      SHMBW_CREATE_MANY_WRITERS | (small_pages_ ? kCreateSmallPages : 0U) | (no_populate_ ? kCreateNoPopulate : 0U);
  SHMB_TRY(region, create_region(session_, item, timeout));
  shmbw_pool_segment request{};
  request.pool = id_;
  request.region = region->ref();
  request.slot_size = slot_size;
  request.slots = slots;
  request.slots_limit = limit;
  SHMB_TRY(answer, call<SHMBW_OP_POOL_SEGMENT>(*session_, request, {}, Deadline::after(timeout)));
  Lock lock(me_->lock());
  if (!segments_.adopt(answer.fixed.segment, std::move(region)))
    return error(Status::protocol, "the broker's answer names a segment that the directory does not have");
  return {};
}

Result<void> Pool::broker_there() const {
  if (session_->pump()) return {};
  return error(Status::session_lost,
               "the broker is gone and nothing came: nobody would tell of a peer's death; connect again");
}

Error Pool::why_broken() const {
  switch (static_cast<pool::Broken>(view_.header().broken.load(std::memory_order_relaxed))) {
    case pool::Broken::group_ended:
      return error(Status::group_ended, "the pool's group has ended, and the pool with it").error();
    case pool::Broken::broker_ended:
      return error(Status::session_lost, "the broker has ended, and the pool with it: connect again").error();
    default:
      return error(Status::broken,
                   "the pool is broken: a participant has written impossible words into it; make a new one")
          .error();
  }
}

Result<void> Pool::grow(std::uint64_t slot_size, std::uint32_t slots, std::uint32_t limit, std::int64_t timeout,
                        Lock& lock) {
  struct Unlocked {
    Pool& pool;
    Lock& lock;
    Unlocked(Pool& of, Lock& held) : pool(of), lock(held) {
      pool.growing_ = true;
      lock.unlock();
    }
    ~Unlocked() {
      lock.lock();
      pool.growing_ = false;
      pool.me_->sleeper().wake_own_threads();  // one may wait for this, to add memory of another size
    }
  } unlocked(*this, lock);
  return add_segment(slot_size, slots, limit, timeout);
}

// Slots

// The name is there before the memory, which takes time. The limits of all classes together are the pool's. The maker
// is the first participant, in its first life there.
bool Pool::is_being_made() const { return segments_.limits() < view_.slots() && me_->index() != 0 && me_->alive(0, 1); }

Result<bool> Pool::has_slots_for(std::uint64_t length, Wait& wait, Lock&) {
  for (bool late = false;;) {
    if (segments_.class_for(length) != nullptr) return true;
    notice();
    const std::uint32_t looked = seen_change_;  // another thread that looks moves it on
    if (segments_.class_for(length) != nullptr) return true;
    if (!is_being_made() || broken()) return false;
    const std::string why = "the pool's maker is still adding its slots";
    if (wait.none) return error(Status::full, why);
    SHMB_TRY(woken, sleep(
                        {}, [&] { return change() != looked || segments_.class_for(length) != nullptr || broken(); },
                        wait.until()));
    // Other activity in the pool moves its directory too, so the clock counts. Changes made meanwhile are checked
    // first.
    if (late) return error(Status::deadline, why);
    late = !woken || wait.until().passed();
  }
}

Result<std::uint32_t> Pool::take(std::uint64_t length, Wait& wait, Lock& lock, std::int64_t timeout) {
  if (read_only_) return error(Status::denied, "this process opened the pool read-only: it takes no slots");
  if (broken()) return std::unexpected(why_broken());
  SHMB_TRY_VOID(has_slots_for(length, wait, lock));
  if (segments_.classes().empty())
    return error(Status::invalid,
                 "the pool has no slots: it was made for queues alone. Make one with size classes, or "
                 "send a region (shmb_create)");
  const Segments::Class* wanted = segments_.class_for(length);
  if (wanted == nullptr)
    return error(Status::invalid, std::to_string(length) + " bytes are more than the largest slots of the pool have (" +
                                      std::to_string(segments_.largest()) +
                                      "): make a region with shmb_create and send that");
  if (auto slot = me_->acquire(wanted->ranges)) return *slot;
  const std::uint64_t slot_size = wanted->slot_size;
  for (bool late = false;;) {
    notice();
    const std::uint32_t looked = seen_change_;
    wanted = segments_.class_for(slot_size);
    if (auto slot = me_->acquire(wanted->ranges)) return *slot;
    slots_high_ = segments_.slots();
    std::string growth;
    if (const std::uint32_t more = growing_ ? 0 : segments_.may_grow(*wanted); more != 0) {
      const std::uint32_t limit = wanted->limit;
      auto added = grow(slot_size, more, limit, timeout, lock);
      if (added) continue;
      if (const std::uint32_t now = segments_.slots(); segments_.read(), segments_.slots() != now) continue;
      growth = "; adding more failed: " + added.error().sentence;
    }
    const bool others_grow = growing_;
    if (others_grow) growth = "; another thread of this process is adding more";
    wanted = segments_.class_for(slot_size);
    const std::string used =
        "all " + std::to_string(wanted->slots) + " slots of " + format_size(slot_size) + " are in use" + growth;
    if (wait.none) return error(Status::full, used);
    std::optional<std::uint32_t> slot;
    std::vector<std::atomic<std::uint64_t>*> masks;
    me_->slot_sources(masks);
    auto woken = sleep(
        masks,
        [&] {
          slot = me_->acquire(segments_.class_for(slot_size)->ranges);
          return slot.has_value() || change() != looked || broken() || (others_grow && !growing_);
        },
        wait.until(), true);
    if (slot) return *slot;
    if (!woken) return std::unexpected(woken.error());
    if (broken()) return std::unexpected(why_broken());
    // A thread that slept until its deadline looks once more: a slot may have been freed or added right before it.
    if (late) return error(Status::deadline, "no slot became free before the deadline: " + used);
    late = !*woken || wait.until().passed();
  }
}

Result<Slot> Pool::acquire(std::uint64_t length, std::int64_t wait, std::int64_t timeout) {
  SHMB_TRY_VOID(enter());
  Lock lock(me_->lock());
  Wait until(wait);
  SHMB_TRY(slot, take(length, until, lock, timeout));
  Error why;
  if (data(slot, &why, timeout) == nullptr) {
    me_->drop(slot);
    return std::unexpected(std::move(why));
  }
  return give_to_user(slot, length);
}

std::optional<std::uint32_t> Pool::take_free(std::uint64_t length) {
  if (read_only_ || broken()) return std::nullopt;
  const Segments::Class* const wanted = segments_.class_for(length);
  return wanted == nullptr ? std::nullopt : me_->acquire(wanted->ranges);
}

Result<void> Pool::check(const Slot& slot) {
  if (slot.pool != id_)
    return error(Status::invalid, "the slot is of another pool (" + std::to_string(slot.pool) + ", this is " +
                                      std::to_string(id_) + ")");
  if (slot.stamp != stamp()) {
    if (slot.stamp == parent_stamp_)
      return error(Status::forked, "the slot is the parent's: what it held before the fork is not the child's");
    return error(Status::stale, "the slot is of another life of this process in the pool");
  }
  if (slot.index >= me_->view().slots()) return error(Status::invalid, "the pool has no slot of that number");
  if (users_[slot.index] == 0)
    return error(Status::stale, "this process does not hold the slot: it was released already");
  if (slot.generation != me_->generation(slot.index))
    return error(Status::stale, "the slot was used again since: its generation is " +
                                    std::to_string(me_->generation(slot.index)) + ", not " +
                                    std::to_string(slot.generation));
  return {};
}

Result<void> Pool::retain(const Slot& slot) {
  SHMB_TRY_VOID(enter());
  Lock lock(me_->lock());
  SHMB_TRY_VOID(check(slot));
  ++users_[slot.index];
  me_->hold(slot.index);
  return {};
}

Result<void> Pool::release(const Slot& slot) {
  SHMB_TRY_VOID(enter());
  Lock lock(me_->lock());
  SHMB_TRY_VOID(check(slot));
  --users_[slot.index];
  me_->drop(slot.index);
  return {};
}

Result<PoolFacts> Pool::facts() {
  SHMB_TRY_VOID(enter());
  Lock lock(me_->lock());
  notice();
  PoolFacts out;
  out.id = id_;
  out.group = group_;
  out.participant = me_->index();
  for (std::size_t i = 0; i < pool::kParticipants; ++i)
    out.participants += pool::Stamp::of(view_.participant(i).stamp.load(std::memory_order_acquire)).state ==
                                static_cast<std::uint8_t>(pool::ParticipantState::live)
                            ? 1U
                            : 0U;
  out.bytes = segments_.bytes();
  out.slots = segments_.slots();
  out.slots_limit = view_.slots();
  for (const Segments::Class& one : segments_.classes()) {
    const std::uint32_t used = segments_.count_used(one.ranges);
    out.classes.push_back({one.slot_size, one.slots, used});
    out.slots_used += used;
    for (const SlotRange& range : one.ranges)
      for (std::uint32_t slot = range.first; slot < range.first + range.count; ++slot)
        out.slots_own += (view_.slot(slot).holders.load(std::memory_order_relaxed) & me_->bit()) != 0 ? 1U : 0U;
  }
  out.slots_high = slots_high_ = std::max(slots_high_, out.slots_used);
  out.segments = static_cast<std::uint32_t>(segments_.count());
  for (std::size_t i = 0; i < view_.queues(); ++i)
    out.queues += pool::Stamp::of(view_.queue(i).stamp.load(std::memory_order_acquire)).state != 0 ? 1U : 0U;
  out.queues_limit = view_.queues();
  for (std::size_t i = 0; i < view_.lanes(); ++i)
    out.lanes += pool::Stamp::of(view_.lane(i).stamp.load(std::memory_order_acquire)).state != 0 ? 1U : 0U;
  out.lanes_limit = view_.lanes();
  out.read_only = read_only_;
  out.broken = broken();
  return out;
}

// Lanes that are over

void Pool::retire(std::unique_ptr<LaneSender> sender, std::uint32_t lane, std::uint32_t serial) {
  retired_.push_back({std::move(sender), lane, serial});
}

void Pool::post_finished(std::uint32_t lane, std::uint32_t serial, shmbw_lane_end end) {
  shmbw_lane_finished through{};
  through.pool = id_;
  through.lane = lane;
  through.serial = serial;
  through.end = end;
  (void)post<SHMBW_OP_LANE_FINISHED>(*session_, through, Deadline::after(0));
}

}  // namespace shmb::client
