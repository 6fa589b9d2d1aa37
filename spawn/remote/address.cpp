// SPDX-License-Identifier: Apache-2.0
// See address.hpp.
#include "spawn/remote/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

namespace shmb::remote {

Result<Address> address_of(const std::string& given) {
  Address out;
  std::string text = given;
  if (text.empty()) {
    const char* host = std::getenv("MASTER_ADDR");
    const char* port = std::getenv("MASTER_PORT");
    if (host == nullptr || port == nullptr)
      return error(Status::invalid, std::string("no address of the world: give one as HOST:PORT, or set ") +
                                        (host == nullptr ? "MASTER_ADDR" : "MASTER_PORT"));
    text = std::string(host) + ":" + port;
  }
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos || colon == 0)
    return error(Status::invalid, "the address of a world is HOST:PORT, not \"" + text + "\"");
  out.text = text;
  out.host = text.substr(0, colon);
  if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']')
    out.host = out.host.substr(1, out.host.size() - 2);
  const char* const end = text.data() + text.size();
  const auto [stop, wrong] = std::from_chars(text.data() + colon + 1, end, out.port);
  if (wrong != std::errc() || stop != end || out.port == 0 || out.port > 65535)
    return error(Status::invalid, "the port of a world is 1 to 65535, not \"" + text.substr(colon + 1) + "\"");
  return out;
}

namespace {

bool same(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || b == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  if (a->sa_family != AF_INET6) return false;
  return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

bool loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// With or without its domain: where one has none, the other one's is not compared.
bool own_name(std::string_view host) {
  char buffer[256] = {};
  if (::gethostname(buffer, sizeof buffer - 1) != 0) return false;
  const std::string_view own(buffer);
  const std::size_t dot = host.find('.'), own_dot = own.find('.');
  if (same_name(host, own)) return true;
  return (dot == host.npos) != (own_dot == own.npos) && same_name(host.substr(0, dot), own.substr(0, own_dot));
}

}  // namespace

Result<void> check_host(const std::string& host) {
  if (host == "localhost" || own_name(host)) return {};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0)
    return error(Status::invalid, "the host \"" + host +
                                      "\" of the world's address is neither localhost nor this host's name, and "
                                      "other names are not looked up: give localhost, or a numeric address of this "
                                      "host");
  ifaddrs* interfaces = nullptr;
  (void)::getifaddrs(&interfaces);
  bool here = false;
  for (const addrinfo* one = found; one != nullptr && !here; one = one->ai_next) {
    here = loopback(one->ai_addr);
    for (const ifaddrs* face = interfaces; face != nullptr && !here; face = face->ifa_next)
      here = same(face->ifa_addr, one->ai_addr);
  }
  ::freeaddrinfo(found);
  if (interfaces != nullptr) ::freeifaddrs(interfaces);
  if (here) return {};
  return error(Status::invalid, "the world's address is on another host (\"" + host +
                                    "\"): workers share the memory of one host; give localhost or this host's name "
                                    "(programs on several hosts have a world on each)");
}

Result<std::int32_t> number_of(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return error(Status::invalid, std::string("neither given nor in the variable ") + variable);
  std::int32_t value = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, wrong] = std::from_chars(text, end, value);
  if (wrong != std::errc() || stop != end)
    return error(Status::invalid,
                 std::string("not given, and the variable ") + variable + " is no number: \"" + text + "\"");
  return value;
}

}  // namespace shmb::remote
