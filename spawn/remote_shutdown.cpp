// SPDX-License-Identifier: Apache-2.0
// The end of a worker. Graceful: a worker that has nothing under way says so to the lowest living rank, with how many
// requests it has sent and received; that one asks again until two rounds tell the same and what was sent has arrived.
// Then nothing is under way anywhere, and nothing can come any more. It serves meanwhile, and waits for no dead.
//
// Three times: first for the calls; then, with the references given up, for the books; and when what is left has been
// counted everywhere.
#include <algorithm>

#include "base/sys_process.hpp"
#include "spawn/remote_agent.hpp"

namespace shmb::remote {

using client::Deadline;

bool Agent::is_idle() const { return calls_.empty() && work_.empty() && running_ == 0 && after_.empty(); }

std::uint32_t Agent::present() const {
  return static_cast<std::uint32_t>(
      std::ranges::count(workers_, SHMBW_WORKER_STATE_PRESENT, [](const Worker& worker) { return worker.state; }));
}

std::uint32_t Agent::leader() const {
  for (std::uint32_t rank = 0; rank < size(); ++rank)
    if (workers_[rank].state == SHMBW_WORKER_STATE_PRESENT) return rank;
  return rank_;
}

// Of others; what this worker has to say itself is entered by meet().
void Agent::take_shutdown(const Head& head) {
  switch (head.kind) {
    case Kind::idle:
      meeting_.reports[head.from] = {head.round, head.sent, head.received, head.present};
      count_round();
      break;
    case Kind::round:
      meeting_.round = std::max(meeting_.round, head.round);
      break;
    default:
      meeting_.over = std::max(meeting_.over, head.round);
      meeting_.round = std::max(meeting_.round, head.sent);
  }
  wake();
}

// At the leader: is the round through, and was it like the one before?
void Agent::count_round() {
  if (!meeting_.there || leader() != rank_) return;
  std::uint64_t sent = 0, received = 0;
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    if (workers_[rank].state != SHMBW_WORKER_STATE_PRESENT) continue;
    const auto report = meeting_.reports.find(rank);
    if (report == meeting_.reports.end() || report->second.round < meeting_.round) return;
    sent += report->second.sent;
    received += report->second.received;
    if (report->second.present != present()) {
      sent = 1, received = 0;  // somebody does not know of a death yet
      break;
    }
  }
  // The dead have sent and received what the living did not: then the counts need not agree, only stand still.
  const bool quiet = (sent == received || present() != size()) && meeting_.totals == sent + 1;
  meeting_.totals = sent + 1;
  Head head;
  head.kind = quiet ? Kind::over : Kind::round;
  ++meeting_.round;  // what was reported up to here does not count for the next one
  head.round = quiet ? meeting_.phase : meeting_.round;
  head.sent = meeting_.round;
  if (quiet) meeting_.over = meeting_.phase;
  for (std::uint32_t rank = 0; rank < size(); ++rank)
    if (rank != rank_ && workers_[rank].state == SHMBW_WORKER_STATE_PRESENT)
      after_.emplace_back([this, rank, head] { post_small(rank, head); });
}

std::optional<Error> Agent::meet(std::uint64_t phase, Deadline deadline) {
  Lock lock(mutex_);
  meeting_.there = true;
  meeting_.phase = phase;
  meeting_.totals = 0;
  meeting_.last_sent.reset();
  for (;;) {
    expire();
    run_after(lock);
    if (lost_) return *lost_;
    if (closed_) return Error{Status::closed, 0, {}, "this worker was shut down by another thread"};
    if (meeting_.over >= phase || present() == 1) {
      if (present() > 1 || is_idle()) return std::nullopt;
    }
    if (is_idle() && meeting_.last_sent != meeting_.round) {
      meeting_.last_sent = meeting_.round;
      Head head;
      head.kind = Kind::idle;
      head.round = meeting_.round;
      head.sent = sent_;
      head.received = received_;
      head.present = present();
      if (leader() == rank_) {
        meeting_.reports[rank_] = {head.round, head.sent, head.received, head.present};
        count_round();
      } else {
        after_.emplace_back([this, to = leader(), head] { post_small(to, head); });
      }
      continue;
    }
    if (deadline.passed()) {
      std::string busy;
      if (!is_idle())
        busy = std::to_string(calls_.size()) + " calls of this worker and " + std::to_string(running_ + work_.size()) +
               " of others here are not through";
      if (leader() == rank_)
        for (std::uint32_t rank = 0; rank < size(); ++rank)
          if (rank != rank_ && workers_[rank].state == SHMBW_WORKER_STATE_PRESENT && !meeting_.reports.contains(rank))
            busy += (busy.empty() ? "" : "; ") + where(rank) + " has not shut down or is busy";
      if (busy.empty()) busy = where(leader()) + ", or another worker, has not shut down or is busy";
      return Error{
          Status::deadline, 0, {}, "the graceful shutdown passed its deadline, and this worker has left: " + busy};
    }
    step(lock, deadline, true);
  }
}

void Agent::release_references() {
  std::vector<RefId> forks;
  {
    const std::lock_guard lock(mutex_);
    forks.assign(forks_.begin(), forks_.end());
    forks_.clear();
  }
  if (forks.empty() || lost_) return;
  (void)client::release_forks(*session_, world_, forks, Deadline::after(0));
  (void)session_->ping(Deadline::after(0));  // behind it: from here on they are out of the books
}

std::uint32_t Agent::count_leaks() {
  std::vector<RefId> mine;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, value] : values_) mine.push_back(id);
  }
  std::uint32_t leaks = 0;
  for (const RefId id : mine)
    if (auto facts = client::ask_reference(*session_, world_, id, false, Deadline::after(0)))
      leaks += facts->users != 0;
  return leaks;
}

Agent::Ended Agent::shutdown(const ShutdownWish& wish) {
  Ended out;
  if (auto is_open = open();
      !is_open && is_open.error().status != Status::session_lost && is_open.error().status != Status::group_ended) {
    out.error = is_open.error();
    return out;
  }
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) {
      out.error = Error{Status::closed, 0, {}, "another thread shuts this worker down already"};
      return out;
    }
  }
  if (!wish.local) {
    const Deadline deadline = Deadline::after(wish.timeout, kShutdownTimeout);
    out.error = meet(1, deadline);
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    if (!wish.keep_references) release_references();
    if (!out.error) out.error = meet(2, deadline);
    out.leaks = count_leaks();
    if (!out.error) out.error = meet(3, deadline);  // who left would take its references along
    if (!out.error && out.leaks != 0 && wish.report_leaks)
      out.error = Error{Status::leaking,
                        0,
                        {},
                        "Leaking RRef: others still hold references to " + std::to_string(out.leaks) +
                            " values of this worker; let them go before shutdown, or have it ignore leaks"};
  }

  std::map<RefId, std::shared_ptr<Value>> values;
  std::map<RefId, std::vector<std::unique_ptr<Request>>> unknown;
  std::deque<std::unique_ptr<Request>> work;
  Lock lock(mutex_);
  leaving_ = closed_ = true;
  wake();
  std::vector<std::shared_ptr<Future>> calls;
  for (const auto& [number, call] : calls_) calls.push_back(call);
  for (const auto& call : calls)
    fail(call, {Status::closed, -1, {}, {}, "this worker was shut down before the call was answered", {}});
  values.swap(values_);
  unknown.swap(unknown_);
  work.swap(work_);
  forks_.clear();
  changed_.notify_all();
  run_after(lock);
  // Who waits for messages has been interrupted, and leaves.
  while (leading_) {
    wake();
    changed_.wait_for(lock, std::chrono::milliseconds(10));
  }
  const std::shared_ptr<Inbox> inbox = std::move(inbox_);
  inbox_.reset();
  const bool lost = lost_.has_value();
  std::vector<std::shared_ptr<Value>> objects;  // also of those in a cycle, which nothing else would end
  for (auto& [id, value] : values) {
    auto object = std::make_shared<Value>();
    object->is_object = value->is_object;
    object->object = std::exchange(value->object, nullptr);
    object->drop = value->drop;
    object->context = value->context;
    objects.push_back(std::move(object));
  }
  lock.unlock();
  for (auto& [id, value] : values) value->waiting.clear();
  objects.clear();
  unknown.clear();
  work.clear();
  values.clear();
  if (!lost) (void)client::leave_world(*session_, world_, Deadline::after(0));
  return out;
}

}  // namespace shmb::remote
