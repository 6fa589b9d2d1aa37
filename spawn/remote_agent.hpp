// SPDX-License-Identifier: Apache-2.0
// This process as a worker of a world. One lock guards everything; it is never held while a queue, the broker or the
// user's code is called. Of the threads that wait one takes what arrives and gives it to whom it belongs, the others
// sleep until that has happened; who may serve runs what others ask meanwhile.
//
// Guarantees: what became of a call is decided once, by answer, deadline or the end of a worker, whichever is seen
// first; what became of a reference is decided by the broker's table, for all workers; a worker's death is seen behind
// everything that it has sent, and before anything that its successor sends. A call, a message and a reference belong
// to one life of a worker: whoever takes the place of a dead one has none of them.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "client/forked.hpp"
#include "spawn/remote_inbox.hpp"
#include "spawn/remote_roster.hpp"
#include "spawn/remote_state.hpp"

namespace shmb::remote {

inline constexpr std::int64_t kCallTimeout = 60'000'000'000, kInitTimeout = 60'000'000'000,
                              kShutdownTimeout = 300'000'000'000;

struct Wish {
  std::string name, address, socket;
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  std::uint32_t threads = 0;
  std::int64_t timeout = 0, call_timeout = 0;
  std::function<void(std::unique_ptr<Request>)> request;
  void (*drop)(void* context, void* object) = nullptr;
  void* context = nullptr;
};

struct ShutdownWish {
  bool local = false, keep_references = false, report_leaks = false;
  std::int64_t timeout = 0;
};

std::string text_of(RefId id);
extern const char* const kGaveUp;

class Agent final : public client::ForkGuarded, public std::enable_shared_from_this<Agent> {
 public:
  using Lock = std::unique_lock<std::mutex>;

  static Result<std::shared_ptr<Agent>> join(Wish wish);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Calls. `timeout`: 0 is the default, client::kForever none.
  Result<std::shared_ptr<Future>> call(std::uint32_t to, std::string_view function, const Payload& payload,
                                       bool on_object, std::int64_t timeout);
  Result<std::shared_ptr<Reference>> create(std::uint32_t to, std::string_view function, const Payload& payload,
                                            bool on_object, std::int64_t timeout);
  Result<std::shared_ptr<Reference>> own(void* object, std::string type);
  Result<std::shared_ptr<Future>> fetch(const std::shared_ptr<Reference>& reference, Kind kind, std::int64_t timeout);
  Result<std::shared_ptr<Value>> local(Reference& reference, std::int64_t wait);

  // Waiting.
  Result<void> wait(Future& future, std::int64_t wait);
  // `done` is asked with the lock held; `asked` is the user's, and asked without it.
  Result<void> wait_for(const std::function<bool()>& done, client::Deadline deadline, const char* what);
  Result<void> wait_until(const std::function<bool()>& asked, client::Deadline deadline);
  void ran();
  Result<void> serve(client::Deadline deadline, bool once);
  void notify();
  void when_done(const std::shared_ptr<Future>& future, std::function<void()> then);

  // Answers. The request is spent.
  Result<void> answer(std::unique_ptr<Request> request, const Payload& payload);
  Result<void> answer_object(std::unique_ptr<Request> request, void* object, std::string type);
  Result<void> fail(std::unique_ptr<Request> request, Failure failure);

  // References, by their own ends.
  void let_go(Reference& reference);
  Result<void> usable(const Reference& reference, const char* what);
  bool owned_here(const Known& known) const { return known.owner == rank_ && known.owner_life == life_; }

  struct Ended {
    std::uint32_t leaks = 0;
    std::optional<Error> error;
  };
  Ended shutdown(const ShutdownWish& wish);
  // Those that run a call which does not return are left behind, as a shutdown has an end.
  void end_threads();

  Result<void> open() const;  // neither forked nor shut down
  bool forked() const { return !mark_.intact(); }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t size() const { return workers_.size(); }
  Worker worker(std::uint32_t rank);
  Result<std::uint32_t> find(const std::string& name);
  const std::shared_ptr<client::Session>& session() const { return session_; }
  std::uint64_t group() const { return group_; }
  std::int64_t timeout();
  void set_timeout(std::int64_t timeout);
  struct Counters {
    std::uint64_t owned = 0, users = 0, held = 0, calls = 0, waiting = 0, running = 0;
  };
  Result<Counters> counters();
  std::mutex& mutex() { return mutex_; }
  Result<client::Region::Handle> region(std::uint64_t length, std::int64_t timeout = 0);
  Result<client::Region::Handle> again(const client::Region& region);  // one more handle of the same memory
  Result<client::Region::Handle> lease(client::Region& region);        // of a region of another session

  void lock_for_fork() override { mutex_.lock(); }
  void unlock_after_fork() override { mutex_.unlock(); }

#ifdef SHMB_TEST_SEAM
  // What tests do to messages of one kind that arrive: lose so many, or hold each back so long.
  struct Trouble {
    Kind kind = Kind::create;
    int lose = 0;
    std::int64_t delay = 0;
  };
  void set_trouble(Trouble trouble);
#endif

 private:
  explicit Agent(Wish wish) : wish_(std::move(wish)) {}
  using Clock = client::Deadline;

  // remote_init.cpp
  Result<void> await_world(Clock deadline);
  Result<void> await_event(Clock deadline);
  Result<void> await_peers(Clock deadline);
  Result<void> look_at_world(Clock deadline);
  std::unexpected<Error> ended_under_us() const;
  Result<void> open_inbox(Clock deadline);
  Result<void> open_inbox_in(std::uint64_t pool, Clock deadline);
  Result<void> start_threads();
  void serve_as_thread(bool& ended);

  // remote_agent.cpp. With the lock, where no other word is said:
  void step(Lock& lock, Clock until, bool serves);
  void lead(Lock& lock, Clock until);
  struct Leading;
  void run_after(Lock& lock);
  bool may_run_after() const;
  void flush(Lock& lock);
  void want_room(std::uint32_t to);  // a send has just found none: `wanted_` says so until it is worth another try
  void wake();
  void bury(std::shared_ptr<void> remains) {
    after_.emplace_back([kept = std::move(remains)] {});
  }
  bool may_serve() const;
  Clock nearest(Clock until) const;
  Result<void> open_locked() const;
  static std::unexpected<Error> forked_error();

  // remote_arrival.cpp
  struct Arrived {
    Incoming message;
    std::vector<std::shared_ptr<Reference>> references;
  };
  // Who wrote what arrived. Without the lock; of who leads.
  void name_writers(std::vector<Arrived>& arrived, std::size_t from);
  void take_in(Arrived& arrived);
  void admit(std::unique_ptr<Request> request);
  void refuse(std::unique_ptr<Request> request, const char* why);
  // False: the value is there. Else the request waits for it, or was refused. Without the lock.
  bool park(std::unique_ptr<Request>& request, RefId id, std::shared_ptr<Value>& value);
  // What waited is served now, or is nobody's any more (`late`, to be destroyed without the lock).
  void release_waiting(Value& value, std::vector<std::unique_ptr<Request>>& late);

  // remote_workers.cpp
  void take_event(const client::RemoteEvent& event);
  void worker_gone(std::uint32_t rank, std::uint32_t life, bool died);
  void worker_came(std::uint32_t rank, std::uint32_t life);
  Result<void> read_workers();  // without the lock
  void read_writers();          // likewise; of who leads

  // remote_outcome.cpp
  void forget(const std::shared_ptr<Future>& future);
  void complete(const std::shared_ptr<Future>& future);
  void fail(const std::shared_ptr<Future>& future, Failure failure);
  void fail_fetches(RefId id, const Failure& failure);
  void expire();
  void lose(const Error& why);
  void settle_time_out(const std::shared_ptr<Future>& future);  // without the lock
  void look_at_failed(RefId id);                                // likewise

  // remote_references.cpp
  std::shared_ptr<Known> find_known(RefId id) const;
  std::shared_ptr<Known> known(RefId id, std::uint32_t owner, std::uint32_t owner_life);
  void unused(RefId id);
  // Without the lock:
  Result<std::vector<WireReference>> fork_for(std::uint32_t to, std::uint32_t life, const Payload& payload);
  Result<std::vector<std::shared_ptr<Reference>>> take(std::span<const WireReference> references);
  void give_back(std::span<const WireReference> references);
  void release_references();
  std::uint32_t count_leaks(Clock deadline);

  // remote_send.cpp; without the lock
  Result<void> may_call(std::uint32_t to, std::string_view function, const Payload& payload, bool on_object);
  // `life` 0: whoever has the place.
  Result<std::shared_ptr<Future>> begin(Kind kind, std::uint32_t to, std::uint32_t life, std::string_view function,
                                        std::int64_t timeout, RefId reference);
  void look_while_sending(Lock& lock, Inbox& inbox);  // with the lock
  Result<void> send(std::uint32_t to, const Head& head, std::string_view function, const Payload& payload);
  Result<void> send_request(const std::shared_ptr<Future>& future, std::uint8_t flags, const Payload& payload);
  void give_up(const std::shared_ptr<Future>& future);
  Error closed_or(Error why);
  Result<Content> keep(const Payload& payload, bool stays, std::int64_t deadline);
  // Until the call's deadline, CLOCK_MONOTONIC, 0: it has none. DEADLINE: it has passed, the broker was not asked.
  Result<client::Region::Handle> in_region(std::string_view bytes, std::int64_t deadline);
  SlotBytes in_slot(std::string_view bytes, std::int64_t deadline);  // nothing: a region is to take them
  SlotBytes await_slot(std::string_view bytes, std::int64_t deadline);

  // remote_serve.cpp; without the lock
  void run(std::unique_ptr<Request> request);
  Result<void> reply(const Request& request, const Payload& payload);
  Result<void> reply_failure(const Request& request, const Failure& failure);
  Result<void> settle(std::unique_ptr<Request> request, std::optional<Failure> failure);

  // remote_shutdown.cpp
  std::optional<Error> meet(std::uint64_t phase, Clock deadline);
  void take_shutdown(const Head& head);
  bool is_idle() const;
  void tell_round(std::uint32_t rank);
  void count_round();

  const Wish wish_;
  client::ForkMark mark_;
  std::shared_ptr<client::Session> session_;
  std::shared_ptr<Inbox> inbox_;
  std::uint64_t world_ = 0, group_ = 0;
  std::uint32_t rank_ = 0, life_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Roster workers_;
  bool some_gone_ = false;  // since this worker came
  bool complete_ = false, closed_ = false, leading_ = false, ending_ = false, leaving_ = false;
  bool taking_ = false;  // who leads waits for messages, without the lock
  std::uint64_t pool_told_ = 0;
  std::optional<Error> lost_;
  std::int64_t call_timeout_ = kCallTimeout;
  std::uint64_t last_call_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<Future>> calls_;
  std::multimap<std::int64_t, std::uint64_t> deadlines_;  // of calls_
  std::deque<std::unique_ptr<Request>> work_;
  std::uint64_t running_ = 0;
  std::uint64_t sent_ = 0, received_ = 0;  // requests, to and from others
  std::map<RefId, std::shared_ptr<Value>> values_;
  std::map<RefId, std::vector<std::unique_ptr<Request>>> unknown_;  // their creation has not come yet
  std::map<RefId, std::weak_ptr<Known>> known_;
  std::set<RefId> forks_;  // held here
  std::mutex booking_;     // of own values, taken before the other one
  std::uint64_t notices_ = 0;
  unsigned busy_ = 0;                  // of who leads
  std::uint32_t sent_since_look_ = 0;  // messages, since this worker last took any in
  struct Writer {
    std::uint32_t participant_life = 0, rank = 0, life = 0;  // life 0: no worker
  };
  std::array<Writer, pool::kParticipants> writers_{};  // of who leads: participants of the pool that have written
  std::vector<client::RemoteEvent> put_off_;           // of who leads: what was told before messages were read
  std::deque<std::function<void()>> after_;
  unsigned callbacks_ = 0;  // of what was in there, under way
  struct InCallbacks;
  unsigned callbacks_here() const;  // of callbacks_, in this thread
  std::uint64_t wanted_ = 0;        // a bit for each worker whose queue had no room, until who leads has seen some
  // Messages that nobody waits for. Whoever waits sends them where there is room, and waits for none.
  struct Small {
    std::uint32_t to = 0, life = 0;
    Head head;
  };
  std::deque<Small> outbox_, without_room_;
  // A bit for each worker that without_room_ has something for: its order is kept. Of some a send failed for another
  // reason, of which nobody tells when it has passed: they are tried again at that time.
  std::uint64_t full_ = 0, failed_ = 0;
  std::int64_t try_again_ = 0;
  bool flushing_ = false;
  struct Server {
    std::thread thread;
    std::shared_ptr<bool> ended;  // with the lock
  };
  std::vector<Server>* threads_ = nullptr;  // leaked in a forked child, whose threads they are not

  struct Meeting {
    std::uint64_t round = 0, totals = 0, over = 0;
    std::uint64_t phase = 0;
    bool there = false;
    struct Report {
      std::uint64_t phase = 0, round = 0, sent = 0, received = 0, census = 0;
    };
    std::map<std::uint32_t, Report> reports;
    std::optional<std::uint64_t> last_sent;
  } meeting_;

#ifdef SHMB_TEST_SEAM
  Trouble trouble_;
  std::deque<std::pair<std::int64_t, Arrived>> held_back_;
  std::set<RefId> early_;  // unused before their creation came: of those that are held back
#endif
};

}  // namespace shmb::remote
