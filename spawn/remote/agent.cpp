// SPDX-License-Identifier: Apache-2.0
// See agent.hpp.
#include "spawn/remote/agent.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/sys_process.hpp"

namespace shmb::remote {
namespace {

using client::Deadline;

constexpr std::int64_t kThreadPatience = 1'000'000'000;  // with a thread that runs a call when the worker is at its end
constexpr std::int64_t kLookAtHeldBack = 1'000'000;

thread_local const Agent* server_of = nullptr;

}  // namespace

// ---------------------------------------------------------------- beginning and end

Agent::Agent(CheckedWish wish, client::ForkMark mark)
    : wish_(std::move(wish)),
      life_(monitor_, std::move(mark)),
      callbacks_(monitor_, life_),
      memory_(place_, monitor_, life_),
      references_(place_, monitor_, life_, callbacks_, roster_, hooks_, {wish_.drop, wish_.context}),
      calls_(place_, monitor_, life_, callbacks_, roster_, references_, wish_.call_timeout),
      sender_(monitor_, life_, roster_, references_, memory_, *this),
      server_(place_, monitor_, life_, callbacks_, roster_, references_, calls_, sender_, memory_, wish_.request),
      meeting_(place_, monitor_, roster_, sender_),
      workers_(place_, monitor_, callbacks_, roster_, sender_, references_, calls_, server_, meeting_),
      arrivals_(place_, monitor_, callbacks_, roster_, sender_, references_, calls_, server_, meeting_, workers_,
                hooks_),
      caller_(place_, monitor_, life_, roster_, references_, calls_, sender_, server_, memory_, workers_, *this,
              hooks_),
      shutdown_(place_, monitor_, life_, callbacks_, roster_, references_, calls_, sender_, server_, meeting_, *this) {
  place_.rank = static_cast<std::uint32_t>(wish_.rank);
  place_.size = static_cast<std::uint32_t>(wish_.world_size);
  place_.address = wish_.address;
  roster_.resize(place_.size);
}

// Enrolled before it connects: a fork takes the lock of the pool, then that of the worker, then that of the session. So
// a thread that holds the worker's lock calls the session, but not the pool.
Result<std::shared_ptr<Agent>> Agent::join(Wanted wish) {
  SHMB_TRY(checked, check(std::move(wish)));
  auto mark = client::ForkMark::make();
  if (!mark) return system_failure(mark.error(), "a page to notice forks");
  std::shared_ptr<Agent> agent(new Agent(std::move(checked), std::move(*mark)));
  agent->place_.agent = agent;
  client::enrol(*agent);
  Joining joining(agent->wish_, agent->place_, agent->monitor_, agent->life_, agent->roster_, agent->workers_,
                  agent->arrivals_);
  SHMB_TRY_VOID(joining.take_place());
  auto joined = joining.enter();
  if (joined) joined = agent->start_threads();
  if (joined) return agent;
  const Error why = joining.give_up(joined.error());
  const std::lock_guard lock(agent->monitor_.mutex());
  agent->life_.close();
  return std::unexpected(why);
}

Agent::~Agent() {
  client::withdraw(*this);
  if (life_.forked()) return;
  end_threads();
  delete threads_;
}

Result<void> Agent::start_threads() {
  threads_ = new std::vector<Thread>;
  try {
    for (std::uint32_t i = 0; i < wish_.threads; ++i) {
      auto ended = std::make_shared<bool>(false);
      threads_->push_back(
          {std::thread([self = place_.agent.lock(), ended]() mutable { self->serve_as_thread(*ended); }), ended});
    }
  } catch (const std::system_error& why) {
    const std::size_t started = threads_->size();
    end_threads();
    return error(Status::system, "thread " + std::to_string(started + 1) + " of the " + std::to_string(wish_.threads) +
                                     " that this worker is to have cannot be started (" + why.what() +
                                     "): ask for fewer, or raise the limit of processes (RLIMIT_NPROC, pids.max)");
  }
  return {};
}

void Agent::serve_as_thread(bool& ended) {
  server_of = this;
  Lock lock(monitor_.mutex());
  while (!life_.closed() && !life_.forked()) turn(lock, Deadline::after(client::kForever), true, &Monitor::idle);
  ended = true;
  monitor_.wake_sleepers();
}

void Agent::end_threads() {
  if (threads_ == nullptr || life_.forked()) return;
  const auto is_self = [](const Thread& one) { return one.thread.get_id() == std::this_thread::get_id(); };
  {
    const interrupt::Shield shield;
    Lock lock(monitor_.mutex());
    life_.close();
    monitor_.wake();
    (void)monitor_.sleep_for(lock, kThreadPatience, [&] {
      return std::ranges::all_of(*threads_, [&](const Thread& one) { return *one.ended || is_self(one); });
    });
    // One that is in a function of the user still has its own hold on this worker, and ends when that returns.
    for (Thread& one : *threads_)
      if (!*one.ended) one.thread.detach();
  }
  for (Thread& one : *threads_)
    if (one.thread.joinable()) one.thread.join();
  threads_->clear();
}

// ---------------------------------------------------------------- one step

void Agent::expire() {
  arrivals_.take_held_back();
  calls_.expire();
}

void Agent::run_callbacks(Lock& lock) {
  callbacks_.run(lock);
  sender_.flush(lock);
}

void Agent::catch_up(Lock& lock) {
  expire();
  run_callbacks(lock);
}

bool Agent::may_serve() const { return wish_.threads == 0 || server_of == this; }

Deadline Agent::nearest(Deadline until) const {
  const auto at = [](std::int64_t time) {
    const std::int64_t left = time - sys::now_monotonic();
    return left <= 0 ? Deadline::now() : Deadline::after(left);
  };
  if (hooks_.holds_any()) until = earlier(until, Deadline::after(kLookAtHeldBack));
  if (const auto time = sender_.next_try())
    until = earlier(until, Deadline::after(std::max<std::int64_t>(*time - sys::now_monotonic(), 1)));
  if (const auto time = calls_.next_deadline()) until = earlier(until, at(*time));
  return until;
}

void Agent::step(Lock& lock, Deadline until, bool serves) { turn(lock, until, serves, &Monitor::sleep); }

void Agent::turn(Lock& lock, Deadline until, bool serves, void (Monitor::*sleep)(Lock&, Deadline)) {
  expire();
  if (callbacks_.may_run()) {
    monitor_.watch_lead();
    return run_callbacks(lock);
  }
  if (serves && server_.run_one(lock)) return;
  const bool idles = sleep == &Monitor::idle;
  if (monitor_.leading() || life_.lost() || !monitor_.inbox() || (idles && !monitor_.may_lead_idly()))
    return (monitor_.*sleep)(lock, nearest(until));
  arrivals_.lead(lock, nearest(until), idles);
  run_callbacks(lock);
}

bool Agent::may_look() const {
  return !monitor_.leading() && !life_.lost() && !life_.closed() && monitor_.inbox() &&
         server_.backlog() < monitor_.inbox()->cells() / 4;
}

// ---------------------------------------------------------------- waiting

// In the C ABI all of this runs under a Shield, because a step does work of others too. Only the sleep itself is ended
// by a signal, and the loop here looks for that.

// `done` is asked with the lock.
Result<void> Agent::wait_for(const std::function<bool()>& done, Deadline deadline, const char* what) {
  if (life_.forked()) return Life::forked_error();
  Lock lock(monitor_.mutex());
  for (;;) {
    catch_up(lock);
    if (life_.forked()) return Life::forked_error();
    if (done()) return {};
    SHMB_TRY_VOID(life_.open_locked());
    if (deadline.passed() || interrupt::noted())
      return error(Status::deadline, std::string(what) + " was not there before the deadline");
    step(lock, deadline, may_serve());
  }
}

// `asked` is the user's, and asked without the lock.
Result<void> Agent::wait_until(const std::function<bool()>& asked, Deadline deadline) {
  if (life_.forked()) return Life::forked_error();
  Lock lock(monitor_.mutex());
  for (;;) {
    catch_up(lock);
    const std::uint64_t before = notices_;
    lock.unlock();
    const bool done = asked();
    lock.lock();
    if (life_.forked()) return Life::forked_error();
    if (done) return {};
    if (before != notices_ || callbacks_.may_run()) continue;
    SHMB_TRY_VOID(life_.open_locked());
    if (deadline.passed() || interrupt::noted())
      return error(Status::deadline, "what was waited for did not come before the deadline");
    step(lock, deadline, may_serve());
  }
}

void Agent::notify() {
  if (life_.forked()) return;
  const std::lock_guard lock(monitor_.mutex());
  ++notices_;
  monitor_.wake();
}

Result<void> Agent::wait(Future& future, std::int64_t wait) {
  if (life_.forked()) return Life::forked_error();
  const Deadline deadline = Deadline::after(wait, client::kForever);
  Lock lock(monitor_.mutex());
  for (;;) {
    catch_up(lock);
    if (life_.forked()) return Life::forked_error();
    if (future.state == Future::State::done) return {};
    if (future.state == Future::State::failed) return std::unexpected(error_of(future.failure));
    if (deadline.passed() || interrupt::noted())
      return error(Status::deadline, "the call of \"" + future.function + "\" at " + roster_.where(future.to) +
                                         " was not answered before the deadline of this wait");
    step(lock, deadline, may_serve());
  }
}

Result<std::shared_ptr<Value>> Agent::local(Reference& reference, std::int64_t wait) {
  SHMB_TRY_VOID(references_.usable_here(reference));
  const std::int64_t limit = wait == 0 ? calls_.timeout() : wait;
  SHMB_TRY_VOID(wait_for([&] { return references_.decided(reference); }, Deadline::after(limit, client::kForever),
                         "the value of the reference"));
  const std::lock_guard lock(monitor_.mutex());
  if (reference.known->failure) return std::unexpected(error_of(*reference.known->failure));
  if (reference.value->state == Value::State::failed) return std::unexpected(error_of(reference.value->failure));
  return reference.value;
}

Result<void> Agent::serve(Deadline deadline, bool once) {
  SHMB_TRY_VOID(life_.open());
  Lock lock(monitor_.mutex());
  if (once) {
    if (!monitor_.leading() && monitor_.inbox() && !life_.lost()) look(lock);
    for (std::size_t left = server_.backlog() + 1; left > 0 && !life_.closed(); --left) {
      run_callbacks(lock);
      if (server_.backlog() == 0 || life_.forked()) break;
      step(lock, Deadline::now(), true);
    }
    run_callbacks(lock);
    return life_.open_locked();
  }
  for (;;) {
    SHMB_TRY_VOID(life_.open_locked());
    if (deadline.passed()) return {};
    if (interrupt::noted()) return error(Status::deadline, "a signal came");  // c_api reports it
    step(lock, deadline, true);
  }
}

// ---------------------------------------------------------------- what is known

Worker Agent::worker(std::uint32_t rank) const {
  const std::lock_guard lock(monitor_.mutex());
  return roster_[rank];
}

Result<std::uint32_t> Agent::find(const std::string& name) const {
  const std::lock_guard lock(monitor_.mutex());
  return roster_.find(name);
}

Result<Agent::Counters> Agent::counters() {
  SHMB_TRY_VOID(life_.open());
  Counters out;
  {
    const std::lock_guard lock(monitor_.mutex());
    out.owned = references_.values();
    out.held = references_.forks();
    out.calls = calls_.count();
    out.waiting = server_.waiting();
    out.running = server_.running();
  }
  SHMB_TRY(users, references_.count_users());
  out.users = users;
  return out;
}

}  // namespace shmb::remote
