// SPDX-License-Identifier: Apache-2.0
// Waiting for several descriptors, and for more than reading. See sys_process.hpp for epoll sets themselves.
#pragma once

#include <poll.h>

#include <cstdint>
#include <span>

#include "base/result.hpp"

namespace shmb::sys {

// `room`: the set is also ready when `fd` takes a packet, otherwise only when it can be read. A descriptor that is not
// in the set is ignored. The change also reaches a thread that waits for the set already.
void epoll_watch_room(int epoll, int fd, bool room);

// Fills in what poll(2) reports for each. Returns how many are ready, 0: deadline. -1: for ever.
Sys<int> poll_all(std::span<pollfd> watched, std::int64_t timeout_ns);

}  // namespace shmb::sys
