// SPDX-License-Identifier: Apache-2.0
// The system calls that the broker still needs once it serves. All others fail with EPERM from then on, for all of its
// threads and for good. So an attacker who has taken the broker over by a packet can start no program, open no
// socket, make no file, map no code and signal no process (docs/security.md, A broker that was
// taken over).
//
// EPERM and not a kill: a call that was forgotten in the list costs one request, and not the sessions of all users.
//
// A ring makes calls that no filter sees. So the ring is restricted itself (transport/engine_uring.cpp).
//
// A build with a sanitizer has no filter: its run-time makes calls of its own, at its end with ptrace(2). `status` says
// so.
#pragma once

#include <string>

#include "base/result.hpp"

namespace shmb::daemon {

// Why there is no filter here, for `status`; empty: there is one.
std::string no_sandbox();
// After everything is open. It needs no_new_privs. Nothing happens where `no_sandbox` has a reason.
Result<void> enter_sandbox();

}  // namespace shmb::daemon
