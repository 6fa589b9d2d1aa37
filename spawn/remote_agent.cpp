// SPDX-License-Identifier: Apache-2.0
// Waiting, and what arrives. See remote_agent.hpp.
#include "spawn/remote_agent.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "client/views.hpp"

namespace shmb::remote {
namespace {

using client::Deadline;
using client::RemoteEvent;

constexpr std::int64_t kLook = 2'000'000'000;  // at the broker, which tells of the dead
constexpr unsigned kMostNested = 200;          // calls that are run on one stack
constexpr std::size_t kMostUnknown = 65536, kMostWaiting = 65536;
constexpr std::int64_t kTryAgain = 5'000'000;  // what had no room in a peer's queue
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

// How the broker's table says that a creator gave up: then the owner has nothing to add.
const char* const kGaveUp = "creation by remote() timed out";

std::string text_of(RefId id) {
  return id.counter == 0 ? std::string("(not in the books)")
                         : "(" + std::to_string(id.creator) + ", " + std::to_string(id.counter) + ")";
}

Value::~Value() {
  if (is_object && object != nullptr && drop != nullptr) drop(context, object);
}
Reference::~Reference() {
  if (agent) agent->let_go(*this);
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

std::unexpected<Error> Agent::open_in_child() {
  return error(Status::forked,
               "this process is a forked child of a worker: it is in no world; it may join one with init");
}

Result<void> Agent::open() const {
  if (forked()) return open_in_child();
  const std::lock_guard lock(const_cast<std::mutex&>(mutex_));
  return open_locked();
}

// Asked again after whatever ran without the lock: a function may have forked and returned in the child, too.
Result<void> Agent::open_locked() const {
  if (forked()) return open_in_child();
  if (closed_) return error(Status::closed, "this worker has been shut down: call init first");
  if (lost_) return std::unexpected(*lost_);
  return {};
}

Worker Agent::worker(std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  return workers_[rank];
}

Result<std::uint32_t> Agent::find(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::string known;
  for (std::uint32_t rank = 0; rank < size(); ++rank) {
    if (workers_[rank].name == name) return rank;
    known += (known.empty() ? "" : ", ") + workers_[rank].name;
  }
  return error(Status::not_found, "there is no worker \"" + name + "\" in this world (there are: " + known + ")");
}

std::int64_t Agent::timeout() {
  const std::lock_guard lock(mutex_);
  return call_timeout_;
}
void Agent::set_timeout(std::int64_t timeout) {
  const std::lock_guard lock(mutex_);
  call_timeout_ = timeout;
}

std::string Agent::where(std::uint32_t rank) const {
  return "worker \"" + workers_[rank].name + "\" (rank " + std::to_string(rank) + ")";
}

Error Agent::gone_error(std::uint32_t rank, std::uint32_t life, Status status) const {
  // Only the dead are replaced.
  const shmbw_worker_state state = life < workers_[rank].life ? SHMBW_WORKER_STATE_DIED : workers_[rank].state;
  return {status,
          0,
          {},
          where(rank) + (state == SHMBW_WORKER_STATE_DIED   ? " has died"
                         : state == SHMBW_WORKER_STATE_LEFT ? " has left the world"
                                                            : " is gone")};
}

std::shared_ptr<Known> Agent::find_known(RefId id) const {
  const auto found = known_.find(id);
  return found == known_.end() ? nullptr : found->second.lock();
}

std::shared_ptr<Known> Agent::known(RefId id, std::uint32_t owner, std::uint32_t owner_life) {
  auto& place = known_[id];
  if (auto there = place.lock()) return there;
  auto made = std::make_shared<Known>();
  made->id = id;
  made->owner = owner;
  made->owner_life = owner_life;
  place = made;
  return made;
}

// ---------------------------------------------------------------- waiting

bool Agent::may_serve() const { return wish_.threads == 0 || server_of == this; }

client::Deadline Agent::nearest(Deadline until) const {
#ifdef SHMB_TEST_SEAM
  if (!held_back_.empty()) until = earlier(until, Deadline::after(1'000'000));
#endif
  if (!outbox_.empty()) until = earlier(until, Deadline::after(kTryAgain));
  if (deadlines_.empty()) return until;
  const std::int64_t left = deadlines_.begin()->first - sys::now_monotonic();
  return earlier(until, left <= 0 ? Deadline::now() : Deadline::after(left));
}

void Agent::wake() {
  changed_.notify_all();
  if (leading_ && inbox_) inbox_->interrupt();
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

void Agent::run_after(Lock& lock) {
  while (!after_.empty()) {
    std::vector<std::function<void()>> all;
    all.swap(after_);
    ++callbacks_;
    lock.unlock();
    {
      const InCallbacks one_more(this);
      for (auto& one : all) {
        if (!forked()) one();
        one = nullptr;
      }
    }
    lock.lock();
    --callbacks_;
    wake();
  }
  flush(lock);
}

void Agent::flush(Lock& lock) {
  if (flushing_ || outbox_.empty()) return;
  flushing_ = true;
  std::deque<Small> all, kept;
  all.swap(outbox_);
  std::uint64_t full = 0;  // a bit for each worker without room: order is kept
  for (Small& one : all) {
    const std::uint64_t bit = std::uint64_t{1} << one.to;
    if (!inbox_ || !there(one.to, one.life)) continue;
    if ((full & bit) == 0) {
      const std::shared_ptr<Inbox> inbox = inbox_;
      lock.unlock();
      Outgoing out;
      out.head = one.head;
      out.head.to_life = one.life;
      std::string text;
      auto sent = inbox->send(one.to, parts_of(out, text));
      lock.lock();
      if (sent && *sent) continue;
      full |= bit;  // no room, or a trouble that may pass: it is tried again until the worker is gone
    }
    kept.push_back(one);
  }
  outbox_.insert(outbox_.begin(), kept.begin(), kept.end());
  flushing_ = false;
}

// One thing on the way to whatever is waited for: the caller looks again after it.
void Agent::step(Lock& lock, Deadline until, bool serves) {
  expire();
  if (!after_.empty()) return run_after(lock);
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
    agent.leading_ = false;
    agent.changed_.notify_all();
  }
  Agent& agent;
  Lock& lock;
};

void Agent::lead(Lock& lock, Deadline until) {
  leading_ = true;
  const Leading ends(*this, lock);
  const Deadline when = earlier(nearest(until), Deadline::after(kLook));
  const std::shared_ptr<Inbox> inbox = inbox_;
  std::array<std::uint32_t, pool::kParticipants> known_lives{};
  for (std::uint32_t rank = 0; rank < size(); ++rank) known_lives[rank] = workers_[rank].life;
  lock.unlock();
  std::vector<Arrived> arrived;
  std::vector<RemoteEvent> events;
  std::optional<Error> lost;
  const auto receive = [&](Deadline deadline) {
    auto taken = inbox->take(deadline);
    if (!taken) {
      lost = taken.error();
      return false;
    }
    for (Incoming& message : taken->messages) arrived.push_back({std::move(message), {}});
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
  if (all) {
    const std::size_t before = arrived.size();
    while (!lost && !receive(Deadline::now())) {
    }
    name_writers(arrived, before);
  }
  std::vector<Arrived> newcomers;
  std::erase_if(arrived, [&](Arrived& one) {
    if (!is_new(one)) return false;
    newcomers.push_back(std::move(one));
    return true;
  });
  const std::size_t known_ones = arrived.size();
  std::ranges::move(newcomers, std::back_inserter(arrived));
  for (Arrived& one : arrived) {
    if (one.message.references.empty() || one.message.head.to_life != life_) continue;
    auto references = take(one.message.references);
    if (references) one.references = std::move(*references);
    else one.message.broken = references.error();
  }
  lock.lock();
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

void Agent::read_writers() {
  client::Selection selection;
  selection.region.id = world_;
  const auto list = client::list_workers(*session_, selection, Deadline::after(0));
  if (!list) return;
  for (const client::WorkerRow& row : list->rows)
    if (row.record.participant < writers_.size() && row.record.rank < size())
      writers_[row.record.participant] = {row.record.participant_life, row.record.rank, row.record.life};
}

Result<void> Agent::wait_for(const std::function<bool()>& done, Deadline deadline, const char* what) {
  if (forked()) return open();
  Lock lock(mutex_);
  for (;;) {
    expire();
    run_after(lock);
    if (forked()) return open_in_child();
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
    if (forked()) return open_in_child();
    if (done) return {};
    if (before != notices_ || !after_.empty()) continue;
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
    if (forked()) return open_in_child();
    if (future.state == Future::State::done) return {};
    if (future.state == Future::State::failed) return std::unexpected(error_of(future.failure));
    if (deadline.passed())
      return error(Status::deadline, "the call of \"" + future.function + "\" at " + where(future.to) +
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

// ---------------------------------------------------------------- outcomes

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
                    "the call of \"" + future->function + "\" at " + where(future->to) +
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
                  "RRef creation of " + text_of(future->reference) + " via remote() timed out: \"" + future->function +
                      "\" at " + where(future->to) + " took more than " + within +
                      "; the reference has failed for good, for every worker",
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
  const Failure failure{Status::deadline, -1, {}, {}, "RRef creation of " + text_of(id) + ": " + facts->error, {}};
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

// ---------------------------------------------------------------- what arrives

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
      if (outbox_.size() < kMostWaiting) outbox_.push_back({request->head.from, request->head.from_life, head});
    } else if (auto it = find_known(id)) {
      it->confirmed = true;
    }
  }
  if (work_.size() < kMostWaiting) {
    work_.push_back(std::move(request));
    return wake();
  }
  refuse(std::move(request), "65536 calls wait at this worker already: it serves too slowly");
  wake();
}

void Agent::refuse(std::unique_ptr<Request> request, const char* why) {
  after_.emplace_back([this, why, refused = std::make_shared<std::unique_ptr<Request>>(std::move(request))] {
    (void)fail(std::move(*refused), {Status::limit, -1, {}, {}, why, {}});
  });
}

bool Agent::park(std::unique_ptr<Request>& request, RefId id, std::shared_ptr<Value>& value) {
  const std::lock_guard lock(mutex_);
  const auto set_aside = [&](std::vector<std::unique_ptr<Request>>& where) {
    request->counted = false;
    --running_;
    std::erase_if(where, [&, now = sys::now_monotonic()](std::unique_ptr<Request>& other) {
      if (other->head.deadline == 0 || other->head.deadline > now) return false;
      bury(std::shared_ptr<Request>(std::move(other)));  // nobody waits for it any more
      return true;
    });
    if (where.size() < kMostWaiting) where.push_back(std::move(request));
    else refuse(std::move(request), "65536 calls wait for this value already: it has not been made yet");
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

void Agent::release_waiting(Value& value) {
  for (auto& request : value.waiting) work_.push_back(std::move(request));
  value.waiting.clear();
  wake();
}

void Agent::take_event(const RemoteEvent& event) {
  if (event.kind != RemoteEvent::Kind::gap && event.world != world_) return;
  switch (event.kind) {
    case RemoteEvent::Kind::world_changed:
      switch (event.change) {
        case SHMBW_WORLD_CHANGE_LEFT:
        case SHMBW_WORLD_CHANGE_DIED:
          return worker_gone(event.rank, event.life, event.change == SHMBW_WORLD_CHANGE_DIED);
        case SHMBW_WORLD_CHANGE_JOINED:
          return worker_came(event.rank, event.life);
        case SHMBW_WORLD_CHANGE_ENDED:
          return lose({Status::group_ended, 0, {}, "the group of this world has ended, and the world with it"});
        default:
          return;
      }
    case RemoteEvent::Kind::ref_unused:
      return unused(event.reference);
    case RemoteEvent::Kind::ref_changed: {
      const auto it = find_known(event.reference);
      if (!it || it->failure) return;
      it->confirmed = true;
      if (event.state == SHMBW_REF_STATE_READY) it->state = Known::State::ready;
      if (event.state == SHMBW_REF_STATE_FAILED) {
        it->state = Known::State::failed;
        if (!owned_here(*it)) after_.emplace_back([this, id = event.reference] { look_at_failed(id); });
      }
      return;
    }
    case RemoteEvent::Kind::gap:
      after_.emplace_back([this] { (void)read_workers(); });
      return;
  }
}

// No reference to a value of ours is left in the books. One of its own a worker may have shared again since. Where
// there is no value its creation was never sent: while it is, its creator has a reference, and what is sent is read
// before what the broker tells.
void Agent::unused(RefId id) {
  if (leaving_) return;  // all values end with this worker
  const auto found = values_.find(id);
  if (found == values_.end()) {
#ifdef SHMB_TEST_SEAM
    if (std::ranges::any_of(held_back_, [id](const auto& one) { return one.second.message.head.reference == id; }))
      early_.insert(id);
#endif
    return;
  }
  if (id.creator == rank_ && found->second->state != Value::State::pending) {
    after_.emplace_back([this, id] {
      const std::lock_guard one_by_one(booking_);
      auto facts = client::ask_reference(*session_, world_, id, false, Deadline::after(0));
      if (facts || facts.error().status != Status::not_found) return;
      const std::lock_guard lock(mutex_);
      const auto again = values_.find(id);
      if (again == values_.end()) return;
      again->second->booked = false;
      bury(std::move(again->second));
      values_.erase(again);
    });
    return;
  }
  found->second->booked = false;
  bury(std::move(found->second));
  values_.erase(found);
}

// A process has taken the place of one that died.
void Agent::worker_came(std::uint32_t rank, std::uint32_t life) {
  if (rank >= size() || rank == rank_ || life <= workers_[rank].life) return;
  if (workers_[rank].state == SHMBW_WORKER_STATE_PRESENT) worker_gone(rank, workers_[rank].life, true);
  workers_[rank].life = life;
  workers_[rank].state = SHMBW_WORKER_STATE_PRESENT;
  meeting_.reports.erase(rank);
  meeting_.last_sent.reset();
  wake();
}

void Agent::worker_gone(std::uint32_t rank, std::uint32_t life, bool died) {
  if (rank >= size() || rank == rank_ || life < workers_[rank].life) return;
  workers_[rank].life = life;
  const auto state = died ? SHMBW_WORKER_STATE_DIED : SHMBW_WORKER_STATE_LEFT;
  if (workers_[rank].state == state) return;
  workers_[rank].state = state;
  some_gone_ = true;
  for (const auto& [id, weak] : known_)
    if (auto it = weak.lock(); it && it->owner == rank && it->owner_life <= life && !it->failure) {
      it->state = Known::State::failed;
      it->failure = failure_of(gone_error(rank, it->owner_life, Status::owner_gone));
      it->failure->text = "the owner of reference " + text_of(id) + ", " + it->failure->text;
    }
  std::vector<std::shared_ptr<Future>> ended;
  for (const auto& [number, call] : calls_)
    if (call->to == rank && call->to_life <= life) ended.push_back(call);
  for (const auto& call : ended)
    fail(call, failure_of(gone_error(rank, call->to_life,
                                     call->kind == Kind::call ? Status::worker_gone : Status::owner_gone)));
  const auto from_it = [&](std::unique_ptr<Request>& request) {
    if (request->head.from != rank || request->head.from_life > life) return false;
    bury(std::shared_ptr<Request>(std::move(request)));
    return true;
  };
  // What it asked to be made is made all the same: others may hold a reference to it already, and wait.
  std::erase_if(work_, [&](auto& request) { return request->head.kind != Kind::create && from_it(request); });
  for (auto& [id, value] : values_) std::erase_if(value->waiting, from_it);
  for (auto it = unknown_.begin(); it != unknown_.end();) {
    std::erase_if(it->second, from_it);
    it = it->second.empty() ? unknown_.erase(it) : std::next(it);
  }
  meeting_.last_sent.reset();
  count_round();
  wake();
}

Result<void> Agent::read_workers() {
  std::vector<RefId> mine;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, value] : values_) mine.push_back(id);
  }
  client::Selection selection;
  selection.region.id = world_;
  auto list = client::list_workers(*session_, selection, Deadline::after(0));
  if (!list) return std::unexpected(list.error());
  auto references = client::list_references(*session_, selection, Deadline::after(0));
  const std::lock_guard lock(mutex_);
  for (const client::WorkerRow& row : list->rows) {
    if (row.record.rank >= size()) continue;
    Worker& worker = workers_[row.record.rank];
    const auto state = static_cast<shmbw_worker_state>(row.record.state);
    if (worker.name.empty()) worker.name = row.name;
    if (worker.life != 0) worker_came(row.record.rank, row.record.life);
    if (row.record.life < worker.life) continue;  // the list is older than what this worker knows
    worker.life = row.record.life;
    const bool gone = state == SHMBW_WORKER_STATE_LEFT || state == SHMBW_WORKER_STATE_DIED;
    if (!gone && worker.state == SHMBW_WORKER_STATE_ABSENT) worker.state = state;
    if (gone) worker_gone(row.record.rank, row.record.life, state == SHMBW_WORKER_STATE_DIED);
  }
  if (!references) return {};
  std::set<RefId> booked;
  for (const client::ReferenceRow& row : references->rows)
    booked.insert({row.record.reference.counter, row.record.reference.creator});
  for (const RefId id : mine)
    if (!booked.contains(id) && values_.contains(id)) unused(id);
  wake();
  return {};
}

#ifdef SHMB_TEST_SEAM
void Agent::set_trouble(Trouble trouble) {
  const std::lock_guard lock(mutex_);
  trouble_ = trouble;
}
#endif

}  // namespace shmb::remote
