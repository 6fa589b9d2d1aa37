// SPDX-License-Identifier: Apache-2.0
// What others ask is run and answered here. A value is told to the books before anybody is answered from it: where the
// creator's deadline was earlier, it has failed for everybody, and the value goes.
#include "base/sys_process.hpp"
#include "spawn/remote_agent.hpp"

namespace shmb::remote {

using client::Deadline;

void Agent::run(std::unique_ptr<Request> request) {
  const Head& head = request->head;
  const bool asks_value = head.kind == Kind::fetch || head.kind == Kind::type;
  const bool on_object = !asks_value && (head.flags & kOnObject) != 0;
  if (asks_value || on_object) {
    std::shared_ptr<Value> value;
    RefId id = head.reference;
    if (!request->content.references.empty()) {
      const Reference& subject = *request->content.references[0];
      {
        // Of a call to oneself it is the caller's own, which other threads use as well.
        const std::lock_guard lock(mutex_);
        id = subject.known->id;
        value = subject.value;
      }
      if (!owned_here(*subject.known)) {
        (void)fail(std::move(request), {Status::invalid, -1, {}, {}, "the object of the call is not owned here", {}});
        return;
      }
    } else if (on_object) {
      (void)fail(std::move(request), {Status::invalid, -1, {}, {}, "a call on an object without a reference", {}});
      return;
    }
    if (park(request, id, value)) return;
    if (!value) {
      (void)fail(std::move(request), {Status::limit,
                                      -1,
                                      {},
                                      {},
                                      "65536 references whose creation has not come yet are waited for at this worker, "
                                      "which are all that may be, and this is one more: wait for a creation "
                                      "(shmb_reference_created) before the reference is used",
                                      {}});
      return;
    }
    if (value->state == Value::State::failed) {
      (void)fail(std::move(request), value->failure);
      return;
    }
    if (asks_value) request->value = value;
    if (head.kind == Kind::type) {
      Payload payload;
      payload.data = value->type;
      (void)reply(*request, payload);
      return;
    }
    if (head.kind == Kind::fetch && !value->is_object) {
      Payload payload;
      payload.data = value->content.view();
      payload.bytes = value->content.bytes.get();
      for (const auto& region : value->content.regions) payload.regions.push_back(region.get());
      payload.references = value->content.references;
      (void)reply(*request, payload);
      return;
    }
  }
  if (!wish_.request) {
    (void)fail(std::move(request), {Status::no_function, -1, {}, {}, "this worker runs no functions", {}});
    return;
  }
  wish_.request(std::move(request));
}

Result<void> Agent::reply(const Request& request, const Payload& payload) {
  if (request.head.from != rank_) {
    Head head;
    head.kind = Kind::answer;
    head.to_life = request.head.from_life;
    head.call = request.head.call;
    head.deadline = request.head.deadline;
    return send(request.head.from, head, {}, payload);
  }
  auto content = keep(payload, false, request.head.deadline);
  if (!content) return std::unexpected(content.error());
  const std::lock_guard lock(mutex_);
  expire();
  const auto found = calls_.find(request.head.call);
  if (found == calls_.end() || found->second->settling) return {};  // the content goes behind the lock
  const std::shared_ptr<Future> future = found->second;
  if (future->kind == Kind::create)
    if (auto it = find_known(future->reference)) it->state = Known::State::ready;
  future->content = std::move(*content);
  complete(future);
  wake();
  return {};
}

Result<void> Agent::reply_failure(const Request& request, const Failure& given) {
  Failure failure = given;
  {
    const std::lock_guard lock(mutex_);
    if (failure.rank < 0) {
      failure.rank = static_cast<std::int32_t>(rank_);
      failure.worker = workers_[rank_].name;
    }
    if (request.head.from == rank_) {
      expire();
      const auto found = calls_.find(request.head.call);
      if (found == calls_.end() || found->second->settling) return {};
      fail(std::shared_ptr(found->second), failure);
      wake();
      return {};
    }
  }
  Head head;
  head.kind = Kind::failure;
  head.to_life = request.head.from_life;
  head.call = request.head.call;
  head.deadline = request.head.deadline;
  const std::string bytes = pack_failure(failure);
  Payload payload;
  payload.data = bytes;
  return send(request.head.from, head, {}, payload);
}

// The value of a creation is there, or its failure.
Result<void> Agent::settle(std::unique_ptr<Request> request, std::optional<Failure> failure) {
  const std::shared_ptr<Value> value = request->value;
  // Nobody may have been there to notice: the deadline counts all the same.
  const bool expired = !failure && request->head.deadline != 0 && sys::now_monotonic() >= request->head.deadline;
  if (expired) failure = Failure{Status::deadline, -1, {}, {}, std::string(kGaveUp), {}};
  auto stands =
      client::settle_reference(*session_, world_, value->id, failure ? SHMBW_REF_STATE_FAILED : SHMBW_REF_STATE_READY,
                               !failure                ? std::string()
                               : failure->type.empty() ? failure->text
                                                       : failure->type + ": " + failure->text,
                               Deadline::after(0));
  if (expired || (stands && *stands == SHMBW_REF_STATE_FAILED && !failure))
    failure = Failure{Status::deadline, -1, {}, {}, torch_words::creation_failed(text_of(value->id), kGaveUp), {}};
  Content dropped;
  std::vector<std::unique_ptr<Request>> late;
  std::shared_ptr<Value> object;
  {
    const std::lock_guard lock(mutex_);
    if (failure) {
      if (failure->rank < 0) {
        failure->rank = static_cast<std::int32_t>(rank_);
        failure->worker = workers_[rank_].name;
      }
      value->failure = *failure;
      value->state = Value::State::failed;
      dropped = std::move(value->content);
      value->content = {};
      if (value->is_object) {
        object = std::make_shared<Value>();
        object->is_object = true;
        object->object = std::exchange(value->object, nullptr);
        object->drop = value->drop;
        object->context = value->context;
      }
    } else {
      value->state = Value::State::ready;
    }
    if (auto it = find_known(value->id); it && it->state == Known::State::registered)
      it->state = failure ? Known::State::failed : Known::State::ready;
    release_waiting(*value, late);
  }
  if (failure) return reply_failure(*request, *failure);
  return reply(*request, {});
}

Result<void> Agent::answer(std::unique_ptr<Request> request, const Payload& payload) {
  if (forked()) return open();
  if (request->head.kind == Kind::create) {
    auto kept = keep(payload, true, request->head.deadline);
    if (!kept) {
      (void)settle(std::move(request), failure_of(kept.error()));
      return std::unexpected(kept.error());
    }
    request->value->content = std::move(*kept);
    if (request->value->type.empty()) request->value->type = "bytes";
    return settle(std::move(request), std::nullopt);
  }
  auto sent = reply(*request, payload);
  if (sent || sent.error().status == Status::worker_gone || sent.error().status == Status::closed) return sent;
  (void)reply_failure(*request, failure_of(sent.error()));  // the result could not be sent: that is what it is told
  return sent;
}

Result<void> Agent::answer_object(std::unique_ptr<Request> request, void* object, std::string type) {
  if (forked()) return open();
  if (request->head.kind != Kind::create) {
    (void)reply_failure(*request, {Status::invalid, -1, {}, {}, "a call was answered with an object", {}});
    return error(Status::invalid, "only a creation is answered with an object");
  }
  request->value->is_object = true;
  request->value->object = object;
  request->value->type = std::move(type);
  return settle(std::move(request), std::nullopt);
}

Result<void> Agent::fail(std::unique_ptr<Request> request, Failure failure) {
  if (forked()) return open();
  if (request->head.kind == Kind::create) return settle(std::move(request), std::move(failure));
  return reply_failure(*request, failure);
}

Result<Agent::Counters> Agent::counters() {
  if (auto is_open = open(); !is_open) return std::unexpected(is_open.error());
  std::vector<RefId> mine;
  Counters out;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, value] : values_) mine.push_back(id);
    out.owned = values_.size();
    out.held = forks_.size();
    out.calls = calls_.size();
    out.waiting = work_.size();
    for (const auto& [id, value] : values_) out.waiting += value->waiting.size();
    for (const auto& [id, waiting] : unknown_) out.waiting += waiting.size();
    out.running = running_;
  }
  for (const RefId id : mine) {
    auto facts = client::ask_reference(*session_, world_, id, false, Deadline::after(0));
    if (facts) out.users += facts->users;
    else if (facts.error().status != Status::not_found) return std::unexpected(facts.error());
  }
  return out;
}

}  // namespace shmb::remote
