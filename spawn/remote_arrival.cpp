// SPDX-License-Identifier: Apache-2.0
// Messages, from who wrote them to where they wait: an answer ends its call, a request waits for whoever serves, or for
// the value that it is about. What is of another life than the one that is known is dropped; what waits is bounded.
#include <algorithm>
#include <utility>

#include "base/sys_process.hpp"
#include "spawn/remote_agent.hpp"

namespace shmb::remote {
namespace {

constexpr std::size_t kMostUnknown = 65536, kMostWaiting = 65536;

}  // namespace

// Which worker has which place in the pool. A place that no worker has is somebody's who has no business here.
void Agent::name_writers(std::vector<Arrived>& arrived, std::size_t from) {
  const auto named = [&](Incoming& message) {
    const Writer& writer = writers_[message.writer.participant % writers_.size()];
    if (writer.participant_life != message.writer.life) return false;
    message.head.from = writer.rank;
    message.head.from_life = writer.life;
    return true;
  };
  for (std::size_t i = from; i < arrived.size(); ++i) {
    Incoming& message = arrived[i].message;
    if (named(message)) continue;
    read_writers();
    if (named(message)) continue;
    writers_[message.writer.participant % writers_.size()] = {message.writer.life, 0, 0};
    (void)named(message);
  }
}

void Agent::take_in(Arrived& arrived) {
  Incoming& message = arrived.message;
  const Head& head = message.head;
  if (head.from_life == 0 || head.from_life != workers_[head.from].life || head.to_life != life_)
    return bury(std::make_shared<Arrived>(std::move(arrived)));
#ifdef SHMB_TEST_SEAM
  if (head.kind == trouble_.kind && trouble_.lose > 0) {
    --trouble_.lose;
    ++received_;
    return bury(std::make_shared<Arrived>(std::move(arrived)));
  }
  if (head.kind == trouble_.kind && trouble_.delay > 0) {
    held_back_.emplace_back(sys::now_monotonic() + trouble_.delay, std::move(arrived));
    return;
  }
#endif
  switch (head.kind) {
    case Kind::call:
    case Kind::create:
    case Kind::fetch:
    case Kind::type: {
      auto request = std::make_unique<Request>();
      request->agent = shared_from_this();
      request->head = head;
      request->function = std::move(message.function);
      request->content = {std::move(message.data), std::move(message.bytes),   message.bytes_length,
                          std::move(message.slot), std::move(message.regions), std::move(arrived.references)};
      ++received_;
      if (message.broken) {
        const Failure failure = failure_of(*message.broken);
        after_.emplace_back([this, failure, kept = std::shared_ptr<Request>(std::move(request))] {
          (void)reply_failure(*kept, failure);
        });
        return;
      }
      return admit(std::move(request));
    }
    case Kind::accepted: {
      if (auto it = find_known(head.reference); it && it->owner == head.from && it->owner_life == head.from_life)
        it->confirmed = true;
      return;
    }
    case Kind::answer:
    case Kind::failure: {
      const auto found = calls_.find(head.call);
      if (found == calls_.end() || found->second->to != head.from || found->second->to_life != head.from_life ||
          found->second->settling)
        return bury(std::make_shared<Arrived>(std::move(arrived)));
      const std::shared_ptr<Future> future = found->second;
      if (future->kind == Kind::create) {
        if (auto it = find_known(future->reference)) {
          it->confirmed = true;
          if (head.kind == Kind::answer) it->state = Known::State::ready;
        }
      }
      if (message.broken) return fail(future, failure_of(*message.broken));
      if (head.kind == Kind::failure) {
        auto bytes = std::make_shared<Content>(std::move(message.data), std::move(message.bytes), message.bytes_length,
                                               std::move(message.slot));
        fail(future, unpack_failure(bytes->view()));
        return bury(std::move(bytes));
      }
      future->content = {std::move(message.data), std::move(message.bytes),   message.bytes_length,
                         std::move(message.slot), std::move(message.regions), {}};
      if (future->kind == Kind::call || future->kind == Kind::fetch)
        future->content.references = std::move(arrived.references);
      return complete(future);
    }
    case Kind::idle:
    case Kind::round:
    case Kind::over:
      return take_shutdown(head);
  }
}

// A request that is here, from whoever.
void Agent::admit(std::unique_ptr<Request> request) {
  if (closed_) return bury(std::shared_ptr<Request>(std::move(request)));
  if (request->head.kind == Kind::create) {
    const RefId id = request->head.reference;
    if (values_.contains(id)) return bury(std::shared_ptr<Request>(std::move(request)));
    auto value = std::make_shared<Value>();
    value->id = id;
    value->drop = wish_.drop;
    value->context = wish_.context;
    request->value = value;
    value->booked = true;
#ifdef SHMB_TEST_SEAM
    if (early_.erase(id) != 0) value->booked = false;
#endif
    if (value->booked) values_[id] = value;
    if (auto waiting = unknown_.find(id); waiting != unknown_.end()) {
      value->waiting = std::move(waiting->second);
      unknown_.erase(waiting);
    }
    if (request->head.from != rank_) {
      Head head;
      head.kind = Kind::accepted;
      head.reference = id;
      if (outbox_.size() + without_room_.size() < kMostWaiting)
        outbox_.push_back({request->head.from, request->head.from_life, head});
    } else if (auto it = find_known(id)) {
      it->confirmed = true;
    }
  }
  if (work_.size() < kMostWaiting) {
    work_.push_back(std::move(request));
    return wake();
  }
  refuse(std::move(request),
         "65536 calls wait at this worker, which are all that it lets wait, and this is one more: give it more "
         "threads, or "
         "call it less often before its answers come");
  wake();
}

void Agent::refuse(std::unique_ptr<Request> request, const char* why) {
  after_.emplace_back([this, why, refused = std::make_shared<std::unique_ptr<Request>>(std::move(request))] {
    (void)fail(std::move(*refused), {Status::limit, -1, {}, {}, why, {}});
  });
}

bool Agent::park(std::unique_ptr<Request>& request, RefId id, std::shared_ptr<Value>& value) {
  std::unique_ptr<Request> nobodys;
  const std::lock_guard lock(mutex_);
  const auto set_aside = [&](std::vector<std::unique_ptr<Request>>& where) {
    request->counted = false;
    --running_;
    if (closed_) {
      nobodys = std::move(request);
      wake();
      return true;
    }
    std::erase_if(where, [&, now = sys::now_monotonic()](std::unique_ptr<Request>& other) {
      if (other->head.kind == Kind::create) return false;  // it says itself that it is too late, to all who wait
      if (other->head.deadline == 0 || other->head.deadline > now) return false;
      bury(std::shared_ptr<Request>(std::move(other)));  // nobody waits for it any more
      return true;
    });
    if (where.size() < kMostWaiting) where.push_back(std::move(request));
    else
      refuse(std::move(request),
             "65536 calls wait for this value, which is not there yet, and this is one more: they are all that may; "
             "wait for its creation (shmb_reference_created) before you use it so often");
    wake();
    return true;
  };
  if (!value) {
    const auto found = values_.find(id);
    if (found == values_.end()) {
      if (unknown_.size() >= kMostUnknown) return false;
      return set_aside(unknown_[id]);
    }
    value = found->second;
  }
  return value->state == Value::State::pending && set_aside(value->waiting);
}

void Agent::release_waiting(Value& value, std::vector<std::unique_ptr<Request>>& late) {
  if (closed_) late = std::move(value.waiting);
  for (auto& request : value.waiting) work_.push_back(std::move(request));
  value.waiting.clear();
  wake();
}

}  // namespace shmb::remote
