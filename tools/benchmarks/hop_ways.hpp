// SPDX-License-Identifier: Apache-2.0
// The ways a message of `bytes` goes from process to process, to be measured with ping_pong.hpp: the library's queues,
// their floors, and what else a program could use. Each has a form that spins and one whose reader sleeps.
#pragma once

#include <cstddef>
#include <string>

#include "tools/benchmarks/ping_pong.hpp"

namespace shmb::bench {

// hop_library.cpp
NamedWay inline_hop(const std::string& socket, bool asleep);  // 56 bytes
NamedWay usual_hop(const std::string& socket);                // 56 bytes, with the options that nobody has set
NamedWay slot_hop(const std::string& socket, std::size_t bytes, bool asleep);   // written beforehand, but for a number
NamedWay claim_hop(const std::string& socket, std::size_t bytes, bool asleep);  // the same through claim queues

// hop_floors.cpp, raw calls: no books, no checks
NamedWay bare_line();   // two cache lines, both ends looking
NamedWay bare_futex();  // the same, both ends asleep

// hop_peers.cpp: all but iceoryx copy the message
NamedWay posix_mqueue(std::size_t bytes, bool asleep);
bool posix_mqueue_takes(std::size_t bytes);
NamedWay unix_seqpacket(std::size_t bytes, bool asleep);
#ifdef SHMB_HAVE_BOOST
NamedWay boost_queue(std::size_t bytes, bool asleep);
#endif

}  // namespace shmb::bench
