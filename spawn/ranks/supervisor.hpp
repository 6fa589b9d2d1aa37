// SPDX-License-Identifier: Apache-2.0
// Runs ranks (or one command) so that their whole process tree ends with them, and is known to have ended.
//
// Two processes stand above the ranks: the guard (the caller, which only waits) and the supervisor proper
// (spawn/ranks/overseer.hpp). Both are subreapers, so a daemonised descendant stays theirs. Each sees the other's end
// by pidfd and by end of file on a socket between them. The one that is left ends the tree, so one SIGKILL is always
// covered. If both are killed at once, daemonised descendants stay alive; the ranks then end by their parent-death
// signal.
//
// Job control: guard and ranks share the caller's process group, so the terminal's signals reach the ranks from the
// kernel and stop or continue both. The supervisor has a session of its own and survives `kill -9 %1`.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "spawn/ranks/plan.hpp"
#include "spawn/ranks/verdict.hpp"

namespace shmb::spawn {

// Exit statuses for failures of its own, numbered as by env(1), timeout(1) and the shells.
inline constexpr int kExitFailed = 125;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

// The reports of the two processes to others. A job without a broker uses this base class, which reports nothing.
class Reporter {
 public:
  virtual ~Reporter() = default;
  // In the supervisor, before the ranks start: opens its own session in the supervisor's role.
  virtual Result<void> enter_supervisor() { return {}; }
  // The last process of the tree is gone. In the supervisor, or in the guard when that one was killed.
  virtual void tree_gone() {}
  // Brokers. The supervisor neither waits for them nor signals them, even if one of the tree started them.
  virtual std::vector<pid_t> bystanders() { return {}; }
  // A sentence for the person at the terminal, with its end of line. Empty: nothing is printed. The supervisor writes
  // it, because a terminal or pipe that takes nothing must not delay it.
  virtual std::string line(const std::string&) { return {}; }
  // The same for the number of ranks that have ended.
  virtual std::string progress(int, int) { return {}; }
  // In a rank born by fork only: closes what belongs to the supervisor.
  virtual void forget() {}
  // Descriptors that a forked supervisor must keep open.
  virtual std::vector<int> descriptors() { return {}; }
};

// The process that waits for a verdict: the socket to it, and its pidfd.
struct Parent {
  int socket = -1, pidfd = -1;
};

struct Outcome {
  int exit_status = kExitFailed;  // 0, or of the first failing rank: its code, 128 + n for signal n, or 125 to 127
  std::string sentence;           // the reason, for 125 to 127
};

// Returns when no process of the tree is left. The caller has one thread and has connected to its broker already: a
// broker started later would become a child of this subreaper.
//
// Signals to the caller: TERM, INT, HUP and QUIT end the tree. The first time the tree gets that signal and a
// grace, the second time SIGKILL. A signal from the terminal is left to the ranks, which got it too. USR1 and USR2 go
// to the ranks. The end of `parent` ends the tree, and so does end of file on its socket.
Outcome run_job(const Plan& plan, Reporter& reporter, Parent parent = {});

// Closes every descriptor of this process but these.
void close_all_but(std::vector<int> kept);

// Sends a verdict. True: the parent has it or is gone.
bool deliver(int parent, const Verdict& verdict);

}  // namespace shmb::spawn
