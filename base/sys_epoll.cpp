// SPDX-License-Identifier: Apache-2.0
// Separate from sys_process, which most files include: few callers wait for more than one descriptor.
#include "base/sys_epoll.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <ctime>

#include "base/sys_call.hpp"
#include "base/sys_process.hpp"

namespace shmb::sys {

void epoll_watch_room(int epoll, int fd, bool room) {
  epoll_event watched{};
  watched.events = EPOLLIN;
  if (room) watched.events |= EPOLLOUT;
  watched.data.fd = fd;
  (void)::epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &watched);
}

Sys<int> poll_all(std::span<pollfd> watched, std::int64_t timeout_ns) {
  constexpr std::int64_t kPerSecond = 1'000'000'000;
  std::int64_t deadline = -1;
  if (timeout_ns >= 0 && __builtin_add_overflow(now_monotonic(), timeout_ns, &deadline)) deadline = INT64_MAX;
  auto ready = call_waiting(fault::Call::poll, [&] {
    timespec left{};
    if (deadline >= 0) {  // again at each repeat: signals must not prolong the deadline
      const std::int64_t remaining = std::max<std::int64_t>(0, deadline - now_monotonic());
      left = {static_cast<time_t>(remaining / kPerSecond), static_cast<long>(remaining % kPerSecond)};
    }
    return ::ppoll(watched.data(), watched.size(), deadline < 0 ? nullptr : &left, nullptr);
  });
  if (ready || ready.error().value != EINTR) return ready;
  for (pollfd& one : watched) one.revents = 0;  // a signal that ends the wait counts as the deadline
  return 0;
}

}  // namespace shmb::sys
