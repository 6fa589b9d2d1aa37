// SPDX-License-Identifier: Apache-2.0
// The parent's side of a set of ranks. The parent may have any number of threads, and the library is a guest in it. So
// there is no thread, no signal handler and no exit handler here, only a child process (the guard) and a socket.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fd.hpp"
#include "client/session/deadline.hpp"
#include "client/session/session.hpp"
#include "spawn/ranks/plan.hpp"
#include "spawn/ranks/verdict.hpp"

namespace shmb::spawn {

// Ownership: the handle of the caller owns the guard's process and the socket to it. Its end ends the ranks, so a
// program that loses the handle leaves no process behind.
//
// Threads: any thread may call any function. `mutex_` orders the reads of the socket. A thread that waits holds it for
// a moment only, so end() from another thread gets through.
//
// States: running, until the verdict has come or the guard and the supervisor are gone; then over, with a verdict that
// never changes. If both were killed, the verdict says so (supervisor_lost).
class Processes {
 public:
  // Returns when all ranks run, or when they cannot run; then nothing is left.
  static Result<std::unique_ptr<Processes>> start(Plan plan, client::Deadline deadline);
  // Ends ranks that still run, and waits for them.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // The verdict, always the same one, or nullptr where ranks still run at the deadline. When it returns a verdict, no
  // process of the tree is left. `voluntary`: applies to a first failure from now on; below 0: unchanged.
  Result<const Verdict*> join(client::Deadline deadline, std::int64_t voluntary = -1);
  void end(bool at_once);
  // Readable once the guard, the last of the tree in all but accidents, has ended. -1: this kernel has no pidfd.
  int descriptor() const { return guard_pidfd_.get(); }
  const std::vector<pid_t>& pids() const { return pids_; }
  // A session at the ranks' broker: the one with which the ranks' tickets for this process end. After the ranks' end,
  // where they made no tickets, a new one for the caller. Null where that broker is not known: ranks without a group,
  // and no socket given.
  Result<std::shared_ptr<client::Session>> session();

 private:
  Processes() = default;
  Result<void> start_guard(const Plan& plan);
  Result<void> fork_guard(const Plan& plan);
  // Regions that ranks return are held for this process from before the ranks' end until it takes them. Their tickets
  // end with a session of this process and with this object. So they end also if it is killed, at any moment.
  Result<void> meet_broker(Plan& plan, client::Deadline deadline);
  // Reads what has come. False: end of file.
  bool listen();
  // The same. True: nothing more will come. The end of the socket alone is no proof. Another thread of the program may
  // have forked at the same time, and its child has a copy of the far end.
  bool over();
  // Waits until a message may be there. False: the deadline has passed.
  Result<bool> wait(client::Deadline deadline);
  // In any state of the guard (stopped, or waiting for a lock for ever): within seconds nothing is left.
  void abandon();
  void signal_guard(int signal) const;
  void reap();

  std::shared_ptr<client::Session> session_;
  std::weak_ptr<client::Session> after_;  // after the ranks' end
  std::string broker_;                    // its socket
  std::uint64_t epoch_ = 0;               // the broker's; 0: not known
  std::mutex mutex_;
  Fd socket_;
  pid_t guard_ = -1, owner_ = 0;
  Fd guard_pidfd_;                        // until the destructor: other threads wait for it
  std::optional<client::Deadline> last_;  // the guard is gone: until then the supervisor may report
  std::int64_t told_voluntary_ = -1;
  bool started_ = false, reaped_ = false, done_ = false;
  std::vector<pid_t> pids_;
  std::optional<Verdict> verdict_;
};

}  // namespace shmb::spawn
