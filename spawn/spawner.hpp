// SPDX-License-Identifier: Apache-2.0
// The guard of ranks that a program spawned: between that program and the supervisor. It is a process of its own with
// one thread, because the program may have many, and because the program's death must be seen from outside.
#pragma once

#include "base/fd.hpp"
#include "spawn/plan.hpp"

namespace shmb::spawn {

// The whole life of a guard whose parent has started it. Gives its exit status.
int guard_ranks(Plan plan, Fd parent_socket);

}  // namespace shmb::spawn
