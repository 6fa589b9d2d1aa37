// SPDX-License-Identifier: Apache-2.0
// See caller.hpp.
#include "spawn/remote/caller.hpp"

#include <utility>

#include "base/sys_process.hpp"

namespace shmb::remote {
namespace {

constexpr std::size_t kMostFunction = 4096;
constexpr int kLooks = 4;  // for a successor, before a call to a dead worker is refused

}  // namespace

Result<void> Caller::may_call(std::uint32_t to, std::string_view function, const Payload& payload, bool on_object) {
  SHMB_TRY_VOID(life_.open());
  if (function.size() > kMostFunction)
    return error(Status::invalid, "a function's name has at most 4096 bytes, and this one has " +
                                      std::to_string(function.size()) + ": register it by a shorter one");
  if (on_object && (payload.references.empty() || payload.references[0]->known->owner != to))
    return error(Status::invalid, "a call on an object begins with a reference that the called worker owns");
  for (const auto& reference : payload.references) SHMB_TRY_VOID(references_.usable(*reference, "fork"));
  Lock lock(monitor_.mutex());
  // A worker without threads takes in events about a successor only while it waits or serves. Between its tries it may
  // do neither. Messages come first, up to a bound as while it sends; then the events.
  for (int looks = 0; looks < kLooks && !roster_.there(to, roster_[to].life) && stepper_.may_look(); ++looks)
    stepper_.look(lock);
  const std::uint32_t life = roster_[to].life;
  if (!roster_.there(to, life)) return std::unexpected(roster_.gone_error(to, life, Status::worker_gone));
  return {};
}

Result<std::shared_ptr<Future>> Caller::begin(Kind kind, std::uint32_t to, std::uint32_t life,
                                              std::string_view function, std::int64_t timeout, RefId reference) {
  auto future = std::make_shared<Future>();
  future->agent = place_.agent.lock();
  future->kind = kind;
  future->to = to;
  future->function = function;
  future->reference = reference;
  future->began = sys::now_monotonic();
  const std::lock_guard lock(monitor_.mutex());
  SHMB_TRY_VOID(life_.open_locked());
  if (life == 0) life = roster_[to].life;
  if (life > roster_[to].life) workers_.came(to, life);  // the broker has named it already
  if (!roster_.there(to, life))
    return std::unexpected(roster_.gone_error(to, life, kind == Kind::call ? Status::worker_gone : Status::owner_gone));
  future->to_life = life;
  calls_.add(future, timeout);
  return future;
}

Result<void> Caller::send(const std::shared_ptr<Future>& future, std::uint8_t flags, const Payload& payload) {
  Head head;
  head.kind = future->kind;
  head.flags = flags;
  head.from = place_.rank;
  head.from_life = place_.life;
  head.to_life = future->to_life;
  head.call = future->call;
  head.deadline = future->deadline;
  head.reference = future->reference;
  if (future->to == place_.rank) return send_to_self(future, head, payload);
  return sender_.send_request(future->to, head, future->function, payload);
}

Result<void> Caller::send_to_self(const std::shared_ptr<Future>& future, const Head& head, const Payload& payload) {
  SHMB_TRY(content, memory_.keep(payload, false, head.deadline));
  auto request = std::make_unique<Request>();
  request->home = &server_;
  request->agent = place_.agent.lock();
  request->head = head;
  request->function = future->function;
  request->content = std::move(content);
  const std::lock_guard lock(monitor_.mutex());
  SHMB_TRY_VOID(life_.open_locked());
  if (!hooks_.loses(head.kind)) server_.admit(std::move(request));  // else it is destroyed behind the lock
  return {};
}

Result<std::shared_ptr<Future>> Caller::call(std::uint32_t to, std::string_view function, const Payload& payload,
                                             bool on_object, std::int64_t timeout) {
  SHMB_TRY_VOID(may_call(to, function, payload, on_object));
  auto future = begin(Kind::call, to, on_object ? payload.references[0]->known->owner_life : 0, function, timeout, {});
  if (!future) return future;
  if (auto sent = send(*future, on_object ? kOnObject : std::uint8_t{0}, payload); !sent) {
    calls_.give_up(*future);
    return std::unexpected(life_.closed_or(sent.error()));
  }
  return future;
}

Result<std::shared_ptr<Reference>> Caller::create(std::uint32_t to, std::string_view function, const Payload& payload,
                                                  bool on_object, std::int64_t timeout) {
  SHMB_TRY_VOID(may_call(to, function, payload, on_object));
  client::RefRequest wish;
  wish.owner = to;
  wish.tell = true;
  if (on_object) {
    wish.owner_life = payload.references[0]->known->owner_life;
  } else {
    const std::lock_guard lock(monitor_.mutex());
    wish.owner_life = roster_[to].life;
  }
  auto made = client::create_reference(*place_.session, place_.world, wish, broker_deadline());
  if (!made) return std::unexpected(life_.closed_or(made.error()));
  auto reference = references_.created(*made, to, wish.owner_life);
  SHMB_TRY(future, begin(Kind::create, to, wish.owner_life, function, timeout, made->reference));
  reference->created = future;
  if (auto sent = send(future, on_object ? kOnObject : std::uint8_t{0}, payload); !sent) {
    calls_.give_up(future);
    return std::unexpected(life_.closed_or(sent.error()));
  }
  return reference;
}

Result<std::shared_ptr<Future>> Caller::fetch(const std::shared_ptr<Reference>& reference, Kind kind,
                                              std::int64_t timeout) {
  SHMB_TRY_VOID(references_.usable(*reference, "shmb_reference_fetch"));
  RefId id;
  {
    const std::lock_guard lock(monitor_.mutex());
    id = reference->known->id;  // a local value gets its id when a thread first passes it on
    const std::shared_ptr<Future>& asked = reference->known->type;  // its own deadline says nothing about the type
    if (kind == Kind::type && asked &&
        !(asked->state == Future::State::failed && asked->failure.status == Status::deadline))
      return asked;
  }
  auto future = begin(kind, reference->known->owner, reference->known->owner_life,
                      kind == Kind::type ? "type of a reference" : "to_here", timeout, id);
  if (!future) return future;
  Payload own;
  {
    const std::lock_guard lock(monitor_.mutex());
    if ((*future)->state == Future::State::pending) (*future)->subject = reference;  // else it is decided already
    if (kind == Kind::type) reference->known->type = *future;
    // An own value that is not in the books is named by the reference itself.
    if (reference->value && references_.owned_here(*reference->known)) own.references.push_back(reference);
  }
  if (auto sent = send(*future, 0, own); !sent) {
    const Error why = life_.closed_or(sent.error());
    const std::lock_guard lock(monitor_.mutex());
    // Another thread may wait for it already.
    if ((*future)->state == Future::State::pending) calls_.fail(*future, failure_of(why));
    if (reference->known->type == *future) reference->known->type.reset();
    monitor_.wake();
    return std::unexpected(why);
  }
  return future;
}

}  // namespace shmb::remote
