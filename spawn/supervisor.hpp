// SPDX-License-Identifier: Apache-2.0
// Runs ranks (or one command) so that their whole process tree ends with them, and is known to have ended. Two
// processes stand above the ranks: the guard (the caller; only waits) and the supervisor proper, both subreapers, so a
// daemonised descendant stays theirs. Each sees the other's end by pidfd and by end of file of a socket between them,
// and whichever is left ends the tree: one SIGKILL is always covered. Both killed at once leaves daemonised descendants
// alive; the ranks themselves then go by their parent-death signal.
//
// Job control: guard and ranks share the caller's process group, so the terminal's signals reach the ranks from the
// kernel and stop or continue both. The supervisor has a group of its own and survives `kill -9 %1`.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "spawn/plan.hpp"
#include "spawn/verdict.hpp"

namespace shmb::spawn {

// Own failures, as env(1), timeout(1) and the shells number them.
inline constexpr int kExitFailed = 125;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

// What the two processes have to say to others. A job without a broker uses this one, which says nothing.
class Reporter {
 public:
  virtual ~Reporter() = default;
  // In the supervisor, before the ranks start: opens its own session in the supervisor's role.
  virtual Result<void> enter_supervisor() { return {}; }
  // The last process of the tree is gone. In the supervisor, or in the guard when that one was killed.
  virtual void tree_gone() {}
  // Brokers: reparented to us or not, they are neither waited for nor signalled.
  virtual std::vector<pid_t> bystanders() { return {}; }
  // How a sentence for the person at the terminal reads there, its end of line with it; empty: it is not said. The
  // supervisor writes it, because a terminal or a pipe that takes nothing must not hold it up.
  virtual std::string line(const std::string&) { return {}; }
  // The same for how many of the ranks have ended.
  virtual std::string progress(int, int) { return {}; }
  // In a rank born by fork alone: what belongs to the supervisor is closed.
  virtual void forget() {}
  // What a forked supervisor must not close.
  virtual std::vector<int> descriptors() { return {}; }
};

// The process that waits for a verdict: the socket to it, and its pidfd.
struct Parent {
  int socket = -1, pidfd = -1;
};

struct Outcome {
  int exit_status = kExitFailed;  // 0, or of the first failing rank: its code, 128 + n for signal n, or 125 to 127
  std::string sentence;           // why, for 125 to 127
};

// Returns when no process of the tree is left. The caller has one thread and has connected to its broker already: a
// broker started later would become a child of this subreaper. Signals to the caller: TERM, INT, HUP and QUIT end the
// tree (the first time with that signal and a grace, the second time with SIGKILL), but one that the terminal sent is
// left to the ranks, which got it too; USR1 and USR2 go to the ranks. The end of `parent` ends the tree, and so does
// end of file on its socket.
Outcome run_job(const Plan& plan, Reporter& reporter, Parent parent = {});

// Closes every descriptor of this process but these.
void close_all_but(std::vector<int> kept);

// Hands a verdict over. True where the parent has it or is gone.
bool deliver(int parent, const Verdict& verdict);

}  // namespace shmb::spawn
