// SPDX-License-Identifier: Apache-2.0
// ZeroMQ as a peer, where the build found libzmq3-dev: over `ipc`, its UNIX sockets, with names that no file has. Each
// process has a context of its own, whose thread shares the core of its owner. Both ends always block, because an end
// that spins would keep its own thread from the core.
#pragma once

#include <cstddef>

#include "tools/benchmarks/floors/ping_pong.hpp"
#include "tools/benchmarks/floors/stream.hpp"

namespace shmb::bench {

NamedWay zeromq_hop(std::size_t bytes);  // a pair of sockets
// PUSH and PULL. A writer deals its messages out to all readers. A reader waits `patience_ms` for one.
Stream::Enter zeromq_stream(int patience_ms);

}  // namespace shmb::bench
