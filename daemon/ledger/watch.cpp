// SPDX-License-Identifier: Apache-2.0
// Making, ending and firing of subscriptions. An event is queued at the link and never waits (law 8).
#include "daemon/ledger/watch.hpp"

#include "daemon/ledger/ledger.hpp"
#include "daemon/ledger/refuse.hpp"
#include "proto/codec.hpp"

namespace shmb::daemon {

Watchers& reclaims_of(Ledger& ledger, const Session& session) {
  return session.admin ? ledger.all_reclaims : ledger.uids.at(session.uid).reclaims;
}

Result<Watch*> make_watch(Ledger& ledger, Session& session, shmbw_watch_kind kind, std::uint32_t events,
                          Watchers& target) {
  if (const std::uint64_t most = ledger.config.limits.target_watches; target.size() >= most)
    return std::unexpected(
        refuse_limit(ledger, session, {SHMBW_SLOT_WATCHES, SHMBW_SCOPE_WATCHED, 0, most, target.size(), 1}));
  auto charge = session.account.charge(Resource::watches, 1);
  if (!charge) return std::unexpected(refuse_limit(ledger, session, charge.error()));
  std::uint64_t id = ++ledger.last_serial;
  Watch& watch = session.watches.try_emplace(id).first->second;
  watch.id = id;
  watch.session = &session;
  watch.kind = kind;
  watch.events = events;
  watch.charge = std::move(*charge);
  ++ledger.watch_count;
  target.push_back(watch);
  return &watch;
}

void destroy_watch(Ledger& ledger, Watch& watch) {
  if (watch.region) watch.region->watchers.remove(watch);
  if (watch.group) watch.group->watchers.remove(watch);
  if (watch.kind == SHMBW_WATCH_KIND_RECLAIM) reclaims_of(ledger, *watch.session).remove(watch);
  if (watch.name) {
    watch.name->second.remove(watch);
    if (watch.name->second.empty()) ledger.name_watches.erase(ledger.name_watches.find(watch.name->first));
  }
  --ledger.watch_count;
  watch.session->watches.erase(watch.id);
}

bool cancel_watch(Ledger& ledger, Session& session, std::uint64_t id) {
  auto at = session.watches.find(id);
  if (at == session.watches.end()) return false;
  destroy_watch(ledger, at->second);
  return true;
}

namespace {

template <class Event>
void send(Session& session, std::uint16_t op, const Event& event, std::string_view text = {}) {
  if (!session.link) return;
  std::byte buffer[1024];
  wire::Writer out(buffer);
  out.begin(static_cast<std::uint16_t>(op | SHMBW_EVENT), 0, Status::ok, event);
  out.text(text);
  session.link->event(out.finish(0));
}

}  // namespace

void tell_region(Ledger& ledger, Region& region, shmbw_watch_event_flags what) {
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
    if (what == SHMBW_WATCH_EVENT_GONE) destroy_watch(ledger, watch);
  });
}

void tell_name(Ledger& ledger, const Group& group, const Region& region) {
  if (ledger.name_watches.empty()) return;
  std::string_view name = region.name->text;
  auto found = ledger.name_watches.find(name_key(group.uid, group.text(), name));
  if (found == ledger.name_watches.end()) return;
  found->second.each([&](Watch& watch) {
    shmbw_name_appeared_event event{};
    event.sequence = ++watch.session->sequence;
    event.watch = watch.id;
    event.region = region.ref();
    event.name_len = static_cast<std::uint16_t>(name.size());
    send(*watch.session, SHMBW_EVENT_NAME_APPEARED, event, name);
  });
}

void tell_gpu_state(Ledger&, Region& region, std::int32_t code, std::uint32_t pid) {
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

void tell_world_changed(Session& session, std::uint64_t ledger, std::uint32_t change, std::uint32_t rank,
                        std::uint32_t life, std::uint32_t present) {
  send(session, SHMBW_EVENT_WORLD_CHANGED,
       shmbw_world_changed_event{++session.sequence, 0, ledger, change, rank, present, life});
}

void tell_ref_unused(Session& session, std::uint64_t ledger, const shmbw_ref_id& reference) {
  send(session, SHMBW_EVENT_REF_UNUSED, shmbw_ref_unused_event{++session.sequence, 0, ledger, reference});
}

void tell_ref_changed(Session& session, std::uint64_t ledger, const shmbw_ref_id& reference, std::uint32_t state,
                      std::uint32_t owner) {
  send(session, SHMBW_EVENT_REF_CHANGED,
       shmbw_ref_changed_event{++session.sequence, 0, ledger, reference, state, owner});
}

void tell_group_ended(Ledger& ledger, Group& group, std::uint64_t bytes_freed) {
  group.watchers.each([&](Watch& watch) {
    shmbw_group_ended_event event{++watch.session->sequence, watch.id, group.id, bytes_freed};
    send(*watch.session, SHMBW_EVENT_GROUP_ENDED, event);
    destroy_watch(ledger, watch);
  });
}

void tell_reclaim(Ledger& ledger, const ReclaimReport& report, shmbw_death how, std::int32_t code,
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
  ledger.all_reclaims.each(tell);
  if (auto uid = ledger.uids.find(report.uid); uid != ledger.uids.end()) uid->second.reclaims.each(tell);
}

}  // namespace shmb::daemon
