// SPDX-License-Identifier: Apache-2.0
// SEQPACKET sockets: a packet arrives whole with all its descriptors, or its flags say what was lost. Every descriptor
// that arrives is kept or closed, also if the packet is malformed.
#include "base/sys_socket.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

#include "base/compat.hpp"
#include "base/result.hpp"
#include "base/sys_call.hpp"

namespace shmb::sys {

using fault::Call;

namespace {

Sys<sockaddr_un> address_of(std::string_view path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A leading NUL would mean the abstract namespace, which has no permissions.
  if (path.empty() || path.find('\0') != std::string_view::npos) return sys_error(EINVAL);
  if (path.size() >= sizeof address.sun_path) return sys_error(ENAMETOOLONG);
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Sys<void> read_option(int fd, int option, void* out, socklen_t& size) {
  return call_void(Call::getsockopt, [&] { return ::getsockopt(fd, SOL_SOCKET, option, out, &size); });
}

// The kernel rounds the control area up to 8 bytes, so it may deliver one descriptor more than there was room for. Only
// cmsg_len says how many came.
void take_descriptors(msghdr& message, std::vector<Fd>& fds, Received& received) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      received.bad_control = true;
      continue;
    }
    const std::size_t bytes = part->cmsg_len - CMSG_LEN(0);
    if (bytes % sizeof(int) != 0) received.bad_control = true;
    // Without memory for the list they end like those that found no room in the descriptor table.
    try {
      fds.reserve(fds.size() + bytes / sizeof(int));
    } catch (const std::bad_alloc&) {
      received.control_truncated = true;
    }
    for (std::size_t i = 0; i < bytes / sizeof(int); ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      Fd one = Fd::adopt(fd).above_standard();
      if (fds.size() < fds.capacity()) fds.push_back(std::move(one));
    }
  }
}

}  // namespace

Sys<Fd> seqpacket_socket(bool nonblocking) {
  const int type = SOCK_SEQPACKET | SOCK_CLOEXEC | (nonblocking ? SOCK_NONBLOCK : 0);
  return call_fd(Call::socket, [&] { return ::socket(AF_UNIX, type, 0); });
}

Sys<Fd> datagram_socket_to(std::string_view address) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if (address.size() < 2 || (address[0] != '/' && address[0] != '@')) return sys_error(EINVAL);
  if (address.size() >= sizeof to.sun_path) return sys_error(ENAMETOOLONG);
  std::memcpy(to.sun_path, address.data(), address.size());
  // An abstract name is as long as the address says, a path ends with its NUL.
  const bool abstract = address[0] == '@';
  if (abstract) to.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size() + (abstract ? 0 : 1));
  SHMB_TRY(made, call_fd(Call::socket, [] { return ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0); }));
  SHMB_TRY_VOID(
      call_void(Call::connect, [&] { return ::connect(made.get(), reinterpret_cast<const sockaddr*>(&to), length); }));
  return std::move(made);
}

Sys<void> bind_path(int fd, std::string_view path) {
  auto address = address_of(path);
  if (!address) return std::unexpected(address.error());
  return call_void(Call::bind,
                   [&] { return ::bind(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof *address); });
}

Sys<void> listen(int fd, int backlog) {
  return call_void(Call::listen, [&] { return ::listen(fd, backlog); });
}

Sys<void> connect_path(int fd, std::string_view path) {
  auto address = address_of(path);
  if (!address) return std::unexpected(address.error());
  // Repeating after EINTR is right for AF_UNIX only: an interrupted connect leaves the socket unconnected.
  return call_void(Call::connect,
                   [&] { return ::connect(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof *address); });
}

Sys<Fd> accept(int fd) {
  return call_fd(Call::accept, [&] { return ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
}

Sys<std::array<Fd, 2>> seqpacket_pair() {
  int ends[2];
  SHMB_TRY_VOID(call(Call::socket, [&] { return ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends); }));
  return std::array<Fd, 2>{Fd::adopt(ends[0]).above_standard(), Fd::adopt(ends[1]).above_standard()};
}

Sys<Received> receive(int fd, std::span<std::byte> buffer, std::vector<Fd>& fds, bool wait) {
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kMaxFdsPerMessage * sizeof(int))];
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  const int flags = MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT);
  SHMB_TRY(size, call(Call::receive, [&] {
             message = {};
             message.msg_iov = &part;
             message.msg_iovlen = 1;
             message.msg_control = control;
             message.msg_controllen = sizeof control;
             return ::recvmsg(fd, &message, flags);
           }));
  Received received;
  received.size = static_cast<std::size_t>(size);
  received.end_of_file = size == 0;
  received.truncated = (message.msg_flags & MSG_TRUNC) != 0;
  received.control_truncated = (message.msg_flags & MSG_CTRUNC) != 0;
  take_descriptors(message, fds, received);
  return received;
}

Sys<Received> receive_data(int fd, std::span<std::byte> buffer) {
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  SHMB_TRY(size, call(Call::receive, [&] {
             message = {};
             message.msg_iov = &part;
             message.msg_iovlen = 1;
             return ::recvmsg(fd, &message, MSG_DONTWAIT);
           }));
  Received received;
  received.size = static_cast<std::size_t>(size);
  received.end_of_file = size == 0;
  received.truncated = (message.msg_flags & MSG_TRUNC) != 0;
  received.control_truncated = (message.msg_flags & MSG_CTRUNC) != 0;
  return received;
}

static_assert(sizeof(RoomForDescriptors) == CMSG_SPACE(kMaxFdsPerMessage * sizeof(int)));

void make_room(msghdr& message, RoomForDescriptors& room) {
  message.msg_control = room.bytes;
  message.msg_controllen = sizeof room.bytes;
}

bool take_descriptors(msghdr& message, std::vector<Fd>& descriptors) {
  Received received;
  take_descriptors(message, descriptors, received);
  return !received.bad_control;
}

Sys<void> shutdown(int fd) {
  return call_void(Call::shutdown, [&] { return ::shutdown(fd, SHUT_RDWR); });
}

Sys<void> send(int fd, std::span<const std::byte> head, std::span<const std::byte> body, std::span<const int> fds,
               bool wait) {
  if (fds.size() > kMaxFdsPerMessage) return sys_error(EINVAL);
  const int flags = MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT);
  // sendmsg(2) copies its structures in first, which takes 0.14 us more.
  if (fds.empty() && body.empty())
    return call_void(Call::send, [&] { return ::send(fd, head.data(), head.size(), flags); });
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kMaxFdsPerMessage * sizeof(int))];
  // sendmsg(2) reads only; the casts are owed to iovec, which serves both directions.
  iovec parts[2] = {{const_cast<std::byte*>(head.data()), head.size()},
                    {const_cast<std::byte*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = body.empty() ? 1 : 2;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  return call_void(Call::send, [&] { return ::sendmsg(fd, &message, flags); });
}

bool is_pair_end(int fd) {
  int domain = 0, type = 0;
  socklen_t size = sizeof domain;
  if (!read_option(fd, SO_DOMAIN, &domain, size) || domain != AF_UNIX) return false;
  size = sizeof type;
  if (!read_option(fd, SO_TYPE, &type, size) || (type != SOCK_SEQPACKET && type != SOCK_STREAM)) return false;
  // A service has a name, and its clients see that name.
  auto unnamed = [&](int (*ask)(int, sockaddr*, socklen_t*)) {
    sockaddr_un address{};
    socklen_t length = sizeof address;
    return ask(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 && length == sizeof address.sun_family;
  };
  return unnamed(&::getsockname) && unnamed(&::getpeername);
}

Sys<SocketFacts> socket_facts(int fd) {
  SocketFacts facts;
  int listening = 0;
  for (auto [option, out] :
       {std::pair{SO_DOMAIN, &facts.domain}, std::pair{SO_TYPE, &facts.type}, std::pair{SO_ACCEPTCONN, &listening}}) {
    socklen_t size = sizeof *out;
    SHMB_TRY_VOID(read_option(fd, option, out, size));
  }
  facts.listening = listening != 0;
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (facts.domain == AF_UNIX && ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
      length > offsetof(sockaddr_un, sun_path) && address.sun_path[0] == '/')
    facts.path.assign(address.sun_path, ::strnlen(address.sun_path, length - offsetof(sockaddr_un, sun_path)));
  return facts;
}

Sys<int> unread_bytes(int fd) {
  int bytes = 0;
  SHMB_TRY_VOID(call(Call::outq, [&] { return ::ioctl(fd, SIOCOUTQ, &bytes); }));
  return bytes;
}

// The end of a socket and an empty packet have the same length, but only a packet brings its sender's credentials. An
// error of the socket is reported once, before the packets that lie there.
bool holds_packet(int fd) {
  const int on = 1;
  if (!call_void(Call::setsockopt, [&] { return ::setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on); }))
    return true;
  for (int attempt = 0; attempt < 2; ++attempt) {
    char byte = 0;
    iovec part{&byte, sizeof byte};
    alignas(cmsghdr) char credentials[CMSG_SPACE(sizeof(ucred))] = {};
    msghdr message{};
    const auto size = call(Call::receive, [&] {
      message = {};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = credentials;
      message.msg_controllen = sizeof credentials;
      return ::recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT);
    });
    if (size) return *size > 0 || message.msg_controllen != 0;
    if (size.error().value == EAGAIN) return false;
  }
  return true;
}

Sys<Credentials> peer_credentials(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  SHMB_TRY_VOID(read_option(fd, SO_PEERCRED, &peer, size));
  return Credentials{static_cast<std::uint32_t>(peer.pid), peer.uid, peer.gid};
}

Sys<Fd> peer_pidfd(int fd) {
  if (fault::pretends_before(6, 5)) return sys_error(ENOPROTOOPT);
  if (const int failure = fault::fails(Call::peer_pidfd)) return sys_error(failure);
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) != 0) return sys_error(errno);
  return Fd::adopt(pidfd);
}

Sys<std::vector<std::uint32_t>> peer_groups(int fd) {
  static_assert(sizeof(gid_t) == sizeof(std::uint32_t));
  std::vector<std::uint32_t> groups(32);
  for (;;) {
    const std::size_t room = groups.size();
    auto size = static_cast<socklen_t>(room * sizeof(std::uint32_t));
    auto asked = read_option(fd, SO_PEERGROUPS, groups.data(), size);
    if (asked || asked.error().value == ERANGE) groups.resize(size / sizeof(std::uint32_t));  // ERANGE: the size needed
    if (asked) return groups;
    // An emulator of system calls may return ERANGE without a size. The loop must end then too.
    if (asked.error().value != ERANGE || groups.size() <= room) return std::unexpected(asked.error());
  }
}

Sys<void> refuse_descriptors(int fd, bool refuse) {
  if (fault::pretends_before(6, 16)) return sys_error(ENOPROTOOPT);
  const int pass = refuse ? 0 : 1;
  return call_void(Call::setsockopt, [&] { return ::setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &pass, sizeof pass); });
}

}  // namespace shmb::sys
