// SPDX-License-Identifier: Apache-2.0
// The floor of a restart: a process that keeps a table of descriptors, and clones a server again when it dies. The
// clone closes the gaps between the numbers that its records name, reads each word of the records, and serves.
#pragma once

#include <string>

namespace shmb::bench {

inline constexpr const char* kBareKeeper = "--bare-keeper";
// The main program of that process, with a second child that only waits, as keepers have one. `regions` memory files
// stay, and so many sockets and pidfds as `clients` go. Returns only an error.
int bare_keeper(const std::string& socket, int clients, int regions, int record_bytes);

}  // namespace shmb::bench
