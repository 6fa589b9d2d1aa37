// SPDX-License-Identifier: Apache-2.0
// What is watched for besides reading. See sys_process.hpp for epoll sets themselves.
#pragma once

namespace shmb::sys {

// `room`: the set is ready also when `fd` takes a packet; else only when it can be read. A descriptor that is not in
// the set is no matter.
void epoll_watch_room(int epoll, int fd, bool room);

}  // namespace shmb::sys
