// SPDX-License-Identifier: Apache-2.0
// See http_server.hpp.
#include "tools/metrics/http_server.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <span>

#include "base/sys_epoll.hpp"
#include "base/sys_file.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/sys_stream.hpp"
#include "base/text.hpp"

namespace shmb::tools {
namespace {

constexpr std::size_t kConnections = 64, kLongestHead = 8192;
constexpr std::int64_t kTime = 5'000'000'000;
constexpr unsigned kFileMode = 0660;
constexpr const char* kPath = "/metrics";
constexpr const char* kForms = "give 127.0.0.1:PORT, [::1]:PORT or the path of a UNIX socket";

std::string response(std::string_view status, std::string_view type, std::string_view body, bool with_body = true,
                     std::string_view more = {}) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", status,
                     type, body.size(), more, with_body ? body : std::string_view());
}

std::string refusal(std::string_view status, std::string_view sentence, std::string_view more = {}) {
  return response(status, "text/plain; charset=utf-8", std::string(sentence) + "\n", true, more);
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

std::string http_answer(std::string_view request, const std::function<std::string()>& page, std::string_view type) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const std::size_t first = line.find(' '), second = line.rfind(' ');
  if (first == line.npos || second <= first || !line.substr(second + 1).starts_with("HTTP/1."))
    return refusal("400 Bad Request", "this is no request of HTTP/1.1");
  const std::string_view method = line.substr(0, first);
  std::string_view target = line.substr(first + 1, second - first - 1);
  target = target.substr(0, target.find('?'));
  if (method != "GET" && method != "HEAD")
    return refusal("405 Method Not Allowed", "only GET and HEAD are served", "Allow: GET, HEAD\r\n");
  if (target != kPath) return refusal("404 Not Found", std::string("the one page here is ") + kPath);
  return response("200 OK", type, page(), method == "GET");
}

Result<HttpServer> HttpServer::listen(const std::string& address) {
  if (address.starts_with("/") || address.starts_with("./")) return listen_at_path(address);
  return listen_at_loopback(address);
}

Result<HttpServer> HttpServer::listen_at_path(const std::string& path) {
  auto socket = sys::unix_stream();
  if (!socket) return system_failure(socket.error(), "a socket to listen on");
  // A socket file that no process listens on was left by a server that was killed.
  if (const auto facts = sys::path_facts(path.c_str()); facts && facts->is_socket) {
    auto probe = sys::unix_stream();
    if (!probe) return system_failure(probe.error(), "a socket to ask with");
    const auto connected = sys::connect_path(probe->get(), path);
    if (!connected && connected.error().value == ECONNREFUSED) (void)sys::remove_file(path.c_str());
  }
  if (auto bound = sys::bind_path(socket->get(), path); !bound) {
    auto failure = system_failure(bound.error(), "listening on " + shmb::quoted(path));
    if (bound.error().value == EADDRINUSE)
      failure.error().sentence += "; a file of that name is there: remove it or give another path";
    return failure;
  }
  HttpServer made(std::move(*socket), path, "the UNIX socket " + path);  // from here on its end removes the file
  if (auto mode = sys::set_path_mode(path.c_str(), kFileMode); !mode)
    return system_failure(mode.error(), "the mode of " + shmb::quoted(path));
  if (auto listening = sys::listen(made.socket_.get(), static_cast<int>(kConnections)); !listening)
    return system_failure(listening.error(), "listening on " + shmb::quoted(path));
  return made;
}

Result<HttpServer> HttpServer::listen_at_loopback(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  std::uint16_t port = 0;
  const char* const begin = colon == address.npos ? address.data() : address.data() + colon + 1;
  const char* const end = address.data() + address.size();
  const auto [last, failure] = std::from_chars(begin, end, port);
  if (colon == address.npos || begin == end || failure != std::errc{} || last != end)
    return error(Status::invalid, shmb::quoted(address) + " is no address to listen on: " + kForms);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  auto socket = sys::loopback_stream(host, port);
  if (!socket && socket.error().value == EADDRNOTAVAIL)
    return error(Status::invalid, shmb::quoted(host) +
                                      " is no loopback address, and metrics name users and what they hold, "
                                      "so they are served on this host only: " +
                                      kForms + ", and put a proxy with a log-in before it for readers on other hosts");
  if (!socket) return system_failure(socket.error(), "listening on " + shmb::quoted(address));
  if (auto listening = sys::listen(socket->get(), static_cast<int>(kConnections)); !listening)
    return system_failure(listening.error(), "listening on " + shmb::quoted(address));
  auto bound = sys::port_of(socket->get());
  if (!bound) return system_failure(bound.error(), "the port that was bound");
  const bool six = host.find(':') != host.npos;
  return HttpServer(std::move(*socket), {},
                    fmt::format("http://{}{}{}:{}{}", six ? "[" : "", host, six ? "]" : "", *bound, kPath));
}

HttpServer::~HttpServer() {
  if (!path_.empty()) (void)sys::remove_file(path_.c_str());
}

void HttpServer::take_connections(std::vector<Connection>& open) const {
  while (open.size() < kConnections) {
    auto accepted = sys::accept(socket_.get());
    if (!accepted) return;  // none left, or no descriptor: those that wait stay in the kernel's queue
    Connection connection;
    connection.socket = std::move(*accepted);
    connection.until = sys::now_monotonic() + kTime;
    open.push_back(std::move(connection));
  }
}

Result<void> HttpServer::serve(const std::function<std::string()>& page, std::string_view type) {
  const int wanted[] = {SIGINT, SIGTERM};
  auto signals = sys::signal_fd(wanted);
  if (!signals) return system_failure(signals.error(), "signalfd");
  std::vector<Connection> open;
  const auto receive = [&](Connection& from) {
    std::byte buffer[4096];
    const auto got = sys::read(from.socket.get(), buffer);
    if (!got) from.over = !would_block(got.error().value);
    else if (*got == 0) from.over = true;
    else from.in.append(reinterpret_cast<const char*>(buffer), *got);
    if (from.over) return;
    if (from.in.find("\r\n\r\n") != from.in.npos) from.out = http_answer(from.in, page, type);
    else if (from.in.size() > kLongestHead)
      from.out = refusal("431 Request Header Fields Too Large", "the head of a request has at most 8192 bytes");
  };
  const auto send = [](Connection& to) {
    const auto sent = sys::send_some(to.socket.get(), std::as_bytes(std::span(to.out)).subspan(to.sent));
    if (!sent) to.over = !would_block(sent.error().value);
    else if ((to.sent += *sent) == to.out.size()) to.over = true;
  };
  for (;;) {
    std::vector<pollfd> watched{{signals->get(), POLLIN, 0}};
    watched.push_back({socket_.get(), static_cast<short>(open.size() < kConnections ? POLLIN : 0), 0});
    std::int64_t wait = -1;
    for (const Connection& each : open) {
      watched.push_back({each.socket.get(), static_cast<short>(each.out.empty() ? POLLIN : POLLOUT), 0});
      const std::int64_t left = std::max<std::int64_t>(each.until - sys::now_monotonic(), 0);
      wait = wait < 0 ? left : std::min(wait, left);
    }
    if (auto ready = sys::poll_all(watched, wait); !ready) return system_failure(ready.error(), "waiting for readers");
    if (watched[0].revents != 0) return {};
    for (std::size_t i = 0; i < open.size(); ++i)
      if (watched[i + 2].revents != 0) open[i].out.empty() ? receive(open[i]) : send(open[i]);
    const std::int64_t now = sys::now_monotonic();
    std::erase_if(open, [&](const Connection& each) { return each.over || each.until <= now; });
    if (watched[1].revents != 0) take_connections(open);
  }
}

}  // namespace shmb::tools
