// SPDX-License-Identifier: Apache-2.0
// What became of calls: answered, failed, past their deadline, or lost with the world. It is decided once, and whoever
// waits or has asked to be told hears of it after the lock is let go.
#include <algorithm>
#include <utility>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "spawn/remote_agent.hpp"

namespace shmb::remote {

using client::Deadline;

// How the broker's table says that a creator gave up: then the owner has nothing to add.
const char* const kGaveUp = "creation by remote() timed out";

void Agent::forget(const std::shared_ptr<Future>& future) {
  if (future->deadline != 0 && !future->settling) deadlines_.erase(future->due);
  future->deadline = 0;
  calls_.erase(future->call);
}

void Agent::complete(const std::shared_ptr<Future>& future) {
  forget(future);
  future->state = Future::State::done;
  after_.emplace_back([future, subject = std::move(future->subject), then = std::move(future->then)] {
    for (const auto& one : then) one();
  });
  future->then.clear();
}

void Agent::fail(const std::shared_ptr<Future>& future, Failure failure) {
  forget(future);
  future->state = Future::State::failed;
  future->failure = std::move(failure);
  if (future->kind == Kind::create) {
    if (auto it = find_known(future->reference)) {
      it->state = Known::State::failed;
      it->failure = future->failure;
    }
    fail_fetches(future->reference, future->failure);
  }
  after_.emplace_back([future, subject = std::move(future->subject), then = std::move(future->then)] {
    for (const auto& one : then) one();
  });
  future->then.clear();
}

void Agent::fail_fetches(RefId id, const Failure& failure) {
  std::vector<std::shared_ptr<Future>> ended;
  for (const auto& [number, call] : calls_)
    if ((call->kind == Kind::fetch || call->kind == Kind::type) && call->reference == id) ended.push_back(call);
  for (const auto& call : ended) fail(call, failure);
}

void Agent::when_done(const std::shared_ptr<Future>& future, std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    if (future->state == Future::State::pending) {
      future->then.push_back(std::move(then));
      return;
    }
  }
  then();
}

void Agent::expire() {
#ifdef SHMB_TEST_SEAM
  while (!held_back_.empty() && held_back_.front().first <= sys::now_monotonic()) {
    const Trouble trouble = std::exchange(trouble_, {});
    Arrived late = std::move(held_back_.front().second);
    held_back_.pop_front();
    take_in(late);
    trouble_ = trouble;
    bury(std::make_shared<Arrived>(std::move(late)));
  }
#endif
  if (deadlines_.empty()) return;
  const std::int64_t now = sys::now_monotonic();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const std::uint64_t number = deadlines_.begin()->second;
    const auto found = calls_.find(number);
    if (found == calls_.end()) {
      deadlines_.erase(deadlines_.begin());
      continue;
    }
    const std::shared_ptr<Future> future = found->second;
    const std::string within = format_duration(future->deadline - future->began);
    if (future->kind != Kind::create) {
      fail(future, {Status::deadline,
                    -1,
                    {},
                    {},
                    "the call of \"" + future->function + "\" at " + workers_.where(future->to) +
                        " ran for more than its timeout (" + within +
                        "): it has failed for good, and a later answer is "
                        "dropped; give it more time, or no limit",
                    {}});
      continue;
    }
    deadlines_.erase(deadlines_.begin());
    future->settling = true;
    after_.emplace_back([this, future] { settle_time_out(future); });
  }
}

// The broker says whether the owner was faster.
void Agent::settle_time_out(const std::shared_ptr<Future>& future) {
  const std::string within = format_duration(future->deadline - future->began);
  auto stands = client::settle_reference(*session_, world_, future->reference, SHMBW_REF_STATE_FAILED,
                                         std::string(kGaveUp) + " after " + within, Deadline::after(0));
  Lock lock(mutex_);
  if (future->state != Future::State::pending) return;
  if (stands && *stands == SHMBW_REF_STATE_READY) {
    if (auto it = find_known(future->reference)) it->state = Known::State::ready;
    complete(future);
  } else {
    fail(future, {Status::deadline,
                  -1,
                  {},
                  {},
                  torch_words::creation_timed_out(text_of(future->reference), future->function,
                                                  workers_.where(future->to), within),
                  {}});
  }
  wake();
}

// A reference has failed, and it was not this worker that said so: by its owner, who tells whoever asks, or by its
// creator's deadline, about which the owner can say nothing.
void Agent::look_at_failed(RefId id) {
  auto facts = client::ask_reference(*session_, world_, id, false, Deadline::after(0));
  if (!facts || !facts->error.starts_with(kGaveUp)) return;
  const std::lock_guard lock(mutex_);
  const Failure failure{Status::deadline, -1, {}, {}, torch_words::creation_failed(text_of(id), facts->error), {}};
  if (auto it = find_known(id)) it->failure = failure;
  fail_fetches(id, failure);
  wake();
}

void Agent::lose(const Error& why) {
  if (lost_ || closed_) return;
  lost_ = why;
  std::vector<std::shared_ptr<Future>> all;
  for (const auto& [number, call] : calls_) all.push_back(call);
  for (const auto& call : all) fail(call, failure_of(why));
}

}  // namespace shmb::remote
