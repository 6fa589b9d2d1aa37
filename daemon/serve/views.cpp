// SPDX-License-Identifier: Apache-2.0
// LIST and STATUS. A session sees what belongs to its uid or its group, and what it holds itself. The admin socket sees
// all. Pages: see page.hpp.
//
// Each list_ function walks one table in the order of the page's key, and asks the page in this order:
// - rows(): the part of the table that must be looked at.
// - done(): whether the page is full or the turn is over.
// - takes() and sees(): whether the row passes the filter, and whether the session may see it.
// - count(): adds the row to the totals, on the first page only.
// - wants() and room(): whether the row belongs to this page, and fits.
// - add(): writes it.
// A table that has another order collects its rows first, sorts those of this page (sort_page), and writes them then.
#include "daemon/ledger/views.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "base/sys_memory.hpp"
#include "daemon/pools/pool.hpp"
#include "daemon/serve/page.hpp"
#include "proto/names.hpp"

namespace shmb::daemon {
namespace {

bool sees(Session& session, const Region& region) {
  return sees(session, *region.group) || (region.live() && find_lease(session, region));
}
bool sees(const Session& session, const Pool& pool) {
  return sees(session, *pool.group) || session.pools.contains(pool.id);
}
bool sees(const Session& session, const Session& other) {
  return session.admin || session.uid == other.uid || (session.group && session.group == other.group);
}

void list_regions(const Request& request, const Filter& filter) {
  Page<shmbw_region_record> page(request, filter);
  for (auto& [id, region] : page.rows(request.ledger.regions.all, filter.only_region(request.ledger))) {
    if (page.done(id)) break;
    if (!filter.takes(region) || !sees(request.session, region)) continue;
    page.count(on_gpu(region) ? 0 : region.bytes);  // the sum is of the host's memory
    if (!page.wants(id)) continue;
    const Group& group = *region.group;
    std::string group_text = group.text();
    std::string_view name = region.name ? region.name->text : std::string_view();
    if (!page.room(group_text.size() + name.size())) continue;
    shmbw_region_record record{};
    record.region = region.ref();
    record.length = region.length;
    record.bytes = region.bytes;
    if (region.fd)  // else the helper thread has it
      if (auto facts = sys::file_facts(region.fd.get())) record.touched = facts->touched;
    record.group = group.id;
    record.owner_uid = group.uid;
    record.state = region.state;
    record.page_kind = region.page_kind;
    record.flags = region_flags(region);
    record.holders = region.leases.size();
    record.writers = region.writers;
    record.tickets = region.tickets;
    record.creator_pid = region.creator_pid;
    record.created = region.created;
    record.keep = region.keep;
    record.freed_at = group.freed_at(region);
    record.group_len = static_cast<std::uint16_t>(group_text.size());
    record.name_len = static_cast<std::uint16_t>(name.size());
    record.queues = region.queues();
    record.pool = region.segment_of;
    page.add(id, record, {group_text, name});
  }
  page.send();
}

void list_groups(const Request& request, const Filter& filter) {
  Page<shmbw_group_record> page(request, filter);
  for (const auto& [id, group] : page.rows(request.ledger.groups.all, filter.wish.group)) {
    if (page.done(id)) break;
    if (!filter.takes(group) || !sees(request.session, group)) continue;
    page.count(group.account.used(Resource::bytes));
    if (!page.wants(id) || !page.room(group.name.size())) continue;
    shmbw_group_record record{};
    record.group = id;
    record.bytes = group.account.used(Resource::bytes);
    record.bytes_limit = group.account.effective_limit(Resource::bytes);
    record.bytes_peak = group.account.peak_bytes();
    record.bytes_cached = group.shelf.bytes();
    record.owner_uid = group.uid;
    if (!group.name.empty()) record.flags |= SHMBW_GROUP_STATE_NAMED;
    if (group.supervised) record.flags |= SHMBW_GROUP_STATE_SUPERVISED;
    if (group.supervisor_lost) record.flags |= SHMBW_GROUP_STATE_SUPERVISOR_LOST;
    if (group.ended_at != 0) record.flags |= SHMBW_GROUP_STATE_ENDED;
    if (group.kept()) record.flags |= SHMBW_GROUP_STATE_KEPT;
    record.heirs = group.heirs();
    record.members = group.members.size() - record.heirs;
    record.supervisors = group.supervisors.size();
    record.regions = group.regions.size() + group.shelf.count();
    record.regions_limit = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(group.account.effective_limit(Resource::regions), UINT32_MAX));
    record.created = group.created;
    record.keep = group.keep;
    record.name_len = static_cast<std::uint16_t>(group.name.size());
    page.add(id, record, {group.name});
  }
  page.send();
}

void list_sessions(const Request& request, const Filter& filter) {
  Page<shmbw_session_record> page(request, filter);
  for (const auto& [id, session] : page.rows(request.ledger.sessions.all)) {
    if (page.done(id)) break;
    if (!session.greeted() || !sees(request.session, session) || !filter.takes_owner(session.uid)) continue;
    if (filter.by_group() && !(session.group && filter.takes(*session.group)) &&
        !(session.supervises && filter.takes(*session.supervises)))
      continue;
    page.count(0);
    if (!page.wants(id) || !page.room(session.library.size())) continue;
    shmbw_session_record record{};
    record.session = id;
    record.group = session.group ? session.group->id : (session.supervises ? session.supervises->id : 0);
    record.uid = session.uid;
    record.pid = session.pid;
    record.state = session.wire_state();
    record.leases = static_cast<std::uint32_t>(session.leases.size());
    record.watches = static_cast<std::uint32_t>(session.watches.size());
    record.in_flight = session.link ? session.link->descriptors_in_flight() : 0;
    record.connected = session.connected;
    record.death_by = (session.link ? 1U : 0U) | (session.has_pidfd && !session.process_gone ? 2U : 0U);
    record.library_len = static_cast<std::uint16_t>(session.library.size());
    page.add(id, record, {session.library});
  }
  page.send();
}

void list_leases(const Request& request, const Filter& filter) {
  Page<shmbw_lease_record> page(request, filter);
  std::vector<const Lease*> rows;
  const auto offer = [&](const Lease& lease) {
    if (!filter.takes(*lease.region)) return;
    if (!sees(request.session, *lease.session) && !sees(request.session, *lease.region->group)) return;
    page.count(0);
    if (page.wants(lease.serial)) rows.push_back(&lease);
  };
  if (const std::uint64_t only = filter.only_region(request.ledger); only != 0) {
    if (const Region* region = request.ledger.regions.find(only)) region->leases.each(offer);
  } else {
    for (const auto& [id, session] : request.ledger.sessions.all)
      for (const auto& [region_id, lease] : session.leases) offer(lease);
  }
  sort_page<shmbw_lease_record>(rows);
  for (const Lease* lease : rows) {
    if (!page.room(0)) break;
    const Session& holder = *lease->session;
    shmbw_lease_record record{};
    record.region = lease->region->ref();
    record.session = holder.id;
    record.uid = holder.uid;
    record.pid = holder.pid;
    record.rights = lease->rights;
    record.count = lease->count;
    record.state = holder.wire_state();
    record.since = lease->since;
    page.add(lease->serial, record);
  }
  page.send();
}

void list_tickets(const Request& request, const Filter& filter) {
  Page<shmbw_ticket_record> page(request, filter);
  for (const auto& [serial, ticket] : page.rows(request.ledger.tickets.in_order)) {
    if (page.done(serial)) break;
    const Region& region = *ticket->region;
    if (!filter.takes(region)) continue;
    if (ticket->maker_uid != request.session.uid && !sees(request.session, *region.group)) continue;
    page.count(0);
    if (!page.wants(serial) || !page.room(0)) continue;
    const Session* const maker = ticket->payer;
    page.add(serial,
             shmbw_ticket_record{region.ref(), region.group->id, ticket->maker_uid, ticket->rights, ticket->uses_left,
                                 maker ? maker->pid : 0, ticket->expires, maker ? maker->id : 0});
  }
  page.send();
}

void list_uids(const Request& request, const Filter& filter) {
  Page<shmbw_uid_record> page(request, filter);
  for (const auto& [uid, books] : request.ledger.accounts.uids) {
    if ((!request.session.admin && uid != request.session.uid) || !filter.takes_owner(uid)) continue;
    const Account& account = books.account;
    page.count(account.used(Resource::bytes));
    std::uint64_t key = std::uint64_t{uid} + 1;  // uid 0 is a user, cursor 0 is none
    if (!page.wants(key) || !page.room(0)) continue;
    auto used = [&](Resource resource) { return static_cast<std::uint32_t>(account.used(resource)); };
    page.add(key, shmbw_uid_record{account.used(Resource::bytes), account.effective_limit(Resource::bytes), uid,
                                   used(Resource::sessions), used(Resource::groups), used(Resource::regions),
                                   used(Resource::leases), used(Resource::tickets), used(Resource::watches),
                                   books.tickets_left, account.effective_limit(Resource::tickets),
                                   ticket_share(request.ledger.host, account)});
  }
  page.send();
}

// Cache lines of control memory that one LIST may read, so that a table of many pools does not delay others. Rows
// beyond that show the last known values, or 0.
constexpr std::uint64_t kLookLines = 262'144;

class Budget {
 public:
  bool take(std::uint64_t lines) {
    if (lines > left_) return false;
    left_ -= lines;
    return true;
  }

 private:
  std::uint64_t left_ = kLookLines;
};

struct SlotCount {
  std::uint32_t used = 0;
  std::array<std::uint32_t, pool::kParticipants> held{};
};

// One pass over the holders of all slots.
SlotCount count_slots(Pool& pool, Budget& budget) {
  SlotCount count;
  if (!budget.take(pool.slots)) {
    count.used = pool.slots_used;
    return count;
  }
  for (std::uint32_t i = 0; i < pool.slots; ++i) {
    const std::uint64_t holders = pool.view.slot(i).holders.load(std::memory_order_relaxed);
    count.used += holders != 0;
    for (std::uint64_t left = holders; left != 0; left &= left - 1)
      ++count.held[static_cast<std::size_t>(std::countr_zero(left))];
  }
  pool.slots_used = count.used;
  pool.slots_high = std::max(pool.slots_high, count.used);
  return count;
}

void list_pools(const Request& request, const Filter& filter) {
  Page<shmbw_pool_record> page(request, filter);
  Budget budget;
  for (auto& [id, pool] : page.rows(request.ledger.pools.all, filter.wish.region.id)) {
    if (page.done(id)) break;
    if (!filter.takes(pool) || !sees(request.session, pool)) continue;
    const std::uint64_t bytes = pool.bytes();
    page.count(bytes);
    if (!page.wants(id)) continue;
    const std::string group = pool.group->text();
    if (!page.room(group.size() + pool.name.size())) continue;
    shmbw_pool_record record{};
    record.pool = id;
    record.group = pool.group->id;
    record.bytes = bytes;
    record.control_bytes = pool.bytes_charge.amount();
    record.owner_uid = pool.owner_uid;
    if (!pool.name.empty()) record.flags |= SHMBW_POOL_NAMED;
    if (pool.name_with_holders) record.flags |= SHMBW_POOL_NAME_WITH_HOLDERS;
    if (pool.broken != pool::Broken::no) record.flags |= SHMBW_POOL_BROKEN;
    record.slots = pool.slots;
    record.slots_limit = pool.view.slots();
    record.slots_used = count_slots(pool, budget).used;
    record.slots_high = pool.slots_high;
    record.segments = static_cast<std::uint32_t>(pool.segments.size());
    record.participants = static_cast<std::uint32_t>(std::popcount(pool.live()));
    record.leaving = static_cast<std::uint32_t>(
        std::ranges::count_if(pool.participants, [](const Participant& who) { return who.repair != nullptr; }));
    for (const QueueBook& queue : pool.queues) record.queues += queue.in_use();
    for (const LaneBook& lane : pool.lanes) record.lanes += lane.in_use();
    record.deaths = pool.deaths;
    record.created = pool.created;
    record.keep = pool.keep;
    record.group_len = static_cast<std::uint16_t>(group.size());
    record.name_len = static_cast<std::uint16_t>(pool.name.size());
    page.add(id, record, {group, pool.name});
  }
  page.send();
}

// The figures of one queue, from its lanes. Words of the control area are bounded by what a lane can hold.
void add_lanes(Pool& pool, std::uint32_t queue, shmbw_queue_record& record, Budget& budget) {
  const std::uint64_t readers = pool.queues[queue].readers;
  std::uint64_t in_regions = pool.queues[queue].in_regions;
  for (std::uint32_t i = 0; i < pool.lanes.size(); ++i) {
    const LaneBook& lane = pool.lanes[i];
    if (!lane.in_use() || !pool.of_queue(lane, queue)) continue;
    ++record.lanes;
    record.regions += lane.holds.size();
    const KnownLane known = known_lane(pool, i);
    in_regions += known.words.in_regions().load(std::memory_order_relaxed);
    if (!budget.take(known.words.cells())) continue;
    if (known.kind != pool::QueueKind::broadcast) {
      record.depth += unread(known.words, known.kind);
      continue;
    }
    const std::uint64_t tail = known.words.tail().load(std::memory_order_relaxed);
    std::uint64_t slowest = 0;
    for (std::uint64_t left = readers; left != 0; left &= left - 1) {
      const pool::ReaderEntry& reader = known.words.reader(static_cast<std::size_t>(std::countr_zero(left)));
      record.lost += reader.lost.load(std::memory_order_relaxed);
      const std::uint64_t position = reader.position.load(std::memory_order_relaxed);
      if (position == 0) continue;
      const std::int64_t behind = pool::position_difference(tail, position - 1);
      slowest = std::max(slowest, static_cast<std::uint64_t>(std::max<std::int64_t>(behind, 0)));
    }
    record.lag = std::max(record.lag, slowest);
    record.depth += std::min<std::uint64_t>(slowest, known.words.cells());
  }
  record.in_regions = static_cast<std::uint32_t>(std::min<std::uint64_t>(in_regions, UINT32_MAX));
}

struct QueueRow {
  std::uint64_t serial;
  Pool* pool;
  std::uint32_t index;
};

void list_queues(const Request& request, const Filter& filter) {
  Page<shmbw_queue_record> page(request, filter);
  std::vector<QueueRow> all;
  for (auto& [id, pool] : request.ledger.pools.all) {
    if (!filter.takes(pool) || !sees(request.session, pool)) continue;
    for (std::uint32_t i = 0; i < pool.queues.size(); ++i) {
      const QueueBook& queue = pool.queues[i];
      if (!queue.in_use()) continue;
      page.count(0);
      if (page.wants(queue.row)) all.push_back({queue.row, &pool, i});
    }
  }
  std::ranges::sort(all, std::less<>(), &QueueRow::serial);
  Budget budget;
  for (const QueueRow& row : all) {
    Pool& pool = *row.pool;
    const QueueBook& queue = pool.queues[row.index];
    const std::string pool_text = pool.name.empty() ? names::id_text(pool.id) : pool.name;
    if (!page.room(pool_text.size() + queue.name.size())) break;
    shmbw_queue_record record{};
    record.pool = pool.id;
    record.group = pool.group->id;
    record.queue = row.index;
    record.serial = queue.serial;
    record.kind = static_cast<std::uint32_t>(queue.kind);
    if ((queue.flags & pool::kQueueDropOldest) != 0) record.flags |= SHMBW_QUEUE_OPEN_DROP_OLDEST;
    if ((queue.flags & pool::kQueueExpiring) != 0) record.flags |= SHMBW_QUEUE_OPEN_EXPIRING;
    if ((queue.flags & pool::kQueueAtLeastOnce) != 0) record.flags |= SHMBW_QUEUE_OPEN_AT_LEAST_ONCE;
    record.cells = queue.cells;
    record.cell_size = queue.cell_size;
    record.readers = static_cast<std::uint32_t>(std::popcount(queue.readers));
    record.writers = static_cast<std::uint32_t>(std::popcount(queue.writers));
    record.closed = queue.state == pool::QueueState::closed;
    record.owner_uid = pool.owner_uid;
    record.deaths = queue.deaths;
    add_lanes(pool, row.index, record, budget);
    record.pool_len = static_cast<std::uint16_t>(pool_text.size());
    record.name_len = static_cast<std::uint16_t>(queue.name.size());
    page.add(row.serial, record, {pool_text, queue.name});
  }
  page.send();
}

void list_participants(const Request& request, const Filter& filter) {
  Page<shmbw_participant_record> page(request, filter);
  std::vector<QueueRow> all;
  for (auto& [id, pool] : request.ledger.pools.all) {
    if (!filter.takes(pool) || !sees(request.session, pool)) continue;
    for (std::uint32_t i = 0; i < pool.participants.size(); ++i) {
      const Participant& who = pool.participants[i];
      if (who.state == pool::ParticipantState::free) continue;
      page.count(0);
      if (page.wants(who.serial)) all.push_back({who.serial, &pool, i});
    }
  }
  std::ranges::sort(all, std::less<>(), &QueueRow::serial);
  Budget budget;
  Pool* counted = nullptr;
  SlotCount slots;
  for (const QueueRow& row : all) {
    if (!page.room(0)) break;
    Pool& pool = *row.pool;
    if (std::exchange(counted, &pool) != &pool) slots = count_slots(pool, budget);
    const Participant& who = pool.participants[row.index];
    const std::uint64_t bit = std::uint64_t{1} << row.index;
    shmbw_participant_record record{};
    record.pool = pool.id;
    record.session = who.session ? who.session->id : 0;
    record.participant = row.index;
    record.life = who.life;
    record.state = static_cast<std::uint32_t>(who.state);
    record.pid = who.pid;
    record.uid = who.uid;
    record.slots_held = slots.held[row.index];
    for (const QueueBook& queue : pool.queues) {
      if (!queue.in_use()) continue;
      record.reading += (queue.readers & bit) != 0;
      record.writing += (queue.writers & bit) != 0;
    }
    for (std::uint32_t i = 0; i < pool.lanes.size(); ++i) {
      if (!pool.lanes[i].in_use() || !pool.lanes[i].is_from(row.index, who.life)) continue;
      const KnownLane known = known_lane(pool, i);
      if (known.kind != pool::QueueKind::broadcast && budget.take(known.words.cells()))
        record.unread += unread(known.words, known.kind);
    }
    page.add(row.serial, record);
  }
  page.send();
}

void list_gpu_regions(const Request& request, const Filter& filter) {
  Page<shmbw_gpu_record> page(request, filter);
  for (auto& [id, region] : page.rows(request.ledger.regions.all, filter.only_region(request.ledger))) {
    if (page.done(id)) break;
    if (!region.gpu || !region.live() || !filter.takes(region) || !sees(request.session, region)) continue;
    const GpuMemory& gpu = *region.gpu;
    page.count(gpu.on_gpu() ? region.bytes : 0);
    const Group& group = *region.group;
    if (!page.wants(id)) continue;
    const std::string group_text = group.text();
    const std::string_view name = region.name ? region.name->text : std::string_view();
    if (!page.room(group_text.size() + name.size())) continue;
    shmbw_gpu_record record{};
    record.region = region.ref();
    record.bytes = region.bytes;
    record.chunk_bytes = gpu.chunk_bytes;
    record.group = group.id;
    std::ranges::copy(gpu.uuid, record.uuid);
    record.owner_uid = group.uid;
    record.kind = gpu.kind;
    record.state = gpu.state;
    record.flags = region_flags(region);
    record.chunks = gpu.chunks;
    record.hold = gpu.node ? gpu.node->hold : SHMBW_GPU_HOLD_NONE;
    record.minor = gpu.node ? gpu.node->minor : kNoMinor;
    record.driver = gpu.driver;
    record.exporter_pid = gpu.exporter_pid;
    record.exporter = gpu.exporter != 0;
    record.importers = region.leases.size() - record.exporter;
    region.leases.each([&](const Lease& lease) { record.leaving += lease.session->phase == Phase::ended; });
    record.tickets = region.tickets;
    record.queues = region.pool_holds;
    record.code = gpu.code;
    record.publish_flags = gpu.publish_flags;
    record.created = region.created;
    record.keep = region.keep;
    record.freed_at = group.freed_at(region);
    record.group_len = static_cast<std::uint16_t>(group_text.size());
    record.name_len = static_cast<std::uint16_t>(name.size());
    page.add(id, record, {group_text, name});
  }
  page.send();
}

}  // namespace

void serve_list(const Request& request) {
  Ledger& ledger = request.ledger;
  Session& session = request.session;
  auto wish = request.read<shmbw_list>();
  if (!wish) return;
  wire::TextReader texts(request.packet.rest);
  auto group = texts.take(wish->group_len);
  auto name = texts.take(wish->name_len);
  if (!group || !name || !texts.done()) return request.refuse_struct(Status::invalid);
  if ((wish->flags & ~std::uint32_t{SHMBW_LIST_KNOWN}) != 0)
    return request.fail(Status::unknown_flags, "a list flag is not known to this broker");
  Filter filter{*wish, *name, *group};
  if (!group->empty()) {
    std::uint32_t owner = (wish->flags & SHMBW_LIST_OWNER_GIVEN) != 0 ? wish->owner_uid : session.uid;
    filter.group = session.admin ? find_group(ledger.groups, owner, *group)
                                 : addressed_group(ledger.groups, session, owner, *group);
    filter.nothing = filter.group == nullptr;
  }
  switch (wish->table) {
    case SHMBW_TABLE_REGIONS:
      return list_regions(request, filter);
    case SHMBW_TABLE_GROUPS:
      return list_groups(request, filter);
    case SHMBW_TABLE_SESSIONS:
      return list_sessions(request, filter);
    case SHMBW_TABLE_LEASES:
      return list_leases(request, filter);
    case SHMBW_TABLE_TICKETS:
      return list_tickets(request, filter);
    case SHMBW_TABLE_UIDS:
      return list_uids(request, filter);
    case SHMBW_TABLE_POOLS:
      return list_pools(request, filter);
    case SHMBW_TABLE_QUEUES:
      return list_queues(request, filter);
    case SHMBW_TABLE_PARTICIPANTS:
      return list_participants(request, filter);
    case SHMBW_TABLE_WORLDS:
      return list_worlds(request, filter);
    case SHMBW_TABLE_WORKERS:
      return list_workers(request, filter);
    case SHMBW_TABLE_REFERENCES:
      return list_references(request, filter);
    case SHMBW_TABLE_GPU_REGIONS:
      return list_gpu_regions(request, filter);
    case SHMBW_TABLE_REPORTS:
      return list_reports(request, filter);
    case SHMBW_TABLE_REFUSALS:
      return list_refusals(request, filter);
    default:
      request.fail(Status::invalid,
                   "table " + std::to_string(wish->table) + " is not known to this broker (" +
                       ledger.host.facts.version +
                       "), which lists regions, groups, sessions, leases, tickets, uids, pools, queues, participants, "
                       "worlds, workers, references, gpu_regions, reports and refusals");
  }
}

void serve_status(const Request& request) {
  Ledger& ledger = request.ledger;
  if (!request.read<shmbw_status>()) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  const BrokerFacts& facts = ledger.host.facts;
  std::string losses;
  for (const std::string& loss : facts.losses) losses += (losses.empty() ? "" : "\n") + loss;
  losses.resize(std::min<std::size_t>(losses.size(), 16'384));
  auto count = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  shmbw_status_reply reply{};
  reply.mode = ledger.host.private_mode() ? SHMBW_MODE_PRIVATE : SHMBW_MODE_SYSTEM;
  reply.engine = facts.engine;
  reply.epoch = facts.epoch;
  reply.features = facts.features;
  reply.uptime = ledger.host.now() - ledger.host.started;
  reply.bytes = ledger.accounts.all.used(Resource::bytes);
  reply.bytes_limit = ledger.accounts.all.limit(Resource::bytes);
  reply.bytes_cached = ledger.groups.bytes_cached;
  reply.requests = ledger.accounts.requests;
  reply.refusals = ledger.accounts.refusals;
  reply.reclaims = ledger.sessions.reclaims;
  reply.bytes_reclaimed = ledger.sessions.bytes_reclaimed;
  reply.pid = facts.pid;
  reply.broker_uid = facts.uid;
  reply.regions = count(ledger.regions.count);
  reply.sessions = count(ledger.accounts.live_sessions);
  reply.groups = count(ledger.groups.all.size());
  reply.leases = count(ledger.regions.leases);
  reply.tickets = count(ledger.tickets.all.size());
  reply.watches = count(ledger.watches.count);
  reply.descriptors = count(ledger.accounts.descriptors());
  reply.descriptors_limit = count(facts.descriptors_limit);
  reply.descriptors_reserved = count(ledger.host.config.descriptors_reserved);
  reply.in_flight = facts.in_flight ? facts.in_flight() : 0;
  reply.version_len = static_cast<std::uint16_t>(facts.version.size());
  reply.kernel_len = static_cast<std::uint16_t>(facts.kernel.size());
  reply.engine_len = static_cast<std::uint16_t>(facts.engine_reason.size());
  reply.losses_len = static_cast<std::uint16_t>(losses.size());
  request.answer(reply, {facts.version, facts.kernel, facts.engine_reason, losses});
}

}  // namespace shmb::daemon
