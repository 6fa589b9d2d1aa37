// SPDX-License-Identifier: Apache-2.0
// Life of a group: alive -> (last member left) ended with things kept -> closed -> collected with its last region.
#include "daemon/ledger/group.hpp"

#include <algorithm>

#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/watches.hpp"
#include "proto/names.hpp"

namespace shmb::daemon {

Group::Group(Groups& owner, std::uint64_t number, std::uint32_t owner_uid, std::string_view text, Account& uid_account)
    : groups(owner),
      id(number),
      uid(owner_uid),
      name(text),
      account(SHMBW_SCOPE_GROUP, number, &uid_account, &owner.host.own_bug),
      names(&owner.host.nodes),
      shelf(owner, *this) {}

std::uint32_t Group::heirs() const {
  std::uint32_t count = 0;
  members.each([&](const Session& session) { count += session.process_gone || session.lazy; });
  return count;
}

std::uint64_t Group::configured(Resource resource) const {
  const Limits& limits = groups.host.config.limits;
  const auto at = limits.group.find(name);
  const LimitOverride own = name.empty() || at == limits.group.end() ? LimitOverride{} : at->second;
  const auto of = [](std::optional<std::uint64_t> override, std::uint64_t normal) {
    return override.value_or(normal ? normal : Account::kNoLimit);
  };
  switch (resource) {
    case Resource::bytes:
      if (limits.group_follows && !own.bytes) return account.parent()->limit(resource);
      return of(own.bytes, limits.group_bytes);
    case Resource::regions:
      return of(own.regions, limits.group_regions);
    case Resource::names:
      return of(own.names, 0);
    case Resource::gpu_bytes:
      return of(own.gpu_bytes, limits.group_gpu_bytes);
    case Resource::gpu_descriptors:
      return of(own.gpu_descriptors, 0);
    default:
      return Account::kNoLimit;
  }
}

void Group::apply_limits() {
  const auto limit = [&](Resource resource, std::uint64_t asked) {
    const std::uint64_t bound = configured(resource);
    account.set_limit(resource, asked == 0 ? bound : asked_by_admin ? asked : std::min(bound, asked));
  };
  limit(Resource::bytes, asked_bytes);
  limit(Resource::regions, asked_regions);
  for (const Resource resource : {Resource::names, Resource::gpu_bytes, Resource::gpu_descriptors}) limit(resource, 0);
}

void changed(Group& group) { group.groups.host.books.groups.note(group); }

Result<Group*> make_group(Groups& groups, Session& founder, const GroupRequest& wish) {
  auto secret = Secret::draw();
  if (!secret) return system_failure(secret.error(), "drawing a group token");
  Uid& uid = groups.accounts.hold_uid(founder.uid);
  auto charge = uid.account.charge(Resource::groups, 1);
  if (!charge) {
    groups.accounts.drop_uid(founder.uid);
    return std::unexpected(refuse_limit(groups, founder, charge.error()));
  }
  Group& group = add_group(groups, ++groups.last_id, founder.uid, wish.name, std::move(*charge));
  group.token = *secret;
  group.created = groups.host.now();
  group.keep = wish.keep;
  group.supervised = wish.supervised;
  group.asked_bytes = wish.limit_bytes;
  group.asked_regions = wish.limit_regions;
  make_known(groups, group);
  return &group;
}

Group& add_group(Groups& groups, std::uint64_t id, std::uint32_t uid, std::string_view name, Charge charge) {
  Account& account = groups.accounts.uids.at(uid).account;
  Group& group = groups.all.try_emplace(id, groups, id, uid, name, account).first->second;
  group.charge = std::move(charge);
  return group;
}

void make_known(Groups& groups, Group& group) {
  group.apply_limits();
  changed(group);
  groups.by_token.try_emplace(group.token, &group);
  if (!group.name.empty() && !group.closed) groups.by_name.try_emplace(std::pair(group.uid, group.name), &group);
}

Group* find_group(Groups& groups, std::uint64_t id) {
  auto at = groups.all.find(id);
  return at == groups.all.end() ? nullptr : &at->second;
}

Group* find_group(Groups& groups, std::uint32_t owner_uid, std::string_view name_or_id) {
  if (auto id = names::group_id(name_or_id)) {
    Group* group = find_group(groups, *id);
    return group && group->uid == owner_uid ? group : nullptr;
  }
  auto at = groups.by_name.find(GroupNameLess::View(owner_uid, name_or_id));
  return at == groups.by_name.end() ? nullptr : at->second;
}

Group* find_group(Groups& groups, const Secret& token) {
  auto at = groups.by_token.find(token);
  return at == groups.by_token.end() ? nullptr : at->second;
}

bool may_address(const Session& session, const Group& group) {
  return session.uid == group.uid || session.group == &group || session.supervises == &group;
}

static void set_sponsor(Group& group, Session* session) {
  if (group.sponsor) group.sponsor->sponsored.remove(group);
  group.sponsor = session;
  changed(group);
  if (session) session->sponsored.push_back(group);
}

static void revive(Group& group) {
  group.ended_at = 0;
  group.tree_gone = false;
  group.supervisor_lost = false;
  changed(group);
  group.cancel();
}

Result<Group*> own_group(Groups& groups, Session& session) {
  if (session.group) return session.group;
  if (session.ended_group)
    return error(Status::group_ended, "group " + names::id_text(session.ended_group) +
                                          " that this session was in has ended; leave it or join another one");
  auto made = make_group(groups, session, {});
  if (made) join_group(groups, session, **made);
  return made;
}

void join_group(Groups& groups, Session& session, Group& group) {
  session.ended_group = 0;
  changed(session);
  if (session.group == &group) return;
  Group* left = session.group;
  if (left) left->members.remove(session);
  session.group = &group;
  group.members.push_back(session);
  set_sponsor(group, nullptr);
  revive(group);
  if (left) settle_group(groups, *left);
}

void leave_group(Groups& groups, Session& session) {
  session.ended_group = 0;
  changed(session);
  Group* left = std::exchange(session.group, nullptr);
  if (!left) return;
  left->members.remove(session);
  settle_group(groups, *left);
}

void supervise_group(Groups& groups, Session& session, Group& group) {
  if (session.supervises == &group) return;
  stop_supervising(groups, session);
  session.supervises = &group;
  changed(session);
  group.supervisors.push_back(session);
  set_sponsor(group, nullptr);
  revive(group);
  group.supervised = true;
  changed(group);
}

void stop_supervising(Groups& groups, Session& session) {
  Group* group = std::exchange(session.supervises, nullptr);
  if (!group) return;
  changed(session);
  group->supervisors.remove(session);
  if (group->supervisors.empty() && !group->tree_gone) group->supervisor_lost = true;
  changed(*group);
  settle_group(groups, *group);
}

void sponsor_group(Session& session, Group& group) {
  if (!group.members.empty() || !group.supervisors.empty() || group.sponsor == &session) return;
  revive(group);
  set_sponsor(group, &session);
}

void stop_sponsoring(Groups& groups, Group& group) {
  set_sponsor(group, nullptr);
  settle_group(groups, group);
}

void stop_sponsoring(Groups& groups, Session& session) {
  while (Group* group = session.sponsored.first()) stop_sponsoring(groups, *group);
}

namespace {

void collect_group(Groups& groups, Group& group) {
  if (!group.regions.empty() || !group.pools.empty() || group.in_service) return;
  tell_group_ended(groups.watches, group, 0);  // for subscriptions that were made after its end
  std::uint32_t uid = group.uid;
  groups.host.books.end<books::GroupRecord>(groups.host.books.groups, group);
  groups.by_token.erase(group.token);
  groups.all.erase(group.id);
  groups.accounts.drop_uid(uid);
}

// Ended for good: its name may be used again, and its token admits no session. Foreign leases and tickets may outlive
// it.
void close_group(Groups& groups, Group& group) {
  group.closed = true;
  changed(group);
  group.cancel();
  if (!group.name.empty()) groups.by_name.erase(std::pair(group.uid, group.name));
  collect_group(groups, group);
}

// Removes the names of regions and pools whose keep is over at `now`. Returns when the next keep ends, kNever for none.
std::int64_t end_keeps(Groups& groups, Group& group, std::int64_t now, bool all) {
  group.in_service = true;
  std::int64_t next = groups.end_pools(group, now, all);
  group.regions.each([&](Region& region) {
    if (!region.name) return;
    if (!all && region.keep < 0) return;
    if (!all && group.ended_at + region.keep > now) {
      next = std::min(next, group.ended_at + region.keep);
      return;
    }
    group.names.remove(region);
    release_region(groups.regions, region);
  });
  group.in_service = false;
  return next;
}

void keep_on(Groups& groups, Group& group, std::int64_t now, bool release_kept) {
  std::int64_t next = end_keeps(groups, group, now, release_kept);
  if (group.nothing_kept()) close_group(groups, group);
  else if (next != kNever) groups.host.timers.set(group, next);
  else group.cancel();
}

}  // namespace

void Group::on_timer(std::int64_t now) { keep_on(groups, *this, now, false); }

void end_group(Groups& groups, Group& group, bool release_kept) {
  if (group.closed) return;
  if (group.ended_at != 0) return keep_on(groups, group, groups.host.now(), release_kept);
  Tally own;
  Tally* outer = std::exchange(groups.regions.tally, &own);
  group.in_service = true;
  group.ended_at = groups.host.now();
  changed(group);
  set_sponsor(group, nullptr);
  group.members.each([&](Session& session) {
    group.members.remove(session);
    session.group = nullptr;
    session.ended_group = group.id;
    changed(session);
  });
  group.supervisors.each([&](Session& session) {
    group.supervisors.remove(session);
    session.supervises = nullptr;
    changed(session);
  });
  groups.end_worlds(group);
  group.shelf.drop_all();
  end_keeps(groups, group, group.ended_at, release_kept);
  tell_group_ended(groups.watches, group, own.bytes);
  groups.regions.tally = outer;
  if (outer) {
    outer->regions += own.regions;
    outer->bytes += own.bytes;
  }
  keep_on(groups, group, group.ended_at, release_kept);
}

void settle_group(Groups& groups, Group& group) {
  if (group.in_service) return;
  if (group.closed) return collect_group(groups, group);
  if (group.ended_at != 0) {
    if (group.nothing_kept()) close_group(groups, group);
    return;
  }
  bool held = !group.members.empty() || group.sponsor || !group.worlds.empty() ||
              (!group.supervisors.empty() && !group.tree_gone);
  if (!held) end_group(groups, group, false);
}

}  // namespace shmb::daemon
