// SPDX-License-Identifier: Apache-2.0
// System calls on stream sockets, for a program that serves text to other programs of its host. It serves on a UNIX
// socket or on a loopback address. There is no function for another address. All sockets are close-on-exec and do not
// block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/fd.hpp"

namespace shmb::sys {

Sys<Fd> unix_stream();  // sys_socket.hpp binds, connects and listens
// Bound to `address`, as text: 127.x.y.z or ::1. EADDRNOTAVAIL: another address. Port 0: the kernel chooses one.
Sys<Fd> loopback_stream(std::string_view address, std::uint16_t port);
Sys<std::uint16_t> port_of(int fd);
Sys<std::size_t> send_some(int fd, std::span<const std::byte> data);  // EAGAIN: no room; never SIGPIPE

}  // namespace shmb::sys
