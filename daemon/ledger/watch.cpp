// SPDX-License-Identifier: Apache-2.0
// Making, ending and firing of subscriptions. An event is queued at the link and never waits (law 8).
#include "daemon/ledger/watch.hpp"

#include <utility>

#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/ticket.hpp"
#include "daemon/ledger/watches.hpp"
#include "proto/codec.hpp"

namespace shmb::daemon {

void changed(Watch& watch) { watch.session->books.watches.note(watch); }

Watchers& reclaims_of(Watches& watches, const Session& session) {
  return session.admin ? watches.all_reclaims : watches.accounts.uids.at(session.uid).reclaims;
}

Result<Watch*> make_watch(Watches& watches, Session& session, shmbw_watch_kind kind, std::uint32_t events,
                          Watchers& target) {
  if (const std::uint64_t most = watches.host.config.limits.target_watches; target.size() >= most)
    return std::unexpected(
        refuse_limit(watches.groups, session, {SHMBW_SLOT_WATCHES, SHMBW_SCOPE_WATCHED, 0, most, target.size(), 1}));
  auto charge = session.account.charge(Resource::watches, 1);
  if (!charge) return std::unexpected(refuse_limit(watches.groups, session, charge.error()));
  return &add_watch(watches, session, ++watches.host.last_serial, kind, events, target, std::move(*charge));
}

Watch& add_watch(Watches& watches, Session& session, std::uint64_t id, shmbw_watch_kind kind, std::uint32_t events,
                 Watchers& target, Charge charge) {
  Watch& watch = session.watches.try_emplace(id).first->second;
  watch.id = id;
  watch.session = &session;
  watch.kind = kind;
  watch.events = events;
  watch.charge = std::move(charge);
  changed(watch);  // also for what the caller fills in
  ++watches.count;
  target.push_back(watch);
  return watch;
}

void destroy_watch(Watches& watches, Watch& watch) {
  if (watch.region) watch.region->watchers.remove(watch);
  if (watch.ticket) watch.ticket->watchers.remove(watch);
  if (watch.group) watch.group->watchers.remove(watch);
  if (watch.kind == SHMBW_WATCH_KIND_RECLAIM) reclaims_of(watches, *watch.session).remove(watch);
  if (watch.name) {
    watch.name->second.remove(watch);
    if (watch.name->second.empty()) watches.names.erase(watches.names.find(watch.name->first));
  }
  watches.host.books.end<books::WatchRecord>(watches.host.books.watches, watch);
  --watches.count;
  watch.session->watches.erase(watch.id);
}

bool cancel_watch(Watches& watches, Session& session, std::uint64_t id) {
  auto at = session.watches.find(id);
  if (at == session.watches.end()) return false;
  destroy_watch(watches, at->second);
  return true;
}

namespace {

template <class Event>
void send(Session& session, std::uint16_t op, const Event& event, std::string_view text = {}) {
  changed(session);  // its sequence
  if (!session.link) return;
  std::byte buffer[1024];
  wire::Writer out(buffer);
  out.begin(static_cast<std::uint16_t>(op | SHMBW_EVENT), 0, Status::ok, event);
  out.text(text);
  session.link->event(out.finish(0));
}

void tell_appeared(Watches& watches, const std::string& key, std::string_view name, shmbw_region_ref ref) {
  auto found = watches.names.find(key);
  if (found == watches.names.end()) return;
  found->second.each([&](Watch& watch) {
    shmbw_name_appeared_event event{};
    event.sequence = ++watch.session->sequence;
    event.watch = watch.id;
    event.region = ref;
    event.name_len = static_cast<std::uint16_t>(name.size());
    send(*watch.session, SHMBW_EVENT_NAME_APPEARED, event, name);
  });
}

}  // namespace

void tell_region(Watches& watches, Region& region, shmbw_watch_event_flags what) {
  region.watchers.each([&](Watch& watch) {
    if ((watch.events & static_cast<std::uint32_t>(what)) != 0) {
      shmbw_region_gone_event event{++watch.session->sequence, watch.id, region.ref()};
      static_assert(sizeof(event) == sizeof(shmbw_region_ready_event));
      static_assert(sizeof(event) == sizeof(shmbw_region_published_event));
      std::uint16_t op = what == SHMBW_WATCH_EVENT_READY       ? SHMBW_EVENT_REGION_READY
                         : what == SHMBW_WATCH_EVENT_PUBLISHED ? SHMBW_EVENT_REGION_PUBLISHED
                                                               : SHMBW_EVENT_REGION_GONE;
      send(*watch.session, op, event);
    }
    if (what == SHMBW_WATCH_EVENT_GONE) destroy_watch(watches, watch);
  });
}

void tell_ticket_ends(Watches& watches, Ticket& ticket) {
  ticket.watchers.each([&](Watch& watch) {
    if ((watch.events & SHMBW_WATCH_EVENT_GONE) != 0)
      send(*watch.session, SHMBW_EVENT_REGION_GONE,
           shmbw_region_gone_event{++watch.session->sequence, watch.id, ticket.region->ref()});
    destroy_watch(watches, watch);
  });
}

void tell_name(Watches& watches, const Group& group, const Region& region) {
  if (watches.names.empty()) return;
  const std::string_view name = region.name->text;
  tell_appeared(watches, name_key(group.uid, group.text(), name), name, region.ref());
}

void tell_pool_name(Watches& watches, const Group& group, std::string_view name, std::uint64_t pool) {
  if (watches.names.empty()) return;
  tell_appeared(watches, pool_name_key(group.uid, group.text(), name), name, {pool, 0, 0});
}

void tell_gpu_state(Region& region, std::int32_t code, std::uint32_t pid) {
  auto tell = [&](Session& session, std::uint64_t watch) {
    if (!session.link) return;
    send(
        session, SHMBW_EVENT_GPU_STATE,
        shmbw_gpu_state_event{++session.sequence, watch, region.ref(), region.gpu->state, region.gpu->kind, code, pid});
  };
  region.leases.each([&](Lease& lease) { tell(*lease.session, 0); });
  region.watchers.each([&](Watch& watch) {
    if ((watch.events & SHMBW_WATCH_EVENT_GPU) != 0) tell(*watch.session, watch.id);
  });
}

void tell_gpu_drained(Session& session, const Region& region) {
  send(session, SHMBW_EVENT_GPU_DRAINED, shmbw_gpu_drained_event{++session.sequence, 0, region.ref()});
}

void tell_gpu_device(Session& session, shmbw_gpu_device_event event, std::string_view text) {
  text = text.substr(0, 512);
  event.sequence = ++session.sequence;
  event.text_len = static_cast<std::uint16_t>(text.size());
  send(session, SHMBW_EVENT_GPU_DEVICE, event, text);
}

void tell_give_up(Session& session, const Region& region) {
  send(session, SHMBW_EVENT_GIVE_UP, shmbw_give_up_event{++session.sequence, 0, region.ref()});
}

void tell_pool_changed(Session& session, std::uint64_t pool) {
  send(session, SHMBW_EVENT_POOL_CHANGED, shmbw_pool_changed_event{++session.sequence, 0, pool});
}

void tell_world_changed(Session& session, std::uint64_t world, std::uint32_t change, std::uint32_t rank,
                        std::uint32_t life, std::uint32_t present) {
  send(session, SHMBW_EVENT_WORLD_CHANGED,
       shmbw_world_changed_event{++session.sequence, 0, world, change, rank, present, life});
}

void tell_ref_unused(Session& session, std::uint64_t world, const shmbw_ref_id& reference) {
  send(session, SHMBW_EVENT_REF_UNUSED, shmbw_ref_unused_event{++session.sequence, 0, world, reference});
}

void tell_ref_changed(Session& session, std::uint64_t world, const shmbw_ref_id& reference, std::uint32_t state,
                      std::uint32_t owner) {
  send(session, SHMBW_EVENT_REF_CHANGED,
       shmbw_ref_changed_event{++session.sequence, 0, world, reference, state, owner});
}

void tell_group_ended(Watches& watches, Group& group, std::uint64_t bytes_freed) {
  group.watchers.each([&](Watch& watch) {
    shmbw_group_ended_event event{++watch.session->sequence, watch.id, group.id, bytes_freed};
    send(*watch.session, SHMBW_EVENT_GROUP_ENDED, event);
    destroy_watch(watches, watch);
  });
}

void tell_reclaim(Watches& watches, const ReclaimReport& report, shmbw_death how, std::int32_t code,
                  std::string_view text) {
  text = text.substr(0, 512);
  auto tell = [&](Watch& watch) {
    if (watch.only_group != 0 && watch.only_group != report.group) return;
    shmbw_reclaim_event event{};
    event.sequence = ++watch.session->sequence;
    event.watch = watch.id;
    event.group = report.group;
    event.bytes = report.tally.bytes;
    event.uid = report.uid;
    event.pid = report.pid;
    event.regions = report.tally.regions;
    event.how = how;
    event.code = code;
    event.text_len = static_cast<std::uint16_t>(text.size());
    send(*watch.session, SHMBW_EVENT_RECLAIM, event, text);
  };
  watches.all_reclaims.each(tell);
  if (auto uid = watches.accounts.uids.find(report.uid); uid != watches.accounts.uids.end())
    uid->second.reclaims.each(tell);
}

}  // namespace shmb::daemon
