// SPDX-License-Identifier: Apache-2.0
// Packets to and from the table of references. What a call booked and could not hand to its caller is given back.
#include "client/remote_calls.hpp"

#include <algorithm>
#include <array>

namespace shmb::client {
namespace {

std::unexpected<Error> malformed_answer() {
  return error(Status::protocol, "the broker's answer about a reference is malformed");
}

shmbw_ref_id to_wire(RefId id) { return {id.counter, id.creator, 0}; }
RefId from_wire(const shmbw_ref_id& id) { return {id.counter, id.creator}; }

template <class ReplyPart, class RequestPart>
Result<std::pair<ReplyPart, Reply>> ask_plain(Session& session, std::uint16_t op, const RequestPart& request,
                                              std::initializer_list<std::string_view> texts, Deadline deadline) {
  if (session.is_local()) return needs_broker("remote references");
  std::array<std::byte, 512> buffer;
  wire::Writer writer(buffer);
  writer.begin(op, 0, Status::ok, request);
  for (std::string_view text : texts) writer.text(text);
  const auto packet = writer.finish(0);
  auto reply = session.call(std::span(buffer).first(packet.size()), deadline);
  if (!reply) return std::unexpected(reply.error());
  auto fixed = fixed_of<ReplyPart>(*reply);
  if (!fixed) return std::unexpected(fixed.error());
  return std::pair(*fixed, std::move(*reply));
}

// Calls `take(index, Result<ReplyPart>)` for each element, in order; an error is that of a whole packet, and the
// elements before it have been taken.
template <class ReplyPart, class RequestPart, class Take>
Result<void> ask_batch(Session& session, std::uint16_t op, std::span<const RequestPart> elements, std::string_view text,
                       Deadline deadline, Take take) {
  if (session.is_local()) return needs_broker("remote references");
  for (std::size_t first = 0; first < elements.size(); first += SHMBW_MAX_BATCH) {
    const auto part = elements.subspan(first, std::min<std::size_t>(SHMBW_MAX_BATCH, elements.size() - first));
    std::vector<std::byte> buffer(sizeof(shmbw_header) + sizeof(shmbw_batch) + part.size_bytes() + text.size());
    wire::Writer writer(buffer);
    writer.begin_batch<RequestPart>(op, 0, part.size());
    for (std::size_t i = 0; i < part.size(); ++i) writer.element(i, part[i]);
    writer.text(text);
    writer.finish(0);
    auto reply = session.call(buffer, deadline);
    if (!reply) return std::unexpected(reply.error());
    auto batch = wire::BatchView::open(reply->view);
    if (!batch || batch->count() != part.size()) return malformed_answer();
    auto texts = batch->texts();
    for (std::size_t i = 0; i < part.size(); ++i) {
      auto element = batch->template element<ReplyPart>(i);
      if (!element) return malformed_answer();
      const auto detail = texts.take(element->outcome.detail_len).value_or("");
      if (element->outcome.status == 0) take(first + i, Result<ReplyPart>(*element));
      else
        take(first + i, Result<ReplyPart>(std::unexpected(wire::read_element_detail(element->outcome.status, detail))));
    }
  }
  return {};
}

template <class ReplyPart, class RequestPart>
Result<ReplyPart> ask_one(Session& session, std::uint16_t op, const RequestPart& element, std::string_view text,
                          Deadline deadline) {
  Result<ReplyPart> out = malformed_answer();
  auto asked = ask_batch<ReplyPart>(session, op, std::span(&element, 1), text, deadline,
                                    [&](std::size_t, Result<ReplyPart> answer) { out = std::move(answer); });
  if (!asked) return std::unexpected(asked.error());
  return out;
}

}  // namespace

Result<WorldPlace> join_world(Session& session, const WorldWish& wish, Deadline deadline) {
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
  auto answer =
      ask_plain<shmbw_world_join_reply>(session, SHMBW_OP_WORLD_JOIN, request, {wish.address, wish.name}, deadline);
  if (!answer) return std::unexpected(answer.error());
  const shmbw_world_join_reply& got = answer->first;
  session.note_group(got.group);  // whoever was in none is a member of the world's now
  return WorldPlace{got.world, got.group, got.pool, got.present, got.flags, got.life};
}

Result<WorldLeft> leave_world(Session& session, std::uint64_t world, Deadline deadline) {
  auto answer =
      ask_plain<shmbw_world_leave_reply>(session, SHMBW_OP_WORLD_LEAVE, shmbw_world_leave{world}, {}, deadline);
  if (!answer) return std::unexpected(answer.error());
  return WorldLeft{answer->first.present, answer->first.forks};
}

Result<std::uint64_t> tell_world_pool(Session& session, std::uint64_t world, std::uint64_t pool, Deadline deadline) {
  auto answer =
      ask_plain<shmbw_world_pool_reply>(session, SHMBW_OP_WORLD_POOL, shmbw_world_pool{world, pool}, {}, deadline);
  if (!answer) return std::unexpected(answer.error());
  return answer->first.pool;
}

Result<RefMade> create_reference(Session& session, std::uint64_t world, const RefWish& wish, Deadline deadline) {
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
  auto answer = ask_one<shmbw_ref_create_reply>(session, SHMBW_OP_REF_CREATE, request, {}, deadline);
  if (!answer) return std::unexpected(answer.error());
  return RefMade{from_wire(answer->reference), from_wire(answer->fork)};
}

Result<std::vector<RefId>> fork_references(Session& session, std::uint64_t world, std::span<const ForkWish> wishes,
                                           Deadline deadline) {
  std::vector<shmbw_ref_fork> requests;
  requests.reserve(wishes.size());
  for (const ForkWish& wish : wishes) requests.push_back({world, to_wire(wish.reference), wish.user, wish.user_life});
  std::vector<RefId> made;
  made.reserve(wishes.size());
  Result<void> whole;
  auto asked = ask_batch<shmbw_ref_fork_reply>(session, SHMBW_OP_REF_FORK, std::span<const shmbw_ref_fork>(requests),
                                               {}, deadline, [&](std::size_t, Result<shmbw_ref_fork_reply> answer) {
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
  auto asked = ask_batch<shmbw_ref_take_reply>(
      session, SHMBW_OP_REF_TAKE, std::span<const shmbw_ref_take>(requests), {}, deadline,
      [&](std::size_t, Result<shmbw_ref_take_reply> answer) {
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
  for (std::size_t first = 0; first < forks.size(); first += SHMBW_MAX_BATCH) {
    const auto part = forks.subspan(first, std::min<std::size_t>(SHMBW_MAX_BATCH, forks.size() - first));
    std::vector<std::byte> buffer(sizeof(shmbw_header) + sizeof(shmbw_batch) + part.size() * sizeof(shmbw_ref_release));
    wire::Writer writer(buffer);
    writer.begin_batch<shmbw_ref_release>(SHMBW_OP_REF_RELEASE, 0, part.size(), SHMBW_HEADER_NO_REPLY);
    for (std::size_t i = 0; i < part.size(); ++i) writer.element(i, shmbw_ref_release{world, to_wire(part[i])});
    writer.finish(0);
    if (auto posted = session.post(buffer, deadline); !posted) return posted;
  }
  return {};
}

Result<shmbw_ref_state> settle_reference(Session& session, std::uint64_t world, RefId reference, shmbw_ref_state state,
                                         std::string_view why, Deadline deadline) {
  why = state == SHMBW_REF_STATE_FAILED ? why.substr(0, kMaxReferenceError) : std::string_view();
  shmbw_ref_settle request{};
  request.world = world;
  request.reference = to_wire(reference);
  request.state = state;
  request.error_len = static_cast<std::uint16_t>(why.size());
  auto answer = ask_one<shmbw_ref_settle_reply>(session, SHMBW_OP_REF_SETTLE, request, why, deadline);
  if (!answer) return std::unexpected(answer.error());
  return static_cast<shmbw_ref_state>(answer->state);
}

Result<RefFacts> ask_reference(Session& session, std::uint64_t world, RefId reference, bool tell, Deadline deadline) {
  shmbw_ref_ask request{};
  request.world = world;
  request.reference = to_wire(reference);
  if (tell) request.flags = SHMBW_REF_FORK_TELL;
  auto answer = ask_plain<shmbw_ref_ask_reply>(session, SHMBW_OP_REF_ASK, request, {}, deadline);
  if (!answer) return std::unexpected(answer.error());
  const shmbw_ref_ask_reply& got = answer->first;
  wire::TextReader texts(answer->second.view.rest);
  return RefFacts{static_cast<shmbw_ref_state>(got.state),
                  got.owner,
                  got.users,
                  got.in_flight,
                  got.created,
                  std::string(texts.take(got.error_len).value_or(""))};
}

}  // namespace shmb::client
