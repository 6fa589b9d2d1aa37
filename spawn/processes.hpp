// SPDX-License-Identifier: Apache-2.0
// The parent's side of a set of ranks. The parent may have any number of threads, and is a guest's host: there is no
// thread, no signal handler and no exit handler here, only a child process (the guard) and a socket.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fd.hpp"
#include "client/deadline.hpp"
#include "client/session.hpp"
#include "spawn/plan.hpp"
#include "spawn/verdict.hpp"

namespace shmb::spawn {

class Processes {
 public:
  // Returns when all ranks run, or cannot: then nothing is left.
  static Result<std::unique_ptr<Processes>> start(Plan plan, client::Deadline deadline);
  // Ends what still runs, and waits for it.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // What became of the ranks, for ever the same, or nothing where some still run at the deadline. When it returns
  // something no process of the tree is left. `voluntary`: for a first failure from now on; below 0: as before.
  Result<const Verdict*> join(client::Deadline deadline, std::int64_t voluntary = -1);
  void end(bool at_once);
  const std::vector<pid_t>& pids() const { return pids_; }
  // With the ranks' broker: the one that the ranks' tickets for this process end with; after their end, where they made
  // none, a new one for who asks. Nothing where that broker is not known: ranks without a group, and no socket given.
  Result<std::shared_ptr<client::Session>> session();

 private:
  Processes() = default;
  Result<void> start_guard(const Plan& plan);
  Result<void> fork_guard(const Plan& plan);
  // Regions that ranks return are held for this process from before the ranks' end until it takes them. Their tickets
  // end with a session of it, so that they go with it at whatever moment it is killed, and with this object.
  Result<void> meet_broker(Plan& plan, client::Deadline deadline);
  // Takes what has come. False: end of file.
  bool listen();
  // The same; true: nothing more will come. The end of the socket alone would not do: a child that another thread of
  // the host forked while we made it has a copy of the far end.
  bool over();
  // Until there may be something to hear. False: the deadline has passed.
  Result<bool> wait(client::Deadline deadline);
  // Whatever state the guard is in (stopped, in a lock that nobody releases): nothing is left, within seconds.
  void abandon();
  void signal_guard(int signal) const;
  void reap();

  std::shared_ptr<client::Session> session_;
  std::weak_ptr<client::Session> after_;  // the ranks' end
  std::string broker_;                    // its socket
  std::uint64_t epoch_ = 0;               // the broker's; 0: not known
  std::mutex mutex_;
  Fd socket_;
  pid_t guard_ = -1, owner_ = 0;
  Fd guard_pidfd_;                        // until the destructor: other threads wait for it
  std::optional<client::Deadline> last_;  // the guard is gone: until then the supervisor may tell
  std::int64_t told_voluntary_ = -1;
  bool started_ = false, reaped_ = false, done_ = false;
  std::vector<pid_t> pids_;
  std::optional<Verdict> verdict_;
};

}  // namespace shmb::spawn
