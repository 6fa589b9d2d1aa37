// SPDX-License-Identifier: Apache-2.0
#include "base/sys_epoll.hpp"

#include <sys/epoll.h>

namespace shmb::sys {

void epoll_watch_room(int epoll, int fd, bool room) {
  epoll_event watched{};
  watched.events = EPOLLIN;
  if (room) watched.events |= EPOLLOUT;
  watched.data.fd = fd;
  (void)::epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &watched);
}

}  // namespace shmb::sys
