// SPDX-License-Identifier: Apache-2.0
// The requests of other workers, from their arrival until they are answered.
//
// A request waits in `work_` until a thread that may serve runs it. A request about a value that is not there yet waits
// with that value. If not even its creation has come, the request waits in `unknown_`. Both go to `work_` when the
// value comes. The number of waiting requests is bounded, and more are refused. A value is settled with the broker
// before any request is answered from it. If the creator's deadline was earlier, the value has failed for every worker.
// A request of this worker to itself takes the same way, and its answer ends the call without a message.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "spawn/remote/calls.hpp"
#include "spawn/remote/memory.hpp"
#include "spawn/remote/sender.hpp"

namespace shmb::remote {

class Server {
 public:
  using Run = std::function<void(std::unique_ptr<Request>)>;  // the user's, who answers it
  Server(const Place& place, Monitor& monitor, const Life& life, Callbacks& callbacks, const Roster& roster,
         References& references, Calls& calls, Sender& sender, const Memory& memory, Run run)
      : place_(place),
        monitor_(monitor),
        life_(life),
        callbacks_(callbacks),
        roster_(roster),
        references_(references),
        calls_(calls),
        sender_(sender),
        memory_(memory),
        user_runs_(std::move(run)) {}

  // With the lock.
  void received(Arrived& arrived);               // of another worker; takes what it needs
  void count_received() { ++received_; }         // one that tests lose
  void admit(std::unique_ptr<Request> request);  // that is here, of whichever worker
  bool run_one(Lock& lock);                      // false: none waits, or this thread is too deep in others
  void worker_gone(std::uint32_t rank, std::uint32_t life);
  std::vector<std::unique_ptr<Request>> take_all();  // that wait, at the end
  bool idle() const { return work_.empty() && running_ == 0; }
  std::size_t backlog() const { return work_.size(); }
  std::uint64_t running() const { return running_; }
  std::uint64_t waiting() const;                        // also for values
  std::uint64_t requests() const { return received_; }  // received from others so far

  // Answers, without the lock. The request is spent.
  Result<void> answer(std::unique_ptr<Request> request, const Payload& payload);
  Result<void> answer_object(std::unique_ptr<Request> request, void* object, std::string type);
  Result<void> fail(std::unique_ptr<Request> request, Failure failure);
  void ran();  // a request that counted as running is gone

 private:
  // With the lock:
  void refuse(std::unique_ptr<Request> request, const char* why);
  void make_value(Request& request);
  void forget_late(std::vector<std::unique_ptr<Request>>& waiting);
  void set_aside(std::unique_ptr<Request> request, std::vector<std::unique_ptr<Request>>& where);
  void release_waiting(Value& value, std::vector<std::unique_ptr<Request>>& late);
  void name_origin(Failure& failure) const;
  std::shared_ptr<Future> own_call(const Request& request);
  // Without the lock:
  void run(std::unique_ptr<Request> request);
  // The value that a request is about goes to `value`. False: the request waits for it, or was refused.
  bool find_subject(std::unique_ptr<Request>& request, std::shared_ptr<Value>& value);
  // False: the value is there. Else the request waits for it, or was refused.
  bool park(std::unique_ptr<Request>& request, RefId id, std::shared_ptr<Value>& value);
  void reply_value(std::unique_ptr<Request> request, const Value& value);
  Result<void> reply(const Request& request, const Payload& payload);
  Result<void> reply_failure(const Request& request, const Failure& failure);
  Result<void> settle(std::unique_ptr<Request> request, std::optional<Failure> failure);

  const Place& place_;
  Monitor& monitor_;
  const Life& life_;
  Callbacks& callbacks_;
  const Roster& roster_;
  References& references_;
  Calls& calls_;
  Sender& sender_;
  const Memory& memory_;
  const Run user_runs_;
  std::deque<std::unique_ptr<Request>> work_;
  std::map<RefId, std::vector<std::unique_ptr<Request>>> unknown_;  // their creation has not come yet
  std::uint64_t running_ = 0, received_ = 0;
};

}  // namespace shmb::remote
