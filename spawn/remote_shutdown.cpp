// SPDX-License-Identifier: Apache-2.0
// The end of a worker. Graceful: a worker that has nothing under way says so to the one that came first of those that
// live, with how many requests it has sent and received; that one asks again until two rounds tell the same and what
// was sent has arrived. Then nothing is under way anywhere, and nothing can come any more. It serves meanwhile, and
// waits for no dead, but for whoever takes a dead one's place: who comes late is told which phases are over.
//
// Three phases: first for the calls; then, with the references given up, for the books; and when what is left has been
// counted everywhere.
#include <algorithm>

#include "base/sys_process.hpp"
#include "spawn/remote_agent.hpp"

namespace shmb::remote {

using client::Deadline;

// A callback may call somebody yet; one that shuts down itself is not waited for.
bool Agent::is_idle() const {
  return calls_.empty() && work_.empty() && running_ == 0 && after_.empty() && callbacks_ == callbacks_here();
}

// A worker that is behind hears where the leader is.
void Agent::tell_round(std::uint32_t rank) {
  Head head;
  head.kind = Kind::over;
  head.phase = meeting_.phase - 1;
  head.round = meeting_.round;
  outbox_.push_back({rank, workers_[rank].life, head});
}

// Of others; what this worker has to say itself is entered by meet().
void Agent::take_shutdown(const Head& head) {
  switch (head.kind) {
    case Kind::idle:
      meeting_.reports[head.from] = {head.phase, head.round, head.sent, head.received, head.census};
      if (head.phase > 1) meeting_.over = std::max(meeting_.over, head.phase - 1);  // said a leader that has died since
      if (head.round > meeting_.round) {
        meeting_.round = head.round;
        meeting_.last_sent.reset();
        for (std::uint32_t rank = 0; rank < size() && meeting_.there; ++rank)
          if (rank != rank_ && rank != head.from && workers_[rank].present()) tell_round(rank);
      } else if (meeting_.there && (head.round < meeting_.round || head.phase < meeting_.phase)) {
        tell_round(head.from);
      }
      count_round();
      break;
    case Kind::round:
      meeting_.round = std::max(meeting_.round, head.round);
      break;
    default:
      meeting_.over = std::max(meeting_.over, head.phase);
      meeting_.round = std::max(meeting_.round, head.round);
  }
  wake();
}

// At the leader: is the round through, and was it like the one before?
void Agent::count_round() {
  if (!meeting_.there || workers_.leader(rank_) != rank_) return;
  std::uint64_t sent = 0, received = 0;
  bool agreed = true;
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    if (!workers_[rank].present()) continue;
    const auto report = meeting_.reports.find(rank);
    if (report == meeting_.reports.end() || report->second.round < meeting_.round ||
        report->second.phase < meeting_.phase)
      return;
    sent += report->second.sent;
    received += report->second.received;
    agreed = agreed && report->second.census == workers_.census();  // else somebody does not know of a death yet
  }
  // The dead have sent and received what the living did not: then the counts need not agree, only stand still.
  const bool quiet = agreed && (sent == received || some_gone_) && meeting_.totals == sent + 1;
  meeting_.totals = agreed ? sent + 1 : 0;
  Head head;
  head.kind = quiet ? Kind::over : Kind::round;
  ++meeting_.round;  // what was reported up to here does not count for the next one
  head.phase = meeting_.phase;
  head.round = meeting_.round;
  if (quiet) meeting_.over = meeting_.phase;
  for (std::uint32_t rank = 0; rank < size(); ++rank)
    if (rank != rank_ && workers_[rank].present()) outbox_.push_back({rank, workers_[rank].life, head});
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
    if (forked()) return forked_error().error();
    if (lost_) return *lost_;
    if (closed_) return Error{Status::closed, 0, {}, "this worker was shut down by another thread"};
    const bool through = (meeting_.over >= phase || workers_.present() == 1) && is_idle();
    if (through && outbox_.empty() && without_room_.empty() && !flushing_) return std::nullopt;
    if (!through && is_idle() && meeting_.last_sent != meeting_.round) {
      meeting_.last_sent = meeting_.round;
      Head head;
      head.kind = Kind::idle;
      head.phase = phase;
      head.round = meeting_.round;
      head.sent = sent_;
      head.received = received_;
      head.census = workers_.census();
      if (workers_.leader(rank_) == rank_) {
        meeting_.reports[rank_] = {head.phase, head.round, head.sent, head.received, head.census};
        count_round();
      } else {
        outbox_.push_back({workers_.leader(rank_), workers_[workers_.leader(rank_)].life, head});
      }
      continue;
    }
    if (deadline.passed()) {
      std::string busy;
      if (!is_idle())
        busy = std::to_string(calls_.size()) + " calls of this worker and " + std::to_string(running_ + work_.size()) +
               " of others here are not through";
      if (workers_.leader(rank_) == rank_)
        for (std::uint32_t rank = 0; rank < size(); ++rank)
          if (rank != rank_ && workers_[rank].present() && !meeting_.reports.contains(rank))
            busy += (busy.empty() ? "" : "; ") + workers_.where(rank) + " has not shut down or is busy";
      if (busy.empty())
        busy = workers_.where(workers_.leader(rank_)) + ", or another worker, has not shut down or is busy";
      return Error{
          Status::deadline, 0, {}, "the graceful shutdown passed its deadline, and this worker has left: " + busy};
    }
    step(lock, deadline, true);
  }
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
    if (std::exchange(ending_, true)) {
      out.error = Error{Status::closed, 0, {}, "another thread shuts this worker down already"};
      return out;
    }
  }
  if (!wish.local) {
    const Deadline deadline = Deadline::after(wish.timeout, kShutdownTimeout);
    out.error = meet(1, deadline);
    if (forked()) return out;  // a function that ran meanwhile did it, and returned in the child
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    if (!wish.keep_references) release_references();
    if (!out.error) out.error = meet(2, deadline);
    out.leaks = count_leaks(Deadline::after(0));
    if (!out.error) out.error = meet(3, deadline);  // who left would take its references along
    if (forked()) return out;
    if (!out.error && out.leaks != 0 && wish.report_leaks)
      out.error = Error{Status::leaking, 0, {}, torch_words::leaking(out.leaks)};
  }

  std::vector<std::shared_ptr<Value>> values;
  std::vector<std::unique_ptr<Request>> requests;
  // With the lock: also what waits for a value is taken from it, as whoever makes that value releases it.
  const auto gather = [&] {
    const auto all_of = [&requests](auto& from) {
      for (auto& request : from) requests.push_back(std::move(request));
      from.clear();
    };
    for (auto& [id, value] : std::exchange(values_, {})) {
      all_of(value->waiting);
      values.push_back(value);
    }
    for (auto& [id, waiting] : unknown_) all_of(waiting);
    unknown_.clear();
    all_of(work_);
  };
  Lock lock(mutex_);
  leaving_ = closed_ = true;
  wake();
  std::vector<std::shared_ptr<Future>> calls;
  for (const auto& [number, call] : calls_) calls.push_back(call);
  for (const auto& call : calls)
    fail(call, {Status::closed, -1, {}, {}, "this worker was shut down before the call was answered", {}});
  gather();
  forks_.clear();
  changed_.notify_all();
  run_after(lock);
  if (forked()) return out;  // whoever heard of the end did it, and returned in the child
  // Who waits for messages is interrupted, and leaves.
  wake();
  changed_.wait(lock, [this] { return !leading_; });
  gather();
  run_after(lock);  // what came with the last messages
  if (forked()) return out;
  const std::shared_ptr<Inbox> inbox = std::move(inbox_);
  inbox_.reset();
  const bool lost = lost_.has_value();
  std::vector<std::shared_ptr<Value>> objects;  // also of those in a cycle, which nothing else would end
  const bool in_use = running_ != 0;            // a call that a passed deadline has left running may use its object
  for (const auto& value : values) {
    if (in_use) break;
    auto object = std::make_shared<Value>();
    object->is_object = value->is_object;
    object->object = std::exchange(value->object, nullptr);
    object->drop = value->drop;
    object->context = value->context;
    objects.push_back(std::move(object));
  }
  lock.unlock();
  requests.clear();
  objects.clear();
  values.clear();
  if (!lost) (void)client::leave_world(*session_, world_, Deadline::after(0));
  return out;
}

}  // namespace shmb::remote
