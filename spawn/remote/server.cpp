// SPDX-License-Identifier: Apache-2.0
// See server.hpp.
#include "spawn/remote/server.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/sys_process.hpp"
#include "spawn/face/torch_words.hpp"

namespace shmb::remote {

namespace torch_words = shmbroker::torch_words;
namespace {

constexpr std::size_t kMostUnknown = 65536, kMostWaiting = 65536;

thread_local unsigned nested = 0;  // requests that run on the stack of this thread

struct Nested {
  Nested() { ++nested; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;
  ~Nested() { --nested; }
};

}  // namespace

Request::~Request() {
  if (counted) home->ran();
}

// ---------------------------------------------------------------- waiting

void Server::received(Arrived& arrived) {
  Incoming& message = arrived.message;
  auto request = std::make_unique<Request>();
  request->home = this;
  request->agent = place_.agent.lock();
  request->head = message.head;
  request->function = std::move(message.function);
  request->content = content_of(arrived);
  ++received_;
  if (!message.broken) return admit(std::move(request));
  callbacks_.add([this, failure = failure_of(*message.broken), kept = std::shared_ptr<Request>(std::move(request))] {
    (void)reply_failure(*kept, failure);
  });
}

void Server::admit(std::unique_ptr<Request> request) {
  if (life_.closed()) return callbacks_.destroy_later(std::shared_ptr<Request>(std::move(request)));
  if (request->head.kind == Kind::create) {
    if (references_.owns(request->head.reference))
      return callbacks_.destroy_later(std::shared_ptr<Request>(std::move(request)));
    make_value(*request);
  }
  if (work_.size() < kMostWaiting) {
    work_.push_back(std::move(request));
    return monitor_.wake_for_work();
  }
  refuse(std::move(request),
         "65536 calls wait at this worker, which are all that it lets wait, and this is one more: give it more "
         "threads, or "
         "call it less often before its answers come");
  monitor_.wake();
}

// A creation has come. From here on requests about the value wait with it. Its creator is notified.
void Server::make_value(Request& request) {
  const Head& head = request.head;
  request.value = references_.new_value();
  request.value->id = head.reference;
  references_.add(request.value);
  if (auto waiting = unknown_.find(head.reference); waiting != unknown_.end()) {
    request.value->waiting = std::move(waiting->second);
    unknown_.erase(waiting);
  }
  if (head.from == place_.rank) {
    references_.confirm(head.reference, place_.rank, place_.life);
    return;
  }
  Head accepted;
  accepted.kind = Kind::accepted;
  accepted.reference = head.reference;
  if (sender_.posted() < kMostWaiting) sender_.post(head.from, head.from_life, accepted);
}

void Server::refuse(std::unique_ptr<Request> request, const char* why) {
  callbacks_.add([this, why, refused = std::make_shared<std::unique_ptr<Request>>(std::move(request))] {
    (void)fail(std::move(*refused), {Status::limit, -1, {}, {}, why, {}});
  });
}

// Nobody waits for those whose deadline has passed. A creation says itself that it is too late, to all who wait for it.
void Server::forget_late(std::vector<std::unique_ptr<Request>>& waiting) {
  std::erase_if(waiting, [&, now = sys::now_monotonic()](std::unique_ptr<Request>& one) {
    if (one->head.kind == Kind::create || one->head.deadline == 0 || one->head.deadline > now) return false;
    callbacks_.destroy_later(std::shared_ptr<Request>(std::move(one)));
    return true;
  });
}

void Server::set_aside(std::unique_ptr<Request> request, std::vector<std::unique_ptr<Request>>& where) {
  forget_late(where);
  if (where.size() < kMostWaiting) {
    where.push_back(std::move(request));
    return;
  }
  refuse(std::move(request),
         "65536 calls wait for this value, which is not there yet, and this is one more: they are all that may; "
         "wait for its creation (shmb_reference_created) before you use it so often");
}

bool Server::park(std::unique_ptr<Request>& request, RefId id, std::shared_ptr<Value>& value) {
  std::unique_ptr<Request> dropped;  // destroyed without the lock
  const std::lock_guard lock(monitor_.mutex());
  if (!value) value = references_.value(id);
  if (value && value->state != Value::State::pending) return false;
  if (!value && unknown_.size() >= kMostUnknown) return false;
  request->counted = false;
  --running_;
  if (life_.closed()) dropped = std::move(request);
  else set_aside(std::move(request), value ? value->waiting : unknown_[id]);
  monitor_.wake();
  return true;
}

// The requests that waited are served now. After the end they go to `late`, to be destroyed without the lock.
void Server::release_waiting(Value& value, std::vector<std::unique_ptr<Request>>& late) {
  if (life_.closed()) late = std::move(value.waiting);
  for (auto& request : value.waiting) work_.push_back(std::move(request));
  value.waiting.clear();
  monitor_.wake();
}

// Drops the requests of a worker that has ended. Its creations stay: others may hold a reference to such a value
// already, and wait for it.
void Server::worker_gone(std::uint32_t rank, std::uint32_t life) {
  const auto from_it = [&](std::unique_ptr<Request>& request) {
    if (request->head.from != rank || request->head.from_life > life || request->head.kind == Kind::create)
      return false;
    callbacks_.destroy_later(std::shared_ptr<Request>(std::move(request)));
    return true;
  };
  std::erase_if(work_, from_it);
  references_.for_each_value([&](Value& value) { std::erase_if(value.waiting, from_it); });
  for (auto it = unknown_.begin(); it != unknown_.end();) {
    std::erase_if(it->second, from_it);
    it = it->second.empty() ? unknown_.erase(it) : std::next(it);
  }
}

std::vector<std::unique_ptr<Request>> Server::take_all() {
  std::vector<std::unique_ptr<Request>> out;
  const auto all_of = [&out](auto& from) {
    for (auto& request : from) out.push_back(std::move(request));
    from.clear();
  };
  references_.for_each_value([&](Value& value) { all_of(value.waiting); });
  for (auto& [id, waiting] : unknown_) all_of(waiting);
  unknown_.clear();
  all_of(work_);
  return out;
}

std::uint64_t Server::waiting() const {
  std::uint64_t count = work_.size();
  references_.for_each_value([&](const Value& value) { count += value.waiting.size(); });
  for (const auto& [id, waiting] : unknown_) count += waiting.size();
  return count;
}

void Server::ran() {
  if (life_.forked()) return;
  const std::lock_guard lock(monitor_.mutex());
  --running_;
  monitor_.wake_waiters();  // a shutdown waits for the last one
}

// ---------------------------------------------------------------- running

bool Server::run_one(Lock& lock) {
  if (work_.empty() || nested >= kMostNested) return false;
  std::unique_ptr<Request> request = std::move(work_.front());
  work_.pop_front();
  if (!work_.empty()) monitor_.wake_sleepers();
  else monitor_.watch_lead();
  request->counted = true;
  ++running_;
  lock.unlock();
  {
    const Nested one_more;
    run(std::move(request));
  }
  lock.lock();
  return true;
}

void Server::run(std::unique_ptr<Request> request) {
  const Head& head = request->head;
  const bool asks_value = head.kind == Kind::fetch || head.kind == Kind::type;
  if (asks_value || (head.flags & kOnObject) != 0) {
    std::shared_ptr<Value> value;
    if (!find_subject(request, value)) return;
    if (value->state == Value::State::failed) {
      (void)fail(std::move(request), value->failure);
      return;
    }
    if (asks_value) request->value = value;
    if (head.kind == Kind::type || (head.kind == Kind::fetch && !value->is_object))
      return reply_value(std::move(request), *value);
  }
  if (!user_runs_) {
    (void)fail(std::move(request), {Status::no_function, -1, {}, {}, "this worker runs no functions", {}});
    return;
  }
  user_runs_(std::move(request));
}

bool Server::find_subject(std::unique_ptr<Request>& request, std::shared_ptr<Value>& value) {
  const auto refused = [&](Status status, const char* why) {
    (void)fail(std::move(request), {status, -1, {}, {}, why, {}});
    return false;
  };
  RefId id = request->head.reference;
  if (!request->content.references.empty()) {
    const Reference& subject = *request->content.references[0];
    {
      // Of a call to oneself it is the caller's own, which other threads use as well.
      const std::lock_guard lock(monitor_.mutex());
      id = subject.known->id;
      value = subject.value;
    }
    if (!references_.owned_here(*subject.known))
      return refused(Status::invalid, "the object of the call is not owned here");
  } else if (request->head.kind != Kind::fetch && request->head.kind != Kind::type) {
    return refused(Status::invalid, "a call on an object without a reference");
  }
  if (park(request, id, value)) return false;
  if (value) return true;
  return refused(Status::limit,
                 "65536 references whose creation has not come yet are waited for at this worker, "
                 "which are all that may be, and this is one more: wait for a creation "
                 "(shmb_reference_created) before the reference is used");
}

// ---------------------------------------------------------------- answering

void Server::reply_value(std::unique_ptr<Request> request, const Value& value) {
  Payload payload;
  if (request->head.kind == Kind::type) {
    payload.data = value.type;
  } else {
    payload.data = value.content.view();
    payload.bytes = value.content.bytes.get();
    for (const auto& region : value.content.regions) payload.regions.push_back(region.get());
    payload.references = value.content.references;
  }
  (void)reply(*request, payload);
}

// The call of this worker that the request is of. Nothing: its deadline has passed, also just now.
std::shared_ptr<Future> Server::own_call(const Request& request) {
  calls_.expire();
  return calls_.pending(request.head.call);
}

Result<void> Server::reply(const Request& request, const Payload& payload) {
  if (request.head.from != place_.rank) {
    Head head;
    head.kind = Kind::answer;
    head.to_life = request.head.from_life;
    head.call = request.head.call;
    head.deadline = request.head.deadline;
    return sender_.send(request.head.from, head, {}, payload);
  }
  SHMB_TRY(content, memory_.keep(payload, false, request.head.deadline));
  const std::lock_guard lock(monitor_.mutex());
  const std::shared_ptr<Future> future = own_call(request);
  if (!future) return {};  // the content is destroyed behind the lock
  if (future->kind == Kind::create) references_.ready(future->reference);
  future->content = std::move(content);
  calls_.complete(future);
  monitor_.wake();
  return {};
}

void Server::name_origin(Failure& failure) const {
  if (failure.rank >= 0) return;
  failure.rank = static_cast<std::int32_t>(place_.rank);
  failure.worker = roster_[place_.rank].name;
}

Result<void> Server::reply_failure(const Request& request, const Failure& given) {
  Failure failure = given;
  {
    const std::lock_guard lock(monitor_.mutex());
    name_origin(failure);
    if (request.head.from == place_.rank) {
      if (const std::shared_ptr<Future> future = own_call(request)) {
        calls_.fail(future, failure);
        monitor_.wake();
      }
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
  return sender_.send(request.head.from, head, {}, payload);
}

// The value of a creation is there, or its failure. The deadline counts also where no thread was there to notice it.
Result<void> Server::settle(std::unique_ptr<Request> request, std::optional<Failure> failure) {
  const std::shared_ptr<Value> value = request->value;
  const bool expired = !failure && request->head.deadline != 0 && sys::now_monotonic() >= request->head.deadline;
  if (expired) failure = Failure{Status::deadline, -1, {}, {}, std::string(kGaveUp), {}};
  auto stands = client::settle_reference(*place_.session, place_.world, value->id,
                                         failure ? SHMBW_REF_STATE_FAILED : SHMBW_REF_STATE_READY,
                                         !failure                ? std::string()
                                         : failure->type.empty() ? failure->text
                                                                 : failure->type + ": " + failure->text,
                                         broker_deadline());
  if (expired || (stands && *stands == SHMBW_REF_STATE_FAILED && !failure))
    failure = Failure{Status::deadline, -1, {}, {}, torch_words::creation_failed(text_of(value->id), kGaveUp), {}};
  // These are destroyed without the lock.
  Content dropped;
  std::vector<std::unique_ptr<Request>> late;
  std::shared_ptr<Value> object;
  {
    const std::lock_guard lock(monitor_.mutex());
    if (failure) {
      name_origin(*failure);
      value->failure = *failure;
      value->state = Value::State::failed;
      dropped = std::move(value->content);
      value->content = {};
      if (value->is_object) object = References::take_object(*value);
    } else {
      value->state = Value::State::ready;
    }
    if (auto it = references_.find(value->id); it && it->state == Known::State::registered)
      it->state = failure ? Known::State::failed : Known::State::ready;
    release_waiting(*value, late);
  }
  if (failure) return reply_failure(*request, *failure);
  return reply(*request, {});
}

Result<void> Server::answer(std::unique_ptr<Request> request, const Payload& payload) {
  if (life_.forked()) return Life::forked_error();
  if (request->head.kind == Kind::create) {
    auto kept = memory_.keep(payload, true, request->head.deadline);
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
  (void)reply_failure(*request, failure_of(sent.error()));  // the reason why its result could not be sent
  return sent;
}

Result<void> Server::answer_object(std::unique_ptr<Request> request, void* object, std::string type) {
  if (life_.forked()) return Life::forked_error();
  if (request->head.kind != Kind::create) {
    (void)reply_failure(*request, {Status::invalid, -1, {}, {}, "a call was answered with an object", {}});
    return error(Status::invalid, "only a creation is answered with an object");
  }
  request->value->is_object = true;
  request->value->object = object;
  request->value->type = std::move(type);
  return settle(std::move(request), std::nullopt);
}

Result<void> Server::fail(std::unique_ptr<Request> request, Failure failure) {
  if (life_.forked()) return Life::forked_error();
  if (request->head.kind == Kind::create) return settle(std::move(request), std::move(failure));
  return reply_failure(*request, failure);
}

}  // namespace shmb::remote
