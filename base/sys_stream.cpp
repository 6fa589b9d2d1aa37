// SPDX-License-Identifier: Apache-2.0
// See sys_stream.hpp.
#include "base/sys_stream.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "base/result.hpp"
#include "base/sys_call.hpp"

namespace shmb::sys {

using fault::Call;

namespace {

constexpr int kType = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

template <class Address>
Sys<Fd> bound(int family, const Address& address) {
  SHMB_TRY(made, call_fd(Call::socket, [&] { return ::socket(family, kType, 0); }));
  // A server that is started again at once gets its port, although old connections are not forgotten yet.
  const int on = 1;
  SHMB_TRY_VOID(
      call_void(Call::setsockopt, [&] { return ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); }));
  SHMB_TRY_VOID(call_void(
      Call::bind, [&] { return ::bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address); }));
  return std::move(made);
}

}  // namespace

Sys<Fd> unix_stream() {
  return call_fd(Call::socket, [] { return ::socket(AF_UNIX, kType, 0); });
}

Sys<Fd> loopback_stream(std::string_view text, std::uint16_t port) {
  const std::string address(text);
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = htons(port);
  if (::inet_pton(AF_INET, address.c_str(), &four.sin_addr) == 1) {
    if ((ntohl(four.sin_addr.s_addr) >> 24) != IN_LOOPBACKNET) return sys_error(EADDRNOTAVAIL);
    return bound(AF_INET, four);
  }
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(port);
  if (::inet_pton(AF_INET6, address.c_str(), &six.sin6_addr) == 1 && IN6_IS_ADDR_LOOPBACK(&six.sin6_addr))
    return bound(AF_INET6, six);
  return sys_error(EADDRNOTAVAIL);
}

Sys<std::uint16_t> port_of(int fd) {
  union {
    sockaddr any;
    sockaddr_in four;
    sockaddr_in6 six;
  } address{};
  socklen_t size = sizeof address;
  SHMB_TRY_VOID(call_void(Call::getsockopt, [&] { return ::getsockname(fd, &address.any, &size); }));
  return ntohs(address.any.sa_family == AF_INET6 ? address.six.sin6_port : address.four.sin_port);
}

Sys<std::size_t> send_some(int fd, std::span<const std::byte> data) {
  SHMB_TRY(sent, call(Call::send, [&] { return ::send(fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT); }));
  return static_cast<std::size_t>(sent);
}

}  // namespace shmb::sys
