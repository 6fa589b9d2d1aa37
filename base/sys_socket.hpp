// SPDX-License-Identifier: Apache-2.0
// System calls on UNIX SOCK_SEQPACKET sockets, with descriptors, and what the kernel says about the peer.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace shmb::sys {

inline constexpr std::size_t kMaxFdsPerMessage = 253;  // SCM_MAX_FD; 254 gives EINVAL

Sys<Fd> seqpacket_socket(bool nonblocking);
// A datagram socket that sends to `address`: a path, or "@" and a name in the abstract namespace.
Sys<Fd> datagram_socket_to(std::string_view address);
// A path over 107 bytes gives ENAMETOOLONG. bind leaves a socket file with the process' umask applied.
Sys<void> bind_path(int fd, std::string_view path);
Sys<void> listen(int fd, int backlog);
Sys<void> connect_path(int fd, std::string_view path);
Sys<Fd> accept(int fd);  // SOCK_CLOEXEC | SOCK_NONBLOCK
Sys<std::array<Fd, 2>> seqpacket_pair();

struct Received {
  std::size_t size = 0;
  bool truncated = false;          // MSG_TRUNC: the packet was longer than the buffer
  bool control_truncated = false;  // MSG_CTRUNC: descriptors were cut (table full, LSM, too many)
  bool bad_control = false;        // a control message of another kind, or a cmsg_len that is no whole number of ints
  bool end_of_file = false;  // recvmsg returned 0 without MSG_EOR data: peer closed, or an empty packet (refused alike)
};
// Descriptors that arrived are always appended to `fds` (also with truncation), so that none leaks.
Sys<Received> receive(int fd, std::span<std::byte> buffer, std::vector<Fd>& fds, bool wait);
// The same without room for descriptors: the kernel closes those that came with the packet, none enters this process'
// table, and control_truncated is set. Never waits.
Sys<Received> receive_data(int fd, std::span<std::byte> buffer);
// The two halves of `receive`, for a call that an engine makes: room for as many descriptors as a packet brings, and
// those that came. False: as bad_control.
struct RoomForDescriptors {
  alignas(8) std::byte bytes[1032];
};
void make_room(msghdr& message, RoomForDescriptors& room);
bool take_descriptors(msghdr& message, std::vector<Fd>& descriptors);
// Ends both directions at once, also for other holders of the socket.
Sys<void> shutdown(int fd);
// Sends one packet made of `head` and `body` (body may be empty). MSG_NOSIGNAL; `wait` false adds MSG_DONTWAIT.
// Borrowed descriptor numbers.
Sys<void> send(int fd, std::span<const std::byte> head, std::span<const std::byte> body, std::span<const int> fds,
               bool wait);
// Whether a peer's descriptor is one end of a connected UNIX pair without names, as seqpacket_pair makes them, or of
// a stream pair. Only sockets are asked. A file behind it is not, so the peer that serves it cannot block the
// caller.
bool is_pair_end(int fd);
// The properties of a socket that another program made. ENOTSOCK: it is none.
struct SocketFacts {
  int domain = 0, type = 0;
  bool listening = false;
  std::string path;  // of its file; empty: it has none
};
Sys<SocketFacts> socket_facts(int fd);
Sys<int> unread_bytes(int fd);  // SIOCOUTQ: 0 once the peer has read everything that was sent
// True: a packet lies unread in this socket, perhaps an empty one, or the kernel does not say. False is a lasting
// answer only where the socket has been shut down.
bool holds_packet(int fd);

struct Credentials {
  std::uint32_t pid = 0;  // 0: in a PID namespace that this process cannot see
  std::uint32_t uid = 0, gid = 0;
};
Sys<Credentials> peer_credentials(int fd);  // SO_PEERCRED: of the process that connected
Sys<Fd> peer_pidfd(int fd);                 // SO_PEERPIDFD (6.5); ENOPROTOOPT, ENODATA, ESRCH, EINVAL possible
Sys<std::vector<std::uint32_t>> peer_groups(int fd);       // SO_PEERGROUPS
Sys<void> refuse_descriptors(int fd, bool refuse = true);  // SO_PASSRIGHTS = 0, or 1 again (6.16)

}  // namespace shmb::sys
