// SPDX-License-Identifier: Apache-2.0
// The C ABI of remote, over the worker of agent.hpp. Users free their handles, also after the end of the world.
//
// A handle shares the agent, so an agent lives as long as any of its futures, references or requests. Its thread ends
// earlier, with the shutdown. A call with such a handle after the shutdown is an error (CLOSED), never a wait.
#include "spawn/remote/c_api_remote.hpp"

#include "client/c_api/c_api.hpp"
#include "spawn/remote/agent.hpp"

namespace shmb::remote {

using namespace shmb::client::c_api;
using shmb::client::Deadline;

namespace {

// Runs `body` with the object behind `handle`. A null handle is an error.
template <class T, class Body>
int with(T* handle, const char* what, shmb_error* error, Body body) {
  return guarded_to_end(error, [&]() -> Result<void> {
    if (handle == nullptr) return shmb::error(Status::invalid, std::string("no ") + what + " was given");
    return body();
  });
}

// The C handle of what was made goes to its place.
template <class T, class Made, class Wrap>
Result<void> hand_out(T** place, Result<Made> made, Wrap wrap) {
  if (!made) return std::unexpected(made.error());
  *place = wrap(std::move(*made));
  return {};
}

template <class T>
Result<void> place_for(T** place, const char* what) {
  if (place == nullptr) return shmb::error(Status::invalid, std::string("no place for the ") + what + " was given");
  return {};
}

Result<std::int64_t> call_timeout(std::int64_t timeout) {
  if (timeout < client::kForever)
    return shmb::error(Status::invalid, "the timeout of a call is a time above 0, the default, or SHMB_FOREVER");
  return timeout;
}

Result<Payload> payload_of(Agent& agent, const shmb_payload* given) {
  Payload out;
  if (given == nullptr) return out;
  if (given->data == nullptr && given->length != 0)
    return shmb::error(Status::invalid, "a payload has a length and no data");
  out.data = {static_cast<const char*>(given->data), given->length};
  if (given->data == nullptr) out.data = {};
  for (std::size_t i = 0; i < given->region_count; ++i) {
    SHMB_TRY(region, region_of(given->regions[i]));
    if (&region->session() == agent.place().session.get()) {
      out.regions.push_back(region);
      continue;
    }
    SHMB_TRY(leased, agent.memory().lease(*region));
    out.regions.push_back(leased.get());
    out.leased.push_back(std::move(leased));
  }
  for (std::size_t i = 0; i < given->reference_count; ++i) {
    if (given->references[i] == nullptr) return shmb::error(Status::invalid, "a reference of a payload is NULL");
    out.references.push_back(given->references[i]->it);
  }
  return out;
}

shmb_reference* reference_of(std::shared_ptr<Reference> reference) {
  return new shmb_reference{std::move(reference), nullptr, {}, std::nullopt};
}
shmb_future* handle_of(std::shared_ptr<Future> future) {
  auto* out = new shmb_future{std::move(future), {}};
  out->content.it = &out->it->content;
  return out;
}

// `causes` lives as long as the handle that gives the failure.
Result<void> write_failure(const Failure& failure, std::vector<shmb_cause>& causes, shmb_remote_failure* out) {
  causes.clear();
  for (const Failure::Cause& cause : failure.causes) causes.push_back({cause.type.c_str(), cause.text.c_str()});
  shmb_remote_failure c{};
  c.causes = causes.data();
  c.cause_count = causes.size();
  c.status = static_cast<std::int32_t>(failure.status);
  c.rank = failure.rank;
  c.worker = failure.worker.c_str();
  c.type = failure.type.c_str();
  c.text = failure.text.c_str();
  c.trace = failure.trace.c_str();
  return write_struct(c, out);
}

std::uint32_t state_of(Future::State state) {
  return state == Future::State::pending ? SHMB_FUTURE_PENDING
         : state == Future::State::done  ? SHMB_FUTURE_DONE
                                         : SHMB_FUTURE_FAILED;
}

Result<std::uint32_t> rank_of(Agent& agent, std::int32_t to) {
  if (to < 0 || static_cast<std::uint32_t>(to) >= agent.place().size)
    return shmb::error(Status::not_found, "there is no worker of rank " + std::to_string(to) + ": the ranks are 0 to " +
                                              std::to_string(agent.place().size - 1));
  return static_cast<std::uint32_t>(to);
}

// The checked arguments of a call.
struct Called {
  std::uint32_t to = 0;
  Payload payload;
  bool on_object = false;
};
Result<Called> called_with(Agent& agent, std::int32_t to, const char* function, const shmb_payload* payload,
                           std::uint32_t flags, std::int64_t timeout) {
  if ((flags & ~unsigned{SHMB_CALL_ON_OBJECT}) != 0)
    return shmb::error(Status::unknown_flags, "an unknown flag of a call");
  if (function == nullptr) return shmb::error(Status::invalid, "no function was given");
  SHMB_TRY_VOID(call_timeout(timeout));
  SHMB_TRY(rank, rank_of(agent, to));
  SHMB_TRY(what, payload_of(agent, payload));
  return Called{rank, std::move(what), (flags & SHMB_CALL_ON_OBJECT) != 0};
}

// A question to the owner of a reference.
int ask_owner(shmb_reference* reference, Kind kind, std::int64_t timeout, shmb_future** future, shmb_error* error) {
  return with(reference, "reference", error, [&]() -> Result<void> {
    SHMB_TRY_VOID(place_for(future, "future"));
    SHMB_TRY_VOID(call_timeout(timeout));
    return hand_out(future, reference->it->agent->caller().fetch(reference->it, kind, timeout), handle_of);
  });
}

// An answer, of whichever kind: the request is spent, and its worker lives until it is given.
template <class Give>
int answered(shmb_request* request, shmb_error* error, Give give) {
  return with(request, "request", error, [&]() -> Result<void> {
    const std::unique_ptr<shmb_request> spent(request);
    const std::shared_ptr<Agent> agent = request->it->agent;
    return give(*agent, std::move(request->it));
  });
}

}  // namespace
}  // namespace shmb::remote

// Outside of every namespace. A C function that is defined within one does not get the visibility of its declaration
// from GCC 12. Then the shared library would not export it (tests/client/library_test.py).
using namespace shmb;
using namespace shmb::remote;
using namespace shmb::client::c_api;
using shmb::client::Deadline;

extern "C" {

const void* shmb_content_data(const shmb_content* content) noexcept {
  return content == nullptr ? nullptr : content->it->view().data();
}
uint64_t shmb_content_length(const shmb_content* content) noexcept {
  return content == nullptr ? 0 : content->it->view().size();
}
uint32_t shmb_content_mapped(const shmb_content* content) noexcept {
  return content != nullptr && (content->it->bytes || content->it->slot) ? 1 : 0;
}
size_t shmb_content_regions(const shmb_content* content) noexcept {
  return content == nullptr ? 0 : content->it->regions.size();
}
size_t shmb_content_references(const shmb_content* content) noexcept {
  return content == nullptr ? 0 : content->it->references.size();
}

int shmb_content_take_region(shmb_content* content, size_t number, shmb_region** region, shmb_error* error) noexcept {
  return with(content, "content", error, [&]() -> Result<void> {
    SHMB_TRY_VOID(place_for(region, "region"));
    if (number >= content->it->regions.size() || !content->it->regions[number])
      return shmb::error(Status::not_found, "there is no region " + std::to_string(number) + " in it, or it was taken");
    if (content->keeper != nullptr) {
      SHMB_TRY(same, content->keeper->memory().again(*content->it->regions[number]));
      *region = new shmb_region{std::move(same)};
      return {};
    }
    *region = new shmb_region{std::move(content->it->regions[number])};
    return {};
  });
}

int shmb_content_take_reference(shmb_content* content, size_t number, shmb_reference** reference,
                                shmb_error* error) noexcept {
  return with(content, "content", error, [&]() -> Result<void> {
    SHMB_TRY_VOID(place_for(reference, "reference"));
    if (number >= content->it->references.size() || !content->it->references[number])
      return shmb::error(Status::not_found,
                         "there is no reference " + std::to_string(number) + " in it, or it was taken");
    std::shared_ptr<Reference> taken = content->it->references[number];
    if (content->keeper == nullptr) content->it->references[number].reset();
    *reference = reference_of(std::move(taken));
    return {};
  });
}

int shmb_remote_init(const shmb_remote_options* options, shmb_remote** remote, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, read_options(options));
    SHMB_TRY_VOID(place_for(remote, "worker"));
    if (known.timeout_ns < 0)
      return shmb::error(Status::invalid, "waiting for the other workers always has a deadline");
    SHMB_TRY_VOID(call_timeout(known.call_timeout_ns));
    Wanted wish;
    wish.name = text_or_empty(known.name);
    wish.address = text_or_empty(known.address);
    wish.socket = text_or_empty(known.socket);
    wish.rank = known.rank;
    wish.world_size = known.world_size;
    wish.threads = known.threads;
    wish.timeout = known.timeout_ns;
    wish.call_timeout = known.call_timeout_ns;
    wish.drop = known.drop;
    wish.context = known.context;
    if (known.request != nullptr)
      wish.request = [run = known.request, context = known.context](std::unique_ptr<Request> request) {
        auto* handle = new shmb_request{std::move(request), {}};
        handle->content.it = &handle->it->content;
        run(context, handle);
      };
    SHMB_TRY(joined, Agent::join(std::move(wish)));
    *remote = new shmb_remote{std::move(joined)};
    return {};
  });
}

int shmb_remote_shutdown(shmb_remote* remote, const shmb_remote_shutdown_options* options, uint32_t* leaks,
                         shmb_error* error) noexcept {
  return with(remote, "worker", error, [&]() -> Result<void> {
    SHMB_TRY(known, read_options(options));
    if (known.timeout_ns < 0) return shmb::error(Status::invalid, "a shutdown always has a deadline");
    ShutdownRequest wish;
    wish.local = known.local != 0;
    wish.keep_references = known.keep_references != 0;
    wish.report_leaks = known.report_leaks != 0;
    wish.timeout = known.timeout_ns;
    auto ended = remote->it->shutdown(wish);
    if (leaks != nullptr) *leaks = ended.leaks;
    if (ended.error) return std::unexpected(*ended.error);
    return {};
  });
}

void shmb_remote_free(shmb_remote* remote) noexcept {
  if (remote == nullptr) return;
  (void)guarded_to_end(nullptr, [&]() -> Result<void> {
    if (remote->it->life().forked()) {
      (void)new std::shared_ptr<Agent>(std::move(remote->it));  // the parent's, not ours to end
    } else {
      ShutdownRequest wish;
      wish.local = true;
      (void)remote->it->shutdown(wish);
      remote->it->end_threads();
    }
    delete remote;
    return {};
  });
}

int32_t shmb_remote_rank(const shmb_remote* remote) noexcept {
  return remote == nullptr ? -1 : static_cast<std::int32_t>(remote->it->place().rank);
}
int32_t shmb_remote_world_size(const shmb_remote* remote) noexcept {
  return remote == nullptr ? 0 : static_cast<std::int32_t>(remote->it->place().size);
}

int shmb_remote_worker(shmb_remote* remote, int32_t rank, const char* name, shmb_worker* worker,
                       shmb_error* error) noexcept {
  return with(remote, "worker", error, [&]() -> Result<void> {
    SHMB_TRY(found, name != nullptr ? remote->it->find(name) : rank_of(*remote->it, rank));
    const Worker facts = remote->it->worker(found);
    shmb_worker out{};
    out.rank = static_cast<std::int32_t>(found);
    out.state = static_cast<std::uint32_t>(facts.state);
    out.life = facts.life;
    copy_text(out.name, facts.name);
    return write_struct(out, worker);
  });
}

int shmb_remote_set_timeout(shmb_remote* remote, int64_t timeout_ns, shmb_error* error) noexcept {
  return with(remote, "worker", error, [&]() -> Result<void> {
    SHMB_TRY_VOID(call_timeout(timeout_ns));
    remote->it->calls().set_timeout(timeout_ns);
    return {};
  });
}
int64_t shmb_remote_get_timeout(shmb_remote* remote) noexcept {
  return remote == nullptr ? 0 : remote->it->calls().timeout();
}

int shmb_remote_get_counters(shmb_remote* remote, shmb_remote_counters* counters, shmb_error* error) noexcept {
  return with(remote, "worker", error, [&]() -> Result<void> {
    SHMB_TRY(now, remote->it->counters());
    shmb_remote_counters out{};
    out.owned = now.owned;
    out.users = now.users;
    out.held = now.held;
    out.pending_calls = now.calls;
    out.waiting = now.waiting;
    out.running = now.running;
    return write_struct(out, counters);
  });
}

int shmb_remote_serve(shmb_remote* remote, int64_t wait_ns, shmb_error* error) noexcept {
  return with(remote, "worker", error, [&]() -> Result<void> {
    return remote->it->serve(Deadline::after(wait_ns, SHMB_REMOTE_SERVE_WAIT), wait_ns == client::kNoWait);
  });
}

int shmb_remote_wait(shmb_remote* remote, int (*done)(void* context), void* context, int64_t wait_ns,
                     shmb_error* error) noexcept {
  return with(remote, "worker", error, [&]() -> Result<void> {
    if (done == nullptr) return shmb::error(Status::invalid, "nothing to wait for was given");
    return remote->it->wait_until([&] { return done(context) != 0; }, Deadline::after(wait_ns, SHMB_REMOTE_WAIT));
  });
}

void shmb_remote_notify(shmb_remote* remote) noexcept {
  if (remote != nullptr) remote->it->notify();
}

int shmb_remote_region(shmb_remote* remote, uint64_t length, shmb_region** region, shmb_error* error) noexcept {
  return with(remote, "worker", error, [&]() -> Result<void> {
    SHMB_TRY_VOID(place_for(region, "region"));
    return hand_out(region, remote->it->memory().region(length),
                    [](auto made) { return new shmb_region{std::move(made)}; });
  });
}

int shmb_remote_session(shmb_remote* remote, shmb_session** session, shmb_error* error) noexcept {
  return with(remote, "worker", error, [&]() -> Result<void> {
    SHMB_TRY_VOID(place_for(session, "session"));
    *session = new shmb_session{remote->it->place().session};
    return {};
  });
}

int shmb_remote_call(shmb_remote* remote, int32_t to, const char* function, const shmb_payload* payload, uint32_t flags,
                     int64_t timeout_ns, shmb_future** future, shmb_error* error) noexcept {
  return with(remote, "worker", error, [&]() -> Result<void> {
    SHMB_TRY_VOID(place_for(future, "future"));
    SHMB_TRY(call, called_with(*remote->it, to, function, payload, flags, timeout_ns));
    return hand_out(future, remote->it->caller().call(call.to, function, call.payload, call.on_object, timeout_ns),
                    handle_of);
  });
}

uint32_t shmb_future_get_state(shmb_future* future) noexcept {
  std::uint32_t state = SHMB_FUTURE_PENDING;
  (void)guarded_to_end(nullptr, [&]() -> Result<void> {
    if (future == nullptr || future->it->agent->life().forked()) return {};
    const std::lock_guard lock(future->it->agent->monitor().mutex());
    state = state_of(future->it->state);
    return {};
  });
  return state;
}

int shmb_future_wait(shmb_future* future, int64_t wait_ns, shmb_content** content, shmb_error* error) noexcept {
  return with(future, "future", error, [&]() -> Result<void> {
    SHMB_TRY_VOID(future->it->agent->wait(*future->it, wait_ns));
    if (content != nullptr) *content = &future->content;
    return {};
  });
}

int shmb_future_failure(shmb_future* future, shmb_remote_failure* failure, shmb_error* error) noexcept {
  return with(future, "future", error, [&]() -> Result<void> {
    if (shmb_future_get_state(future) != SHMB_FUTURE_FAILED)
      return shmb::error(Status::not_found, "the call has not failed");
    return write_failure(future->it->failure, future->causes, failure);
  });
}

int shmb_future_then(shmb_future* future, void (*then)(void* context, shmb_future* future), void* context,
                     shmb_error* error) noexcept {
  return with(future, "future", error, [&]() -> Result<void> {
    if (then == nullptr) return shmb::error(Status::invalid, "nothing to call was given");
    if (future->it->agent->life().forked()) return future->it->agent->life().open();
    future->it->agent->calls().when_done(future->it, [then, context, state = std::weak_ptr(future->it)] {
      auto alive = state.lock();
      if (!alive) return;
      shmb_future handle{alive, {&alive->content}};
      then(context, &handle);
    });
    return {};
  });
}

shmb_future* shmb_future_share(shmb_future* future) noexcept {
  shmb_future* out = nullptr;
  (void)guarded_to_end(nullptr, [&]() -> Result<void> {
    if (future != nullptr) out = handle_of(future->it);
    return {};
  });
  return out;
}
void shmb_future_free(shmb_future* future) noexcept { delete future; }

uint32_t shmb_request_get_kind(const shmb_request* request) noexcept {
  if (request == nullptr) return 0;
  switch (request->it->head.kind) {
    case Kind::create:
      return SHMB_REQUEST_CREATE;
    case Kind::fetch:
      return SHMB_REQUEST_FETCH;
    default:
      return SHMB_REQUEST_CALL;
  }
}
int32_t shmb_request_from(const shmb_request* request) noexcept {
  return request == nullptr ? -1 : static_cast<std::int32_t>(request->it->head.from);
}
const char* shmb_request_function(const shmb_request* request) noexcept {
  return request == nullptr ? "" : request->it->function.c_str();
}
shmb_content* shmb_request_content(shmb_request* request) noexcept {
  return request == nullptr ? nullptr : &request->content;
}
void* shmb_request_object(const shmb_request* request) noexcept {
  return request == nullptr || !request->it->value ? nullptr : request->it->value->object;
}

int shmb_request_answer(shmb_request* request, const shmb_payload* payload, shmb_error* error) noexcept {
  return answered(request, error, [&](Agent& agent, std::unique_ptr<Request> spent) -> Result<void> {
    auto what = payload_of(agent, payload);
    if (what) return agent.server().answer(std::move(spent), *what);
    (void)agent.server().fail(std::move(spent), failure_of(what.error()));
    return std::unexpected(what.error());
  });
}

int shmb_request_answer_object(shmb_request* request, void* object, const char* type, shmb_error* error) noexcept {
  return answered(request, error, [&](Agent& agent, std::unique_ptr<Request> spent) {
    return agent.server().answer_object(std::move(spent), object, text_or_empty(type));
  });
}

int shmb_request_fail(shmb_request* request, const shmb_remote_failure* failure, shmb_error* error) noexcept {
  return answered(request, error, [&](Agent& agent, std::unique_ptr<Request> spent) {
    auto known = read_options(failure);
    remote::Failure told;
    if (known) {
      if (known->status != SHMB_OK) told.status = static_cast<Status>(known->status);
      told.type = text_or_empty(known->type);
      told.text = text_or_empty(known->text);
      told.trace = text_or_empty(known->trace);
      for (std::size_t i = 0; known->causes != nullptr && i < known->cause_count && i < SHMB_MOST_CAUSES; ++i)
        told.causes.push_back({text_or_empty(known->causes[i].type), text_or_empty(known->causes[i].text)});
    } else {
      told = failure_of(known.error());
    }
    return agent.server().fail(std::move(spent), std::move(told));
  });
}

int shmb_remote_create(shmb_remote* remote, int32_t to, const char* function, const shmb_payload* payload,
                       uint32_t flags, int64_t timeout_ns, shmb_reference** reference, shmb_error* error) noexcept {
  return with(remote, "worker", error, [&]() -> Result<void> {
    SHMB_TRY_VOID(place_for(reference, "reference"));
    SHMB_TRY(call, called_with(*remote->it, to, function, payload, flags, timeout_ns));
    return hand_out(reference, remote->it->caller().create(call.to, function, call.payload, call.on_object, timeout_ns),
                    reference_of);
  });
}

int shmb_remote_own(shmb_remote* remote, void* object, const char* type, shmb_reference** reference,
                    shmb_error* error) noexcept {
  return with(remote, "worker", error, [&]() -> Result<void> {
    SHMB_TRY_VOID(place_for(reference, "reference"));
    return hand_out(reference, remote->it->references().own(object, text_or_empty(type)), reference_of);
  });
}

int shmb_reference_get_info(shmb_reference* reference, shmb_reference_info* info, shmb_error* error) noexcept {
  return with(reference, "reference", error, [&]() -> Result<void> {
    Reference& inside = *reference->it;
    Agent& agent = *inside.agent;
    if (agent.life().forked()) return agent.life().open();
    shmb_reference_info out{};
    const Worker owner = agent.worker(inside.known->owner);
    const std::lock_guard lock(agent.monitor().mutex());
    const Known& known = *inside.known;
    out.number = known.id.counter;
    out.creator = known.id.counter == 0 ? -1 : static_cast<std::int32_t>(known.id.creator);
    out.fork = inside.fork.counter;
    out.fork_creator = inside.fork.counter == 0 ? -1 : static_cast<std::int32_t>(inside.fork.creator);
    out.owner = static_cast<std::int32_t>(known.owner);
    out.is_owner = agent.references().owned_here(known) ? 1 : 0;
    out.confirmed = known.confirmed ? 1 : 0;
    out.state = known.failure || known.state == Known::State::failed ? SHMB_REFERENCE_FAILED
                : known.state == Known::State::ready                 ? SHMB_REFERENCE_READY
                                                                     : SHMB_REFERENCE_REGISTERED;
    copy_text(out.owner_name, owner.name);
    return write_struct(out, info);
  });
}

int shmb_reference_fetch(shmb_reference* reference, int64_t timeout_ns, shmb_future** future,
                         shmb_error* error) noexcept {
  return ask_owner(reference, Kind::fetch, timeout_ns, future, error);
}

int shmb_reference_local(shmb_reference* reference, int64_t wait_ns, void** object, shmb_content** content,
                         shmb_error* error) noexcept {
  return with(reference, "reference", error, [&]() -> Result<void> {
    SHMB_TRY(value, reference->it->agent->local(*reference->it, wait_ns));
    // The handle's own are set once: other threads may have pointers to them.
    const std::lock_guard lock(reference->it->agent->monitor().mutex());
    if (!reference->value) {
      reference->value = std::move(value);
      reference->content = {&reference->value->content, reference->it->agent.get()};
    }
    if (object != nullptr) *object = reference->value->object;
    if (content != nullptr) *content = reference->value->is_object ? nullptr : &reference->content;
    return {};
  });
}

int shmb_reference_created(shmb_reference* reference, shmb_future** future, shmb_error* error) noexcept {
  return with(reference, "reference", error, [&]() -> Result<void> {
    SHMB_TRY_VOID(place_for(future, "future"));
    if (!reference->it->created)
      return shmb::error(Status::not_found,
                         "this reference was not made by shmb_remote_create here: nothing tells of its creation");
    *future = handle_of(reference->it->created);
    return {};
  });
}

int shmb_reference_type(shmb_reference* reference, int64_t timeout_ns, shmb_future** future,
                        shmb_error* error) noexcept {
  return ask_owner(reference, Kind::type, timeout_ns, future, error);
}

int shmb_reference_failure(shmb_reference* reference, shmb_remote_failure* failure, shmb_error* error) noexcept {
  return with(reference, "reference", error, [&]() -> Result<void> {
    Agent& agent = *reference->it->agent;
    if (agent.life().forked()) return agent.life().open();
    const std::lock_guard lock(agent.monitor().mutex());
    const Reference& inside = *reference->it;
    if (reference->told) return write_failure(*reference->told, reference->causes, failure);
    if (inside.known->failure) reference->told = *inside.known->failure;
    else if (inside.value && inside.value->state == Value::State::failed) reference->told = inside.value->failure;
    else return shmb::error(Status::not_found, "this worker knows of no failure of the reference");
    return write_failure(*reference->told, reference->causes, failure);
  });
}

void shmb_reference_free(shmb_reference* reference) noexcept { delete reference; }

}  // extern "C"
