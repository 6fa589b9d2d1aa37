// SPDX-License-Identifier: Apache-2.0
// The one lock of a worker, and the threads that sleep and wake at it.
//
// The lock guards all nouns of the worker. It is never held while a queue, the broker or the user's code is called.
// Threads that wait sleep here. One of them leads: it reads the inbox for all, and sleeps there. So wake() does two
// things: it wakes the sleepers, and it interrupts the leader. The inbox is kept here for that reason. It is null
// before the worker has joined and after its shutdown.
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
  // Of the threads that idle one is enough: it looks for whatever there is, and hands the rest on.
  void wake_sleepers() {
    changed_.notify_all();
    idle_.notify_one();
    told_idle_ = true;
  }
  void wake_leader();
  void sleep(Lock& lock, client::Deadline until);  // a signal ends it
  void idle(Lock& lock, client::Deadline until);   // the same for a thread that waits for nothing in particular
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
    Leading(Monitor& monitor, Lock& lock, client::Deadline until) : monitor_(monitor), lock_(lock) {
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
    ~Leading() {
      if (!lock_.owns_lock()) deliver();
      monitor_.leading_ = false;
      if (monitor_.told_idle_) monitor_.changed_.notify_all();
      else monitor_.wake_sleepers();
    }

   private:
    Monitor& monitor_;
    Lock& lock_;
  };

 private:
  mutable std::mutex mutex_;
  client::Condition changed_, idle_;
  std::shared_ptr<Inbox> inbox_;
  bool leading_ = false;
  bool told_idle_ = false;  // one of them will look, when the leader gives up the lock
  std::thread::id leader_;
  std::int64_t leads_until_ = 0;
};

}  // namespace shmb::remote
