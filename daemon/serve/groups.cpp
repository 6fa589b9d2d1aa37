// SPDX-License-Identifier: Apache-2.0
// GROUP_CREATE, GROUP_JOIN, GROUP_LEAVE, GROUP_END, GROUP_LIMIT and WATCH.
//
// A group is addressed by its token, by its number, or by owner and name. The token is the authority: a session that
// shows it may join whichever user it is of. A name is none: only sessions that may address the group find it
// (may_address). Absent and forbidden get the same answer, so no client learns which names other users have.
#include "base/result.hpp"
#include "base/text.hpp"
#include "daemon/ledger/create.hpp"
#include "daemon/ledger/grant.hpp"
#include "daemon/ledger/views.hpp"
#include "daemon/serve/answer.hpp"
#include "proto/names.hpp"

namespace shmb::daemon {

void serve_group_create(const Request& request) {
  Ledger& ledger = request.ledger;
  Session& session = request.session;
  auto wish = request.read<shmbw_group_create>();
  if (!wish) return;
  wire::TextReader texts(request.packet.rest);
  auto name = texts.take(wish->name_len);
  if (!name || !texts.done()) return request.refuse_struct(Status::invalid);
  if ((wish->flags & ~std::uint32_t{SHMBW_GROUP_KNOWN}) != 0)
    return request.fail(Status::unknown_flags, "a group flag is not known to this broker");
  if (!name->empty())
    if (auto valid = names::check(*name, "group name"); !valid) return request.fail(valid.error());
  if (auto keep = check_keep(ledger.host, wish->keep, true); !keep) return request.fail(keep.error());
  Group* group = name->empty() ? nullptr : find_group(ledger.groups, session.uid, *name);
  if (group && (wish->flags & SHMBW_GROUP_ADOPT_EXISTING) == 0)
    return request.fail(Status::exists, "a group '" + std::string(*name) + "' of uid " + std::to_string(session.uid) +
                                            " is there already; join it or adopt it");
  if (!group) {
    auto made = make_group(
        ledger.groups, session,
        {*name, wish->keep, wish->limit_bytes, wish->limit_regions, (wish->flags & SHMBW_GROUP_SUPERVISED) != 0});
    if (!made) return request.fail(made.error());
    group = *made;
  }
  sponsor_group(session, *group);
  shmbw_group_create_reply reply{};
  reply.group = group->id;
  group->token.to(reply.token);
  request.answer(reply);
}

void serve_group_join(const Request& request) {
  Ledger& ledger = request.ledger;
  Session& session = request.session;
  auto wish = request.read<shmbw_group_join>();
  if (!wish) return;
  wire::TextReader texts(request.packet.rest);
  auto name = texts.take(wish->name_len);
  if (!name || !texts.done()) return request.refuse_struct(Status::invalid);
  if ((wish->flags & ~std::uint32_t{SHMBW_JOIN_KNOWN}) != 0)
    return request.fail(Status::unknown_flags, "a join flag is not known to this broker");
  const Secret token = Secret::from(wish->token);
  if (token.zero() && name->empty()) return request.fail(Status::invalid, "a join needs a token or a name");
  const std::uint32_t owner = (wish->flags & SHMBW_JOIN_OWNER_GIVEN) != 0 ? wish->owner_uid : session.uid;
  Group* const group =
      token.zero() ? addressed_group(ledger.groups, session, owner, *name) : find_group(ledger.groups, token);
  if (!group && token.zero()) return request.fail(no_such_group(session, owner, *name));
  if (!group)
    return request.fail(Status::not_found,
                        "the token admits to no group here: the group has ended, or belongs to another broker");
  if (group->closed) return request.fail(Status::group_ended, "the group has ended");
  if ((wish->flags & SHMBW_JOIN_SUPERVISOR) != 0) {
    if (session.supervises && session.supervises != group)
      return request.fail(Status::busy,
                          "this session supervises another group already; leave that one or connect again");
    supervise_group(ledger.groups, session, *group);
  } else {
    join_group(ledger.groups, session, *group);
  }
  request.answer(shmbw_group_join_reply{group->id});
}

void serve_group_leave(const Request& request) {
  Ledger& ledger = request.ledger;
  Session& session = request.session;
  auto wish = request.read<shmbw_group_leave>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  if (wish->group != 0 && session.supervises && session.supervises->id == wish->group)
    stop_supervising(ledger.groups, session);
  else if (wish->group == 0 || (session.group && session.group->id == wish->group) ||
           session.ended_group == wish->group)
    leave_group(ledger.groups, session);
  else if (Group* made = find_group(ledger.groups, wish->group); made && made->sponsor == &session)
    stop_sponsoring(ledger.groups, *made);  // a group that it made and that no session has joined
  else return request.fail(Status::not_found, "this session is not in that group");
  request.answer(shmbw_group_leave_reply{session.group ? session.group->id : 0});
}

namespace {

// A group by its id, or by its name among those of the caller's user.
Result<Group*> meant_group(const Request& request, std::uint64_t id, std::string_view name) {
  const Session& session = request.session;
  if (id == 0 && name.empty())
    return std::unexpected(plain(Status::not_found, "no group was named: give its id or name"));
  Group* const group =
      id != 0 ? find_group(request.ledger.groups, id) : find_group(request.ledger.groups, session.uid, name);
  if (group != nullptr && (may_address(session, *group) || session.admin)) return group;
  return std::unexpected(id != 0 ? no_such_group(id) : no_such_group(session, session.uid, name));
}

// The processes that the end of a live group would affect, by pid and program: a few of them, and the number of the
// rest.
std::string live_members(const Group& group) {
  constexpr std::uint32_t kNamed = 4;
  std::uint32_t sessions = 0;
  std::string named;
  const auto name = [&](const Session& session, const char* role) {
    if (++sessions > kNamed) return;
    const std::string program = session.library.substr(0, session.library.find(" (libshmbroker"));
    named += (named.empty() ? "" : ", ") + std::string("pid ") +
             (session.pid != 0 ? std::to_string(session.pid) : "unknown") +
             (program.empty() ? "" : " " + quoted(program)) + role;
  };
  group.members.each([&](const Session& session) { name(session, ""); });
  group.supervisors.each([&](const Session& session) { name(session, " (supervisor)"); });
  if (group.sponsor != nullptr) name(*group.sponsor, " (made it)");
  if (sessions > kNamed) named += " and " + std::to_string(sessions - kNamed) + " more";
  if (sessions == 0) return "a world of workers is in it";
  return std::to_string(sessions) + (sessions == 1 ? " session holds it: " : " sessions hold it: ") + named;
}

}  // namespace

void serve_group_end(const Request& request) {
  Ledger& ledger = request.ledger;
  Session& session = request.session;
  auto wish = request.read<shmbw_group_end>();
  if (!wish) return;
  wire::TextReader texts(request.packet.rest);
  auto name = texts.take(wish->name_len);
  if (!name || !texts.done()) return request.refuse_struct(Status::invalid);
  if ((wish->flags & ~std::uint32_t{SHMBW_END_KNOWN}) != 0)
    return request.fail(Status::unknown_flags, "an end flag is not known to this broker");
  auto meant = meant_group(request, wish->group, *name);
  if (!meant) return request.fail(meant.error());
  Group* group = *meant;
  if (group->closed) return request.fail(Status::group_ended, "the group has ended already");
  bool tree_gone = (wish->flags & SHMBW_END_TREE_GONE) != 0;
  if (tree_gone && session.supervises != group)
    return request.fail(Status::denied, "only a supervisor of the group can report its process tree gone");
  if (!tree_gone && session.uid != group->uid && !session.admin)
    return request.fail(Status::denied, "only the owner of a group can end it");

  if ((wish->flags & SHMBW_END_KEPT_ONLY) != 0 && group->ended_at == 0)
    return request.fail(Status::busy, "group " + group->text() + " has not ended: " + live_members(*group));

  const std::uint64_t id = group->id;
  shmbw_group_end_reply reply{};
  Tally tally;
  ledger.regions.tally = &tally;
  reply.members = group->members.size();
  if (tree_gone) {
    group->tree_gone = true;
    changed(*group);
    settle_group(ledger.groups, *group);
    group = find_group(ledger.groups, id);
    if (group && group->kept() && (wish->flags & SHMBW_END_RELEASE_KEPT) != 0) end_group(ledger.groups, *group, true);
  } else {
    end_group(ledger.groups, *group, (wish->flags & SHMBW_END_RELEASE_KEPT) != 0);
  }
  ledger.regions.tally = nullptr;
  group = find_group(ledger.groups, id);
  reply.regions = group ? group->regions.size() : 0;
  reply.bytes_freed = tally.bytes;
  request.answer(reply);
}

void serve_group_limit(const Request& request) {
  const Session& session = request.session;
  auto wish = request.read<shmbw_group_limit>();
  if (!wish) return;
  wire::TextReader texts(request.packet.rest);
  auto name = texts.take(wish->name_len);
  if (!name || !texts.done()) return request.refuse_struct(Status::invalid);
  auto meant = meant_group(request, wish->group, *name);
  if (!meant) return request.fail(meant.error());
  Group& group = **meant;
  if (session.uid != group.uid && !session.admin)
    return request.fail(Status::denied, "the limit of a group is set by its owner");
  const std::uint64_t configured = group.configured(Resource::bytes);
  const std::uint64_t used = group.account.used(Resource::bytes);
  if (wish->bytes > configured && !session.admin)
    return request.fail(Error{Status::limit,
                              0,
                              {.slot = SHMBW_SLOT_BYTES,
                               .scope = SHMBW_SCOPE_GROUP,
                               .scope_id = group.id,
                               .limit = configured,
                               .used = used,
                               .asked = wish->bytes},
                              "group " + group.text() + " may have a limit of at most " + format_size(configured) +
                                  ", and uses " + format_size(used) + "; asked " + format_size(wish->bytes) +
                                  "; an administrator may set more (`sudo shmbroker limit " + names::id_text(group.id) +
                                  " SIZE`), or raise limits.group" +
                                  (group.name.empty() ? "_bytes" : "." + group.name + ".bytes") +
                                  in_config(request.ledger.host)});
  shmbw_group_limit_reply reply{};
  reply.group = group.id;
  reply.before = group.account.limit(Resource::bytes);
  reply.used = used;
  group.asked_bytes = wish->bytes;
  group.asked_by_admin = session.admin;
  changed(group);
  group.apply_limits();
  reply.bytes = group.account.limit(Resource::bytes);
  request.answer(reply);
}

namespace {

Result<Watch*> watch_region(Ledger& ledger, Session& session, const shmbw_watch& wish, std::uint32_t& state) {
  const Secret token = Secret::from(wish.ticket);
  Ticket* const ticket = token.zero() ? nullptr : find_ticket(ledger.tickets, token);
  if (!token.zero() && !ticket) return std::unexpected(no_such_ticket());
  Region* const region = ticket ? ticket->region : ledger.regions.find(wish.region.id);
  if (!region || (!ticket && authority(session, *region) == 0)) return std::unexpected(no_such_region(wish.region.id));
  if (wish.region.generation != 0 && wish.region.generation != region->generation)
    return std::unexpected(stale_region(region->id, wish.region.generation, region->generation));
  auto watch = make_watch(ledger.watches, session, SHMBW_WATCH_KIND_REGION, wish.events, region->watchers);
  if (!watch) return watch;
  (*watch)->region = region;
  (*watch)->ticket = ticket;
  if (ticket) ticket->watchers.push_back(**watch);
  if (region->unmapped_writers == 0) state |= SHMBW_WATCH_EVENT_READY;
  if (region->state == SHMBW_REGION_STATE_PUBLISHED) state |= SHMBW_WATCH_EVENT_PUBLISHED;
  return watch;
}

Result<Watch*> watch_name(Ledger& ledger, Session& session, const shmbw_watch& wish, std::string_view group_text,
                          std::string_view name, std::uint32_t& state) {
  const bool of_pool = (wish.flags & SHMBW_WATCH_POOL) != 0;
  SHMB_TRY_VOID(names::check(name, of_pool ? "pool name" : "region name"));
  std::uint32_t owner = (wish.flags & SHMBW_WATCH_OWNER_GIVEN) != 0 ? wish.owner_uid : session.uid;
  Group* group = addressed_group(ledger.groups, session, owner, group_text);
  // A session may wait for a name before its group exists, but only where it could address that group.
  std::string waited(group_text);
  if (group) {
    owner = group->uid;
    waited = group->text();
  } else if (owner != session.uid || group_text.empty() || names::is_group_id(group_text)) {
    return std::unexpected(no_such_name(ledger.groups, session, of_pool ? "pool" : "region", owner, group_text, name));
  } else if (auto valid_group = names::check(group_text, "group name"); !valid_group) {
    return std::unexpected(valid_group.error());
  }
  const auto key = of_pool ? pool_name_key(owner, waited, name) : name_key(owner, waited, name);
  auto at = ledger.watches.names.try_emplace(key).first;
  auto watch = make_watch(ledger.watches, session, SHMBW_WATCH_KIND_NAME, wish.events, at->second);
  if (!watch) {
    if (at->second.empty()) ledger.watches.names.erase(at);
    return watch;
  }
  (*watch)->name = &*at;
  if (group && (of_pool ? group->pool_names.contains(name) : group->names.find(name) != nullptr))
    state |= SHMBW_WATCH_EVENT_APPEARED;
  return watch;
}

Result<Watch*> watch_group(Ledger& ledger, Session& session, const shmbw_watch& wish, std::string_view group_text,
                           std::uint32_t& state) {
  std::uint32_t owner = (wish.flags & SHMBW_WATCH_OWNER_GIVEN) != 0 ? wish.owner_uid : session.uid;
  Group* group =
      wish.group ? find_group(ledger.groups, wish.group) : addressed_group(ledger.groups, session, owner, group_text);
  if (!group || !may_address(session, *group))
    return std::unexpected(wish.group ? no_such_group(wish.group) : no_such_group(session, owner, group_text));
  auto watch = make_watch(ledger.watches, session, SHMBW_WATCH_KIND_GROUP, wish.events, group->watchers);
  if (!watch) return watch;
  (*watch)->group = group;
  if (group->ended_at != 0) state |= SHMBW_WATCH_EVENT_ENDED;
  return watch;
}

Result<Watch*> watch_reclaims(Ledger& ledger, Session& session, const shmbw_watch& wish) {
  auto watch =
      make_watch(ledger.watches, session, SHMBW_WATCH_KIND_RECLAIM, wish.events, reclaims_of(ledger.watches, session));
  if (!watch) return watch;
  (*watch)->only_group = wish.group;
  return watch;
}

}  // namespace

void serve_watch(const Request& request) {
  Ledger& ledger = request.ledger;
  Session& session = request.session;
  auto wish = request.read<shmbw_watch>();
  if (!wish) return;
  wire::TextReader texts(request.packet.rest);
  auto group = texts.take(wish->group_len);
  auto name = texts.take(wish->name_len);
  if (!group || !name || !texts.done()) return request.refuse_struct(Status::invalid);
  if ((wish->flags & ~std::uint32_t{SHMBW_WATCH_KNOWN}) != 0 ||
      (wish->events & ~std::uint32_t{SHMBW_WATCH_EVENT_KNOWN}) != 0)
    return request.fail(Status::unknown_flags, "a watch flag or event is not known to this broker");
  if (wish->kind == SHMBW_WATCH_KIND_CANCEL) {
    if (!cancel_watch(ledger.watches, session, wish->watch))
      return request.fail(Status::not_found, "no such watch of this session; its target may have ended");
    return request.answer(shmbw_watch_reply{wish->watch, 0, 0});
  }
  if (wish->events == 0) return request.fail(Status::invalid, "a watch names the events it wants");
  std::uint32_t state = 0;
  Result<Watch*> made = wish->kind == SHMBW_WATCH_KIND_REGION ? watch_region(ledger, session, *wish, state)
                        : wish->kind == SHMBW_WATCH_KIND_NAME ? watch_name(ledger, session, *wish, *group, *name, state)
                        : wish->kind == SHMBW_WATCH_KIND_GROUP ? watch_group(ledger, session, *wish, *group, state)
                        : wish->kind == SHMBW_WATCH_KIND_RECLAIM
                            ? watch_reclaims(ledger, session, *wish)
                            : error(Status::invalid, "watch a region, a name, a group or reclaims");
  if (!made) return request.fail(made.error());
  request.answer(shmbw_watch_reply{(*made)->id, state, 0});
}

}  // namespace shmb::daemon
