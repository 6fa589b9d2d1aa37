// SPDX-License-Identifier: Apache-2.0
// See compare_books.hpp.
#include "daemon/serve/compare_books.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/serve/ledger.hpp"
#include "daemon/serve/records.hpp"

namespace shmb::daemon {
namespace {

using Tell = std::function<void(std::string)>;

// As a record is in the books, with the checksum of its place.
template <class Record>
bool same(Record wanted, const Record& booked, std::uint32_t place) {
  wanted.check =
      books::check_of_record(Record::kNumber, place, reinterpret_cast<const std::byte*>(&wanted), sizeof wanted);
  return std::memcmp(&wanted, &booked, sizeof wanted) == 0;
}

// Names the fields, so that a reader of the log finds the place that did not note its change.
template <class Record>
std::string fields_that_differ(const Record& wanted, const Record& booked) {
  std::string out;
  for (const books::Field& field : books::kRecordKinds[Record::kNumber - 1].fields)
    if (std::memcmp(reinterpret_cast<const char*>(&wanted) + field.offset,
                    reinterpret_cast<const char*>(&booked) + field.offset, std::size_t{field.size} * field.count) != 0)
      out += " " + std::string(field.name);
  return out;
}

// The objects of one kind against the records of that kind.
template <class Record>
class Compared {
 public:
  Compared(const books::Store& store, const Tell& tell) : store_(store), tell_(tell) {}
  Compared(const Compared&) = delete;
  Compared& operator=(const Compared&) = delete;
  ~Compared() {
    if (store_.count(Record::kNumber) != objects_)
      tell_(std::to_string(objects_) + " objects have " + std::to_string(store_.count(Record::kNumber)) +
            " records of kind " + kind());
  }
  void compare(const Record& wanted, std::uint32_t place) {
    ++objects_;
    const Record booked = place == books::kNowhere ? Record{} : store_.at<Record>(place);
    if (place != books::kNowhere && same(wanted, booked, place)) return;
    tell_(kind() + " " + std::to_string(wanted.id) +
          " is not what its record says:" + fields_that_differ(wanted, booked));
  }

 private:
  static std::string kind() { return std::string(books::kRecordKinds[Record::kNumber - 1].name); }
  const books::Store& store_;
  const Tell& tell_;
  std::size_t objects_ = 0;
};

void compare_records(Ledger& ledger, const Tell& tell) {
  const books::Store& store = ledger.host.books.store;
  Compared<books::SessionRecord> sessions(store, tell);
  Compared<books::PacketsRecord> packets(store, tell);
  Compared<books::AnswerRecord> answers(store, tell);
  Compared<books::LeaseRecord> leases(store, tell);
  Compared<books::GroupRecord> groups(store, tell);
  Compared<books::RegionRecord> regions(store, tell);
  Compared<books::NameRecord> names(store, tell);
  Compared<books::TicketRecord> tickets(store, tell);
  Compared<books::WatchRecord> watches(store, tell);
  Compared<books::WorldRecord> worlds(store, tell);
  Compared<books::WorkerRecord> workers(store, tell);
  Compared<books::ReferenceRecord> references(store, tell);
  Compared<books::FailureRecord> failures(store, tell);
  Compared<books::ForkRecord> forks(store, tell);
  Compared<books::PoolRecord> pools(store, tell);
  Compared<books::ParticipantRecord> participants(store, tell);
  Compared<books::SegmentRecord> segments(store, tell);
  Compared<books::QueueRecord> queues(store, tell);
  Compared<books::LaneRecord> lanes(store, tell);
  Compared<books::HoldRecord> holds(store, tell);
  Compared<books::GpuMemoryRecord> gpu_memories(store, tell);
  Compared<books::GpuChunkRecord> gpu_chunks(store, tell);
  Compared<books::GpuDeviceRecord> gpu_devices(store, tell);
  Compared<books::GpuNodeRecord> gpu_nodes(store, tell);
  std::set<const GpuNode*> nodes;  // several sessions and regions share one
  for (const auto& [id, session] : ledger.sessions.all) {
    sessions.compare(record_of(session), session.place);
    if (session.numbers.on) packets.compare(record_of(session.numbers), session.numbers.place);
    for (const StoredAnswer* stored : {&session.numbers.answer, &session.numbers.begun})
      for (std::uint32_t index = 0; index < parts_of(*stored); ++index)
        answers.compare(part_of(*stored, index), stored->places[index]);
    for (const auto& [region, lease] : session.leases) leases.compare(record_of(lease), lease.place);
    for (const GpuDevice& device : session.gpu_devices) {
      gpu_devices.compare(device_of(session, device), device.place);
      nodes.insert(device.node.get());
    }
    for (const auto& [number, watch] : session.watches) watches.compare(record_of(watch), watch.place);
  }
  for (const auto& [id, group] : ledger.groups.all) groups.compare(record_of(group), group.place);
  for (const auto& [id, region] : ledger.regions.all) {
    if (region.gpu) nodes.insert(region.gpu->node.get());  // also while its own files are being closed
    if (!has_record(region)) continue;
    regions.compare(record_of(region), region.place);
    if (const auto name = name_of(region)) names.compare(*name, region.name_place);
    if (!region.gpu) continue;
    gpu_memories.compare(record_of(*region.gpu), region.gpu->place);
    for (std::uint32_t i = 0; i < region.gpu->present(); ++i)
      gpu_chunks.compare(chunk_of(*region.gpu, i), region.gpu->chunk_records[i].place);
  }
  for (const GpuNode* node : nodes)
    if (node) gpu_nodes.compare(record_of(*node), node->place);
  for (const auto& [secret, ticket] : ledger.tickets.all) tickets.compare(record_of(ticket), ticket.place);
  for (const auto& [id, world] : ledger.worlds.all) {
    worlds.compare(record_of(world), world.place);
    for (const auto* lives : {&world.workers, &world.past})
      for (const auto& worker : *lives)
        if (has_record(*worker)) workers.compare(record_of(*worker), worker->place);
    for (const Reference& reference : world.references) {
      references.compare(record_of(reference), reference.place);
      if (const auto failure = failure_of(reference)) failures.compare(*failure, reference.failure_place);
    }
    for (const Fork& fork : world.forks) forks.compare(record_of(fork), fork.place);
  }
  for (const auto& [id, pool] : ledger.pools.all) {
    pools.compare(record_of(pool), pool.place);
    for (const Participant& who : pool.participants)
      if (has_record(who)) participants.compare(record_of(who), who.place);
    for (std::uint32_t i = 0; i < pool.segments.size(); ++i)
      segments.compare(segment_of(pool, i), pool.segments[i].place);
    for (const QueueBook& queue : pool.queues)
      if (has_record(queue)) queues.compare(record_of(queue), queue.place);
    for (const LaneBook& lane : pool.lanes) {
      if (has_record(lane)) lanes.compare(record_of(lane), lane.place);
      for (const auto& [region, hold] : lane.holds) holds.compare(record_of(hold), hold.place);
    }
  }
}

// The charges of each account, as the records tell them.
struct Sums {
  using Key = std::pair<std::uint64_t, Resource>;  // of a user, a group or a session
  std::map<Key, std::uint64_t> users, groups, sessions;
};

Sums sums_of(const books::Store& store) {
  Sums out;
  std::map<std::uint64_t, std::uint32_t> uids;
  store.each<books::SessionRecord>([&](const books::SessionRecord& session) {
    uids[session.id] = session.uid;
    if (session.charged) ++out.users[{session.uid, Resource::sessions}];
  });
  store.each<books::GroupRecord>([&](const books::GroupRecord& group) { ++out.users[{group.uid, Resource::groups}]; });
  store.each<books::LeaseRecord>(
      [&](const books::LeaseRecord& lease) { ++out.sessions[{lease.session, Resource::leases}]; });
  store.each<books::TicketRecord>([&](const books::TicketRecord& ticket) {
    ++out.users[{ticket.maker_uid, Resource::tickets}];
    if (ticket.payer != 0) ++out.sessions[{ticket.payer, Resource::tickets}];
  });
  store.each<books::WatchRecord>([&](const books::WatchRecord& watch) {
    ++out.users[{uids[watch.session], Resource::watches}];
    ++out.sessions[{watch.session, Resource::watches}];
  });
  store.each<books::WorldRecord>([&](const books::WorldRecord& world) { ++out.users[{world.uid, Resource::worlds}]; });
  std::map<std::uint64_t, std::uint32_t> workers;
  store.each<books::WorkerRecord>([&](const books::WorkerRecord& worker) { workers[worker.id] = worker.uid; });
  store.each<books::ForkRecord>(
      [&](const books::ForkRecord& fork) { ++out.users[{workers[fork.user], Resource::references}]; });
  store.each<books::NameRecord>([&](const books::NameRecord& name) {
    if (!name.promised) ++out.groups[{name.group, Resource::names}];
  });
  std::map<std::uint64_t, std::uint64_t> pools, lanes;  // to their groups
  store.each<books::PoolRecord>([&](const books::PoolRecord& pool) {
    pools[pool.id] = pool.group;
    if (pool.name[0] != 0) ++out.groups[{pool.group, Resource::names}];
  });
  store.each<books::LaneRecord>([&](const books::LaneRecord& lane) { lanes[lane.id] = pools[lane.pool]; });
  store.each<books::HoldRecord>(
      [&](const books::HoldRecord& hold) { ++out.groups[{lanes[hold.lane], Resource::leases}]; });
  return out;
}

void compare_sums(Ledger& ledger, const Tell& tell) {
  const Sums sums = sums_of(ledger.host.books.store);
  const auto compare = [&](const Account& account, const std::map<Sums::Key, std::uint64_t>& said, Resource resource,
                           std::string_view whose, std::uint64_t paid_ahead = 0) {
    const auto at = said.find({account.id(), resource});
    const std::uint64_t booked = at == said.end() ? 0 : at->second;
    if (booked == account.used(resource) - paid_ahead) return;
    tell(std::string(whose) + " " + std::to_string(account.id()) + " is charged for " +
         std::to_string(account.used(resource)) + " " + std::string(slot_name(static_cast<std::uint16_t>(resource))) +
         ", and the records say " + std::to_string(booked));
  };
  for (const auto& [uid, user] : ledger.accounts.uids)
    for (const Resource resource : {Resource::sessions, Resource::groups, Resource::tickets, Resource::watches,
                                    Resource::worlds, Resource::references})
      compare(user.account, sums.users, resource, "uid");
  for (const auto& [id, group] : ledger.groups.all) {
    for (const Resource resource : {Resource::names, Resource::leases})
      compare(group.account, sums.groups, resource, "group");
  }
  for (const auto& [id, session] : ledger.sessions.all) {
    // A request that waits for seals has paid for its leases, and has none yet.
    std::uint64_t ahead = 0;
    for (const AwaitedSeals& seals : session.awaited) ahead += seals.charge.amount();
    compare(session.account, sums.sessions, Resource::leases, "session", ahead);
    for (const Resource resource : {Resource::tickets, Resource::watches})
      compare(session.account, sums.sessions, resource, "session");
  }
}

// Objects and records say the same of a number that was closed elsewhere, so the kernel is asked. A number that two
// records name is closed, too: the second one got it from the kernel.
void compare_descriptors(const books::Store& store, const Tell& tell) {
  struct Owned {
    std::int32_t fd;
    std::uint32_t kind, field;
    std::uint64_t id;
    std::string who() const {
      const books::RecordKind& owner = books::kRecordKinds[kind - 1];
      return std::string(owner.name) + " " + std::to_string(id) + ": " + std::string(owner.fields[field].name) + " " +
             std::to_string(fd);
    }
  };
  std::vector<Owned> all;
  for (std::uint32_t kind = 1; kind <= books::kRecordKinds.size(); ++kind) {
    const auto& fields = books::kRecordKinds[kind - 1].fields;
    for (std::uint32_t field = 0; field < fields.size(); ++field) {
      if (fields[field].type != books::Type::descriptor) continue;
      store.each(kind, [&](std::uint32_t, const std::byte* record) {
        std::int32_t fd = -1;
        std::memcpy(&fd, record + fields[field].offset, sizeof fd);
        if (fd >= 0) all.push_back({fd, kind, field, books::id_of(record)});
      });
    }
  }
  std::ranges::stable_sort(all, {}, &Owned::fd);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (::fcntl(all[i].fd, F_GETFL) < 0) tell(all[i].who() + " is closed");
    if (i > 0 && all[i - 1].fd == all[i].fd) tell(all[i].who() + " is that of " + all[i - 1].who());
  }
}

}  // namespace

void compare_books(Ledger& ledger) {
  constexpr std::size_t kFew = 256, kEvery = 256;
  static std::size_t calls = 0;
  if (ledger.host.books.store.behind()) return;  // they wait for memory, and are known to be older
  const bool few = ledger.sessions.all.size() + ledger.regions.all.size() <= kFew;
  if (++calls % (few ? ledger.host.facts.compare_books : kEvery) != 0) return;
  compare_all_books(ledger);
}

void compare_all_books(Ledger& ledger) {
  const Tell tell = [&](const std::string& text) { ledger.host.own_bug("own bug: " + text); };
  compare_records(ledger, tell);
  compare_sums(ledger, tell);
  compare_descriptors(ledger.host.books.store, tell);
}

}  // namespace shmb::daemon
