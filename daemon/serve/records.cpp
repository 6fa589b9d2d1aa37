// SPDX-License-Identifier: Apache-2.0
// See records.hpp.
#include "daemon/serve/records.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "daemon/serve/answer.hpp"

namespace shmb::daemon {
namespace {

using books::AnswerRecord;
using books::FailureRecord;
using books::ForkRecord;
using books::GpuChunkRecord;
using books::GpuDeviceRecord;
using books::GpuMemoryRecord;
using books::GpuNodeRecord;
using books::GroupRecord;
using books::HoldRecord;
using books::LaneRecord;
using books::LeaseRecord;
using books::NameRecord;
using books::PacketsRecord;
using books::ParticipantRecord;
using books::PoolRecord;
using books::QueueRecord;
using books::ReferenceRecord;
using books::RegionRecord;
using books::SegmentRecord;
using books::SessionRecord;
using books::TicketRecord;
using books::TotalsRecord;
using books::WatchRecord;
using books::WorkerRecord;
using books::WorldRecord;

template <std::size_t n>
std::array<char, n> text_in(std::string_view text) {
  std::array<char, n> out{};
  std::memcpy(out.data(), text.data(), std::min(n, text.size()));
  return out;
}

template <class T>
void put(books::Store& store, T& item) {
  store.put(item.place, record_of(item));
}
void put(books::Store& store, Session& session) {
  store.put(session.place, record_of(session));
  for (GpuDevice& device : session.gpu_devices) store.put(device.place, device_of(session, device));
}
void put(books::Store& store, GpuMemory& gpu) {
  if (!has_record(gpu.region)) return;
  store.put(gpu.place, record_of(gpu));
  for (std::size_t at = gpu.present(); at < gpu.chunk_records.size(); ++at)
    store.erase<GpuChunkRecord>(gpu.chunk_records[at].place);
  gpu.chunk_records.resize(gpu.present());
  for (std::uint32_t index = 0; index < gpu.present(); ++index)
    store.put(gpu.chunk_records[index].place, chunk_of(gpu, index));
}
void put(books::Store& store, Region& region) {
  if (!has_record(region)) {
    store.erase<RegionRecord>(region.place);
    return store.erase<NameRecord>(region.name_place);
  }
  store.put(region.place, record_of(region));
  if (const auto name = name_of(region)) store.put(region.name_place, *name);
  else store.erase<NameRecord>(region.name_place);
}

void put(books::Store& store, Reference& reference) {
  store.put(reference.place, record_of(reference));
  if (const auto failure = failure_of(reference)) store.put(reference.failure_place, *failure);
  else store.erase<FailureRecord>(reference.failure_place);
}
void put(books::Store& store, Pool& pool) {
  store.put(pool.place, record_of(pool));
  for (std::uint32_t index = 0; index < pool.segments.size(); ++index)
    store.put(pool.segments[index].place, segment_of(pool, index));
}
void put(books::Store& store, StoredAnswer& answer) {
  const std::uint32_t parts = parts_of(answer);
  for (; answer.places.size() > parts; answer.places.pop_back()) store.erase<AnswerRecord>(answer.places.back());
  answer.places.resize(parts, books::kNowhere);
  for (std::uint32_t index = 0; index < parts; ++index) store.put(answer.places[index], part_of(answer, index));
}
void put(books::Store& store, Participant& participant) {
  if (has_record(participant)) store.put(participant.place, record_of(participant));
}
void put(books::Store& store, QueueBook& queue) {
  if (has_record(queue)) store.put(queue.place, record_of(queue));
}
void put(books::Store& store, LaneBook& lane) {
  if (has_record(lane)) store.put(lane.place, record_of(lane));
  else store.erase<LaneRecord>(lane.place);
}
void put(books::Store& store, Worker& worker) {
  if (has_record(worker)) store.put(worker.place, record_of(worker));
  else store.erase<WorkerRecord>(worker.place);
}

}  // namespace

// A region that is being freed has none: a thread closes its descriptor.
bool has_record(const Region& region) { return region.state != SHMBW_REGION_STATE_FREEING; }

bool has_record(const Participant& participant) { return participant.life != 0; }
bool has_record(const QueueBook& queue) { return queue.row != 0; }
bool has_record(const LaneBook& lane) { return lane.keeps_memory(); }
bool has_record(const Worker& worker) { return worker.state != SHMBW_WORKER_STATE_ABSENT; }

std::optional<NameRecord> name_of(const Region& region) {
  if (!region.name && !region.promised) return std::nullopt;
  NameRecord out;
  out.id = region.id;
  out.group = region.group->id;
  out.promised = region.promised != nullptr;
  if (out.promised) {
    out.keep = region.promised->keep;
    out.replace = region.promised->replace;
  }
  out.text = text_in<out.text.size()>(out.promised ? std::string_view(region.promised->name) : region.name->text);
  return out;
}

SessionRecord record_of(const Session& session) {
  SessionRecord out;
  out.id = session.id;
  out.line = session.line;
  out.group = session.group ? session.group->id : 0;
  out.supervises = session.supervises ? session.supervises->id : 0;
  out.ended_group = session.ended_group;
  out.fork_source = session.fork_source;
  out.failed_world = session.failed_world;
  out.events = session.sequence;
  out.connected = session.connected;
  out.start_ticks = session.start_ticks;
  out.fork_secret = session.fork_secret.bytes;
  out.uid = session.uid;
  out.pid = session.pid;
  out.socket = session.socket;
  // The transport closes it when the process has ended, and the session may live on with an heir.
  out.pidfd = session.has_pidfd && !session.process_gone ? session.pidfd : -1;
  out.phase = static_cast<std::uint8_t>(session.phase);
  out.admin = session.admin;
  out.charged = static_cast<bool>(session.charge);
  out.process_gone = session.process_gone;
  out.takes_descriptors = session.takes_descriptors;
  out.lazy = session.lazy;
  if (session.exit) {
    out.exited = true;
    out.exit_code = session.exit->code;
    out.killed = session.exit->killed;
    out.core = session.exit->core;
  }
  out.library = text_in<out.library.size()>(session.library);
  return out;
}

RegionRecord record_of(const Region& region) {
  RegionRecord out;
  out.id = region.id;
  out.group = region.group->id;
  out.length = region.length;
  out.bytes = region.bytes;
  out.populated = region.populated;
  out.created = region.created;
  out.keep = region.keep;
  out.segment_of = region.segment_of;
  out.generation = region.generation;
  out.creator_pid = region.creator_pid;
  out.memory = region.fd.get();
  out.state = region.state;
  out.page_kind = region.page_kind;
  out.many_writers = region.many_writers;
  out.no_recycle = region.no_recycle;
  out.dirty_birth = region.dirty_birth;
  out.was_outside = region.was_outside;
  out.seal_sealed = region.seal_sealed;
  out.heap = region.heap;
  out.name_with_holders = region.name_with_holders;
  out.hugetlb = region.hugetlb;
  return out;
}

GroupRecord record_of(const Group& group) {
  GroupRecord out;
  out.id = group.id;
  out.asked_bytes = group.asked_bytes;
  out.asked_regions = group.asked_regions;
  out.sponsor = group.sponsor ? group.sponsor->id : 0;
  out.created = group.created;
  out.keep = group.keep;
  out.ended_at = group.ended_at;
  out.token = group.token.bytes;
  out.uid = group.uid;
  out.asked_by_admin = group.asked_by_admin;
  out.supervised = group.supervised;
  out.supervisor_lost = group.supervisor_lost;
  out.tree_gone = group.tree_gone;
  out.closed = group.closed;
  out.name = text_in<out.name.size()>(group.name);
  return out;
}

PacketsRecord record_of(const SessionNumbers& numbers) {
  PacketsRecord out;
  out.id = numbers.session;
  out.served = numbers.served;
  out.answered = numbers.answered;
  return out;
}

LeaseRecord record_of(const Lease& lease) {
  LeaseRecord out;
  out.id = lease.serial;
  out.session = lease.session->id;
  out.region = lease.region->id;
  out.since = lease.since;
  out.rights = lease.rights;
  out.count = lease.count;
  out.pins = lease.pins;
  out.reach = static_cast<std::uint8_t>(lease.reach);
  out.kept = lease.kept;
  out.asked = lease.asked;
  out.made = lease.made;
  return out;
}

TicketRecord record_of(const Ticket& ticket) {
  TicketRecord out;
  out.id = ticket.serial;
  out.region = ticket.region->id;
  out.maker = ticket.maker;
  out.maker_group = ticket.maker_group;
  out.with = ticket.with ? ticket.with->id : 0;
  out.payer = ticket.payer ? ticket.payer->id : 0;
  out.expires = ticket.expires;
  out.secret = ticket.secret.bytes;
  out.rights = ticket.rights;
  out.uses_left = ticket.uses_left;
  out.maker_uid = ticket.maker_uid;
  return out;
}

WatchRecord record_of(const Watch& watch) {
  WatchRecord out;
  out.id = watch.id;
  out.session = watch.session->id;
  out.region = watch.region ? watch.region->id : 0;
  out.ticket = watch.ticket ? watch.ticket->serial : 0;
  out.group = watch.group ? watch.group->id : 0;
  out.only_group = watch.only_group;
  out.events = watch.events;
  out.kind = static_cast<std::uint8_t>(watch.kind);
  if (watch.name) out.name = text_in<out.name.size()>(watch.name->first);
  return out;
}

WorldRecord record_of(const World& world) {
  WorldRecord out;
  out.id = world.id;
  out.group = world.group->id;
  out.pool = world.pool;
  out.created = world.created;
  out.uid = world.uid;
  out.port = world.port;
  out.size = static_cast<std::uint32_t>(world.workers.size());
  out.replaced = world.replaced;
  out.last_life = world.last_life;
  out.complete = world.complete;
  out.ending = world.ending;
  out.address = text_in<out.address.size()>(world.address);
  return out;
}

WorkerRecord record_of(const Worker& worker) {
  WorkerRecord out;
  out.id = worker.serial;
  out.world = worker.home->id;
  out.session = worker.session ? worker.session->id : 0;
  out.first_counter = worker.first_counter;
  out.last_counter = worker.last_counter;
  out.rank = worker.rank;
  out.uid = worker.uid;
  out.pid = worker.pid;
  out.life = worker.life;
  out.participant = worker.participant;
  out.participant_life = worker.participant_life;
  out.state = static_cast<std::uint8_t>(worker.state);
  out.past = worker.past();
  out.name = text_in<out.name.size()>(worker.name);
  return out;
}

ReferenceRecord record_of(const Reference& reference) {
  ReferenceRecord out;
  out.id = static_cast<std::uint64_t>(reference.created);
  out.world = reference.owner->home->id;
  out.owner = reference.owner->serial;
  out.counter = reference.counter;
  out.creator = reference.creator;
  out.state = static_cast<std::uint8_t>(reference.state);
  return out;
}

std::optional<FailureRecord> failure_of(const Reference& reference) {
  if (!reference.error) return std::nullopt;
  FailureRecord out;
  out.id = static_cast<std::uint64_t>(reference.created);
  out.text = text_in<out.text.size()>(*reference.error);
  return out;
}

ForkRecord record_of(const Fork& fork) {
  ForkRecord out;
  out.id = fork.counter;
  out.reference = static_cast<std::uint64_t>(fork.reference->created);
  out.user = fork.user->serial;
  out.creator = fork.creator;
  out.in_flight = fork.in_flight;
  out.tell = fork.tell;
  return out;
}

PoolRecord record_of(const Pool& pool) {
  PoolRecord out;
  out.id = pool.id;
  out.group = pool.group->id;
  out.created = pool.created;
  out.keep = pool.keep;
  out.lane_bytes = pool.lane_bytes;
  out.most_slots = pool.view.slots();
  out.most_lanes = pool.view.lanes();
  out.most_queues = pool.view.queues();
  out.most_segments = pool.view.segments();
  out.slots = pool.slots;
  out.deaths = pool.deaths;
  out.owner_uid = pool.owner_uid;
  out.directory = pool.directory.get();
  out.control = pool.control.get();
  out.broken = static_cast<std::uint8_t>(pool.broken);
  out.name_with_holders = pool.name_with_holders;
  out.name = text_in<out.name.size()>(pool.name);
  out.last_lane_serial = pool.last_lane_serial;
  return out;
}

ParticipantRecord record_of(const Participant& participant) {
  ParticipantRecord out;
  out.id = participant.serial;
  out.pool = participant.pool->id;
  out.session = participant.session ? participant.session->id : 0;
  out.index = static_cast<std::uint32_t>(&participant - participant.pool->participants.data());
  out.life = participant.life;
  out.uid = participant.uid;
  out.pid = participant.pid;
  if (participant.doorbell) {
    out.doorbell = participant.doorbell.get();
    out.doorbell_of = participant.doorbell_of;
  }
  out.state = static_cast<std::uint8_t>(participant.state);
  out.read_only = participant.read_only;
  return out;
}

QueueRecord record_of(const QueueBook& queue) {
  QueueRecord out;
  out.id = queue.row;
  out.pool = queue.pool->id;
  out.readers = queue.readers;
  out.writers = queue.writers;
  out.in_regions = queue.in_regions;
  out.index = static_cast<std::uint32_t>(&queue - queue.pool->queues.data());
  out.serial = queue.serial;
  out.flags = queue.flags;
  out.cells = queue.cells;
  out.cell_size = queue.cell_size;
  out.generation = queue.generation;
  out.writer_lane = queue.writer_lane;
  out.deaths = queue.deaths;
  out.kind = static_cast<std::uint8_t>(queue.kind);
  out.state = static_cast<std::uint8_t>(queue.state);
  out.removed = queue.removed;
  out.name = text_in<out.name.size()>(queue.name);
  return out;
}

LaneRecord record_of(const LaneBook& lane) {
  LaneRecord out;
  out.id = lane.row;
  out.pool = lane.pool->id;
  out.queue = lane.pool->queues[lane.queue].row;
  out.offset = lane.offset;
  out.through = lane.through;
  out.index = static_cast<std::uint32_t>(&lane - lane.pool->lanes.data());
  out.serial = lane.serial;
  out.from = lane.from;
  out.from_life = lane.from_life;
  out.to = lane.to;
  out.to_life = lane.to_life;
  out.cells = lane.cells;
  out.cell_size = lane.cell_size;
  out.state = static_cast<std::uint8_t>(lane.state);
  out.sender_finished = lane.sender_finished;
  out.receiver_done = lane.receiver_done;
  return out;
}

HoldRecord record_of(const LaneHold& hold) {
  HoldRecord out;
  out.id = hold.row;
  out.lane = hold.lane->row;
  out.region = hold.region->id;
  return out;
}

SegmentRecord segment_of(const Pool& pool, std::uint32_t index) {
  const Segment& segment = pool.segments[index];
  SegmentRecord out;
  out.id = segment.region->id;
  out.pool = pool.id;
  out.slot_size = segment.slot_size;
  out.index = index;
  out.first_slot = segment.first_slot;
  out.slots = segment.slots;
  out.slots_limit = segment.slots_limit;
  return out;
}

GpuMemoryRecord record_of(const GpuMemory& gpu) {
  GpuMemoryRecord out;
  out.id = gpu.region.id;
  out.exporter = gpu.exporter;
  out.node = gpu.node ? gpu.node->serial : 0;
  out.chunk_bytes = gpu.chunk_bytes;
  out.granularity = gpu.granularity;
  out.offset = gpu.offset;
  out.allocation = gpu.allocation;
  out.manifest_bytes = gpu.manifest_bytes;
  out.publish_flags = gpu.publish_flags;
  out.chunks = gpu.chunks;
  out.driver = gpu.driver;
  out.exporter_pid = gpu.exporter_pid;
  out.code = gpu.code;
  out.manifest = gpu.manifest.get();
  out.kind = static_cast<std::uint8_t>(gpu.kind);
  out.state = static_cast<std::uint8_t>(gpu.state);
  if (gpu.timeline) {
    out.words = gpu.timeline->words;
    out.status = static_cast<std::uint8_t>(gpu.timeline->status);
  }
  std::ranges::copy(gpu.uuid, out.uuid.begin());
  out.handle = gpu.handle;
  return out;
}

GpuChunkRecord chunk_of(const GpuMemory& gpu, std::uint32_t index) {
  GpuChunkRecord out;
  out.id = gpu.chunk_records[index].serial;
  out.region = gpu.region.id;
  out.index = index;
  out.keeper = gpu.files[2 * index].get();
  out.share = gpu.share(index);
  return out;
}

GpuNodeRecord record_of(const GpuNode& node) {
  GpuNodeRecord out;
  out.id = node.serial;
  out.minor = node.minor;
  out.uid = node.charge.uid();
  out.node = node.fd.get();
  out.hold = static_cast<std::uint8_t>(node.hold);
  return out;
}

GpuDeviceRecord device_of(const Session& session, const GpuDevice& device) {
  GpuDeviceRecord out;
  out.id = device.serial;
  out.session = session.id;
  out.node = device.node ? device.node->serial : 0;
  std::ranges::copy(device.uuid, out.uuid.begin());
  return out;
}

static void commit(Ledger& ledger) {
  Books& all = ledger.host.books;
  books::Store& store = all.store;
  store.begin();
  // The first commit writes the totals in any case: without them a reader would have to look at every place.
  if (all.noted == 0 && !store.has_erased() && !store.behind() && store.transactions() != 0) return;
  all.each_kind([&](const auto& changed) { changed.each([&](auto& item) { put(store, item); }); });
  store.totals.last_session = ledger.sessions.last_id;
  store.totals.last_region = ledger.regions.last_id;
  store.totals.last_group = ledger.groups.last_id;
  store.totals.last_serial = ledger.host.last_serial;
  store.totals.last_world = ledger.worlds.last_id;
  store.totals.last_reference = static_cast<std::uint64_t>(ledger.worlds.last_reference);
  const bool committed = store.commit();
  show_given(ledger.pools);
  // Events leave like replies: after the commit of the changes that they report, or without it if there is no memory.
  all.sessions.each([](Session& session) {
    if (session.link) session.link->send_events();
  });
  if (!committed) return ledger.memory_is_low();
  all.each_kind([](auto& changed) { changed.forget_all(); });
}

// A descriptor is closed after the commit that forgets it. If there is no memory for the commit it is closed all the
// same: that may free the memory which is lacking.
void write_books(Ledger& ledger) {
  commit(ledger);
  ledger.regions.closer.go();
  for (auto& [uid, file] : ledger.accounts.client_files.take_held())
    (void)close_elsewhere(ledger.accounts, uid, std::move(file));
}

}  // namespace shmb::daemon
