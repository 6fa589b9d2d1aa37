// SPDX-License-Identifier: Apache-2.0
// See sys_unread.hpp. The end of a socket and an empty packet have the same length; but only a packet brings the
// credentials of its sender.
#include "base/sys_unread.hpp"

#include <sys/socket.h>

#include <cerrno>

namespace shmb::sys {

bool holds_packet(int fd) {
  const int on = 1;
  if (::setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) return true;
  for (int attempt = 0; attempt < 2; ++attempt) {  // an error of the socket is told once, before what lies there
    char byte = 0;
    iovec part{&byte, sizeof byte};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof(ucred))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    const ssize_t size = ::recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT);
    if (size > 0 || (size == 0 && message.msg_controllen != 0)) return true;
    if (size == 0 || errno == EAGAIN) return false;
  }
  return true;
}

}  // namespace shmb::sys
