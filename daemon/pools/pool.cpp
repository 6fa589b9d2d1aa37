// SPDX-License-Identifier: Apache-2.0
// Life of a pool: charged whole, made, sealed and mapped; joined, left, repaired; closed with its group; gone with its
// last holder. A page of its two areas is touched only when a word in it is needed.
//
// The states of a participant (pool::ParticipantState) and what leads to each:
// - free: no word of the control area names an earlier life of this index.
// - joining, live: admit(), in one request. The index has a new life.
// - left, dead: part(). The process has said goodbye, or the kernel reported its end. From then on the Repair of this
//   life works in portions, by the timer of the pool, until it finds the index clean.
//
// Each change of the directory ends with pool_changed(). It moves one word and wakes all participants, so that they
// read the directory again. The order is always: the tables first, then that word.
#include "daemon/pools/pool.hpp"

#include <fcntl.h>

#include <algorithm>
#include <climits>

#include "base/compat.hpp"
#include "base/rescue.hpp"
#include "base/sys_futex.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/create.hpp"
#include "daemon/ledger/grant.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/pools/pools.hpp"
#include "proto/names.hpp"
#include "proto/refusal.hpp"

namespace shmb::daemon {

using pool::Broken;
using pool::ParticipantState;

namespace {

// Cache lines of repair in one turn of the loop: some 0.1 ms, in which others wait.
constexpr std::size_t kPortion = 4096;
// No event reports that a message was taken or has expired. So waiting repairs look again, at growing intervals.
constexpr std::int64_t kRetryFirst = 20'000'000, kRetryLast = 1'000'000'000;
constexpr std::uint64_t kDescriptors = 2, kRegions = kRegionsOfPool;

// The directory has mode 0400 and no seal against writing: a later broker maps this descriptor for writing. Clients get
// one that was opened for reading. Whoever can write the directory in spite of its mode misleads its readers, and not
// the broker, which never reads it (pool_tables.hpp).
constexpr unsigned kDirectoryMode = 0400, kControlMode = 0600;

Result<PoolArea> make_area(const char* label, std::uint64_t bytes, bool no_exec, unsigned mode) {
  SHMB_TRY(fd, make_memory({label, bytes, no_exec, false}));
  if (auto set = sys::set_mode(fd.get(), mode); !set)
    return system_failure(set.error(), "setting the mode of the control memory of a pool");
  auto map = Mapping::map(fd.get(), 0, bytes, Access::read_write);
  if (!map) return system_failure(map.error(), "mapping the control memory of a pool");
  if (auto sealed = sys::add_seals(fd.get(), F_SEAL_SEAL); !sealed)
    return system_failure(sealed.error(), "sealing the control memory of a pool");
  return PoolArea{std::move(fd), std::move(*map)};
}

pool::Shape shape_of(const shmbw_pool_create& wish) {
  pool::Shape shape;
  shape.slots = wish.slots;
  if (wish.lanes != 0) shape.lanes = wish.lanes;
  if (wish.queues != 0) shape.queues = wish.queues;
  if (wish.segments != 0) shape.segments = wish.segments;
  if (wish.lane_bytes != 0) shape.lane_bytes = wish.lane_bytes;
  return shape;
}

Result<void> check_shape(const pool::Shape& shape) {
  auto most = [](const char* what, std::uint64_t asked, std::uint64_t limit) {
    return error(Status::invalid,
                 "a pool has at most " + std::to_string(limit) + " " + what + ", not " + std::to_string(asked));
  };
  if (shape.slots > pool::kMaxSlots) return most("slots", shape.slots, pool::kMaxSlots);
  if (shape.lanes > pool::kMaxLanes) return most("lanes", shape.lanes, pool::kMaxLanes);
  if (shape.queues > pool::kMaxQueues) return most("queues", shape.queues, pool::kMaxQueues);
  if (shape.segments > pool::kMaxSegments) return most("segments", shape.segments, pool::kMaxSegments);
  if (shape.lane_bytes > pool::kMaxControlBytes)
    return most("bytes of lanes", shape.lane_bytes, pool::kMaxControlBytes);
  if (!pool::valid(shape))
    return most("bytes of control memory (slots, queues and lanes together)", pool::control_bytes(shape),
                pool::kMaxControlBytes);
  return {};
}

void show_segment(const Pool& pool, std::uint32_t index) {
  const Segment& segment = pool.segments[index];
  pool::SegmentEntry& entry = pool.view.segment(index);
  entry.first_slot = segment.first_slot;
  entry.slots = segment.slots;
  entry.generation = segment.region->generation;
  entry.region = segment.region->id;
  entry.slot_size = segment.slot_size;
  entry.stride = pool::stride_of(segment.slot_size);
  entry.slots_limit = segment.slots_limit;
  entry.in_use.store(1, std::memory_order_release);
}

void set_stamp(Pool& pool, std::uint32_t index, ParticipantState state) {
  Participant& who = pool.participants[index];
  who.state = state;
  changed(who);
  pool.show_participant(index, who.life, state);
}

Result<void> may_join(const Session& session, const Pool* pool) {
  // The kernel named another process, which has ended. No event would report the end of the process that asks.
  if (session.process_gone)
    return error(Status::forked, "the process of this session has ended; connect again to join a pool");
  if (pool && session.pools.contains(pool->id))
    return std::unexpected(Error{Status::busy,
                                 0,
                                 {.scope_id = pool->id},  // the library finds the pool by this, for any address
                                 "this session has joined pool " + pool->text() + " already"});
  return {};
}

// A clean index: no bit, no claim and no place in a ring is left of its last life.
void admit(Pools& pools, Session& session, Pool& pool, std::uint32_t index, bool read_only) {
  Participant& who = pool.participants[index];
  ++who.life;
  who.session = &session;
  who.uid = session.uid;
  who.pid = session.pid;
  who.read_only = read_only;
  who.serial = ++pools.host.last_serial;
  who.state = ParticipantState::live;
  changed(who);
  session.pools.try_emplace(pool.id, static_cast<std::uint8_t>(index));
  pool.view.wait(index).sleep.store(0, std::memory_order_relaxed);
  give(pool, Gift::What::participant, index);
  pool.tell_peers();
}

void show_participant(Pool& pool, std::uint32_t index) {
  const Participant& who = pool.participants[index];
  if (who.state == ParticipantState::live) pool.show_participant(index, who.life, ParticipantState::joining);
  pool.view.participant(index).pid = who.pid;
  pool.show_participant(index, who.life, who.state);
}

void show(Pool& pool, const Gift& given) {
  switch (given.what) {
    case Gift::What::segment:
      return show_segment(pool, given.index);
    case Gift::What::queue:
      return pool.enter_queue(given.index);
    case Gift::What::ends:
      return pool.show_queue(given.index);
    case Gift::What::lane:
      return pool.enter_lane(given.index);
    case Gift::What::participant:
      return show_participant(pool, given.index);
    case Gift::What::doorbells:
      return pool.show_doorbells();
  }
}

void close_doorbell(Pools& pools, Participant& who) {
  if (!who.doorbell) return;
  changed(who);
  pools.accounts.client_files.hold(who.doorbell_of, std::move(who.doorbell));
  --pools.accounts.open_descriptors;
  --pools.accounts.uids.at(who.doorbell_of).doorbells;
  pools.accounts.drop_uid(who.doorbell_of);
  pools.host.descriptor_freed();
}

// The dead broker may have stopped between any two stores. An entry that is right is written over with the same words,
// so a participant that reads it meanwhile is not misled. What is shown and in no record never became valid.
void show_all(Pool& pool) {
  for (std::uint32_t i = 0; i < pool.segments.size(); ++i) show_segment(pool, i);
  for (std::uint32_t i = static_cast<std::uint32_t>(pool.segments.size()); i < pool.view.segments(); ++i)
    pool.view.segment(i).in_use.store(0, std::memory_order_release);
  for (std::uint32_t i = 0; i < pool.queues.size(); ++i) pool.enter_queue(i);
  for (std::uint32_t i = 0; i < pool.lanes.size(); ++i) pool.enter_lane(i);
  for (std::uint32_t i = 0; i < pool.participants.size(); ++i) {
    const Participant& who = pool.participants[i];
    pool.view.participant(i).pid = who.pid;
    pool.show_participant(i, who.life, who.state);
  }
  pool.show_doorbells();
  pool.show_broken();
}

// D1 at once. The repair then continues for one portion here, and in later turns of the loop.
void part(Pools& pools, Pool& pool, std::uint32_t index, ParticipantState as) {
  Participant& who = pool.participants[index];
  if (who.session && pool.making.session == who.session->id) pool.making = {};
  who.session = nullptr;
  who.state = as;
  changed(who);
  pool.doorbells &= ~(std::uint64_t{1} << index);
  pool.show_doorbells();
  close_doorbell(pools, who);
  begin_repair(pool, index);
  who.repair->run(0, sys::now_monotonic(), pool);
  drop_ends(pool, index, as == ParticipantState::dead);
  if (as == ParticipantState::dead) ++pool.deaths;
  changed(pool);
  pool_changed(pool);
  pool.retry = 0;
  pool.look_again = true;
  pools.host.timers.set(pool, pools.host.now());
}

// Freeing many pages takes some 0.1 us for each, so a helper thread does it. False: it is done here, after the commit.
bool close_areas_elsewhere(Pools& pools, Pool& pool) {
  const bool large = pool.control_map.size() >= kClosePoolElsewhereFrom;
  std::vector<Mapping> maps;
  std::vector<Fd> fds;
  pool.view = {};
  for (Mapping* map : {&pool.directory_map, &pool.control_map}) maps.push_back(std::move(*map));
  for (Fd* fd : {&pool.directory, &pool.control}) fds.push_back(std::move(*fd));
  if (!large || !pools.regions.closer.close(fds, maps, pool.id)) {
    for (Fd& fd : fds) pools.regions.closer.close_here(std::move(fd));
    return false;
  }
  ClosingPool& closing = pools.regions.closing_pools.try_emplace(pool.id).first->second;
  closing.uid = pool.group->uid;
  closing.descriptors = kDescriptors;
  closing.bytes = std::move(pool.bytes_charge);
  closing.regions = std::move(pool.regions_charge);
  closing.bytes.rise();
  closing.regions.rise();
  pools.accounts.hold_uid(closing.uid);
  return true;
}

void destroy(Pools& pools, Pool& pool) {
  Group& group = *pool.group;
  if (pool.broken == Broken::no) break_pool(pool, Broken::broker_ended);  // for processes that still map it
  drop_lanes(pools, pool);
  Books& books = pools.host.books;
  for (Segment& segment : pool.segments) {
    Region& region = *segment.region;
    books.store.erase<books::SegmentRecord>(segment.place);
    --region.pool_holds;
    region.segment_of = 0;
    changed(region);
    release_region(pools.regions, region);
  }
  pool.segments.clear();
  for (Participant& who : pool.participants) {
    close_doorbell(pools, who);
    books.end<books::ParticipantRecord>(books.participants, who);
  }
  for (QueueBook& queue : pool.queues) books.end<books::QueueRecord>(books.queues, queue);
  for (LaneBook& lane : pool.lanes) books.end<books::LaneRecord>(books.lanes, lane);
  if (!pool.name.empty()) group.pool_names.erase(pool.name);
  group.pools.remove(pool);
  if (!close_areas_elsewhere(pools, pool)) pools.accounts.open_descriptors -= kDescriptors;
  books.end<books::PoolRecord>(books.pools, pool);
  pools.all.erase(pool.id);
  pools.host.descriptor_freed();
  if (!group.in_service) settle_group(pools.groups, group);
}

}  // namespace

Pool::Pool(Pools& owner, std::uint64_t number, Group& of) : pools(owner), id(number), group(&of) {
  for (Participant& who : participants) who.pool = this;
}

static void store_broken(Pool& pool, Broken why) {
  pool.broken = why;
  pool.show_broken();
  pool_changed(pool);
}

// Also at the end of the broker: sleepers must learn that repair has ended. Nothing is written down any more.
Pool::~Pool() {
  for (Participant& who : participants) who.session = nullptr;
  if (view && broken == Broken::no) store_broken(*this, Broken::broker_ended);
}

void changed(Pool& pool) { pool.pools.host.books.pools.note(pool); }
void changed(Participant& participant) { participant.pool->pools.host.books.participants.note(participant); }
void changed(QueueBook& queue) { queue.pool->pools.host.books.queues.note(queue); }
void changed(LaneBook& lane) { lane.pool->pools.host.books.lanes.note(lane); }

std::uint64_t Pool::live() const {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < participants.size(); ++i)
    if (participants[i].state == ParticipantState::live) mask |= std::uint64_t{1} << i;
  return mask;
}

std::uint64_t Pool::bytes() const {
  std::uint64_t sum = bytes_charge.amount();
  for (const Segment& segment : segments) sum += segment.region->bytes;
  return sum;
}

bool Pool::receivers_done(std::uint32_t lane) { return lane_received(*this, lane); }

// Steps Z1 to Z5 of the sleeper against these three. The sleeper's event changes before the broker looks whether it
// sleeps. So the sleeper sees the change when it checks its sources again, or does not sleep.
void Pool::wake_sleepers() {
  for (std::uint32_t i = 0; i < participants.size(); ++i) {
    if (participants[i].state != ParticipantState::live) continue;
    pool::WaitEntry& wait = view.wait(i);
    wait.event.fetch_add(1, std::memory_order_seq_cst);
    if ((wait.sleep.load(std::memory_order_seq_cst) & pool::kSleepFutex) != 0)
      (void)sys::futex_wake(wait.event, INT_MAX);
  }
}

void Pool::tell_peers() {
  for (const Participant& who : participants)
    if (who.state == ParticipantState::live && who.has_doorbell() && who.session) tell_pool_changed(*who.session, id);
}

void Pool::wake_peers() {
  wake_sleepers();
  tell_peers();
}

void pool_changed(Pool& pool) {
  pool.show_change();
  pool.wake_peers();
}

void give(Pool& pool, Gift::What what, std::uint32_t index) { pool.pools.given.push_back({pool.id, what, index}); }

// A pool that has ended meanwhile has no directory any more.
void show_given(Pools& pools) {
  for (const Gift& given : pools.given)
    if (Pool* const pool = find_pool(pools, given.pool)) show(*pool, given);
  // Each pool once.
  for (auto at = pools.given.begin(); at != pools.given.end(); ++at) {
    Pool* const pool = find_pool(pools, at->pool);
    if (!pool || std::find_if(pools.given.begin(), at, [&](const Gift& other) { return other.pool == at->pool; }) != at)
      continue;
    pool->show_change();
    pool->wake_sleepers();
  }
  pools.given.clear();
}

void break_pool(Pool& pool, Broken why) {
  changed(pool);
  store_broken(pool, why);
}

Error refuse_in_pool(const Pool& pool, shmbw_slot slot, std::uint64_t limit, std::uint64_t used, std::uint64_t asked,
                     std::string_view remedy) {
  return wire::limit_refusal({static_cast<std::uint16_t>(slot), SHMBW_SCOPE_POOL, pool.id, limit, used, asked},
                             "pool " + pool.text(), remedy);
}

Result<void> usable(const Pool& pool) {
  switch (pool.broken) {
    case Broken::no:
      return {};
    case Broken::group_ended:
      return error(Status::group_ended, "the group of pool " + pool.text() + " has ended, and the pool with it");
    case Broken::broker_ended:
      return error(Status::broken, "pool " + pool.text() + " has ended with the broker before this one");
    default:
      return error(Status::broken, "a participant has written impossible words into pool " + pool.text());
  }
}

Result<Joined> place_in(Pools& pools, Session& session, std::uint64_t id) {
  auto at = session.pools.find(id);
  Pool* pool = at == session.pools.end() ? nullptr : find_pool(pools, id);
  if (!pool)
    return error(Status::not_found, "no pool " + std::to_string(id) + " that this session has joined: join it first");
  return Joined{pool, at->second};
}

Result<Joined> usable_place_in(Pools& pools, Session& session, std::uint64_t id) {
  auto place = place_in(pools, session, id);
  if (!place) return place;
  SHMB_TRY_VOID(usable(*place->pool));
  return place;
}

void lanes_changed(Pools& pools, Pool& pool) {
  if (settle_lanes(pools, pool)) pool_changed(pool);
  pool.look_again = true;
  for (const Participant& who : pool.participants)
    if (who.repair) return pools.host.timers.set(pool, pools.host.now());
}

Pool* find_pool(Pools& pools, std::uint64_t id) {
  auto at = pools.all.find(id);
  return at == pools.all.end() ? nullptr : &at->second;
}

Pool& add_pool(Pools& pools, PoolParts parts) {
  Pool& pool = pools.all.try_emplace(parts.id, pools, parts.id, parts.group).first->second;
  pool.name = parts.name;
  pool.lane_bytes = parts.shape.lane_bytes;
  pool.directory = std::move(parts.directory.fd);
  pool.directory_map = std::move(parts.directory.map);
  pool.control = std::move(parts.control.fd);
  pool.control_map = std::move(parts.control.map);
  pool.regions_charge = std::move(parts.regions_charge);
  pool.bytes_charge = std::move(parts.bytes_charge);
  pool.name_charge = std::move(parts.name_charge);
  pool.begin(pool::lay_out(parts.shape, pools.host.facts.epoch, parts.id,
                           {pool.directory_map.data(), pool.directory_map.size()},
                           {pool.control_map.data(), pool.control_map.size()}));
  for (QueueBook& queue : pool.queues) queue.pool = &pool;
  for (LaneBook& lane : pool.lanes) lane.pool = &pool;
  pools.accounts.open_descriptors += kDescriptors;
  parts.group.pools.push_back(pool);
  if (!pool.name.empty()) parts.group.pool_names.try_emplace(pool.name, &pool);
  changed(pool);
  return pool;
}

Result<Joined> make_pool(Pools& pools, Session& session, const shmbw_pool_create& wish, std::string_view name) {
  if ((wish.flags & ~std::uint32_t{SHMBW_POOL_KEEP_GIVEN | SHMBW_POOL_REPLACE | SHMBW_POOL_NAME_WITH_HOLDERS}) != 0)
    return error(Status::unknown_flags, "pool_create takes no flags but keep_given, replace and name_with_holders");
  const bool replace = (wish.flags & SHMBW_POOL_REPLACE) != 0;
  if (replace && name.empty()) return error(Status::invalid, "replace needs a name");
  const bool keep_given = (wish.flags & SHMBW_POOL_KEEP_GIVEN) != 0;
  const bool with_holders = (wish.flags & SHMBW_POOL_NAME_WITH_HOLDERS) != 0;
  if (with_holders && name.empty()) return error(Status::invalid, "name_with_holders needs a name");
  if (with_holders && keep_given)
    return error(Status::invalid,
                 "a name that goes with the last participant is not kept: leave one of the two flags out");
  if (!keep_given && wish.keep != 0) return error(Status::invalid, "keep without the flag keep_given");
  SHMB_TRY_VOID(check_keep(pools.host, wish.keep, !name.empty()));
  if (!name.empty()) SHMB_TRY_VOID(names::check(name, "pool name"));
  const pool::Shape shape = shape_of(wish);
  SHMB_TRY_VOID(check_shape(shape));
  SHMB_TRY_VOID(may_join(session, nullptr));
  SHMB_TRY(found, group_for_create(pools.regions, session, wish.group));
  Group& group = *found;
  const auto taken = name.empty() ? group.pool_names.end() : group.pool_names.find(name);
  Pool* const old = taken == group.pool_names.end() ? nullptr : taken->second;
  if (old && !replace)
    return error(Status::exists, "the name '" + std::string(name) + "' is taken by a pool of group " + group.text() +
                                     ": open that one, use another name, or replace it");

  Charge name_charge;
  if (!name.empty() && !old) {
    auto charge = group.account.charge(Resource::names, 1);
    if (!charge) return std::unexpected(refuse_limit(pools.groups, session, charge.error()));
    name_charge = std::move(*charge);
  }
  SHMB_TRY_VOID(room_for_descriptors(pools.regions, session, group.uid, kDescriptors));
  SHMB_TRY(regions_charge, charge_group(pools.regions, session, group, Resource::regions, kRegions));
  const std::uint64_t directory_bytes = pool::directory_bytes(shape), control_bytes = pool::control_bytes(shape);
  SHMB_TRY(bytes_charge, charge_group(pools.regions, session, group, Resource::bytes, directory_bytes + control_bytes));

  const std::uint64_t id = ++pools.regions.last_id, control_id = ++pools.regions.last_id;
  names::MemfdName label;
  names::write_memfd_name(label, {pools.host.facts.epoch, id, 1, group.uid, group.name, name, group.id});
  SHMB_TRY(directory, make_area(label.data(), directory_bytes, pools.host.facts.exec_seal, kDirectoryMode));
  names::write_memfd_name(label, {pools.host.facts.epoch, control_id, 1, group.uid, group.name, name, group.id});
  SHMB_TRY(control, make_area(label.data(), control_bytes, pools.host.facts.exec_seal, kControlMode));

  if (old) {  // nothing can fail any more
    name_charge = std::move(old->name_charge);
    unname_pool(*old);
  }
  Pool& pool = add_pool(pools, {.id = id,
                                .group = group,
                                .name = name,
                                .shape = shape,
                                .directory = std::move(directory),
                                .control = std::move(control),
                                .regions_charge = std::move(regions_charge),
                                .bytes_charge = std::move(bytes_charge),
                                .name_charge = std::move(name_charge)});
  pool.name_with_holders = with_holders;
  pool.owner_uid = group.uid;
  pool.created = pools.host.now();
  pool.keep = keep_given ? wish.keep : group.keep;
  sponsor_group(session, group);
  admit(pools, session, pool, 0, false);
  if (old) settle_pool(pools, *old);
  if (!name.empty()) tell_pool_name(pools.regions.watches, group, name, id);
  return Joined{&pool, 0};
}

Result<Joined> join_pool(Pools& pools, Session& session, Pool& pool, bool read_only) {
  SHMB_TRY_VOID(may_join(session, &pool));
  SHMB_TRY_VOID(usable(pool));
  std::uint32_t index = 0;
  while (index < pool::kParticipants && pool.participants[index].state != ParticipantState::free) ++index;
  if (index == pool::kParticipants)
    return std::unexpected(refuse_in_pool(pool, SHMBW_SLOT_PARTICIPANTS, index, index, 1,
                                          "places of the dead are free again when their messages have been read"));
  admit(pools, session, pool, index, read_only);
  return Joined{&pool, index};
}

std::uint32_t leave_pool(Pools& pools, Pool& pool, std::uint32_t index) {
  pool.participants[index].session->pools.erase(pool.id);
  part(pools, pool, index, ParticipantState::left);
  const std::uint32_t unread = unread_lanes(pool, index);
  settle_pool(pools, pool);
  return unread;
}

Result<Cut> add_segment(Pools& pools, Session& session, Pool& pool, const shmbw_pool_segment& wish) {
  Region* region = pools.regions.find(wish.region.id);
  Lease* lease = region ? find_lease(session, *region) : nullptr;
  if (!lease) return std::unexpected(no_lease(wish.region.id));
  if (wish.region.generation != 0 && wish.region.generation != region->generation)
    return std::unexpected(stale_region(region->id, wish.region.generation, region->generation));
  if (region->group != pool.group)
    return error(Status::invalid, "the region belongs to another group than pool " + pool.text());
  if (!lease->writes() || region->sealed())
    return error(Status::denied, "the session may not write the region: its slots would be of no use");
  // In system mode the mode bits bind readers in any case.
  if (pools.host.private_mode() && !region->many_writers)
    return error(Status::invalid, "the region was not created with many_writers: its first reader would close writing");
  if (wish.slot_size == 0 || wish.slots == 0) return error(Status::invalid, "a segment has slots of at least 1 byte");
  if (wish.slot_size > region->bytes || pool::stride_of(wish.slot_size) > region->bytes / wish.slots)
    return error(Status::invalid, std::to_string(wish.slots) + " slots of " + std::to_string(wish.slot_size) +
                                      " bytes, each rounded up, do not fit into the region's " +
                                      std::to_string(region->bytes));
  // Two pools would give out the same bytes.
  if (region->segment_of != 0)
    return error(Status::exists,
                 "the region is a segment of pool " +
                     (region->segment_of == pool.id ? pool.text() : names::id_text(region->segment_of)) + " already");
  if (wish.slots > pool.view.slots() - pool.slots)
    return std::unexpected(refuse_in_pool(pool, SHMBW_SLOT_SLOTS, pool.view.slots(), pool.slots, wish.slots,
                                          "make the pool with more slots"));
  if (wish.slots_limit != 0 && wish.slots_limit < wish.slots)
    return error(Status::invalid, "slots_limit (" + std::to_string(wish.slots_limit) + ") is less than slots (" +
                                      std::to_string(wish.slots) + ")");
  const auto index = static_cast<std::uint32_t>(pool.segments.size());
  std::uint32_t limit = 0, of_class = 0;
  for (std::uint32_t i = 0; i < index; ++i) {
    const Segment& other = pool.segments[i];
    if (other.slot_size != wish.slot_size) continue;
    limit = other.slots_limit;
    of_class += other.slots;
  }
  if (of_class != 0 && wish.slots > limit - of_class)
    return std::unexpected(refuse_in_pool(
        pool, SHMBW_SLOT_SLOTS, limit, of_class, wish.slots,
        "make the pool with a larger slots_limit for slots of " + std::to_string(wish.slot_size) + " bytes"));
  if (of_class == 0) limit = wish.slots_limit != 0 ? wish.slots_limit : wish.slots;
  if (index == pool.view.segments())
    return std::unexpected(refuse_in_pool(pool, SHMBW_SLOT_SEGMENTS, index, index, 1,
                                          "make the pool with more segments, or segments with more slots"));
  pool.segments.push_back({region, wish.slot_size, pool.slots, wish.slots, limit});
  give(pool, Gift::What::segment, index);
  changed(pool);
  pool.slots += wish.slots;
  ++region->pool_holds;
  region->segment_of = pool.id;
  region->no_recycle = true;  // participants that died may have mapped it
  changed(*region);
  pool.tell_peers();
  return Cut{index, pool.segments.back().first_slot};
}

Result<void> set_doorbell(Pools& pools, const Session& session, Pool& pool, std::uint32_t index, Fd doorbell) {
  auto refused = [&](Error why) {
    (void)close_elsewhere(pools.accounts, session.uid, std::move(doorbell));
    return std::unexpected(std::move(why));
  };
  if (!sys::is_pair_end(doorbell.get()))
    return refused(plain(Status::invalid, "a doorbell is one end of a socket pair; another kind of descriptor came"));
  Participant& who = pool.participants[index];
  if (!who.doorbell) {
    if (const auto shortage = pools.accounts.descriptor_shortage(session.uid, 1, session.admin))
      return refused(refuse_descriptors(pools.host, *shortage));
    ++pools.accounts.open_descriptors;
    ++pools.accounts.hold_uid(session.uid).doorbells;
  } else {
    pools.accounts.client_files.hold(who.doorbell_of, std::move(who.doorbell));
    --pools.accounts.uids.at(who.doorbell_of).doorbells;
    pools.accounts.drop_uid(who.doorbell_of);
    ++pools.accounts.hold_uid(session.uid).doorbells;
  }
  const std::uint64_t bit = std::uint64_t{1} << index;
  // Peers fetch it before they need it. Then they can also ring while this broker is stopped.
  if ((pool.doorbells & bit) == 0) {
    pool.doorbells |= bit;
    give(pool, Gift::What::doorbells);
    pool.tell_peers();
  }
  who.doorbell = std::move(doorbell);  // a participant is not notified of its own doorbell
  who.doorbell_of = session.uid;
  changed(who);
  return {};
}

void Pool::on_timer(std::int64_t now) {
  std::size_t lines = kPortion;
  bool working = false, waiting = false, freed = false;
  const std::int64_t monotonic = sys::now_monotonic();
  const bool changed = std::exchange(look_again, false);
  if (changed || now >= look_at) {
    retry = std::clamp(2 * retry, kRetryFirst, kRetryLast);
    look_at = now + rescue_interval(retry);
    for (Participant& who : participants)
      if (who.repair && (changed || who.repair->state() == Repair::State::waiting)) who.repair->look_again();
  }
  for (std::uint32_t i = 0; i < participants.size(); ++i) {
    Participant& who = participants[i];
    if (!who.repair) continue;
    if (who.repair->state() == Repair::State::waiting) {
      waiting = true;
      continue;
    }
    const Repair::State state = who.repair->run(lines, monotonic, *this);
    lines = who.repair->left();
    if (who.repair->found_impossible() && broken == Broken::no) {
      pools.host.log(4, "pool " + text() + " is broken: a participant has written impossible words into it");
      break_pool(*this, Broken::impossible);
    }
    if (state == Repair::State::working) {
      working = true;
      break;  // one repair after the other, within one portion for all
    }
    slots_used = who.repair->slots_used();
    slots_high = std::max(slots_high, slots_used);
    if (state == Repair::State::waiting) {
      waiting = true;
      continue;
    }
    who.repair.reset();
    set_stamp(*this, i, ParticipantState::free);
    freed = true;
  }
  if (settle_lanes(pools, *this) || freed) pool_changed(*this);
  if (working || waiting) pools.host.timers.set(*this, working || look_again ? now : look_at);
  settle_pool(pools, *this);
}

void unname_pool(Pool& pool) {
  if (pool.name.empty()) return;
  pool.group->pool_names.erase(pool.name);
  pool.name.clear();
  changed(pool);
  pool.name_charge.give_back();
}

std::int64_t end_pools(Pools& pools, Group& group, std::int64_t now, bool all) {
  std::int64_t next = kNever;
  group.pools.each([&](Pool& pool) {
    if (!all && !pool.name.empty() && pool.keep < 0) return;
    if (!all && !pool.name.empty() && group.ended_at + pool.keep > now) {
      next = std::min(next, group.ended_at + pool.keep);
      return;
    }
    if (!pool.name.empty() || pool.broken == pool::Broken::no) close_pool(pools, pool);
  });
  return next;
}

void close_pool(Pools& pools, Pool& pool) {
  unname_pool(pool);
  close_queues(pool);
  if (pool.broken == Broken::no) break_pool(pool, Broken::group_ended);
  settle_pool(pools, pool);
}

void settle_pool(Pools& pools, Pool& pool) {
  if (pool.live() == 0 && pool.name_with_holders) unname_pool(pool);
  if (pool.live() == 0 && pool.name.empty()) destroy(pools, pool);
}

void end_participations(Pools& pools, Session& session) {
  while (!session.pools.empty()) {
    auto [id, index] = *session.pools.begin();
    session.pools.erase(session.pools.begin());
    Pool* pool = find_pool(pools, id);
    if (!pool) continue;
    part(pools, *pool, index, ParticipantState::dead);
    settle_pool(pools, *pool);
  }
}

void leave_pools_over(Pools& pools, Session& session) {
  for (auto at = session.pools.begin(); at != session.pools.end();) {
    Pool* pool = find_pool(pools, at->first);
    if (pool && pool->broken == Broken::no) {
      ++at;
      continue;
    }
    const std::uint32_t index = at->second;
    at = session.pools.erase(at);
    if (!pool) continue;
    part(pools, *pool, index, ParticipantState::left);
    settle_pool(pools, *pool);
  }
}

Result<Mapping> map_again(int memory, std::uint64_t bytes) {
  auto map = Mapping::map(memory, 0, bytes, Access::read_write);
  if (!map) return system_failure(map.error(), "mapping the control memory of a pool of the last broker");
  return std::move(*map);
}

void begin_repair(Pool& pool, std::uint32_t index) {
  Participant& who = pool.participants[index];
  who.repair = std::make_unique<Repair>(pool, index, who.life, who.state);
}

void lose_pool(Pool& pool) {
  unname_pool(pool);
  if (pool.broken == Broken::no) break_pool(pool, Broken::broker_ended);
}

void resume_pool(Pools& pools, Pool& pool) {
  bool lost = false;
  for (const Participant& who : pool.participants) lost |= who.state == ParticipantState::live && !who.session;
  if (lost) lose_pool(pool);
  for (std::uint32_t i = 0; i < pool.participants.size(); ++i)
    if (const Participant& who = pool.participants[i]; who.state == ParticipantState::live && !who.session)
      part(pools, pool, i, ParticipantState::dead);
  show_all(pool);
  pool_changed(pool);
  for (const LaneBook& lane : pool.lanes)
    if (!lane.holds.empty()) pools.idle_holds.noticed();
  pool.retry = 0;
  pool.look_again = true;
  pools.host.timers.set(pool, pools.host.now());  // it also looks for lanes that can be given back
  settle_pool(pools, pool);
}

void forget_lanes_in_making(Pools& pools, const Session& session) {
  for (const auto& [id, index] : session.pools)
    if (Pool* pool = find_pool(pools, id); pool && pool->making.session == session.id) pool->making = {};
}

void move_participations(Pools& pools, Session& from, Session& to) {
  for (auto [id, index] : from.pools) {
    if (!to.pools.try_emplace(id, index).second) continue;
    if (Pool* pool = find_pool(pools, id)) {
      pool->participants[index].session = &to;
      changed(pool->participants[index]);
      if (pool->making.session == from.id) pool->making = {};
    }
  }
  from.pools.clear();
}

}  // namespace shmb::daemon
