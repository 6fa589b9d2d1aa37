// SPDX-License-Identifier: Apache-2.0
// See calls.hpp.
#include "spawn/remote/calls.hpp"

#include <utility>
#include <vector>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "spawn/face/torch_words.hpp"

namespace shmb::remote {

namespace torch_words = shmbroker::torch_words;

using client::Deadline;

const char* const kGaveUp = "creation by remote() timed out";

std::int64_t Calls::timeout() const {
  const std::lock_guard lock(monitor_.mutex());
  return timeout_;
}

void Calls::set_timeout(std::int64_t timeout) {
  const std::lock_guard lock(monitor_.mutex());
  timeout_ = timeout == 0 ? kCallTimeout : timeout;
}

void Calls::when_done(const std::shared_ptr<Future>& future, std::function<void()> then) {
  {
    const std::lock_guard lock(monitor_.mutex());
    if (future->state == Future::State::pending) {
      future->then.push_back(std::move(then));
      return;
    }
  }
  then();
}

void Calls::give_up(const std::shared_ptr<Future>& future) {
  const std::lock_guard lock(monitor_.mutex());
  if (future->state == Future::State::pending) forget(future);
  monitor_.wake();  // a shutdown waits for the last call
}

void Calls::add(const std::shared_ptr<Future>& future, std::int64_t timeout) {
  if (timeout == 0) timeout = timeout_;
  future->call = ++last_;
  if (timeout != client::kForever) {
    future->deadline = timeout > INT64_MAX - future->began ? INT64_MAX : future->began + timeout;
    future->due = deadlines_.emplace(future->deadline, future->call);
    if (monitor_.leads_beyond(future->deadline)) monitor_.wake();
  }
  pending_[future->call] = future;
}

std::shared_ptr<Future> Calls::pending(std::uint64_t call) const {
  const auto found = pending_.find(call);
  return found == pending_.end() || found->second->settling ? nullptr : found->second;
}

void Calls::answered(Arrived& arrived) {
  Incoming& message = arrived.message;
  const Head& head = message.head;
  const std::shared_ptr<Future> future = pending(head.call);
  if (!future || future->to != head.from || future->to_life != head.from_life) return;
  if (future->kind == Kind::create) {
    if (auto it = references_.find(future->reference)) {
      it->confirmed = true;
      if (head.kind == Kind::answer) it->state = Known::State::ready;
    }
  }
  if (message.broken) return fail(future, failure_of(*message.broken));
  if (head.kind == Kind::failure) {
    auto bytes = std::make_shared<Content>(std::move(message.data), std::move(message.bytes), message.bytes_length,
                                           std::move(message.slot));
    fail(future, unpack_failure(bytes->view()));
    return callbacks_.destroy_later(std::move(bytes));
  }
  const bool carries_references = future->kind == Kind::call || future->kind == Kind::fetch;
  std::vector<std::shared_ptr<Reference>> unwanted;
  if (!carries_references) unwanted.swap(arrived.references);
  future->content = content_of(arrived);
  arrived.references = std::move(unwanted);  // the caller destroys them without the lock
  complete(future);
}

void Calls::forget(const std::shared_ptr<Future>& future) {
  if (future->deadline != 0 && !future->settling) deadlines_.erase(future->due);
  future->deadline = 0;
  pending_.erase(future->call);
}

void Calls::tell(const std::shared_ptr<Future>& future) {
  if (!future->subject && future->then.empty()) return monitor_.wake_waiters();
  callbacks_.add([future, subject = std::move(future->subject), then = std::move(future->then)] {
    for (const auto& one : then) one();
  });
  future->then.clear();
}

void Calls::complete(const std::shared_ptr<Future>& future) {
  forget(future);
  future->state = Future::State::done;
  tell(future);
}

void Calls::fail(const std::shared_ptr<Future>& future, Failure failure) {
  forget(future);
  future->state = Future::State::failed;
  future->failure = std::move(failure);
  if (future->kind == Kind::create) {
    references_.failed(future->reference, future->failure);
    fail_fetches(future->reference, future->failure);
  }
  tell(future);
}

void Calls::fail_all(const Failure& failure) {
  std::vector<std::shared_ptr<Future>> all;
  for (const auto& [number, call] : pending_) all.push_back(call);
  for (const auto& call : all) fail(call, failure);
}

void Calls::fail_fetches(RefId id, const Failure& failure) {
  std::vector<std::shared_ptr<Future>> ended;
  for (const auto& [number, call] : pending_)
    if ((call->kind == Kind::fetch || call->kind == Kind::type) && call->reference == id) ended.push_back(call);
  for (const auto& call : ended) fail(call, failure);
}

void Calls::worker_gone(std::uint32_t rank, std::uint32_t life) {
  std::vector<std::shared_ptr<Future>> ended;
  for (const auto& [number, call] : pending_)
    if (call->to == rank && call->to_life <= life) ended.push_back(call);
  for (const auto& call : ended)
    fail(call, failure_of(roster_.gone_error(rank, call->to_life,
                                             call->kind == Kind::call ? Status::worker_gone : Status::owner_gone)));
}

void Calls::lose(const Error& why) {
  if (life_.lose(why)) fail_all(failure_of(why));
}

std::optional<std::int64_t> Calls::next_deadline() const {
  return deadlines_.empty() ? std::nullopt : std::optional(deadlines_.begin()->first);
}

void Calls::expire() {
  if (deadlines_.empty()) return;
  const std::int64_t now = sys::now_monotonic();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const auto found = pending_.find(deadlines_.begin()->second);
    if (found == pending_.end()) {
      deadlines_.erase(deadlines_.begin());
      continue;
    }
    const std::shared_ptr<Future> future = found->second;
    if (future->kind != Kind::create) {
      const std::string within = format_duration(future->deadline - future->began);
      fail(future, {Status::deadline,
                    -1,
                    {},
                    {},
                    "the call of \"" + future->function + "\" at " + roster_.where(future->to) +
                        " ran for more than its timeout (" + within +
                        "): it has failed for good, and a later answer is "
                        "dropped; give it more time, or no limit",
                    {}});
      continue;
    }
    deadlines_.erase(deadlines_.begin());
    future->settling = true;
    callbacks_.add([this, future] { settle_time_out(future); });
  }
}

// The broker says whether the owner was faster.
void Calls::settle_time_out(const std::shared_ptr<Future>& future) {
  const std::string within = format_duration(future->deadline - future->began);
  auto stands = client::settle_reference(*place_.session, place_.world, future->reference, SHMBW_REF_STATE_FAILED,
                                         std::string(kGaveUp) + " after " + within, Deadline::after(0));
  const std::lock_guard lock(monitor_.mutex());
  if (future->state != Future::State::pending) return;
  if (stands && *stands == SHMBW_REF_STATE_READY) {
    references_.ready(future->reference);
    complete(future);
  } else {
    fail(future, {Status::deadline,
                  -1,
                  {},
                  {},
                  torch_words::creation_timed_out(text_of(future->reference), future->function,
                                                  roster_.where(future->to), within),
                  {}});
  }
  monitor_.wake();
}

void Calls::look_at_failed(RefId id) {
  callbacks_.add([this, id] { learn_why_failed(id); });
}

// Either its owner has failed it, and tells every worker that asks. Or its creator's deadline has passed, of which the
// owner knows nothing.
void Calls::learn_why_failed(RefId id) {
  auto facts = client::ask_reference(*place_.session, place_.world, id, false, Deadline::after(0));
  if (!facts || !facts->error.starts_with(kGaveUp)) return;
  const std::lock_guard lock(monitor_.mutex());
  const Failure failure{Status::deadline, -1, {}, {}, torch_words::creation_failed(text_of(id), facts->error), {}};
  references_.failed(id, failure);
  fail_fetches(id, failure);
  monitor_.wake();
}

}  // namespace shmb::remote
