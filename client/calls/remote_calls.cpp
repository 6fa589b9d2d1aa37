// SPDX-License-Identifier: Apache-2.0
// Packets to and from the table of references. A booking that a call cannot hand to its caller is given back.
#include "client/calls/remote_calls.hpp"

#include <algorithm>

#include "client/session/call.hpp"
#include "client/session/late_reply.hpp"

namespace shmb::client {
namespace {

shmbw_ref_id to_wire(RefId id) { return {id.counter, id.creator, 0}; }
RefId from_wire(const shmbw_ref_id& id) { return {id.counter, id.creator}; }

template <std::uint16_t op>
Result<Answered<op>> ask(Session& session, const RequestOf<op>& request, Texts texts, Deadline deadline) {
  if (session.is_local()) return needs_broker("remote references");
  return call<op>(session, request, texts, deadline);
}

// Calls `take(Result<ReplyOf<op>>)` for each element, in order; an error is that of a whole packet, and the elements
// before it have been taken.
template <std::uint16_t op, class Take>
Result<void> call_all(Session& session, std::span<const RequestOf<op>> elements, Deadline deadline, Take take) {
  if (session.is_local()) return needs_broker("remote references");
  for (std::size_t first = 0; first < elements.size(); first += SHMBW_MAX_BATCH) {
    const auto part = elements.subspan(first, std::min<std::size_t>(SHMBW_MAX_BATCH, elements.size() - first));
    SHMB_TRY(answers, call_batch<op>(session, part, Texts{}, deadline));
    for (std::size_t i = 0; i < part.size(); ++i) take(answers.next());
  }
  return {};
}

}  // namespace

Result<WorldPlace> join_world(Session& session, const WorldRequest& wish, Deadline deadline) {
  if (wish.address.empty() || wish.address.size() > 255)
    return error(Status::invalid, "a world's address has 1 to 255 bytes, as localhost:29500");
  if (wish.name.empty() || wish.name.size() > kMaxWorkerName)
    return error(Status::invalid, "a worker's name has 1 to " + std::to_string(kMaxWorkerName) + " bytes, not " +
                                      std::to_string(wish.name.size()));
  shmbw_world_join request{};
  request.port = wish.port;
  request.rank = wish.rank;
  request.world_size = wish.world_size;
  request.address_len = static_cast<std::uint16_t>(wish.address.size());
  request.name_len = static_cast<std::uint16_t>(wish.name.size());
  SHMB_TRY(answer, ask<SHMBW_OP_WORLD_JOIN>(session, request, {wish.address, wish.name}, deadline));
  const shmbw_world_join_reply& got = answer.fixed;
  session.note_group(got.group);  // a caller without a group is now a member of the world's group
  return WorldPlace{got.world, got.group, got.pool, got.present, got.flags, got.life};
}

Result<WorldLeft> leave_world(Session& session, std::uint64_t world, Deadline deadline) {
  SHMB_TRY(answer, ask<SHMBW_OP_WORLD_LEAVE>(session, shmbw_world_leave{world}, {}, deadline));
  return WorldLeft{answer.fixed.present, answer.fixed.forks};
}

Result<std::uint64_t> tell_world_pool(Session& session, std::uint64_t world, std::uint64_t pool, Deadline deadline) {
  SHMB_TRY(answer, ask<SHMBW_OP_WORLD_POOL>(session, shmbw_world_pool{world, pool}, {}, deadline));
  return answer.fixed.pool;
}

Result<RefMade> create_reference(Session& session, std::uint64_t world, const RefRequest& wish, Deadline deadline) {
  shmbw_ref_create request{};
  request.world = world;
  request.counter = wish.counter;
  request.owner = wish.owner;
  request.user = wish.user;
  request.state = wish.state;
  request.owner_life = wish.owner_life;
  request.user_life = wish.user_life;
  if (wish.counter != 0) request.flags |= SHMBW_REF_CREATE_GIVEN_COUNTER;
  if (wish.tell) request.flags |= SHMBW_REF_CREATE_TELL;
  SHMB_TRY(answer, ask<SHMBW_OP_REF_CREATE>(session, request, {}, deadline));
  return RefMade{from_wire(answer.fixed.reference), from_wire(answer.fixed.fork)};
}

Result<std::vector<RefId>> fork_references(Session& session, std::uint64_t world, std::span<const ForkRequest> wishes,
                                           Deadline deadline) {
  std::vector<shmbw_ref_fork> requests;
  requests.reserve(wishes.size());
  for (const ForkRequest& wish : wishes)
    requests.push_back({world, to_wire(wish.reference), wish.user, wish.user_life});
  std::vector<RefId> made;
  made.reserve(wishes.size());
  Result<void> whole;
  auto asked = call_all<SHMBW_OP_REF_FORK>(session, requests, deadline, [&](Result<shmbw_ref_fork_reply> answer) {
    if (answer) made.push_back(from_wire(answer->fork));
    else if (whole) whole = std::unexpected(answer.error());
  });
  if (!asked) whole = asked;
  if (whole) return made;
  (void)release_forks(session, world, made, deadline);
  return std::unexpected(whole.error());
}

Result<std::vector<Result<RefTaken>>> take_forks(Session& session, std::uint64_t world, std::span<const RefId> forks,
                                                 bool tell, Deadline deadline) {
  std::vector<shmbw_ref_take> requests;
  requests.reserve(forks.size());
  const std::uint32_t flags = tell ? SHMBW_REF_FORK_TELL : 0;
  for (RefId fork : forks) requests.push_back({world, to_wire(fork), flags, 0});
  std::vector<Result<RefTaken>> taken;
  taken.reserve(forks.size());
  auto asked = call_all<SHMBW_OP_REF_TAKE>(session, requests, deadline, [&](Result<shmbw_ref_take_reply> answer) {
    if (!answer) taken.emplace_back(std::unexpected(answer.error()));
    else
      taken.emplace_back(RefTaken{from_wire(answer->reference), answer->owner, answer->owner_life,
                                  static_cast<shmbw_ref_state>(answer->state)});
  });
  if (!asked) return std::unexpected(asked.error());
  return taken;
}

Result<void> release_forks(Session& session, std::uint64_t world, std::span<const RefId> forks, Deadline deadline) {
  if (session.is_local()) return needs_broker("remote references");
  std::vector<shmbw_ref_release> releases;
  releases.reserve(forks.size());
  for (const RefId fork : forks) releases.push_back({world, to_wire(fork)});
  return post<SHMBW_OP_REF_RELEASE>(session, releases, deadline);
}

Result<shmbw_ref_state> settle_reference(Session& session, std::uint64_t world, RefId reference, shmbw_ref_state state,
                                         std::string_view why, Deadline deadline) {
  why = state == SHMBW_REF_STATE_FAILED ? why.substr(0, kMaxReferenceError) : std::string_view();
  shmbw_ref_settle request{};
  request.world = world;
  request.reference = to_wire(reference);
  request.state = state;
  request.error_len = static_cast<std::uint16_t>(why.size());
  SHMB_TRY(answer, ask<SHMBW_OP_REF_SETTLE>(session, request, {why}, deadline));
  return static_cast<shmbw_ref_state>(answer.fixed.state);
}

Result<RefFacts> ask_reference(Session& session, std::uint64_t world, RefId reference, bool tell, Deadline deadline) {
  shmbw_ref_ask request{};
  request.world = world;
  request.reference = to_wire(reference);
  if (tell) request.flags = SHMBW_REF_FORK_TELL;
  SHMB_TRY(answer, ask<SHMBW_OP_REF_ASK>(session, request, {}, deadline));
  const shmbw_ref_ask_reply& got = answer.fixed;
  return RefFacts{static_cast<shmbw_ref_state>(got.state),
                  got.owner,
                  got.users,
                  got.in_flight,
                  got.created,
                  std::string(answer.texts().take(got.error_len).value_or(""))};
}

void undo_world_join(LateReply& late) { late.ask<SHMBW_OP_WORLD_LEAVE>({late.fixed<shmbw_world_join_reply>().world}); }

// A late reply does not say of which world: it can only be the session's own.
template <class Granted>
static void release_late_forks(LateReply& late) {
  std::vector<shmbw_ref_release> releases;
  late.each_granted<Granted>([&](const Granted& element) { releases.push_back({0, element.fork}); });
  late.post<SHMBW_OP_REF_RELEASE>(releases);
}
void undo_ref_create(LateReply& late) { release_late_forks<shmbw_ref_create_reply>(late); }
void undo_ref_fork(LateReply& late) { release_late_forks<shmbw_ref_fork_reply>(late); }

}  // namespace shmb::client
