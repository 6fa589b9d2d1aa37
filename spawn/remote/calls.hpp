// SPDX-License-Identifier: Apache-2.0
// The calls of this worker to others, and to itself, from their beginning to their outcome.
//
// A call is answered, fails, passes its deadline, or ends with its worker or the world. The first of these decides it,
// once. A program that wants to know gets a callback, without the lock. A creation is different in one point: its
// deadline is final for every worker. So the broker's table is asked whether the owner was faster.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "spawn/remote/callbacks.hpp"
#include "spawn/remote/life.hpp"
#include "spawn/remote/monitor.hpp"
#include "spawn/remote/place.hpp"
#include "spawn/remote/references.hpp"
#include "spawn/remote/roster.hpp"
#include "spawn/remote/state.hpp"

namespace shmb::remote {

inline constexpr std::int64_t kCallTimeout = SHMB_REMOTE_CALL_TIMEOUT;
// How the broker's table says that a creator gave up: then the owner has nothing to add.
extern const char* const kGaveUp;

class Calls {
 public:
  Calls(const Place& place, Monitor& monitor, Life& life, Callbacks& callbacks, const Roster& roster,
        References& references, std::int64_t timeout)
      : place_(place),
        monitor_(monitor),
        life_(life),
        callbacks_(callbacks),
        roster_(roster),
        references_(references),
        timeout_(timeout == 0 ? kCallTimeout : timeout) {}

  // Without the lock. Times are in ns; 0 is the default, client::kForever no limit.
  std::int64_t timeout() const;
  void set_timeout(std::int64_t timeout);
  void when_done(const std::shared_ptr<Future>& future, std::function<void()> then);
  void give_up(const std::shared_ptr<Future>& future);  // it was never sent

  // All below with the lock.
  void add(const std::shared_ptr<Future>& future, std::int64_t timeout);
  std::shared_ptr<Future> pending(std::uint64_t call) const;  // null: it is decided already
  void answered(Arrived& arrived);  // by another worker; takes what it needs, the rest is destroyed without the lock
  void complete(const std::shared_ptr<Future>& future);
  void fail(const std::shared_ptr<Future>& future, Failure failure);
  void fail_all(const Failure& failure);
  void look_at_failed(RefId id);  // a reference has failed, and not by this worker's word: the reason follows
  void worker_gone(std::uint32_t rank, std::uint32_t life);
  void lose(const Error& why);  // the world
  void expire();
  std::optional<std::int64_t> next_deadline() const;  // CLOCK_MONOTONIC
  std::size_t count() const { return pending_.size(); }

 private:
  void forget(const std::shared_ptr<Future>& future);
  void tell(const std::shared_ptr<Future>& future);
  void fail_fetches(RefId id, const Failure& failure);
  // Without the lock:
  void settle_time_out(const std::shared_ptr<Future>& future);
  void learn_why_failed(RefId id);

  const Place& place_;
  Monitor& monitor_;
  Life& life_;
  Callbacks& callbacks_;
  const Roster& roster_;
  References& references_;
  std::int64_t timeout_;
  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<Future>> pending_;
  std::multimap<std::int64_t, std::uint64_t> deadlines_;  // of pending_
};

}  // namespace shmb::remote
