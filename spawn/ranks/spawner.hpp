// SPDX-License-Identifier: Apache-2.0
// The guard of ranks that a program spawned, between that program and the supervisor. It is a process with one thread
// of its own for two reasons. The program may have many threads, and its death must be seen from outside.
#pragma once

#include "base/fd.hpp"
#include "spawn/ranks/plan.hpp"

namespace shmb::spawn {

// The whole life of a guard whose parent has started it. Returns its exit status.
int guard_ranks(Plan plan, Fd parent_socket);

}  // namespace shmb::spawn
