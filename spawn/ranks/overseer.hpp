// SPDX-License-Identifier: Apache-2.0
// The overseer, or supervisor proper: the process that starts the ranks, serves their requests and records their ends.
// After the first failure it ends the others, and it computes the verdict once. It has one thread and one loop. Its
// peers are the guard above it (spawn/ranks/supervisor.hpp), the parent that waits for the verdict, and the ranks below
// it.
//
// The states of a run:
// - starting: all ranks are forked at once. A failure before exec comes back over one pipe, and ends the run as "could
//   not start".
// - running: the loop serves channels (spawn/ranks/link.hpp), the store (spawn/ranks/store.hpp) and output
//   (spawn/ranks/relay.hpp).
// - failed: the first failure is recorded. The others get the time `voluntary` to end by themselves.
// - ending: a signal to the tree, then the grace, then SIGKILL (spawn/ranks/ending.hpp). An order leads here at once.
//   So does the end of the parent or of the guard.
// - over: no process of the tree is left. The verdict goes to guard and parent, then the rest of the output is written.
//
// Invariants:
// - The verdict is computed from failures in the order of their causes. A death is recorded before any rank is notified
//   of it, so a failure that follows from it is never taken as its cause.
// - No rank can make the overseer wait, or fill its memory: channels do not block, and everything that waits is
//   bounded.
// - A process is signalled only by pidfd or after a check of its start time. So no other process with a reused pid is
//   hit.
// - It never ends before the tree, unless it is killed itself. Then the guard ends the tree.
#pragma once

#include <sys/types.h>

#include "spawn/ranks/job_cgroup.hpp"
#include "spawn/ranks/process_pair.hpp"
#include "spawn/ranks/supervisor.hpp"

namespace shmb::spawn {

// Returns when the tree is gone and guard and parent have been notified.
void oversee(const Plan& plan, Reporter& reporter, Signals& signals, int guard_socket, pid_t guard, Parent parent,
             JobCgroup& cgroup);

}  // namespace shmb::spawn
