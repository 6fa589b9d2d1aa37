// SPDX-License-Identifier: Apache-2.0
// Runs a command so that its whole process tree ends with it, and is known to have ended. Two processes stand above
// the command: the guard (the caller; only waits) and the supervisor proper, both subreapers, so a daemonised
// descendant stays theirs. Each sees the other's end by pidfd and by end of file of a socket between them, and
// whichever is left ends the tree: one SIGKILL is always covered. Both killed at once leaves daemonised descendants
// alive; the command itself then goes by its parent-death signal.
//
// Job control: guard and command share the caller's process group, so the terminal's signals reach the command from
// the kernel and stop or continue both. The supervisor has a group of its own and survives `kill -9 %1`.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace shmb::spawn {

inline constexpr std::int64_t kGrace = 5'000'000'000;  // between the first signal and SIGKILL

// Own failures, as env(1), timeout(1) and the shells number them.
inline constexpr int kExitFailed = 125;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

struct Job {
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  // set for the command
  std::optional<std::int64_t> kill_rest;  // what the command leaves behind is ended, with this grace
  std::int64_t grace = kGrace;
};

// What the two processes have to say to others. A job without a broker uses this one, which says nothing.
class Reporter {
 public:
  virtual ~Reporter() = default;
  // In the supervisor, before the command starts: opens its own session in the supervisor's role.
  virtual Result<void> enter_supervisor() { return {}; }
  // The last process of the tree is gone. In the supervisor, or in the guard when that one was killed.
  virtual void tree_gone() {}
  // Brokers: reparented to us or not, they are neither waited for nor signalled.
  virtual std::vector<pid_t> bystanders() { return {}; }
  // A line for the person at the terminal.
  virtual void say(const std::string&) {}
};

struct Outcome {
  int exit_status = kExitFailed;  // the command's, 128 + n for signal n, or 125 to 127
  std::string sentence;           // why, for 125 to 127
};

// Returns when no process of the tree is left. The caller has one thread and has connected to its broker already: a
// broker started later would become a child of this subreaper. Signals to the caller: TERM, INT, HUP and QUIT end the
// tree (the first time with that signal and a grace, the second time with SIGKILL), but one that the terminal sent is
// left to the command, which got it too; USR1 and USR2 go to the command.
Outcome run_job(const Job& job, Reporter& reporter);

}  // namespace shmb::spawn
