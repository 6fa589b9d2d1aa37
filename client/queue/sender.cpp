// SPDX-License-Identifier: Apache-2.0
// Sending with everything that can happen. See sender.hpp.
#include "client/queue/sender.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "base/sys_process.hpp"
#include "client/region/obtain.hpp"
#include "client/session/call.hpp"

namespace shmb::client {

Result<void> Sender::may_send() const {
  if (state_.pool->broken()) return std::unexpected(state_.pool->why_broken());
  if (state_.closed) return closed_error();
  return {};
}

std::unexpected<Error> Sender::closed_error() const {
  return error(Status::closed, "queue '" + state_.spec.name + "' is closed: nobody may send");
}

Result<void> Sender::show_batch() {
  Batch* const batch = std::exchange(batch_, nullptr);
  if (batch == nullptr || batch->unshown == 0) return {};
  out_.it->wake_readers(batch->unshown);
  const std::uint64_t back = closed_meanwhile(std::exchange(batch->unshown, 0));
  if (back == 0) return {};
  batch->sent -= back;
  sent_ -= back;
  return closed_error();
}

// Since `before`, or before any call that could report it.
bool Sender::readers_have_gone(const Ended& before) {
  const bool gone = std::exchange(readers_gone_, false) || ended_.readers_gone != before.readers_gone;
  if (gone) given_up_ = false;
  return gone;
}

// True: there is room. False: not now.
Result<bool> Sender::find_room(Claims& claims, const Ended& before) {
  for (;;) {
    state_.look_if_changed();
    SHMB_TRY_VOID(may_send());
    if (readers_have_gone(before))
      return error(Status::peer_gone,
                   "the last reader of queue '" + state_.spec.name + "' has gone; send again to wait for newcomers");
    if (!out_.it) return false;
    if (!claims.regions.empty()) {
      claims.take();
      SHMB_TRY_VOID(hold_regions(claims));
      if (!out_.it || out_.lane != claims.lane || out_.serial != claims.serial) continue;
    }
    switch (out_.it->room()) {
      case LaneSender::Room::yes:
        return true;
      case LaneSender::Room::broken:
        return state_.broken_error("a lane");
      case LaneSender::Room::full:
        break;
    }
    // Expired messages make room, unless a receiver has them.
    if (state_.has(pool::kQueueExpiring) && out_.it->expire(sys::now_monotonic()) &&
        out_.it->room() == LaneSender::Room::yes)
      return true;
    return false;
  }
}

std::string Sender::why_full() const {
  return out_.it ? "all " + std::to_string(state_.cells) + " cells of queue '" + state_.spec.name + "' are in use"
                 : "queue '" + state_.spec.name + "' has no reader yet";
}

bool Sender::room_there() {
  state_.look_if_changed();
  return state_.closed || readers_gone_ || state_.pool->broken() ||
         (out_.it && out_.it->room() != LaneSender::Room::full);
}

Result<void> Sender::publish(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline,
                             std::span<Region* const> regions, Wait& wait, Pool::Lock& lock) {
  auto give_back = [&](Error failure) -> Result<void> {
    if (held.slot != pool::kNone) state_.me().drop(held.slot);
    if (held.list)
      for (std::uint32_t slot : held.list->slots) state_.me().drop(slot);
    return std::unexpected(std::move(failure));
  };
  const Ended before = ended_;
  Claims claims{*this, regions, lock};
  for (bool late = false;;) {
    // Read before the look: the look may release the lock, and another thread may then move seen_change on.
    const std::uint32_t looked = state_.pool->change();
    auto room = find_room(claims, before);
    if (!room) return give_back(std::move(room.error()));
    if (*room) break;
    if (batch_ != nullptr) {
      if (auto shown = show_batch(); !shown) return give_back(std::move(shown.error()));
      continue;
    }
    if (ended_.readers_died != before.readers_died)
      return give_back(
          {Status::peer_gone,
           0,
           {},
           "a reader of queue '" + state_.spec.name + "' died while this call waited for room; send again"});
    const std::string why = why_full();
    if (wait.none) return give_back({Status::full, 0, {}, why});
    state_.set_spin();
    std::atomic<std::uint64_t>* const masks[] = {&state_.writers().mask};
    auto woken = state_.pool->sleep(
        masks,
        [&] { return looked != state_.pool->change() || (out_.it && out_.it->room() != LaneSender::Room::full); },
        wait.until());
    if (!woken) return give_back(std::move(woken.error()));
    // The directory may move at each look, so the clock counts too. Changes made meanwhile are checked once more.
    if (!*woken || (late && wait.until().passed()))
      return give_back({Status::deadline, 0, {}, "the message was not sent before the deadline: " + why});
    late = wait.until().passed();
  }
  claims.keep();
  out_.it->put(tag, body, std::move(held), deadline);
  if (tag == pool::kTagListInRegion) [[unlikely]] {
    ++in_regions_;
    out_.it->count_in_region();
  }
  if (batch_ != nullptr) {
    ++batch_->unshown;
    ++sent_;
    return {};
  }
  out_.it->wake_readers(1);
  if (closed_meanwhile() != 0) return closed_error();
  ++sent_;
  holds_.drop_idle(*state_.pool, out_.lane, out_.serial);
  return {};
}

Result<void> Sender::send(std::span<const std::byte> bytes, std::int64_t wait) {
  Wait until(wait);
  Pool::Lock lock(state_.me().lock());
  if (bytes.size() <= state_.body_room() && bytes.size() <= pool::kTagMaxInline) [[likely]]
    return publish(static_cast<std::uint8_t>(bytes.size()), bytes, {}, 0, {}, until, lock);
  SHMB_TRY_VOID(may_send());
  SHMB_TRY(fits, has_slots_for(bytes.size(), until, lock));
  if (!fits) return too_large(bytes.size());
  return send_in_slot(bytes, 0, 0, until, lock);
}

std::unexpected<Error> Sender::too_large(std::uint64_t bytes) const {
  const std::string what = "the message has " + std::to_string(bytes) + " bytes; queue '" + state_.spec.name +
                           "' takes " + std::to_string(state_.body_room()) + " inline";
  if (state_.pool->largest_class() == 0)
    return error(Status::invalid, what +
                                      " and its pool has no slots: open the queue in a pool with slots that "
                                      "large, or send a region (shmb_create)");
  return error(Status::invalid, what + ", and the largest slots of its pool have " +
                                    std::to_string(state_.pool->largest_class()) + ": send a region (shmb_create)");
}

// Only where the pool has slots that large.
Result<void> Sender::send_in_slot(std::span<const std::byte> bytes, std::uint64_t type, std::int64_t deadline,
                                  Wait& wait, Pool::Lock& lock) {
  SHMB_TRY(slot, take_slot(bytes.size(), wait, lock));
  Error why;
  std::byte* const to = state_.pool->data(slot, &why);
  if (to == nullptr) {
    state_.me().drop(slot);
    return std::unexpected(std::move(why));
  }
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  pool::Handle handle{};
  handle.slot = slot;
  handle.generation = state_.me().generation(slot);
  handle.length = bytes.size();
  handle.type = type;
  return publish(pool::kTagSlot, std::as_bytes(std::span(&handle, 1)), Held{slot, nullptr}, deadline, {}, wait, lock);
}

Result<void> Sender::send(const Slot& slot, std::int64_t wait) {
  Wait until(wait);
  Pool::Lock lock(state_.me().lock());
  SHMB_TRY_VOID(may_send());
  SHMB_TRY_VOID(state_.pool->check(slot));
  if (slot.length > state_.pool->slot_size(slot.index))
    return error(Status::invalid, "the length (" + std::to_string(slot.length) + ") is more than the slot has (" +
                                      std::to_string(state_.pool->slot_size(slot.index)) + ")");
  return send_slot(slot, 0, slot.length, 0, 0, until, lock);
}

// A slot that this process holds, and that was checked.
Result<void> Sender::send_slot(const Slot& slot, std::uint64_t offset, std::uint64_t length, std::uint64_t type,
                               std::int64_t deadline, Wait& wait, Pool::Lock& lock) {
  pool::Handle handle{};
  handle.slot = slot.index;
  handle.generation = slot.generation;
  handle.offset = offset;
  handle.length = length;
  handle.type = type;
  state_.me().hold(slot.index);
  return publish(pool::kTagSlot, std::as_bytes(std::span(&handle, 1)), Held{slot.index, nullptr}, deadline, {}, wait,
                 lock);
}

Result<void> Sender::check_part(OutPart& part) {
  switch (part.kind) {
    case PartKind::bytes:
      if (part.data == nullptr && part.length != 0) return error(Status::invalid, "a part has a length and no data");
      return {};
    case PartKind::slot: {
      SHMB_TRY_VOID(state_.pool->check(part.slot));
      const std::uint64_t size = state_.pool->slot_size(part.slot.index);
      if (part.length == 0 && part.offset <= part.slot.length) part.length = part.slot.length - part.offset;
      if (part.offset > size || part.length > size - part.offset)
        return error(Status::invalid, "a part reaches beyond its slot of " + std::to_string(size) + " bytes");
      if ((part.rights & ~static_cast<std::uint32_t>(SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE)) != 0)
        return error(Status::invalid, "a slot in a message has the rights read, or read and write");
      return {};
    }
    case PartKind::region: {
      if (part.region == nullptr) return error(Status::invalid, "a part of kind region has no region");
      if (&part.region->session() != state_.pool->session().get())
        return error(
            Status::invalid,
            "a region of another session: attach it in the queue's own session first, by its id, and send that");
      const std::uint64_t length = part.region->length();
      if (part.length == 0 && part.offset <= length) part.length = length - part.offset;
      if (part.offset > length || part.length > length - part.offset)
        return error(Status::invalid, "a part reaches beyond its region of " + std::to_string(length) + " bytes");
      if ((part.rights & ~static_cast<std::uint32_t>(SHMBW_RIGHT_KNOWN)) != 0)
        return error(Status::invalid, "unknown rights for a region in a message");
      return {};
    }
    default:
      return error(Status::invalid, "a part is bytes, a slot or a region");
  }
}

Result<void> Sender::send(std::span<const OutPart> given, std::uint64_t type, std::int64_t lifetime,
                          std::int64_t wait) {
  Wait until(wait);
  Pool::Lock lock(state_.me().lock());
  return send_parts(given, type, lifetime, until, lock);
}

Result<void> Sender::send_many(std::size_t count, const Next& next, std::int64_t wait, std::size_t& sent,
                               const Plain& plain) {
  sent = 0;
  Wait until(wait);
  (void)until.until();  // counted from here, not from the first message that waits
  Pool::Lock lock(state_.me().lock());
  Batch batch;
  struct Shown {  // also if the next message throws
    Sender& sender;
    Batch& batch;
    std::size_t& sent;
    ~Shown() {
      sender.batch_ = &batch;
      try {
        (void)sender.show_batch();
      } catch (...) {  // a wake may ask the broker; the caller gets the first exception
      }
      sender.batch_ = nullptr;
      sent = batch.sent;
    }
  } shown{*this, batch, sent};
  Result<void> outcome;
  while (outcome && batch.sent != count) {
    if (plain) put_plain(plain, count, batch);
    if (batch.sent == count) break;
    auto message = next(batch.sent);
    if (!message) {
      outcome = std::unexpected(message.error());
      break;
    }
    batch_ = &batch;
    outcome = send_parts(message->parts, message->type, message->lifetime, until, lock);
    if (outcome) ++batch.sent;
  }
  batch_ = &batch;
  if (auto last = show_batch(); !last && outcome) outcome = last;
  holds_.drop_idle(*state_.pool, out_.lane, out_.serial);
  return outcome;
}

Result<bool> Sender::has_slots_for(std::uint64_t bytes, Wait& wait, Pool::Lock& lock) {
  if (bytes > state_.pool->largest_class()) SHMB_TRY_VOID(show_batch());
  return state_.pool->has_slots_for(bytes, wait, lock);
}

Result<std::uint32_t> Sender::take_slot(std::uint64_t bytes, Wait& wait, Pool::Lock& lock) {
  if (batch_ != nullptr) {
    const auto slot = state_.pool->take_free(bytes);
    if (slot && state_.pool->is_mapped(*slot)) return *slot;
    if (auto shown = show_batch(); !shown) {
      if (slot) state_.me().drop(*slot);
      return std::unexpected(shown.error());
    }
    if (slot) return *slot;
  }
  return state_.pool->take(bytes, wait, lock);
}

Result<void> Sender::send_parts(std::span<const OutPart> given, std::uint64_t type, std::int64_t lifetime, Wait& until,
                                Pool::Lock& lock) {
  SHMB_TRY_VOID(check_parts(given.size()));
  if (lifetime == kForever) lifetime = 0;
  if (lifetime < 0)
    return error(Status::invalid, "a message lives for a time above 0, or for ever: 0 is the default, SHMB_FOREVER");
  SHMB_TRY_VOID(may_send());
  if (lifetime != 0 && !state_.has(pool::kQueueExpiring))
    return error(Status::invalid, "the queue was made without SHMB_QUEUE_EXPIRING: its messages have no lifetime");
  std::int64_t deadline = 0;
  if (lifetime != 0) {
    const std::int64_t now = sys::now_monotonic();
    deadline = lifetime > INT64_MAX - now ? INT64_MAX : now + lifetime;
  }
  if (given.size() == 1) {
    OutPart part = given[0];
    SHMB_TRY_VOID(check_part(part));
    if (part.kind == PartKind::bytes) {
      if (type == 0 && part.length <= std::min<std::uint64_t>(state_.body_room(), pool::kTagMaxInline))
        return publish(static_cast<std::uint8_t>(part.length), {part.data, part.length}, {}, deadline, {}, until, lock);
      // In a slot the bytes stand without a list, and the cell has room for their type. In a cell they need a list for
      // it.
      if (sizeof(ListHeader) + part.length > state_.body_room()) {
        SHMB_TRY(fits, has_slots_for(part.length, until, lock));
        if (fits) return send_in_slot({part.data, part.length}, type, deadline, until, lock);
      }
    }
    if (part.kind == PartKind::slot && part.rights == 0)  // rights travel in a list
      return send_slot(part.slot, part.offset, part.length, type, deadline, until, lock);
    return send_list(std::span(&part, 1), type, deadline, until, lock);
  }
  std::vector<OutPart> parts(given.begin(), given.end());
  for (OutPart& part : parts) SHMB_TRY_VOID(check_part(part));
  return send_list(parts, type, deadline, until, lock);
}

Result<void> Sender::send_list(std::span<OutPart> parts, std::uint64_t type, std::int64_t deadline, Wait& wait,
                               Pool::Lock& lock) {
  const auto need = list_bytes(parts);
  if (!need) return error(Status::invalid, "the bytes of the message are more than a region can have");
  Held held;
  std::vector<Region*> regions;
  held.list = std::make_unique<HeldList>();
  for (const OutPart& part : parts)
    if (part.kind == PartKind::slot) {
      state_.me().hold(part.slot.index);
      held.list->slots.push_back(part.slot.index);
    } else if (part.kind == PartKind::region) {
      regions.push_back(part.region);
    }
  auto give_back = [&](Error failure) -> Result<void> {
    for (std::uint32_t slot : held.list->slots) state_.me().drop(slot);
    return std::unexpected(std::move(failure));
  };
  auto finish_held = [&] {
    for (Region* region : regions) held.list->regions.push_back(region->ref().id);
    if (held.list->slots.empty() && held.list->regions.empty()) held.list.reset();
  };

  if (*need <= state_.body_room()) {
    std::array<std::byte, pool::kTagMaxInline> body;
    write_list(parts, type, std::span(body).first(*need));
    finish_held();
    return publish(pool::kTagListInline, std::span(body).first(*need), std::move(held), deadline, regions, wait, lock);
  }
  pool::Handle handle{};
  handle.slot = pool::kNone;
  handle.length = *need;
  handle.type = type;
  handle.parts = parts.size() == 1 && parts[0].kind == PartKind::bytes ? 0 : parts.size();
  auto fits = has_slots_for(*need, wait, lock);
  if (!fits) return give_back(std::move(fits.error()));
  if (*fits) {
    auto slot = take_slot(*need, wait, lock);
    if (!slot) return give_back(std::move(slot.error()));
    held.list->slots.push_back(*slot);
    Error why;
    std::byte* const to = state_.pool->data(*slot, &why);
    if (to == nullptr) return give_back(std::move(why));
    write_list(parts, type, {to, *need});
    handle.slot = *slot;
    handle.generation = state_.me().generation(*slot);
    finish_held();
    return publish(pool::kTagListInSlot, std::as_bytes(std::span(&handle, 1)), std::move(held), deadline, regions, wait,
                   lock);
  }
  // Larger than every slot: a region carries it. The lane holds the region from now on.
  CreateItem item;
  item.length = *need;
  item.group = state_.pool->group();
  item.flags = SHMBW_CREATE_MANY_WRITERS;
  if (auto shown = show_batch(); !shown) return give_back(std::move(shown.error()));
  lock.unlock();
  auto region = create_region(state_.pool->session(), item);
  lock.lock();
  if (!region) return give_back(std::move(region.error()));
  write_list(parts, type, (*region)->bytes());
  handle.region = (*region)->ref().id;
  handle.generation = (*region)->ref().generation;
  regions.push_back(region->get());
  finish_held();
  return publish(pool::kTagListInRegion, std::as_bytes(std::span(&handle, 1)), std::move(held), deadline, regions, wait,
                 lock);
}

Result<void> Sender::drain(std::int64_t wait) {
  Wait until(wait);
  Pool::Lock lock(state_.me().lock());
  const Ended before = ended_;
  for (;;) {
    state_.look_if_changed();
    const std::uint32_t looked = state_.seen_change;
    // Messages that were taken stay taken, even if its readers have gone since: the next send reports that.
    const bool given_up = given_up_ || ended_.given_up != before.given_up;
    if (!given_up && (!out_.it || out_.it->in_flight() == 0)) {
      if (out_.it) out_.it->reclaim();
      drained_ = sent_;
      holds_.drop_idle(*state_.pool, out_.lane, out_.serial, true);
      return {};
    }
    given_up_ = false;
    holds_.drop_idle(*state_.pool, out_.lane, out_.serial);  // the rest may be taken late, or never
    if (readers_have_gone(before))
      return error(Status::peer_gone,
                   "the last reader of queue '" + state_.spec.name + "' has gone without taking all that was sent");
    if (given_up)
      return error(Status::peer_gone,
                   "a reader of queue '" + state_.spec.name + "' has gone without taking all that was sent");
    if (ended_.readers_died != before.readers_died)
      return error(Status::peer_gone, "a reader of queue '" + state_.spec.name + "' died while this call waited");
    if (until.none) return error(Status::full, std::to_string(out_.it->in_flight()) + " messages are not taken yet");
    state_.set_spin();
    std::atomic<std::uint64_t>* const masks[] = {&state_.writers().mask};
    SHMB_TRY(woken, state_.pool->sleep(
                        masks, [&] { return looked != state_.pool->change() || !out_.it || out_.it->in_flight() == 0; },
                        until.until()));
    if (!woken) {
      const auto left = out_.it->in_flight();
      return error(Status::deadline, std::to_string(left) + (left == 1 ? " message was" : " messages were") +
                                         " not taken before the deadline");
    }
  }
}

// Regions

void Sender::Claims::take() {
  if (lane == sender.out_.lane && serial == sender.out_.serial) return;
  sender.holds_.count(regions);
  lane = sender.out_.lane;
  serial = sender.out_.serial;
}

// The message was not sent. A hold whose reply did not come is dropped with the others, because the broker may have
// booked it.
Sender::Claims::~Claims() {
  if (lane == pool::kNone) return;
  if (!lock.owns_lock()) lock.lock();
  if (!sender.out_.it || sender.out_.lane != lane || sender.out_.serial != serial) return;
  try {
    for (const Region* region : regions) sender.holds_.let_go(region->ref().id);
  } catch (const std::bad_alloc&) {  // then the lane has them for as long as it lives
  }
}

Result<void> Sender::hold_regions(const Claims& claims) {
  const auto which = holds_.missing(claims.regions);
  std::vector<shmbw_queue_hold> wanted;
  for (const Region* region : which) {
    shmbw_queue_hold hold{};
    hold.pool = state_.pool->id();
    hold.lane = out_.lane;
    hold.serial = out_.serial;
    hold.region = region->ref();
    wanted.push_back(hold);
  }
  const std::size_t most = SHMBW_MAX_BATCH;
  for (std::size_t first = 0; first < wanted.size(); first += most) {
    const std::size_t count = std::min(most, wanted.size() - first);
    SHMB_TRY_VOID(show_batch());
    claims.lock.unlock();
    auto answers = call_batch<SHMBW_OP_QUEUE_HOLD>(*state_.pool->session(), std::span(wanted).subspan(first, count),
                                                   Texts{}, Deadline::after(state_.spec.timeout));
    claims.lock.lock();
    if (!out_.it || out_.lane != claims.lane || out_.serial != claims.serial) return {};  // the caller begins again
    if (!answers) return std::unexpected(answers.error());
    Result<void> outcome;
    for (std::size_t i = 0; i < count; ++i) {
      if (auto held = answers->next()) holds_.book(*which[first + i]);
      else if (outcome) outcome = std::unexpected(held.error());
    }
    if (!outcome) return outcome;
  }
  return {};
}

// The lane and its readers

Sender::~Sender() { *self_ = nullptr; }

std::uint32_t Sender::follow_readers() {
  std::vector<QueueState::Peer> gone;
  const std::uint64_t readers = state_.entry().readers.load(std::memory_order_acquire);
  state_.follow_peers(readers_, readers, gone);
  state_.pool->doorbell().want(readers);
  const auto died = static_cast<std::uint32_t>(std::ranges::count_if(gone, &QueueState::Peer::died));
  ended_.readers_died += died;
  if (!gone.empty() && readers_.empty()) {
    readers_gone_ = true;
    ++ended_.readers_gone;
  }
  return died;
}

// L3: the receiver is gone. Messages that it has not read are dropped.
void Sender::drop_out() {
  if (!out_.it) return;
  if (out_.it->in_flight() != 0) give_up();
  out_.it->give_up_all();
  if (batch_ != nullptr) batch_->unshown = 0;
  out_.it.reset();
  state_.pool->post_finished(out_.lane, out_.serial, SHMBW_LANE_END_SENDER);
  holds_.clear();
  out_ = {};
}

void Sender::retire() {
  *self_ = nullptr;
  if (!out_.it) return;
  // The broker gives the lane to another writer once it is read, and that one reports it.
  state_.pool->retire(std::move(out_.it), out_.lane, out_.serial);
  state_.pool->post_finished(out_.lane, out_.serial, SHMBW_LANE_END_SENDER);
}

void Sender::forget_parent() {
  out_ = {};
  holds_.clear();
  readers_.clear();
  readers_gone_ = given_up_ = false;
  sent_ = drained_ = in_regions_ = 0;
}

void Sender::add_to(QueueFacts& facts) {
  if (out_.it) {
    ++facts.lanes;
    if (!state_.spec.reader) facts.depth = out_.it->in_flight();
    facts.expired += out_.it->expired();
  }
  facts.sent = sent_;
  facts.in_regions = in_regions_;
}

}  // namespace shmb::client
