// SPDX-License-Identifier: Apache-2.0
// The one lock of a worker, and the threads that sleep and wake at it.
//
// The lock guards all nouns of the worker. It is never held while a queue, the broker or the user's code is called.
// Threads that wait sleep here. One of them leads: it reads the inbox for all, and sleeps there. So wake() does two
// things: it wakes the sleepers, and it interrupts the leader. The inbox is kept here for that reason. It is null
// before the worker has joined and after its shutdown.
//
// A thread that waits for a call reads the answer itself, and a thread that serves reads the next request itself. To
// wake another thread would take longer than most calls. So a thread that stops leading wakes no other one to lead:
// when calls come one after another, it leads again itself. An idle thread that did not lead last looks now and then
// (kVacant) whether the place of the leader is vacant. If it stays vacant, the last leader runs a function for long, or
// its program is busy elsewhere. Then the idle thread leads.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "client/session/condition.hpp"
#include "client/session/deadline.hpp"
#include "spawn/remote/inbox.hpp"

namespace shmb::remote {

using Lock = std::unique_lock<std::mutex>;

class Monitor {
 public:
  std::mutex& mutex() const { return mutex_; }

  // All of these are called with the lock.
  const std::shared_ptr<Inbox>& inbox() const { return inbox_; }
  void set_inbox(std::shared_ptr<Inbox> inbox) { inbox_ = std::move(inbox); }
  std::shared_ptr<Inbox> take_inbox() { return std::exchange(inbox_, nullptr); }

  bool leading() const { return leading_; }
  // Whether a thread leads that will not look again by itself before that time.
  bool leads_beyond(std::int64_t time) const { return leading_ && leads_until_ > time; }
  void wake();
  // The same for threads that wait for something. Idle ones have nothing to do for it.
  void wake_waiters() {
    changed_.notify_all();
    wake_leader();
  }
  // A request waits for a thread that serves.
  void wake_for_work();
  // Of the idle threads one is enough: it takes one piece of work, and wakes another thread for the rest.
  void wake_sleepers() {
    changed_.notify_all();
    wake_idle();
  }
  void wake_leader();
  void sleep(Lock& lock, client::Deadline until);  // a signal ends it
  void idle(Lock& lock, client::Deadline until);   // the same for a thread that waits for nothing in particular
  // Whether an idle thread may lead now: it led last, or no thread has led for kVacant.
  bool may_lead_idly() const;
  // Call it before this thread does something that may take long. If no thread leads, an idle one then looks at that.
  void watch_lead();
  // True: `done` has become true before `longest` was over.
  template <class Done>
  bool sleep_for(Lock& lock, std::int64_t longest, Done done) {
    for (const auto until = client::Deadline::after(longest); !done() && !until.passed_by_clock();)
      changed_.wait(lock, until);
    return done();
  }
  void await_no_leader(Lock& lock);

  // While it exists this thread leads. However it ends, the lock is held behind it, and another thread may lead.
  class Leading {
   public:
    // `serves`: this thread runs one of the requests that arrive, as soon as it does not lead any more.
    Leading(Monitor& monitor, Lock& lock, client::Deadline until, bool serves) : monitor_(monitor), lock_(lock) {
      monitor_.leader_serves_ = serves;
      monitor_.leading_ = true;
      monitor_.leader_ = std::this_thread::get_id();
      monitor_.leads_until_ = until.time();
    }
    Leading(const Leading&) = delete;
    Leading& operator=(const Leading&) = delete;
    // The lock is taken for what has arrived, and held until the end.
    void deliver() {
      lock_.lock();
      monitor_.told_idle_ = false;
    }
    // For messages that were for waiting threads: one of those threads may lead next, if it calls again.
    void give_up_place() { monitor_.leader_ = {}; }
    ~Leading() {
      if (!lock_.owns_lock()) deliver();
      monitor_.leave_lead();
    }

   private:
    Monitor& monitor_;
    Lock& lock_;
  };

 private:
  void leave_lead();
  void wake_idle() {
    idle_.notify_one();
    told_idle_ = true;
  }

  mutable std::mutex mutex_;
  client::Condition changed_, idle_;
  std::shared_ptr<Inbox> inbox_;
  bool leading_ = false;
  bool leader_serves_ = false;
  bool told_idle_ = false;                    // an idle thread was woken, and looks when the lock is free
  bool watched_ = false;                      // an idle thread looks for a vacant place
  std::uint32_t leads_ = 0, leads_seen_ = 0;  // how often a thread has stopped leading, and as the watch saw it
  std::int64_t vacant_since_ = 0;
  std::thread::id leader_;  // the last one
  std::int64_t leads_until_ = 0;
};

}  // namespace shmb::remote
