// SPDX-License-Identifier: Apache-2.0
// This process as a worker of a world: the agent makes the nouns of remote, wires them together, and owns the threads.
//
// Down, a call of the user:   Caller -> Calls (what becomes of it), References (forks are booked) -> Sender -> Inbox.
// Up, what arrives:           Inbox -> Arrivals -> Server (requests), Calls (answers), References, Meeting, Workers.
// A request of another one:   Server -> the user's function -> Server -> Sender, or Calls for a call to oneself.
// Events of the broker:       Arrivals -> Workers -> Roster, Sender, References, Calls, Server, Meeting.
// The end:                    Shutdown -> Meeting, and then each noun gives up what it holds.
//
// One lock guards all of it (monitor.hpp); References has a second one, for bookings. The lock is never held while a
// queue, the broker or the user's code is called. Of the threads that wait one leads: it takes what arrives, for all.
// The others sleep until that has happened. step() is one turn of a thread that waits: a callback, else a request if it
// may serve, else it leads, else it sleeps. Without threads of its own a worker serves in every wait of the user. With
// some, only they serve. A noun that has to wait asks for a step (stepper.hpp). A noun that has changed something wakes
// the others through the monitor. Work that may not be done under the lock is left to a callback (callbacks.hpp).
//
// Its states are those of life.hpp: open, ending, leaving, closed. A world may be lost in any of them, and a fork may
// make this process another one than the worker. So each noun looks again after everything that ran without the lock.
//
// Guarantees: the outcome of a call is decided once, by answer, deadline or the end of a worker, whichever is seen
// first. The outcome of a reference is decided by the broker's table, for all workers. A worker's death is seen after
// everything that it has sent, and before anything that its successor sends. Calls, messages and references belong to
// one life of a worker: the successor of a dead one has none of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "client/session/forked.hpp"
#include "spawn/remote/caller.hpp"
#include "spawn/remote/join.hpp"
#include "spawn/remote/shutdown.hpp"

namespace shmb::remote {

class Agent final : public client::ForkGuarded, private Stepper {
 public:
  // Any thread may call any of these, without the lock. The handles of users keep the agent alive.
  static Result<std::shared_ptr<Agent>> join(Wanted wish);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Waiting. All of these serve meanwhile where the worker has no threads of its own.
  Result<void> wait(Future& future, std::int64_t wait);
  Result<void> wait_until(const std::function<bool()>& asked, client::Deadline deadline);  // the user's, see notify()
  Result<std::shared_ptr<Value>> local(Reference& reference, std::int64_t wait);
  Result<void> serve(client::Deadline deadline, bool once);
  void notify();

  Shutdown::Ended shutdown(const ShutdownRequest& wish) {
    const auto self = place_.agent.lock();  // a callback of a call that fails may give up the last handle
    return shutdown_.run(wish);
  }
  // Threads that run a call which does not return are left behind, so that a shutdown has an end.
  void end_threads();

  // For handles.
  const Place& place() const { return place_; }
  const Monitor& monitor() const { return monitor_; }
  const Life& life() const { return life_; }
  Caller& caller() { return caller_; }
  Calls& calls() { return calls_; }
  Server& server() { return server_; }
  References& references() { return references_; }
  const Memory& memory() const { return memory_; }
  TestHooks& hooks() { return hooks_; }

  Worker worker(std::uint32_t rank) const;
  Result<std::uint32_t> find(const std::string& name) const;
  struct Counters {
    std::uint64_t owned = 0, users = 0, held = 0, calls = 0, waiting = 0, running = 0;
  };
  Result<Counters> counters();

  void lock_for_fork() override { monitor_.mutex().lock(); }
  void unlock_after_fork() override { monitor_.mutex().unlock(); }

 private:
  Agent(CheckedWish wish, client::ForkMark mark);

  // Stepper, with the lock.
  void catch_up(Lock& lock) override;
  void step(Lock& lock, client::Deadline until, bool serves) override;
  void turn(Lock& lock, client::Deadline until, bool serves, void (Monitor::*sleep)(Lock&, client::Deadline));
  bool may_look() const override;
  void look(Lock& lock) override { arrivals_.lead(lock, client::Deadline::now()); }

  void expire();
  void run_callbacks(Lock& lock);
  bool may_serve() const;
  client::Deadline nearest(client::Deadline until) const;
  Result<void> wait_for(const std::function<bool()>& done, client::Deadline deadline, const char* what);
  Result<void> start_threads();
  void serve_as_thread(bool& ended);

  const CheckedWish wish_;
  Place place_;
  Monitor monitor_;
  Life life_;
  Callbacks callbacks_;
  Roster roster_;
  TestHooks hooks_;
  const Memory memory_;
  References references_;
  Calls calls_;
  Sender sender_;
  Server server_;
  Meeting meeting_;
  Workers workers_;
  Arrivals arrivals_;
  Caller caller_;
  Shutdown shutdown_;
  std::uint64_t notices_ = 0;
  struct Thread {
    std::thread thread;
    std::shared_ptr<bool> ended;  // with the lock
  };
  std::vector<Thread>* threads_ = nullptr;  // leaked in a forked child, whose threads they are not
};

}  // namespace shmb::remote
