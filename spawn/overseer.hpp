// SPDX-License-Identifier: Apache-2.0
// The supervisor proper: starts the ranks, hears what they say, sees how they end, ends the rest after the first
// failure, and computes the verdict once. It has one thread and one loop, and no rank can make it wait.
#pragma once

#include <sys/types.h>

#include "spawn/process_pair.hpp"
#include "spawn/supervisor.hpp"

namespace shmb::spawn {

// Returns when the tree is gone and everybody has been told.
void oversee(const Plan& plan, Reporter& reporter, Signals& signals, int guard_socket, pid_t guard, Parent parent,
             pid_t job_group);

}  // namespace shmb::spawn
