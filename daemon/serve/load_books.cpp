// SPDX-License-Identifier: Apache-2.0
// See load_books.hpp. The order is that of the references: groups, regions, sessions, leases, tickets, watches, pools.
// A record whose region, session or group is not loaded is left out.
#include "daemon/serve/load_books.hpp"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sys_memory.hpp"
#include "daemon/ledger/group.hpp"
#include "daemon/serve/ledger.hpp"
#include "daemon/serve/load_pools.hpp"
#include "daemon/serve/session_end.hpp"
#include "daemon/serve/stored_answer.hpp"

namespace shmb::daemon {
namespace {

using books::text_of;

// A session is made from this. It has a link again when the transport takes its connection over.
class LastLink final : public Link {
 public:
  LastLink(Peer peer, Held held) : peer_(std::move(peer)), held_(held) {}
  const Peer& peer() const override { return peer_; }
  Held descriptors_held() const override { return held_; }
  void reply(wire::Bytes, std::span<const int>) override {}
  void hold() override {}
  void serve_again() override {}
  void yield() override {}
  void event(wire::Bytes) override {}
  void send_events() override {}
  void drop(std::string_view) override {}
  std::uint32_t descriptors_in_flight() const override { return 0; }
  bool confirm_start_time(std::uint64_t) override { return false; }
  std::vector<Fd>& descriptors() override { return none_; }

 private:
  Peer peer_;
  Held held_;
  std::vector<Fd> none_;
};

Secret secret_of(const std::array<std::uint8_t, 16>& bytes) {
  Secret out;
  out.bytes = bytes;
  return out;
}

class Loader {
 public:
  Loader(Ledger& ledger, const books::LastBooks& last) : ledger_(ledger), last_(last) {}
  Result<void> load() {
    each<books::TotalsRecord>(&Loader::totals);
    each<books::GroupRecord>(&Loader::group);
    each<books::RegionRecord>(&Loader::region);
    fill_shelves();
    each<books::NameRecord>(&Loader::name);
    each<books::SessionRecord>(&Loader::session);
    each<books::PacketsRecord>(&Loader::packets);
    each<books::GroupRecord>(&Loader::sponsor);
    each<books::LeaseRecord>(&Loader::lease);
    each<books::TicketRecord>(&Loader::ticket);
    each<books::WatchRecord>(&Loader::watch);
    SHMB_TRY_VOID(load_pools(ledger_, last_));
    load_answers(ledger_, last_);
    return {};
  }

 private:
  template <class Record>
  void each(void (Loader::*load)(const Record&)) {
    last_.each<Record>([&](const Record& record) { (this->*load)(record); });
  }
  Group* find_group(std::uint64_t id) const { return daemon::find_group(ledger_.groups, id); }
  Region* find_region(std::uint64_t id) const { return ledger_.regions.find(id); }

  void totals(const books::TotalsRecord& last) {
    ledger_.sessions.last_id = last.last_session;
    ledger_.regions.last_id = last.last_region;
    ledger_.groups.last_id = last.last_group;
    ledger_.host.last_serial = last.last_serial;
    ledger_.worlds.last_id = last.last_world;
    ledger_.worlds.last_reference = static_cast<std::int64_t>(last.last_reference);
  }
  void group(const books::GroupRecord& record);
  void region(const books::RegionRecord& record);
  void fill_shelves();
  void name(const books::NameRecord& record);
  void session(const books::SessionRecord& record);
  void packets(const books::PacketsRecord& record);
  void sponsor(const books::GroupRecord& record);
  void lease(const books::LeaseRecord& record);
  void ticket(const books::TicketRecord& record);
  void watch(const books::WatchRecord& record);

  Ledger& ledger_;
  const books::LastBooks& last_;
  std::vector<Region*> cached_;
  std::map<std::uint64_t, Ticket*> tickets_;  // by serial
};

void Loader::group(const books::GroupRecord& record) {
  Uid& uid = ledger_.accounts.hold_uid(record.uid);
  Group& group =
      add_group(ledger_.groups, record.id, record.uid, text_of(record.name), uid.account.take(Resource::groups, 1));
  group.token = secret_of(record.token);
  group.asked_bytes = record.asked_bytes;
  group.asked_regions = record.asked_regions;
  group.asked_by_admin = record.asked_by_admin;
  group.created = record.created;
  group.keep = record.keep;
  group.ended_at = record.ended_at;
  group.supervised = record.supervised;
  group.supervisor_lost = record.supervisor_lost;
  group.tree_gone = record.tree_gone;
  group.closed = record.closed;
  make_known(ledger_.groups, group);
}

// Seals that the last broker had put on, and had not booked yet.
std::uint8_t state_of(const books::RegionRecord& record) {
  const int seals = sys::seals(record.memory).value_or(0);
  if (record.state == SHMBW_REGION_STATE_CACHED || record.state == SHMBW_REGION_STATE_PUBLISHED) return record.state;
  if ((seals & F_SEAL_WRITE) != 0) return SHMBW_REGION_STATE_PUBLISHED;
  return (seals & F_SEAL_FUTURE_WRITE) != 0 ? std::uint8_t{SHMBW_REGION_STATE_WRITE_CLOSED} : record.state;
}

void Loader::region(const books::RegionRecord& record) {
  if (!last_.has_memory(record)) return;
  Fd memory = Fd::adopt(record.memory);
  Group* const group = find_group(record.group);
  if (!group) return;
  Region& region =
      add_region(ledger_.regions, *group, record.id, record.bytes, std::move(memory),
                 group->account.take(Resource::bytes, record.bytes), group->account.take(Resource::regions, 1));
  region.length = record.length;
  region.populated = record.populated;
  region.created = record.created;
  region.keep = record.keep;
  region.generation = record.generation;
  region.creator_pid = record.creator_pid;
  region.state = state_of(record);
  region.page_kind = record.page_kind;
  region.many_writers = record.many_writers;
  region.no_recycle = record.no_recycle;
  region.dirty_birth = record.dirty_birth;
  region.was_outside = record.was_outside;
  region.seal_sealed = record.seal_sealed;
  region.heap = record.heap;
  region.name_with_holders = record.name_with_holders;
  region.hugetlb = record.hugetlb;
  changed(region);
  if (region.state == SHMBW_REGION_STATE_CACHED) cached_.push_back(&region);
  else ++ledger_.regions.count;
}

void Loader::fill_shelves() {
  std::ranges::sort(cached_, {}, &Region::id);  // they got their ids when they came there
  for (Region* region : cached_) region->group->shelf.add(*region);
}

void Loader::name(const books::NameRecord& record) {
  Region* const region = find_region(record.id);
  if (!region) return;
  if (record.promised)
    region->promised = std::make_unique<Promised>(std::string(text_of(record.text)), record.keep, record.replace);
  else region->group->names.add(text_of(record.text), *region, region->group->account.take(Resource::names, 1));
}

void Loader::session(const books::SessionRecord& record) {
  if (static_cast<Phase>(record.phase) == Phase::ended) return;
  Peer peer;
  peer.uid = record.uid;
  peer.pid = record.pid;
  peer.admin = record.admin;
  const bool resumes = last_.resumes(record);
  peer.has_pidfd = resumes && record.pidfd >= 0;
  LastLink last(std::move(peer), resumes ? Link::Held{record.socket, record.pidfd} : Link::Held{});
  Uid& uid = ledger_.accounts.hold_uid(record.uid);
  Session& session =
      ledger_.sessions.all.try_emplace(record.id, ledger_.host, record.id, last, uid.account).first->second;
  ++ledger_.accounts.live_sessions;
  session.link = nullptr;
  if (record.charged) session.charge = uid.account.take(Resource::sessions, 1);
  session.line = record.line;
  session.ended_group = record.ended_group;
  session.fork_source = record.fork_source;
  session.sequence = record.events;
  session.connected = record.connected;
  session.start_ticks = record.start_ticks;
  session.fork_secret = secret_of(record.fork_secret);
  session.phase = static_cast<Phase>(record.phase);
  session.process_gone = record.process_gone;
  session.takes_descriptors = record.takes_descriptors;
  session.lazy = record.lazy;
  if (record.exited) session.exit = sys::ExitInfo{record.killed, record.exit_code, record.core};
  session.library = text_of(record.library);
  session.group = find_group(record.group);
  if (session.group) session.group->members.push_back(session);
  session.supervises = find_group(record.supervises);
  if (session.supervises) session.supervises->supervisors.push_back(session);
}

// What the client has got of the last answer is not known.
void Loader::packets(const books::PacketsRecord& record) {
  Session* const session = ledger_.sessions.find(record.id);
  if (!session) return;
  session->numbers.on = true;
  session->numbers.served = record.served;
  session->numbers.answered = record.answered;
  session->numbers.take_over();
  ledger_.host.books.numbers.note(session->numbers);
}

void Loader::sponsor(const books::GroupRecord& record) {
  Session* const session = ledger_.sessions.find(record.sponsor);
  if (!session) return;
  Group& group = *find_group(record.id);
  group.sponsor = session;
  session->sponsored.push_back(group);
}

void Loader::lease(const books::LeaseRecord& record) {
  Session* const session = ledger_.sessions.find(record.session);
  Region* const region = find_region(record.region);
  if (!session || !region) return;
  Lease& lease = add_lease(ledger_.regions, *session, *region, record.id, session->account.take(Resource::leases, 1),
                           record.rights, static_cast<Reach>(record.reach));
  lease.since = record.since;
  lease.count = record.count;
  lease.pins = record.pins;
  lease.kept = record.kept;
  lease.asked = record.asked;
  lease.made = record.made;
  if (lease.kept) ledger_.regions.kept_leases.insert(&lease);
}

void Loader::ticket(const books::TicketRecord& record) {
  Region* const region = find_region(record.region);
  if (!region) return;
  Uid& uid = ledger_.accounts.hold_uid(record.maker_uid);
  Session* const payer = ledger_.sessions.find(record.payer);
  Session* const with = ledger_.sessions.find(record.with);
  Account& account = payer ? payer->account : uid.account;
  Ticket& ticket = add_ticket(ledger_.tickets, secret_of(record.secret), record.id, *region, record.expires,
                              account.take(Resource::tickets, 1));
  ticket.rights = record.rights;
  ticket.uses_left = record.uses_left;
  ticket.maker_uid = record.maker_uid;
  ticket.maker = record.maker;
  ticket.maker_group = record.maker_group;
  tickets_[ticket.serial] = &ticket;
  if (payer) pay_with(*payer, ticket);
  if (with) end_with_session(*with, ticket);
  if (ticket.left()) ++uid.tickets_left;
}

// A session that ends with this start needs none.
void Loader::watch(const books::WatchRecord& record) {
  Session* const session = ledger_.sessions.find(record.session);
  if (!session || session->socket < 0) return;
  Region* const region = record.region != 0 ? find_region(record.region) : nullptr;
  Group* const group = record.group != 0 ? find_group(record.group) : nullptr;
  const auto ticket = record.ticket != 0 ? tickets_.find(record.ticket) : tickets_.end();
  NameWatches::value_type* name = nullptr;
  Watchers* target = nullptr;
  switch (static_cast<shmbw_watch_kind>(record.kind)) {
    case SHMBW_WATCH_KIND_REGION:
      target = region && (record.ticket == 0 || ticket != tickets_.end()) ? &region->watchers : nullptr;
      break;
    case SHMBW_WATCH_KIND_GROUP:
      target = group ? &group->watchers : nullptr;
      break;
    case SHMBW_WATCH_KIND_NAME:
      name = &*ledger_.watches.names.try_emplace(std::string(text_of(record.name))).first;
      target = &name->second;
      break;
    case SHMBW_WATCH_KIND_RECLAIM:
      target = &reclaims_of(ledger_.watches, *session);
      break;
    default:
      break;
  }
  if (!target) {  // what it watched is lost: a gap tells its client to look again
    ++session->sequence;
    return;
  }
  Watch& watch = add_watch(ledger_.watches, *session, record.id, static_cast<shmbw_watch_kind>(record.kind),
                           record.events, *target, session->account.take(Resource::watches, 1));
  watch.region = region;
  watch.group = group;
  watch.only_group = record.only_group;
  watch.name = name;
  if (ticket == tickets_.end()) return;
  watch.ticket = ticket->second;
  ticket->second->watchers.push_back(watch);
}

template <class Objects>
std::vector<std::uint64_t> ids_of(const Objects& objects) {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, object] : objects) ids.push_back(id);
  return ids;
}

}  // namespace

Result<void> load_books(Ledger& ledger, const books::LastBooks& last) { return Loader(ledger, last).load(); }

// Events may have been queued with the last broker, and how many is not known. So a gap tells the client to look again,
// unless there never was an event.
void tell_resume(Session& session) {
  std::byte buffer[128];
  wire::Writer out(buffer);
  out.begin(SHMBW_EVENT | SHMBW_EVENT_RESUME, 0, Status::ok,
            shmbw_resume_event{session.sequence, 0, session.numbers.served});
  session.link->event(out.finish(0));
  changed(session);  // the commit sends what is queued
  if (session.sequence == 0) return;
  shmbw_gap_event gap{};
  gap.sequence = session.sequence;
  out = wire::Writer(buffer);
  out.begin(SHMBW_EVENT | SHMBW_EVENT_GAP, 0, Status::ok, gap);
  session.link->event(out.finish(0));
}

void end_loaded(Ledger& ledger) {
  for (const std::uint64_t id : ids_of(ledger.sessions.all)) {
    Session& session = ledger.sessions.all.at(id);
    if (session.link) continue;
    session.lose_link();
    if (!session.process_gone) {
      lose_pools_of(ledger, session);
      session_process_died(ledger, session, nullptr);
    }
    forget_session(ledger, session);
  }
  for (const std::uint64_t id : ids_of(ledger.regions.all))
    if (Region* const region = ledger.regions.find(id); region && !region->held())
      release_region(ledger.regions, *region);
  const std::int64_t now = ledger.host.now();
  for (const std::uint64_t id : ids_of(ledger.groups.all)) {
    Group* const group = find_group(ledger.groups, id);
    if (!group) continue;
    if (group->kept()) group->on_timer(now);  // its next keep ends by this broker's timer
    else settle_group(ledger.groups, *group);
  }
  resume_pools(ledger);
}

}  // namespace shmb::daemon
