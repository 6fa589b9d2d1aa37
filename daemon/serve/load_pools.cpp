// SPDX-License-Identifier: Apache-2.0
// See load_pools.hpp. The order within a pool is that of the references: participants, segments, queues, lanes, holds.
#include "daemon/serve/load_pools.hpp"

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/ledger/group.hpp"
#include "daemon/pools/pool.hpp"
#include "daemon/pools/pools.hpp"
#include "daemon/serve/ledger.hpp"

namespace shmb::daemon {
namespace {

using books::text_of;

class PoolLoader {
 public:
  PoolLoader(Ledger& ledger, const books::LastPool& last, Pool& pool) : ledger_(ledger), last_(last), pool_(pool) {}
  void load() {
    const books::PoolRecord& record = last_.pool;
    pool_.name_with_holders = record.name_with_holders;
    pool_.created = record.created;
    pool_.keep = record.keep;
    pool_.owner_uid = record.owner_uid;
    pool_.slots = record.slots;
    pool_.deaths = record.deaths;
    pool_.broken = static_cast<pool::Broken>(record.broken);
    pool_.last_lane_serial = static_cast<std::uint32_t>(record.last_lane_serial);
    for (const auto& one : last_.participants) participant(one);
    for (const auto& one : last_.segments) segment(one);
    for (const auto& one : last_.queues) queue(one);
    for (const auto& one : last_.lanes) lane(one);
    for (const auto& one : last_.holds) hold(one);
  }

 private:
  void participant(const books::ParticipantRecord& record);
  void segment(const books::SegmentRecord& record);
  void queue(const books::QueueRecord& record);
  void lane(const books::LaneRecord& record);
  void hold(const books::HoldRecord& record);

  Ledger& ledger_;
  const books::LastPool& last_;
  Pool& pool_;
  std::map<std::uint64_t, LaneBook*> lanes_;  // by the id of their record
};

void PoolLoader::participant(const books::ParticipantRecord& record) {
  Participant& who = pool_.participants[record.index];
  who.state = static_cast<pool::ParticipantState>(record.state);
  who.read_only = record.read_only;
  who.life = record.life;
  who.uid = record.uid;
  who.pid = record.pid;
  who.serial = record.id;
  if (record.session != 0) who.session = ledger_.sessions.find(record.session);
  if (who.session) who.session->pools.try_emplace(pool_.id, static_cast<std::uint8_t>(record.index));
  if (record.doorbell >= 0) {
    who.doorbell = Fd::adopt(record.doorbell);
    who.doorbell_of = record.doorbell_of;
    ++ledger_.accounts.open_descriptors;
    ++ledger_.accounts.hold_uid(record.doorbell_of).doorbells;
    pool_.doorbells |= std::uint64_t{1} << record.index;
  }
  if (who.state == pool::ParticipantState::dead || who.state == pool::ParticipantState::left)
    begin_repair(pool_, record.index);
  changed(who);
}

void PoolLoader::segment(const books::SegmentRecord& record) {
  Region& region = *ledger_.regions.find(record.id);
  pool_.segments.push_back({&region, record.slot_size, record.first_slot, record.slots, record.slots_limit});
  region.segment_of = pool_.id;
  ++region.pool_holds;
  changed(region);
}

void PoolLoader::queue(const books::QueueRecord& record) {
  QueueBook& queue = pool_.queues[record.index];
  queue.row = record.id;
  queue.state = static_cast<pool::QueueState>(record.state);
  queue.kind = static_cast<pool::QueueKind>(record.kind);
  queue.removed = record.removed;
  queue.serial = record.serial;
  queue.flags = record.flags;
  queue.cells = record.cells;
  queue.cell_size = record.cell_size;
  queue.readers = record.readers;
  queue.writers = record.writers;
  queue.generation = record.generation;
  queue.deaths = record.deaths;
  queue.writer_lane = record.writer_lane;
  queue.in_regions = record.in_regions;
  queue.name = text_of(record.name);
  changed(queue);
}

void PoolLoader::lane(const books::LaneRecord& record) {
  const books::QueueRecord& queue = *last_.queue_of(record);
  LaneBook& lane = pool_.lanes[record.index];
  lane.row = record.id;
  lane.state = static_cast<pool::LaneState>(record.state);
  lane.sender_finished = record.sender_finished;
  lane.receiver_done = record.receiver_done;
  lane.serial = record.serial;
  lane.queue = queue.index;
  lane.queue_serial = queue.serial;
  lane.from = record.from;
  lane.from_life = record.from_life;
  lane.to = record.to;
  lane.to_life = record.to_life;
  lane.cells = record.cells;
  lane.cell_size = record.cell_size;
  lane.offset = record.offset;
  lane.through = record.through;
  lanes_[record.id] = &lane;
  changed(lane);
}

// Memory of a GPU is not loaded, so a message that names it finds nothing.
void PoolLoader::hold(const books::HoldRecord& record) {
  Region* const region = ledger_.regions.find(record.region);
  if (!region) return;
  LaneBook& lane = *lanes_.at(record.lane);
  LaneHold& hold = lane.holds[region->id];
  hold.row = record.id;
  hold.lane = &lane;
  hold.region = region;
  hold.charge = pool_.group->account.take(Resource::leases, 1);
  ledger_.host.books.holds.note(hold);
  ++region->pool_holds;
}

// Where a file cannot be mapped, nothing is adopted: the next start finds both numbers as they are.
Result<void> load_pool(Ledger& ledger, const books::LastPool& last) {
  const pool::Shape shape = last.shape();
  Group& group = *find_group(ledger.groups, last.pool.group);
  SHMB_TRY(directory, map_again(last.pool.directory, pool::directory_bytes(shape)));
  SHMB_TRY(control, map_again(last.pool.control, pool::control_bytes(shape)));
  const std::string_view name = text_of(last.pool.name);
  const std::uint64_t bytes = directory.size() + control.size();
  Account& account = group.account;
  Pool& pool = add_pool(ledger.pools, {.id = last.pool.id,
                                       .group = group,
                                       .name = name,
                                       .shape = shape,
                                       .directory = {Fd::adopt(last.pool.directory), std::move(directory)},
                                       .control = {Fd::adopt(last.pool.control), std::move(control)},
                                       .regions_charge = account.take(Resource::regions, kRegionsOfPool),
                                       .bytes_charge = account.take(Resource::bytes, bytes),
                                       .name_charge = name.empty() ? Charge() : account.take(Resource::names, 1)});
  PoolLoader(ledger, last, pool).load();
  return {};
}

template <class Body>
void each_pool(Ledger& ledger, Body body) {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, pool] : ledger.pools.all) ids.push_back(id);
  for (const std::uint64_t id : ids)
    if (Pool* const pool = find_pool(ledger.pools, id)) body(*pool);
}

}  // namespace

Result<void> load_pools(Ledger& ledger, const books::LastBooks& last) {
  for (const books::LastPool& pool : last.pools()) SHMB_TRY_VOID(load_pool(ledger, pool));
  return {};
}

void lose_pools_of(Ledger& ledger, const Session& session) {
  for (const auto& [id, index] : session.pools)
    if (Pool* const pool = find_pool(ledger.pools, id)) lose_pool(*pool);
}

void resume_pools(Ledger& ledger) {
  each_pool(ledger, [&](Pool& pool) { resume_pool(ledger.pools, pool); });
}

}  // namespace shmb::daemon
