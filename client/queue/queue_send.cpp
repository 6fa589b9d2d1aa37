// SPDX-License-Identifier: Apache-2.0
// Sending. Everything that can fail happens before the publication: memory is taken, the lane holds the regions, room
// is found. Memory taken for a message that is not sent is given back.
#include <algorithm>
#include <cstring>
#include <new>

#include "base/sys_process.hpp"
#include "client/queue/queue.hpp"
#include "client/region/obtain.hpp"
#include "client/session/call.hpp"

namespace shmb::client {
namespace {

constexpr std::size_t kIdleHolds = 64;
constexpr std::uint64_t kIdleHoldBytes = std::uint64_t{1} << 20;

}  // namespace

Result<void> Queue::may_send() const {
  if (!spec_.writer) return error(Status::denied, "this handle is no writer of queue '" + spec_.name + "'");
  if (pool_->broken()) return std::unexpected(pool_->why_broken());
  if (closed_) return closed_error();
  return {};
}

std::unexpected<Error> Queue::closed_error() const {
  return error(Status::closed, "queue '" + spec_.name + "' is closed: nobody may send");
}

// A reader that sees the queue closed looks at its lanes once more before it reports that. Both looks come after a
// fence (here S4). So either that look finds the message, or this one reports that it does not count as sent.
std::uint64_t Queue::closed_meanwhile(std::uint64_t last) {
  const pool::Stamp stamp = pool::Stamp::of(pool_->view().queue(index_).stamp.load(std::memory_order_acquire));
  if (stamp.serial == serial_ && stamp.state == static_cast<std::uint8_t>(pool::QueueState::open)) [[likely]]
    return 0;
  closed_ = true;
  // Messages that a mpmc queue's readers have not taken are taken back. Readers of other kinds may still get them.
  if (kind_ != pool::QueueKind::mpmc) return last;
  std::uint64_t back = 0;  // they are taken in order: nothing is left before one that was claimed
  while (back != last && out_.it->take_back(back)) ++back;
  return back;
}

Result<void> Queue::show_batch() {
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
bool Queue::readers_have_gone(const Ended& before) {
  const bool gone = std::exchange(readers_gone_, false) || ended_.readers_gone != before.readers_gone;
  if (gone) given_up_ = false;
  return gone;
}

// True: there is room. False: not now.
Result<bool> Queue::find_room(Claims& claims, const Ended& before) {
  for (;;) {
    if (seen_change_ != pool_->change()) look_around();
    SHMB_TRY_VOID(may_send());
    if (readers_have_gone(before))
      return error(Status::peer_gone,
                   "the last reader of queue '" + spec_.name + "' has gone; send again to wait for newcomers");
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
        return broken_error("a lane");
      case LaneSender::Room::full:
        break;
    }
    if ((flags_ & pool::kQueueExpiring) != 0 && kind_ == pool::QueueKind::mpmc) {
      out_.it->expire(sys::now_monotonic());
      if (out_.it->room() == LaneSender::Room::yes) return true;
    }
    return false;
  }
}

bool Queue::room_there() {
  if (seen_change_ != pool_->change()) look_around();
  return closed_ || readers_gone_ || pool_->broken() || (out_.it && out_.it->room() != LaneSender::Room::full);
}

Result<void> Queue::publish(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline,
                            std::span<Region* const> regions, Wait& wait, Pool::Lock& lock) {
  auto give_back = [&](Error failure) -> Result<void> {
    if (held.slot != pool::kNone) pool_->me().drop(held.slot);
    if (held.list)
      for (std::uint32_t slot : held.list->slots) pool_->me().drop(slot);
    return std::unexpected(std::move(failure));
  };
  const Ended before = ended_;
  Claims claims{*this, regions, lock};
  for (bool late = false;;) {
    // Read before the look: the look may release the lock, and another thread may then move seen_change_ on.
    const std::uint32_t looked = pool_->change();
    auto room = find_room(claims, before);
    if (!room) return give_back(std::move(room.error()));
    if (*room) break;
    if (batch_ != nullptr) {
      if (auto shown = show_batch(); !shown) return give_back(std::move(shown.error()));
      continue;
    }
    if (ended_.readers_died != before.readers_died)
      return give_back({Status::peer_gone,
                        0,
                        {},
                        "a reader of queue '" + spec_.name + "' died while this call waited for room; send again"});
    const std::string why = out_.it
                                ? "all " + std::to_string(cells_) + " cells of queue '" + spec_.name + "' are in use"
                                : "queue '" + spec_.name + "' has no reader yet";
    if (wait.none) return give_back({Status::full, 0, {}, why});
    set_spin();
    std::atomic<std::uint64_t>* const masks[] = {&pool_->view().queue_waiters(index_).writers.mask};
    auto woken = pool_->sleep(
        masks, [&] { return looked != pool_->change() || (out_.it && out_.it->room() != LaneSender::Room::full); },
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
  out_.it->wake_readers();
  if (closed_meanwhile() != 0) return closed_error();
  ++sent_;
  if (!idle_holds_.empty()) drop_idle_holds();
  return {};
}

Result<void> Queue::send(std::span<const std::byte> bytes, std::int64_t wait) {
  SHMB_TRY_VOID(enter());
  Wait until(wait);
  Pool::Lock lock(pool_->me().lock());
  if (bytes.size() <= body_room() && bytes.size() <= pool::kTagMaxInline) [[likely]]
    return publish(static_cast<std::uint8_t>(bytes.size()), bytes, {}, 0, {}, until, lock);
  SHMB_TRY_VOID(may_send());
  SHMB_TRY(fits, has_slots_for(bytes.size(), until, lock));
  if (!fits) return too_large(bytes.size());
  return send_in_slot(bytes, 0, 0, until, lock);
}

bool Queue::send_at_once(std::span<const std::byte> bytes) {
  if (!as_opened()) return false;
  const std::lock_guard lock(pool_->me().lock());
  if (bytes.size() > body_room() || !room_at_once()) return false;
  out_.it->publish(static_cast<std::uint8_t>(bytes.size()), bytes, {}, 0);
  if (closed_meanwhile() != 0) return false;  // send() reports it
  ++sent_;
  return true;
}

bool Queue::send_at_once(const Slot& slot) {
  if (!as_opened()) return false;
  const std::lock_guard lock(pool_->me().lock());
  if (!pool_->usable(slot) || slot.length > pool_->slot_size(slot.index) || !room_at_once()) return false;
  pool::Handle handle{};
  handle.slot = slot.index;
  handle.generation = slot.generation;
  handle.length = slot.length;
  pool_->me().hold(slot.index);
  out_.it->publish(pool::kTagSlot, std::as_bytes(std::span(&handle, 1)), Held{slot.index, nullptr}, 0);
  if (closed_meanwhile() != 0) return false;
  ++sent_;
  if (kind_ == pool::QueueKind::spsc) pool_->look_ahead(slot.index);
  return true;
}

std::unexpected<Error> Queue::too_large(std::uint64_t bytes) const {
  const std::string what = "the message has " + std::to_string(bytes) + " bytes; queue '" + spec_.name + "' takes " +
                           std::to_string(body_room()) + " inline";
  if (pool_->largest_class() == 0)
    return error(Status::invalid, what +
                                      " and its pool has no slots: open the queue in a pool with slots that "
                                      "large, or send a region (shmb_create)");
  return error(Status::invalid, what + ", and the largest slots of its pool have " +
                                    std::to_string(pool_->largest_class()) + ": send a region (shmb_create)");
}

// Only where the pool has slots that large.
Result<void> Queue::send_in_slot(std::span<const std::byte> bytes, std::uint64_t type, std::int64_t deadline,
                                 Wait& wait, Pool::Lock& lock) {
  SHMB_TRY(slot, take_slot(bytes.size(), wait, lock));
  Error why;
  std::byte* const to = pool_->data(slot, &why);
  if (to == nullptr) {
    pool_->me().drop(slot);
    return std::unexpected(std::move(why));
  }
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  pool::Handle handle{};
  handle.slot = slot;
  handle.generation = pool_->me().generation(slot);
  handle.length = bytes.size();
  handle.type = type;
  return publish(pool::kTagSlot, std::as_bytes(std::span(&handle, 1)), Held{slot, nullptr}, deadline, {}, wait, lock);
}

Result<void> Queue::send(const Slot& slot, std::int64_t wait) {
  SHMB_TRY_VOID(enter());
  Wait until(wait);
  Pool::Lock lock(pool_->me().lock());
  SHMB_TRY_VOID(may_send());
  SHMB_TRY_VOID(pool_->check(slot));
  if (slot.length > pool_->slot_size(slot.index))
    return error(Status::invalid, "the length (" + std::to_string(slot.length) + ") is more than the slot has (" +
                                      std::to_string(pool_->slot_size(slot.index)) + ")");
  pool::Handle handle{};
  handle.slot = slot.index;
  handle.generation = slot.generation;
  handle.length = slot.length;
  pool_->me().hold(slot.index);
  return publish(pool::kTagSlot, std::as_bytes(std::span(&handle, 1)), Held{slot.index, nullptr}, 0, {}, until, lock);
}

Result<void> Queue::check_part(OutPart& part) {
  switch (part.kind) {
    case PartKind::bytes:
      if (part.data == nullptr && part.length != 0) return error(Status::invalid, "a part has a length and no data");
      return {};
    case PartKind::slot: {
      SHMB_TRY_VOID(pool_->check(part.slot));
      const std::uint64_t size = pool_->slot_size(part.slot.index);
      if (part.length == 0 && part.offset <= part.slot.length) part.length = part.slot.length - part.offset;
      if (part.offset > size || part.length > size - part.offset)
        return error(Status::invalid, "a part reaches beyond its slot of " + std::to_string(size) + " bytes");
      if ((part.rights & ~static_cast<std::uint32_t>(SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE)) != 0)
        return error(Status::invalid, "a slot in a message has the rights read, or read and write");
      return {};
    }
    case PartKind::region: {
      if (part.region == nullptr) return error(Status::invalid, "a part of kind region has no region");
      if (&part.region->session() != pool_->session().get())
        return error(Status::invalid, "a region of another session: only those of the queue's own session can be sent");
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

Result<void> Queue::send(std::span<const OutPart> given, std::uint64_t type, std::int64_t lifetime, std::int64_t wait) {
  SHMB_TRY_VOID(enter());
  Wait until(wait);
  Pool::Lock lock(pool_->me().lock());
  return send_parts(given, type, lifetime, until, lock);
}

// As many as follow each other and find room, after one look at the queue.
void Queue::put_plain(const Plain& plain, std::size_t count, Batch& batch) {
  if (!room_at_once()) return;
  const std::size_t most = std::min<std::size_t>(body_room(), pool::kTagMaxInline);
  do {
    const auto bytes = plain(batch.sent);
    if (!bytes || bytes->size() > most) return;
    out_.it->put(static_cast<std::uint8_t>(bytes->size()), *bytes, {}, 0);
    ++batch.unshown;
    ++batch.sent;
    ++sent_;
  } while (batch.sent != count && out_.it->room() == LaneSender::Room::yes);
}

Result<void> Queue::send_many(std::size_t count, const std::function<Result<Outgoing>(std::size_t)>& next,
                              std::int64_t wait, std::size_t& sent, const Plain& plain) {
  sent = 0;
  SHMB_TRY_VOID(enter());
  Wait until(wait);
  (void)until.until();  // counted from here, not from the first message that waits
  Pool::Lock lock(pool_->me().lock());
  Batch batch;
  struct Shown {  // also if the next message throws
    Queue& queue;
    Batch& batch;
    std::size_t& sent;
    ~Shown() {
      queue.batch_ = &batch;
      try {
        (void)queue.show_batch();
      } catch (...) {  // a wake may ask the broker; the caller gets the first exception
      }
      queue.batch_ = nullptr;
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
  if (!idle_holds_.empty()) drop_idle_holds();
  return outcome;
}

Result<bool> Queue::has_slots_for(std::uint64_t bytes, Wait& wait, Pool::Lock& lock) {
  if (bytes > pool_->largest_class()) SHMB_TRY_VOID(show_batch());
  return pool_->has_slots_for(bytes, wait, lock);
}

Result<std::uint32_t> Queue::take_slot(std::uint64_t bytes, Wait& wait, Pool::Lock& lock) {
  if (batch_ != nullptr) {
    const auto slot = pool_->take_at_once(bytes);
    if (slot && pool_->is_mapped(*slot)) return *slot;
    if (auto shown = show_batch(); !shown) {
      if (slot) pool_->me().drop(*slot);
      return std::unexpected(shown.error());
    }
    if (slot) return *slot;
  }
  return pool_->take(bytes, wait, lock);
}

Result<void> Queue::send_parts(std::span<const OutPart> given, std::uint64_t type, std::int64_t lifetime, Wait& until,
                               Pool::Lock& lock) {
  if (given.empty()) return error(Status::invalid, "a message has at least one part (which may be empty)");
  if (given.size() > kMostParts)
    return error(Status::invalid,
                 "a message has at most " + std::to_string(kMostParts) + " parts, not " + std::to_string(given.size()));
  if (lifetime == kForever) lifetime = 0;
  if (lifetime < 0)
    return error(Status::invalid, "a message lives for a time above 0, or for ever: 0 is the default, SHMB_FOREVER");
  SHMB_TRY_VOID(may_send());
  if (lifetime != 0 && (flags_ & pool::kQueueExpiring) == 0)
    return error(Status::invalid, "the queue was made without EXPIRING: its messages have no lifetime");
  std::int64_t deadline = 0;
  if (lifetime != 0) {
    const std::int64_t now = sys::now_monotonic();
    deadline = lifetime > INT64_MAX - now ? INT64_MAX : now + lifetime;
  }
  if (given.size() == 1) {
    OutPart part = given[0];
    SHMB_TRY_VOID(check_part(part));
    if (part.kind == PartKind::bytes) {
      if (type == 0 && part.length <= std::min<std::uint64_t>(body_room(), pool::kTagMaxInline))
        return publish(static_cast<std::uint8_t>(part.length), {part.data, part.length}, {}, deadline, {}, until, lock);
      // In a slot the bytes stand without a list, and the cell has room for their type. In a cell they need a list for
      // it.
      if (sizeof(ListHeader) + part.length > body_room()) {
        SHMB_TRY(fits, has_slots_for(part.length, until, lock));
        if (fits) return send_in_slot({part.data, part.length}, type, deadline, until, lock);
      }
    }
    if (part.kind == PartKind::slot && part.rights == 0) {  // rights travel in a list
      pool::Handle handle{};
      handle.slot = part.slot.index;
      handle.generation = part.slot.generation;
      handle.offset = part.offset;
      handle.length = part.length;
      handle.type = type;
      pool_->me().hold(part.slot.index);
      return publish(pool::kTagSlot, std::as_bytes(std::span(&handle, 1)), Held{part.slot.index, nullptr}, deadline, {},
                     until, lock);
    }
    return send_list(std::span(&part, 1), type, deadline, until, lock);
  }
  std::vector<OutPart> parts(given.begin(), given.end());
  for (OutPart& part : parts) SHMB_TRY_VOID(check_part(part));
  return send_list(parts, type, deadline, until, lock);
}

Result<void> Queue::send_list(std::span<OutPart> parts, std::uint64_t type, std::int64_t deadline, Wait& wait,
                              Pool::Lock& lock) {
  const auto need = list_bytes(parts);
  if (!need) return error(Status::invalid, "the bytes of the message are more than a region can have");
  Held held;
  std::vector<Region*> regions;
  held.list = std::make_unique<HeldList>();
  for (const OutPart& part : parts)
    if (part.kind == PartKind::slot) {
      pool_->me().hold(part.slot.index);
      held.list->slots.push_back(part.slot.index);
    } else if (part.kind == PartKind::region) {
      regions.push_back(part.region);
    }
  auto give_back = [&](Error failure) -> Result<void> {
    for (std::uint32_t slot : held.list->slots) pool_->me().drop(slot);
    return std::unexpected(std::move(failure));
  };
  auto finish_held = [&] {
    for (Region* region : regions) held.list->regions.push_back(region->ref().id);
    if (held.list->slots.empty() && held.list->regions.empty()) held.list.reset();
  };

  if (*need <= body_room()) {
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
    std::byte* const to = pool_->data(*slot, &why);
    if (to == nullptr) return give_back(std::move(why));
    write_list(parts, type, {to, *need});
    handle.slot = *slot;
    handle.generation = pool_->me().generation(*slot);
    finish_held();
    return publish(pool::kTagListInSlot, std::as_bytes(std::span(&handle, 1)), std::move(held), deadline, regions, wait,
                   lock);
  }
  // Larger than every slot: a region carries it. The lane holds the region from now on.
  CreateItem item;
  item.length = *need;
  item.group = pool_->group();
  item.flags = SHMBW_CREATE_MANY_WRITERS;
  if (auto shown = show_batch(); !shown) return give_back(std::move(shown.error()));
  lock.unlock();
  auto region = create_region(pool_->session(), item);
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

// Regions. The lane holds each once, however many messages name it.

void Queue::Claims::take() {
  if (lane == queue.out_.lane && serial == queue.out_.serial) return;
  for (Region* region : regions) queue.holds_.try_emplace(region->ref().id);  // all, before any is counted
  lane = queue.out_.lane;
  serial = queue.out_.serial;
  for (Region* region : regions) {
    LaneHold& hold = queue.holds_.at(region->ref().id);
    hold.generation = region->ref().generation;
    hold.bytes = region->facts().bytes;
    ++hold.in_flight;
  }
}

// The message was not sent. A hold whose reply did not come is dropped with the others, because the broker may have
// booked it.
Queue::Claims::~Claims() {
  if (lane == pool::kNone) return;
  if (!lock.owns_lock()) lock.lock();
  if (!queue.out_.it || queue.out_.lane != lane || queue.out_.serial != serial) return;
  try {
    for (Region* region : regions) queue.let_go_region(region->ref().id);
  } catch (const std::bad_alloc&) {  // then the lane has them for as long as it lives
  }
}

Result<void> Queue::hold_regions(const Claims& claims) {
  Pool::Lock& lock = claims.lock;
  std::vector<shmbw_queue_hold> wanted;
  std::vector<Region*> which;
  const auto id_of = [](const Region* region) { return region->ref().id; };
  for (Region* region : claims.regions)
    if (holds_.at(id_of(region)).handle != region->serial()) which.push_back(region);
  std::ranges::sort(which, {}, id_of);
  which.erase(std::ranges::unique(which, {}, id_of).begin(), which.end());
  for (const Region* region : which) {
    shmbw_queue_hold hold{};
    hold.pool = pool_->id();
    hold.lane = out_.lane;
    hold.serial = out_.serial;
    hold.region = region->ref();
    wanted.push_back(hold);
  }
  const std::size_t most = SHMBW_MAX_BATCH;
  for (std::size_t first = 0; first < wanted.size(); first += most) {
    const std::size_t count = std::min(most, wanted.size() - first);
    SHMB_TRY_VOID(show_batch());
    lock.unlock();
    auto answers = call_batch<SHMBW_OP_QUEUE_HOLD>(*pool_->session(), std::span(wanted).subspan(first, count), Texts{},
                                                   Deadline::after(spec_.timeout));
    lock.lock();
    if (!out_.it || out_.lane != claims.lane || out_.serial != claims.serial) return {};  // the caller begins again
    if (!answers) return std::unexpected(answers.error());
    Result<void> outcome;
    for (std::size_t i = 0; i < count; ++i) {
      const Region& region = *which[first + i];
      if (auto held = answers->next()) holds_.at(region.ref().id).handle = region.serial();
      else if (outcome) outcome = std::unexpected(held.error());
    }
    if (!outcome) return outcome;
  }
  return {};
}

void Queue::let_go_region(std::uint64_t id) {
  auto known = holds_.find(id);
  if (known == holds_.end() || known->second.in_flight == 0 || --known->second.in_flight != 0) return;
  idle_holds_.push_back(id);
  idle_bytes_ += known->second.bytes;
}

void Queue::let_go(Held&& held) {
  if (!held.list) return;
  for (std::uint64_t id : held.list->regions) let_go_region(id);
}

// No reply is needed. A region that is sent again and again stays held, unless it is large.
void Queue::drop_idle_holds() {
  if (idle_holds_.size() < kIdleHolds && idle_bytes_ < kIdleHoldBytes) return;
  std::vector<shmbw_queue_hold> drops;
  for (std::uint64_t id : idle_holds_) {
    auto known = holds_.find(id);
    if (known == holds_.end() || known->second.in_flight != 0) continue;
    shmbw_queue_hold drop{};
    drop.pool = pool_->id();
    drop.lane = out_.lane;
    drop.serial = out_.serial;
    drop.region = {id, known->second.generation, 0};
    drop.flags = SHMBW_QUEUE_HOLD_DROP;
    drops.push_back(drop);
    holds_.erase(known);
  }
  idle_holds_.clear();
  idle_bytes_ = 0;
  (void)post<SHMBW_OP_QUEUE_HOLD>(*pool_->session(), drops, Deadline::after(0));
}

Result<void> Queue::drain(std::int64_t wait) {
  SHMB_TRY_VOID(enter());
  if (!spec_.writer) return error(Status::denied, "this handle is no writer of queue '" + spec_.name + "'");
  Wait until(wait);
  Pool::Lock lock(pool_->me().lock());
  const Ended before = ended_;
  for (;;) {
    if (seen_change_ != pool_->change()) look_around();
    const std::uint32_t looked = seen_change_;
    // Messages that were taken stay taken, even if its readers have gone since: the next send reports that.
    const bool given_up = given_up_ || ended_.given_up != before.given_up;
    if (!given_up && (!out_.it || out_.it->in_flight() == 0)) {
      if (out_.it) out_.it->reclaim();
      drained_ = sent_;
      idle_bytes_ = std::max(idle_bytes_, idle_holds_.empty() ? 0 : kIdleHoldBytes);
      drop_idle_holds();
      return {};
    }
    given_up_ = false;
    if (!idle_holds_.empty()) drop_idle_holds();  // the rest may be taken late, or never
    if (readers_have_gone(before))
      return error(Status::peer_gone,
                   "the last reader of queue '" + spec_.name + "' has gone without taking all that was sent");
    if (given_up)
      return error(Status::peer_gone,
                   "a reader of queue '" + spec_.name + "' has gone without taking all that was sent");
    if (ended_.readers_died != before.readers_died)
      return error(Status::peer_gone, "a reader of queue '" + spec_.name + "' died while this call waited");
    if (until.none) return error(Status::full, std::to_string(out_.it->in_flight()) + " messages are not taken yet");
    set_spin();
    std::atomic<std::uint64_t>* const masks[] = {&pool_->view().queue_waiters(index_).writers.mask};
    SHMB_TRY(woken, pool_->sleep(
                        masks, [&] { return looked != pool_->change() || !out_.it || out_.it->in_flight() == 0; },
                        until.until()));
    if (!woken)
      return error(Status::deadline,
                   std::to_string(out_.it->in_flight()) + " messages were not taken before the deadline");
  }
}

}  // namespace shmb::client
