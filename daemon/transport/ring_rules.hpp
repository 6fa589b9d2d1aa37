// SPDX-License-Identifier: Apache-2.0
// A ring makes calls that no seccomp filter sees. So it is restricted to the operations that the engine uses before it
// is enabled, and registers nothing afterwards. The kernel answers anything else with EACCES.
#pragma once

struct io_uring;

namespace shmb::daemon {

int restrict_ring(io_uring& ring);  // a disabled ring; as liburing: a negative errno where it fails

}  // namespace shmb::daemon
