// SPDX-License-Identifier: Apache-2.0
// WORLD_JOIN, WORLD_LEAVE, WORLD_POOL, the REF requests, and the tables of LIST that show them. Worlds are for their
// workers, which are of one uid. For all others they do not exist.
#include <type_traits>

#include "base/result.hpp"
#include "daemon/remote/reference.hpp"
#include "daemon/remote/world.hpp"
#include "daemon/serve/page.hpp"

namespace shmb::daemon {

void serve_world_join(const Request& request) {
  auto wish = request.read<shmbw_world_join>();
  if (!wish) return;
  wire::TextReader texts(request.packet.rest);
  auto address = texts.take(wish->address_len);
  auto name = texts.take(wish->name_len);
  if (!address || !name || !texts.done()) return request.refuse_struct(Status::invalid);
  auto joined = join_world(request.ledger.worlds, request.session, *wish, *address, *name);
  if (!joined) return request.fail(joined.error());
  const World& home = *(*joined)->home;
  shmbw_world_join_reply reply{};
  reply.world = home.id;
  reply.group = home.group->id;
  reply.pool = pool_of(request.ledger.worlds, home);
  reply.present = home.present;
  reply.flags = home.flags();
  reply.life = (*joined)->life;
  request.answer(reply);
}

void serve_world_leave(const Request& request) {
  auto wish = request.read<shmbw_world_leave>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  auto worker = worker_in(request.session, wish->world);
  if (!worker) return request.fail(worker.error());
  const shmbw_world_leave_reply reply{(*worker)->home->present - 1, (*worker)->forks.size()};
  leave_world(request.ledger.worlds, request.session, false);
  request.answer(reply);
}

void serve_world_pool(const Request& request) {
  auto wish = request.read<shmbw_world_pool>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  auto worker = worker_in(request.session, wish->world);
  if (!worker) return request.fail(worker.error());
  World& home = *(*worker)->home;
  if (pool_of(request.ledger.worlds, home) == 0) {
    auto place = place_in(request.ledger.pools, request.session, wish->pool);
    if (!place) return request.fail(place.error());
    home.pool = wish->pool;
    changed(home);
    note_participant(request.session, *place->pool, place->index);
    tell_world(home, SHMBW_WORLD_CHANGE_POOL, (*worker)->rank, &request.session);
  }
  request.answer(shmbw_world_pool_reply{home.pool});
}

namespace {

std::size_t text_length(const shmbw_ref_settle& element) { return element.error_len; }
std::size_t text_length(const auto&) { return 0; }

// A batch whose elements are served one by one: `serve` fills the reply or returns an error. Elements with a text pass
// it as the third argument.
template <class Element, class Reply, class Serve>
void serve_each(const Request& request, Serve serve) {
  auto batch = open_batch<Element>(request, [](const Element& element) { return text_length(element); });
  if (!batch) return;
  BatchAnswer<Reply> answer(request, batch->count());
  wire::TextReader texts = batch->texts();
  for (std::size_t i = 0; i < batch->count(); ++i) {
    const Element element = *batch->template element<Element>(i);
    [[maybe_unused]] const std::string_view text = *texts.take(text_length(element));
    if (i < answer.first()) continue;
    if (answer.turn_is_over()) return;
    Reply reply{};
    Result<void> done;
    if constexpr (std::is_invocable_v<Serve, const Element&, Reply&, std::string_view>)
      done = serve(element, reply, text);
    else done = serve(element, reply);
    if (done) answer.ok(reply);
    else answer.fail(done.error());
  }
  answer.send();
}

template <class T>
bool fork_flags_known(const T& wish) {
  return (wish.flags & ~std::uint32_t{SHMBW_REF_FORK_TELL}) == 0;
}

std::unexpected<Error> flag_not_known() {
  return error(Status::unknown_flags, "a flag of the request is not known to this broker");
}

}  // namespace

void serve_ref_create(const Request& request) {
  serve_each<shmbw_ref_create, shmbw_ref_create_reply>(request, [&](const auto& wish, auto& reply) -> Result<void> {
    if ((wish.flags & ~std::uint32_t{SHMBW_REF_CREATE_KNOWN}) != 0) return flag_not_known();
    SHMB_TRY(maker, working_in(request.session, wish.world));
    SHMB_TRY(booked, book_reference(request.ledger.worlds, *maker, wish));
    reply.reference = booked.reference->key().to_wire();
    reply.fork = booked.fork->key().to_wire();
    return {};
  });
}

void serve_ref_fork(const Request& request) {
  serve_each<shmbw_ref_fork, shmbw_ref_fork_reply>(request, [&](const auto& wish, auto& reply) -> Result<void> {
    SHMB_TRY(maker, working_in(request.session, wish.world));
    SHMB_TRY(fork, book_fork(request.ledger.worlds, *maker, RefKey::of(wish.reference), wish.user, wish.user_life));
    reply.fork = fork->key().to_wire();
    return {};
  });
}

void serve_ref_take(const Request& request) {
  serve_each<shmbw_ref_take, shmbw_ref_take_reply>(request, [&](const auto& wish, auto& reply) -> Result<void> {
    if (!fork_flags_known(wish)) return flag_not_known();
    SHMB_TRY(user, working_in(request.session, wish.world));
    SHMB_TRY(fork, take_fork(*user, RefKey::of(wish.fork), (wish.flags & SHMBW_REF_FORK_TELL) != 0));
    const Reference& reference = *fork->reference;
    reply.reference = reference.key().to_wire();
    reply.owner = reference.owner->rank;
    reply.state = reference.state;
    reply.owner_life = reference.owner->life;
    return {};
  });
}

void serve_ref_release(const Request& request) {
  serve_each<shmbw_ref_release, shmbw_ref_release_reply>(request, [&](const auto& wish, auto&) -> Result<void> {
    SHMB_TRY(by, working_in(request.session, wish.world));
    return release_fork(*by, RefKey::of(wish.fork));
  });
}

void serve_ref_settle(const Request& request) {
  serve_each<shmbw_ref_settle, shmbw_ref_settle_reply>(
      request, [&](const auto& wish, auto& reply, std::string_view text) -> Result<void> {
        SHMB_TRY(by, working_in(request.session, wish.world));
        SHMB_TRY(settled, settle_reference(*by, RefKey::of(wish.reference), wish.state, text));
        reply.state = settled->state;
        reply.users = settled->forks.size();
        return {};
      });
}

void serve_ref_ask(const Request& request) {
  auto wish = request.read<shmbw_ref_ask>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  if (!fork_flags_known(*wish)) return request.fail(flag_not_known().error());
  auto by = working_in(request.session, wish->world);
  auto found = by ? find_reference(**by, RefKey::of(wish->reference)) : Result<Reference*>(std::unexpected(by.error()));
  if (!found) return request.fail(found.error());
  const Reference& reference = **found;
  if ((wish->flags & SHMBW_REF_FORK_TELL) != 0)
    reference.forks.each([&](Fork& fork) {
      if (fork.user != *by || fork.tell) return;
      fork.tell = true;
      changed(fork);
    });
  const std::string_view text = reference.error ? std::string_view(*reference.error) : std::string_view();
  shmbw_ref_ask_reply reply{};
  reply.state = reference.state;
  reply.owner = reference.owner->rank;
  reply.users = reference.forks.size();
  reply.in_flight = reference.in_flight();
  reply.created = reference.created;
  reply.error_len = static_cast<std::uint16_t>(text.size());
  request.answer(reply, {text});
}

static bool sees_world(const Request& request, const World& home) {
  return request.session.admin || request.session.uid == home.uid;
}

void list_worlds(const Request& request, const Filter& filter) {
  Page<shmbw_world_record> page(request, filter);
  for (const auto& [id, home] : page.rows(request.ledger.worlds.all, filter.wish.region.id)) {
    if (page.done(id)) break;
    if (!filter.takes(home) || !sees_world(request, home)) continue;
    page.count(0);
    if (!page.wants(id) || !page.room(home.address.size())) continue;
    shmbw_world_record record{};
    record.world = id;
    record.group = home.group->id;
    record.pool = pool_of(request.ledger.worlds, home);
    record.owner_uid = home.uid;
    record.port = home.port;
    record.world_size = static_cast<std::uint32_t>(home.workers.size());
    record.present = home.present;
    record.died = home.died();
    record.flags = home.flags();
    record.references = home.references.size();
    record.forks = home.forks.size();
    record.created = home.created;
    record.replaced = home.replaced;
    record.address_len = static_cast<std::uint16_t>(home.address.size());
    page.add(id, record, {home.address});
  }
  page.send();
}

void list_workers(const Request& request, const Filter& filter) {
  Page<shmbw_worker_record> page(request, filter);
  std::vector<const Worker*> rows;
  for (const auto& [id, home] : request.ledger.worlds.all) {
    if (!filter.takes(home) || !sees_world(request, home)) continue;
    for (const auto& worker : home.workers) {
      if (worker->state == SHMBW_WORKER_STATE_ABSENT) continue;
      page.count(0);
      if (page.wants(worker->serial)) rows.push_back(worker.get());
    }
  }
  sort_page<shmbw_worker_record>(rows);
  for (const Worker* worker : rows) {
    if (!page.room(worker->name.size())) break;
    shmbw_worker_record record{};
    record.world = worker->home->id;
    record.session = worker->session ? worker->session->id : 0;
    record.rank = worker->rank;
    record.state = worker->state;
    record.pid = worker->pid;
    record.uid = worker->uid;
    record.owned = worker->owned.size();
    record.forks = worker->forks.size();
    record.life = worker->life;
    record.participant = worker->participant;
    record.participant_life = worker->participant_life;
    record.name_len = static_cast<std::uint16_t>(worker->name.size());
    page.add(worker->serial, record, {worker->name});
  }
  page.send();
}

void list_references(const Request& request, const Filter& filter) {
  Page<shmbw_reference_record> page(request, filter);
  std::vector<const Reference*> rows;
  for (const auto& [id, home] : request.ledger.worlds.all) {
    if (!filter.takes(home) || !sees_world(request, home)) continue;
    for (const Reference& reference : home.references) {
      page.count(0);
      if (page.wants(static_cast<std::uint64_t>(reference.created))) rows.push_back(&reference);
    }
  }
  sort_page<shmbw_reference_record>(rows, [](const Reference* row) { return row->created; });
  for (const Reference* reference : rows) {
    const std::string_view text = reference->error ? std::string_view(*reference->error) : std::string_view();
    if (!page.room(text.size())) break;
    shmbw_reference_record record{};
    record.world = reference->owner->home->id;
    record.reference = reference->key().to_wire();
    record.owner = reference->owner->rank;
    record.state = reference->state;
    record.users = reference->forks.size();
    record.in_flight = reference->in_flight();
    record.user_ranks = user_ranks(*reference);
    record.created = reference->created;
    record.error_len = static_cast<std::uint16_t>(text.size());
    page.add(static_cast<std::uint64_t>(reference->created), record, {text});
  }
  page.send();
}

}  // namespace shmb::daemon
