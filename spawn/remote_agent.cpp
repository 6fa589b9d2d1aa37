// SPDX-License-Identifier: Apache-2.0
// Waiting: of the threads that wait one leads. See remote_agent.hpp.
#include "spawn/remote_agent.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/rescue.hpp"
#include "base/sys_process.hpp"

namespace shmb::remote {
namespace {

using client::Deadline;
using client::RemoteEvent;

// A look at the broker, which tells of the dead. No wait needs it: it is there for what nobody has thought of.
constexpr std::int64_t kLook = 2'000'000'000;
constexpr unsigned kMostNested = 200;          // calls that are run on one stack
constexpr std::int64_t kTryAgain = 5'000'000;  // a send that failed for another reason than want of room
constexpr unsigned kBusy = 64;

thread_local unsigned nested = 0;
thread_local const Agent* server_of = nullptr;

struct Nested {
  explicit Nested(unsigned& of) : depth(of) { ++depth; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;
  ~Nested() { --depth; }
  unsigned& depth;
};

}  // namespace

// What this thread is in the middle of: a callback may leave its world and join another one.
struct Agent::InCallbacks {
  explicit InCallbacks(const Agent* agent) : of(agent), outer(std::exchange(innermost, this)) {}
  InCallbacks(const InCallbacks&) = delete;
  InCallbacks& operator=(const InCallbacks&) = delete;
  ~InCallbacks() { innermost = outer; }
  const Agent* of;
  InCallbacks* outer;
  static thread_local InCallbacks* innermost;
};
thread_local Agent::InCallbacks* Agent::InCallbacks::innermost = nullptr;

unsigned Agent::callbacks_here() const {
  unsigned count = 0;
  for (const InCallbacks* one = InCallbacks::innermost; one != nullptr; one = one->outer) count += one->of == this;
  return count;
}

Request::~Request() {
  if (counted) agent->ran();
}

Agent::~Agent() {
  client::withdraw(*this);
  if (forked()) return;
  end_threads();
  delete threads_;
}

std::unexpected<Error> Agent::forked_error() {
  return error(Status::forked,
               "this process is a forked child of a worker: it is in no world; it may join one with init");
}

Result<void> Agent::open() const {
  if (forked()) return forked_error();
  const std::lock_guard lock(mutex_);
  return open_locked();
}

// Asked again after whatever ran without the lock: a function may have forked and returned in the child, too.
Result<void> Agent::open_locked() const {
  if (forked()) return forked_error();
  if (closed_) return error(Status::closed, "this worker has been shut down: call init first");
  if (lost_) return std::unexpected(*lost_);
  return {};
}

std::int64_t Agent::timeout() {
  const std::lock_guard lock(mutex_);
  return call_timeout_;
}
void Agent::set_timeout(std::int64_t timeout) {
  const std::lock_guard lock(mutex_);
  call_timeout_ = timeout;
}

bool Agent::may_serve() const { return wish_.threads == 0 || server_of == this; }

client::Deadline Agent::nearest(Deadline until) const {
#ifdef SHMB_TEST_SEAM
  if (!held_back_.empty()) until = earlier(until, Deadline::after(1'000'000));
#endif
  if (failed_ != 0)
    until = earlier(until, Deadline::after(std::max<std::int64_t>(try_again_ - sys::now_monotonic(), 1)));
  if (deadlines_.empty()) return until;
  const std::int64_t left = deadlines_.begin()->first - sys::now_monotonic();
  return earlier(until, left <= 0 ? Deadline::now() : Deadline::after(left));
}

// Who leads looks again by itself after the messages, so it is interrupted only where it may wait for them.
void Agent::wake() {
  changed_.notify_all();
  if (taking_ && inbox_) inbox_->interrupt();
}

void Agent::notify() {
  if (forked()) return;
  const std::lock_guard lock(mutex_);
  ++notices_;
  wake();
}

void Agent::ran() {
  if (forked()) return;
  const std::lock_guard lock(mutex_);
  --running_;
  wake();
}

// Deeper than that on one stack they are left to others, as calls are.
bool Agent::may_run_after() const { return !after_.empty() && callbacks_here() < kMostNested; }

// One by one: what waits inside of one, and other threads, run those behind it, which it may be waiting for.
void Agent::run_after(Lock& lock) {
  while (may_run_after()) {
    std::function<void()> one = std::move(after_.front());
    after_.pop_front();
    ++callbacks_;
    lock.unlock();
    {
      const InCallbacks one_more(this);
      if (!forked()) one();
      one = nullptr;
    }
    lock.lock();
    --callbacks_;
    wake();
  }
  flush(lock);
}

// Also what others add meanwhile: they leave it to the thread that is at it, and so does a shutdown, which waits for
// the end of this. What found no room is tried again when who leads has seen some, what failed otherwise after a while:
// threads that wake each other here would else try without end.
void Agent::flush(Lock& lock) {
  if (flushing_) return;
  if (failed_ != 0 && sys::now_monotonic() >= try_again_) failed_ = 0;
  if (const std::uint64_t waits = full_ & (wanted_ | failed_); waits != full_) {
    outbox_.insert(outbox_.begin(), without_room_.begin(), without_room_.end());
    without_room_.clear();
    full_ = waits;
  }
  if (outbox_.empty()) return;
  flushing_ = true;
  while (!outbox_.empty()) {
    const Small one = outbox_.front();
    outbox_.pop_front();
    const std::uint64_t bit = std::uint64_t{1} << one.to;
    if (!inbox_ || !workers_.there(one.to, one.life)) continue;
    if ((full_ & bit) == 0) {
      const std::shared_ptr<Inbox> inbox = inbox_;
      lock.unlock();
      Outgoing out;
      out.head = one.head;
      out.head.to_life = one.life;
      std::string text;
      auto sent = inbox->send(one.to, parts_of(out, text));
      lock.lock();
      if (sent && *sent) continue;
      if (!workers_.there(one.to, one.life)) continue;
      // No room, or a trouble that may pass: it is tried again until the worker is gone.
      if (sent) {
        want_room(one.to);
      } else {
        if (failed_ == 0) try_again_ = sys::now_monotonic() + kTryAgain;
        failed_ |= bit;
      }
      full_ |= bit;
    }
    without_room_.push_back(one);
  }
  flushing_ = false;
  wake();
}

// The thread that leads may wait already, and not for that room.
void Agent::want_room(std::uint32_t to) {
  const std::uint64_t bit = std::uint64_t{1} << to;
  if ((std::exchange(wanted_, wanted_ | bit) & bit) == 0 && taking_ && inbox_) inbox_->interrupt();
}

// One thing on the way to whatever is waited for: the caller looks again after it.
void Agent::step(Lock& lock, Deadline until, bool serves) {
  expire();
  if (may_run_after()) return run_after(lock);
  if (serves && !work_.empty() && nested < kMostNested) {
    std::unique_ptr<Request> request = std::move(work_.front());
    work_.pop_front();
    request->counted = true;
    ++running_;
    lock.unlock();
    {
      const Nested one_more(nested);
      run(std::move(request));
    }
    lock.lock();
    return;
  }
  if (leading_ || lost_ || !inbox_) {
    const Deadline when = nearest(until);
    if (when.endless()) changed_.wait(lock);
    else changed_.wait_until(lock, when.point());
    return;
  }
  lead(lock, until);
  run_after(lock);
}

// However it ends, another can lead after it, and learns what has come.
struct Agent::Leading {
  Leading(Agent& one, Lock& its_lock) : agent(one), lock(its_lock) {}
  Leading(const Leading&) = delete;
  Leading& operator=(const Leading&) = delete;
  ~Leading() {
    if (!lock.owns_lock()) lock.lock();
    agent.leading_ = agent.taking_ = false;
    agent.changed_.notify_all();
  }
  Agent& agent;
  Lock& lock;
};

void Agent::lead(Lock& lock, Deadline until) {
  leading_ = true;
  sent_since_look_ = 0;
  const Leading ends(*this, lock);
  const Deadline when = earlier(nearest(until), Deadline::after(rescue_interval(kLook)));
  const std::shared_ptr<Inbox> inbox = inbox_;
  std::array<std::uint32_t, pool::kParticipants> known_lives{};
  for (std::uint32_t rank = 0; rank < size(); ++rank) known_lives[rank] = workers_[rank].life;
  taking_ = true;
  const std::uint64_t wanted = wanted_;
  std::uint64_t roomy = 0;
  lock.unlock();
  std::vector<Arrived> arrived;
  std::vector<RemoteEvent> events;
  std::optional<Error> lost;
  const auto receive = [&](Deadline deadline) {
    auto taken = inbox->take(deadline, wanted);
    if (!taken) {
      lost = taken.error();
      return false;
    }
    for (Incoming& message : taken->messages) arrived.push_back({std::move(message), {}});
    if (taken->told) put_off_.push_back(*taken->told);
    roomy |= taken->roomy;
    return taken->quiet;
  };
  // Where messages come without end, what the broker tells is looked at now and then.
  const bool quiet = receive(when);
  name_writers(arrived, 0);
  const auto is_new = [&](const Arrived& one) {
    return one.message.head.from_life > known_lives[one.message.head.from];
  };
  bool all = std::ranges::any_of(arrived, is_new);
  if (quiet || lost || ++busy_ % kBusy == 0) {
    events = std::exchange(put_off_, {});
    for (;;) {
      auto event = session_->next_remote_event(Deadline::now());
      if (!event) lost = event.error();
      if (!event || !*event) break;
      events.push_back(**event);
    }
    all = all || !events.empty();
  }
  // A worker's end is told, or its successor writes: what it sent before that is here by now, and comes first.
  while (all && !lost) {
    const std::size_t before = arrived.size();
    while (!lost && !receive(Deadline::now())) {
    }
    name_writers(arrived, before);
    all = !put_off_.empty();  // told meanwhile: the same holds for that
    std::ranges::move(put_off_, std::back_inserter(events));
    put_off_.clear();
  }
  std::vector<Arrived> newcomers;
  std::erase_if(arrived, [&](Arrived& one) {
    if (!is_new(one)) return false;
    newcomers.push_back(std::move(one));
    return true;
  });
  const std::size_t known_ones = arrived.size();
  std::ranges::move(newcomers, std::back_inserter(arrived));
  std::optional<Error> silent;  // the broker
  for (Arrived& one : arrived) {
    if (one.message.references.empty() || one.message.head.to_life != life_) continue;
    if (silent) {  // one that does not answer is not asked again for each message
      one.message.broken = *silent;
      give_back(one.message.references);
      continue;
    }
    auto references = take(one.message.references);
    if (references) one.references = std::move(*references);
    else one.message.broken = references.error();
    if (!references && references.error().status == Status::deadline) silent = references.error();
  }
  lock.lock();
  wanted_ &= ~roomy;
  for (std::size_t i = 0; i < known_ones; ++i) take_in(arrived[i]);
  for (const RemoteEvent& event : events) take_event(event);
  for (std::size_t i = known_ones; i < arrived.size(); ++i) {
    worker_came(arrived[i].message.head.from, arrived[i].message.head.from_life);  // the event is on its way
    take_in(arrived[i]);
  }
  // What nobody wanted: references let go of themselves under the lock.
  std::erase_if(arrived, [](const Arrived& one) {
    return one.references.empty() && !one.message.bytes && !one.message.slot && one.message.regions.empty();
  });
  if (!arrived.empty()) bury(std::make_shared<std::vector<Arrived>>(std::move(arrived)));
  if (lost) lose(*lost);
}

Result<void> Agent::wait_for(const std::function<bool()>& done, Deadline deadline, const char* what) {
  if (forked()) return open();
  Lock lock(mutex_);
  for (;;) {
    expire();
    run_after(lock);
    if (forked()) return forked_error();
    if (done()) return {};
    if (auto is_open = open_locked(); !is_open) return is_open;
    if (deadline.passed()) return error(Status::deadline, std::string(what) + " was not there before the deadline");
    step(lock, deadline, may_serve());
  }
}

Result<void> Agent::wait_until(const std::function<bool()>& asked, Deadline deadline) {
  if (forked()) return open();
  Lock lock(mutex_);
  for (;;) {
    expire();
    run_after(lock);
    const std::uint64_t before = notices_;
    lock.unlock();
    const bool done = asked();
    lock.lock();
    if (forked()) return forked_error();
    if (done) return {};
    if (before != notices_ || may_run_after()) continue;
    if (auto is_open = open_locked(); !is_open) return is_open;
    if (deadline.passed()) return error(Status::deadline, "what was waited for did not come before the deadline");
    step(lock, deadline, may_serve());
  }
}

Result<void> Agent::wait(Future& future, std::int64_t wait) {
  if (forked()) return open();
  const Deadline deadline = Deadline::after(wait, client::kForever);
  Lock lock(mutex_);
  for (;;) {
    expire();
    run_after(lock);
    if (forked()) return forked_error();
    if (future.state == Future::State::done) return {};
    if (future.state == Future::State::failed) return std::unexpected(error_of(future.failure));
    if (deadline.passed())
      return error(Status::deadline, "the call of \"" + future.function + "\" at " + workers_.where(future.to) +
                                         " was not answered before the deadline of this wait");
    step(lock, deadline, may_serve());
  }
}

Result<void> Agent::serve(Deadline deadline, bool once) {
  if (auto is_open = open(); !is_open) return is_open;
  Lock lock(mutex_);
  if (once) {
    if (!leading_ && inbox_ && !lost_) lead(lock, Deadline::now());
    for (std::size_t left = work_.size() + 1; left > 0 && !closed_; --left) {
      run_after(lock);
      if (work_.empty() || forked()) break;
      step(lock, Deadline::now(), true);
    }
    run_after(lock);
    return open_locked();
  }
  for (;;) {
    if (auto is_open = open_locked(); !is_open) return is_open;
    if (deadline.passed()) return {};
    step(lock, deadline, true);
  }
}

void Agent::serve_as_thread(bool& ended) {
  server_of = this;
  Lock lock(mutex_);
  while (!closed_ && !forked()) step(lock, Deadline::after(client::kForever), true);
  ended = true;
  changed_.notify_all();
}

#ifdef SHMB_TEST_SEAM
void Agent::set_trouble(Trouble trouble) {
  const std::lock_guard lock(mutex_);
  trouble_ = trouble;
}
#endif

}  // namespace shmb::remote
