// SPDX-License-Identifier: Apache-2.0
// POOL_CREATE, POOL_JOIN, POOL_LEAVE, POOL_SEGMENT and POOL_DOORBELL. A session that may address a pool's group may
// join the pool. All other requests are for its participants; for other sessions the pool does not exist.
#include "base/result.hpp"
#include "base/sys_memory.hpp"
#include "daemon/ledger/create.hpp"
#include "daemon/ledger/grant.hpp"
#include "daemon/ledger/views.hpp"
#include "daemon/ledger/watch.hpp"
#include "daemon/pools/pool.hpp"
#include "daemon/remote/world.hpp"
#include "daemon/serve/answer.hpp"
#include "daemon/serve/stored_answer.hpp"
#include "proto/names.hpp"

namespace shmb::daemon {
namespace {

// The directory reopened read-only, the control area as it is.
void lend_areas(Ledger& ledger, const Pool& pool, Fd directory) {
  ledger.reply.fds.push_back(directory.get());
  ledger.reply.fds.push_back(pool.control.get());
  ledger.reply.owned.push_back(std::move(directory));
}

Result<void> lend_areas_again(const Request& request, std::uint64_t pool) {
  SHMB_TRY(place, place_in(request.ledger.pools, request.session, pool));
  SHMB_TRY(directory, reopen_read_only(place.pool->directory.get(), "the directory of the pool"));
  lend_areas(request.ledger, *place.pool, std::move(directory));
  return {};
}

template <class Reply>
void answer_joined(const Request& request, const Joined& joined, Fd directory) {
  Ledger& ledger = request.ledger;
  const Pool& pool = *joined.pool;
  Reply reply{};
  reply.pool = pool.id;
  reply.group = pool.group->id;
  reply.directory_bytes = pool.directory_map.size();
  reply.control_bytes = pool.control_map.size();
  reply.participant = joined.index;
  reply.life = pool.participants[joined.index].life;
  lend_areas(ledger, pool, std::move(directory));
  request.answer(reply);
}

Result<Pool*> addressed_pool(Ledger& ledger, Session& session, const shmbw_pool_join& wish, std::string_view group_text,
                             std::string_view name) {
  if (wish.pool != 0) {
    if (!group_text.empty() || !name.empty()) return error(Status::invalid, "join a pool by its id or by its name");
    Pool* pool = find_pool(ledger.pools, wish.pool);
    if (!pool || !may_address(session, *pool->group))
      return std::unexpected(wire::not_found({.what = "pool", .id = wish.pool}));
    return pool;
  }
  SHMB_TRY_VOID(names::check(name, "pool name"));
  const std::uint32_t owner = (wish.flags & SHMBW_POOL_OWNER_GIVEN) != 0 ? wish.owner_uid : session.uid;
  Group* group = addressed_group(ledger.groups, session, owner, group_text);
  const auto at = group ? group->pool_names.find(name) : decltype(group->pool_names.end())();
  if (!group || at == group->pool_names.end())
    return std::unexpected(no_such_name(ledger.groups, session, "pool", owner, group_text, name));
  return at->second;
}

}  // namespace

void serve_pool_create(const Request& request) {
  auto wish = request.read<shmbw_pool_create>();
  if (!wish) return;
  wire::TextReader texts(request.packet.rest);
  auto name = texts.take(wish->name_len);
  if (!name || !texts.done()) return request.refuse_struct(Status::invalid);
  auto made = make_pool(request.ledger.pools, request.session, *wish, *name);
  if (!made) return request.fail(made.error());
  auto directory = reopen_read_only(made->pool->directory.get(), "the directory of the pool");
  if (!directory) {  // nothing has left the broker yet
    leave_pool(request.ledger.pools, *made->pool, made->index);
    return request.fail(directory.error());
  }
  answer_joined<shmbw_pool_create_reply>(request, *made, std::move(*directory));
}

void serve_pool_join(const Request& request) {
  auto wish = request.read<shmbw_pool_join>();
  if (!wish) return;
  wire::TextReader texts(request.packet.rest);
  auto group = texts.take(wish->group_len);
  auto name = texts.take(wish->name_len);
  if (!group || !name || !texts.done()) return request.refuse_struct(Status::invalid);
  constexpr std::uint32_t kKnown = SHMBW_POOL_OWNER_GIVEN | SHMBW_POOL_READ_ONLY;
  if ((wish->flags & ~kKnown) != 0)
    return request.fail(Status::unknown_flags, "pool_join takes the flags owner_given and read_only");
  auto pool = addressed_pool(request.ledger, request.session, *wish, *group, *name);
  if (!pool) return request.fail(pool.error());
  auto directory = reopen_read_only((*pool)->directory.get(), "the directory of the pool");
  if (!directory) return request.fail(directory.error());
  auto joined = join_pool(request.ledger.pools, request.session, **pool, (wish->flags & SHMBW_POOL_READ_ONLY) != 0);
  if (!joined) return request.fail(joined.error());
  note_participant(request.session, **pool, joined->index);
  answer_joined<shmbw_pool_join_reply>(request, *joined, std::move(*directory));
}

Result<void> lend_again(const Request& request, const shmbw_pool_create& /*wish*/, shmbw_pool_create_reply& reply) {
  return lend_areas_again(request, reply.pool);
}
Result<void> lend_again(const Request& request, const shmbw_pool_join& /*wish*/, shmbw_pool_join_reply& reply) {
  return lend_areas_again(request, reply.pool);
}

void serve_pool_leave(const Request& request) {
  auto wish = request.read<shmbw_pool_leave>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  constexpr std::uint32_t known = SHMBW_POOL_LEAVE_REMOVE | SHMBW_POOL_LEAVE_STAY;
  if ((wish->flags & ~known) != 0)
    return request.fail(Status::unknown_flags, "pool_leave takes no flags but remove and stay");
  const bool remove = (wish->flags & SHMBW_POOL_LEAVE_REMOVE) != 0, stay = (wish->flags & SHMBW_POOL_LEAVE_STAY) != 0;
  if (stay && !remove) return request.fail(Status::invalid, "stay without the flag remove");
  auto place = place_in(request.ledger.pools, request.session, wish->pool);
  if (!place) return request.fail(place.error());
  if (remove && place->pool->participants[place->index].read_only)
    return request.fail(Status::denied, "this session joined the pool read_only: it does not remove it");
  if (remove) unname_pool(*place->pool);
  if (stay) return request.answer(shmbw_pool_leave_reply{});
  const std::uint32_t unread = leave_pool(request.ledger.pools, *place->pool, place->index);
  request.answer(shmbw_pool_leave_reply{unread, 0});
}

void serve_pool_segment(const Request& request) {
  auto wish = request.read<shmbw_pool_segment>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  auto place = usable_place_in(request.ledger.pools, request.session, wish->pool);
  if (!place) return request.fail(place.error());
  if (place->pool->participants[place->index].read_only)
    return request.fail(Status::denied, "this session joined the pool read_only: it adds no segments");
  auto cut = add_segment(request.ledger.pools, request.session, *place->pool, *wish);
  if (!cut) return request.fail(cut.error());
  request.answer(shmbw_pool_segment_reply{cut->segment, cut->first_slot});
}

std::size_t brought_by(const shmbw_pool_doorbell& wish, std::size_t /*brought*/) {
  return wish.flags == SHMBW_DOORBELL_SET ? 1 : 0;
}

void serve_pool_doorbell(const Request& request) {
  Ledger& ledger = request.ledger;
  auto wish = request.read<shmbw_pool_doorbell>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  if ((wish->flags & ~std::uint32_t{SHMBW_DOORBELL_KNOWN}) != 0)
    return request.fail(Status::unknown_flags, "a flag of pool_doorbell is not known to this broker");
  const bool set = wish->flags == SHMBW_DOORBELL_SET;
  const bool ring = wish->flags == SHMBW_DOORBELL_RING;
  if (!set && !ring && wish->flags != SHMBW_DOORBELL_GET)
    return request.fail(Status::invalid, "a doorbell is either set, or got, or rung");
  auto place = usable_place_in(ledger.pools, request.session, wish->pool);
  if (!place) return request.fail(place.error());
  Pool& pool = *place->pool;
  if (set) {
    Fd doorbell = request.session.link->descriptor();
    if (!doorbell) return request.fail(Status::invalid, "no doorbell came with the request");
    if (auto done = set_doorbell(ledger.pools, request.session, pool, place->index, std::move(doorbell)); !done)
      return request.fail(done.error());
    return request.answer(shmbw_pool_doorbell_reply{place->index, pool.participants[place->index].life});
  }
  const Participant* whose = wish->participant < pool::kParticipants ? &pool.participants[wish->participant] : nullptr;
  if (!whose || whose->life != wish->life || whose->state != pool::ParticipantState::live || !whose->has_doorbell())
    return request.fail(Status::not_found, "no such participant, or it has no doorbell");
  if (ring && whose->session) tell_pool_changed(*whose->session, pool.id);
  if (ring && request.silent()) return;
  if (!ring && request.session.link->over_share())
    return request.fail(Status::busy,
                        "this process leaves too many descriptors unread to be sent a doorbell: ring by way of the "
                        "broker, and ask again once its sessions have read their answers");
  if (!ring) ledger.reply.fds.push_back(whose->doorbell.get());
  request.answer(shmbw_pool_doorbell_reply{wish->participant, wish->life});
}

}  // namespace shmb::daemon
