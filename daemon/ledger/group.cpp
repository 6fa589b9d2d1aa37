// SPDX-License-Identifier: Apache-2.0
// Life of a group: alive -> (last member left) ended with things kept -> closed -> collected with its last region.
#include "daemon/ledger/group.hpp"

#include <algorithm>

#include "daemon/ledger/ledger.hpp"
#include "daemon/ledger/refuse.hpp"
#include "proto/names.hpp"

namespace shmb::daemon {

Group::Group(Ledger& owner, std::uint64_t number, std::uint32_t owner_uid, std::string_view text, Account& uid_account)
    : ledger(owner),
      id(number),
      uid(owner_uid),
      name(text),
      account(SHMBW_SCOPE_GROUP, number, &uid_account, &owner.own_bug),
      names(&owner.pool),
      shelf(owner, *this) {}

std::uint32_t Group::heirs() const {
  std::uint32_t count = 0;
  members.each([&](const Session& session) { count += session.process_gone || session.lazy; });
  return count;
}

std::uint64_t Group::configured(Resource resource) const {
  const Limits& limits = ledger.config.limits;
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

Result<Group*> make_group(Ledger& ledger, Session& founder, const GroupRequest& wish) {
  auto secret = Secret::draw();
  if (!secret) return system_failure(secret.error(), "drawing a group token");
  Uid& uid = ledger.hold_uid(founder.uid);
  auto charge = uid.account.charge(Resource::groups, 1);
  if (!charge) {
    ledger.drop_uid(founder.uid);
    return std::unexpected(refuse_limit(ledger, founder, charge.error()));
  }
  std::uint64_t id = ++ledger.last_group;
  Group& group = ledger.groups.try_emplace(id, ledger, id, founder.uid, wish.name, uid.account).first->second;
  group.token = *secret;
  group.charge = std::move(*charge);
  group.created = ledger.now();
  group.keep = wish.keep;
  group.supervised = wish.supervised;
  const auto limit = [&](Resource resource, std::uint64_t wished) {
    const std::uint64_t bound = group.configured(resource);
    group.account.set_limit(resource, wished ? std::min(bound, wished) : bound);
  };
  limit(Resource::bytes, wish.limit_bytes);
  limit(Resource::regions, wish.limit_regions);
  for (const Resource resource : {Resource::names, Resource::gpu_bytes, Resource::gpu_descriptors}) limit(resource, 0);
  ledger.group_tokens.try_emplace(group.token, &group);
  if (!group.name.empty()) ledger.group_names.try_emplace(std::pair(group.uid, group.name), &group);
  return &group;
}

Group* find_group(Ledger& ledger, std::uint64_t id) {
  auto at = ledger.groups.find(id);
  return at == ledger.groups.end() ? nullptr : &at->second;
}

Group* find_group(Ledger& ledger, std::uint32_t owner_uid, std::string_view name_or_id) {
  if (auto id = names::group_id(name_or_id)) {
    Group* group = find_group(ledger, *id);
    return group && group->uid == owner_uid ? group : nullptr;
  }
  auto at = ledger.group_names.find(GroupNameLess::View(owner_uid, name_or_id));
  return at == ledger.group_names.end() ? nullptr : at->second;
}

Group* find_group(Ledger& ledger, const Secret& token) {
  auto at = ledger.group_tokens.find(token);
  return at == ledger.group_tokens.end() ? nullptr : at->second;
}

bool may_address(const Session& session, const Group& group) {
  return session.uid == group.uid || session.group == &group || session.supervises == &group;
}

static void set_sponsor(Group& group, Session* session) {
  if (group.sponsor) group.sponsor->sponsored.remove(group);
  group.sponsor = session;
  if (session) session->sponsored.push_back(group);
}

static void revive(Group& group) {
  group.ended_at = 0;
  group.tree_gone = false;
  group.supervisor_lost = false;
  group.cancel();
}

Result<Group*> own_group(Ledger& ledger, Session& session) {
  if (session.group) return session.group;
  if (session.ended_group)
    return error(Status::group_ended, "group " + names::id_text(session.ended_group) +
                                          " that this session was in has ended; leave it or join another one");
  auto made = make_group(ledger, session, {});
  if (made) join_group(ledger, session, **made);
  return made;
}

void join_group(Ledger& ledger, Session& session, Group& group) {
  session.ended_group = 0;
  if (session.group == &group) return;
  Group* left = session.group;
  if (left) left->members.remove(session);
  session.group = &group;
  group.members.push_back(session);
  set_sponsor(group, nullptr);
  revive(group);
  if (left) settle_group(ledger, *left);
}

void leave_group(Ledger& ledger, Session& session) {
  session.ended_group = 0;
  Group* left = std::exchange(session.group, nullptr);
  if (!left) return;
  left->members.remove(session);
  settle_group(ledger, *left);
}

void supervise_group(Ledger& ledger, Session& session, Group& group) {
  if (session.supervises == &group) return;
  stop_supervising(ledger, session);
  session.supervises = &group;
  group.supervisors.push_back(session);
  set_sponsor(group, nullptr);
  revive(group);
  group.supervised = true;
}

void stop_supervising(Ledger& ledger, Session& session) {
  Group* group = std::exchange(session.supervises, nullptr);
  if (!group) return;
  group->supervisors.remove(session);
  if (group->supervisors.empty() && !group->tree_gone) group->supervisor_lost = true;
  settle_group(ledger, *group);
}

void sponsor_group(Session& session, Group& group) {
  if (!group.members.empty() || !group.supervisors.empty() || group.sponsor == &session) return;
  revive(group);
  set_sponsor(group, &session);
}

void stop_sponsoring(Ledger& ledger, Group& group) {
  set_sponsor(group, nullptr);
  settle_group(ledger, group);
}

void stop_sponsoring(Ledger& ledger, Session& session) {
  while (Group* group = session.sponsored.first()) stop_sponsoring(ledger, *group);
}

namespace {

void collect_group(Ledger& ledger, Group& group) {
  if (!group.regions.empty() || !group.pools.empty() || group.in_service) return;
  tell_group_ended(ledger, group, 0);  // for subscriptions that were made after its end
  std::uint32_t uid = group.uid;
  ledger.group_tokens.erase(group.token);
  ledger.groups.erase(group.id);
  ledger.drop_uid(uid);
}

// Ended for good: its name may be used again, and its token admits no session. Foreign leases and tickets may outlive
// it.
void close_group(Ledger& ledger, Group& group) {
  group.closed = true;
  group.cancel();
  if (!group.name.empty()) ledger.group_names.erase(std::pair(group.uid, group.name));
  collect_group(ledger, group);
}

// Removes the names of regions and pools whose keep is over at `now`. Returns when the next keep ends, kNever for none.
std::int64_t end_keeps(Ledger& ledger, Group& group, std::int64_t now, bool all) {
  std::int64_t next = kNever;
  group.in_service = true;
  // An unnamed pool ends with its group at once. A named pool has a keep, like a named region.
  group.pools.each([&](Pool& pool) {
    if (!all && !pool.name.empty() && pool.keep < 0) return;
    if (!all && !pool.name.empty() && group.ended_at + pool.keep > now) {
      next = std::min(next, group.ended_at + pool.keep);
      return;
    }
    if (!pool.name.empty() || pool.broken() == pool::Broken::no) close_pool(ledger, pool);
  });
  group.regions.each([&](Region& region) {
    if (!region.name) return;
    if (!all && region.keep < 0) return;
    if (!all && group.ended_at + region.keep > now) {
      next = std::min(next, group.ended_at + region.keep);
      return;
    }
    group.names.remove(region);
    release_region(ledger, region);
  });
  group.in_service = false;
  return next;
}

void keep_on(Ledger& ledger, Group& group, std::int64_t now, bool release_kept) {
  std::int64_t next = end_keeps(ledger, group, now, release_kept);
  if (group.nothing_kept()) close_group(ledger, group);
  else if (next != kNever) ledger.timers.set(group, next);
  else group.cancel();
}

}  // namespace

void Group::on_timer(std::int64_t now) { keep_on(ledger, *this, now, false); }

void end_group(Ledger& ledger, Group& group, bool release_kept) {
  if (group.closed) return;
  if (group.ended_at != 0) return keep_on(ledger, group, ledger.now(), release_kept);
  Tally own;
  Tally* outer = std::exchange(ledger.tally, &own);
  group.in_service = true;
  group.ended_at = ledger.now();
  set_sponsor(group, nullptr);
  group.members.each([&](Session& session) {
    group.members.remove(session);
    session.group = nullptr;
    session.ended_group = group.id;
  });
  group.supervisors.each([&](Session& session) {
    group.supervisors.remove(session);
    session.supervises = nullptr;
  });
  group.worlds.each([&](World& world) { end_world(ledger, world); });
  group.shelf.drop_all();
  end_keeps(ledger, group, group.ended_at, release_kept);
  tell_group_ended(ledger, group, own.bytes);
  ledger.tally = outer;
  if (outer) {
    outer->regions += own.regions;
    outer->bytes += own.bytes;
  }
  keep_on(ledger, group, group.ended_at, release_kept);
}

void settle_group(Ledger& ledger, Group& group) {
  if (group.in_service) return;
  if (group.closed) return collect_group(ledger, group);
  if (group.ended_at != 0) {
    if (group.nothing_kept()) close_group(ledger, group);
    return;
  }
  bool held = !group.members.empty() || group.sponsor || !group.worlds.empty() ||
              (!group.supervisors.empty() && !group.tree_gone);
  if (!held) end_group(ledger, group, false);
}

}  // namespace shmb::daemon
