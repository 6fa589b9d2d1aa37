// SPDX-License-Identifier: Apache-2.0
// Serves one page over HTTP/1.1 to programs of this host: on a UNIX socket, or on a loopback address. The page names
// users and what they hold, so any other address is refused. A reader on another host needs a proxy that asks for a
// log-in.
//
// One thread serves all readers. A connection carries one request and has five seconds. At most 64 are open; further
// readers wait in the kernel. So a silent reader delays no other, and a flood takes bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"

namespace shmb::tools {

class HttpServer {
 public:
  // 127.0.0.1:PORT, [::1]:PORT, localhost:PORT, or the path of a UNIX socket. Port 0: the kernel chooses one.
  static Result<HttpServer> listen(const std::string& address);
  HttpServer(HttpServer&& other) noexcept
      : socket_(std::move(other.socket_)), path_(std::exchange(other.path_, {})), where_(std::move(other.where_)) {}
  HttpServer& operator=(HttpServer&&) = delete;
  ~HttpServer();  // removes the socket file

  const std::string& where() const { return where_; }  // for people: "http://127.0.0.1:9000/metrics"
  // Until SIGINT or SIGTERM. `page` makes the content of /metrics, whose type is `type`.
  Result<void> serve(const std::function<std::string()>& page, std::string_view type);

 private:
  struct Connection {
    Fd socket;
    std::int64_t until = 0;  // CLOCK_MONOTONIC
    std::string in, out;
    std::size_t sent = 0;
    bool over = false;
  };

  HttpServer(Fd socket, std::string path, std::string where)
      : socket_(std::move(socket)), path_(std::move(path)), where_(std::move(where)) {}
  static Result<HttpServer> listen_at_path(const std::string& path);
  static Result<HttpServer> listen_at_loopback(const std::string& address);
  void take_connections(std::vector<Connection>& open) const;

  Fd socket_;
  std::string path_, where_;
};

// The whole answer to a request of which `request` is the head. Separate, so that tests can ask it.
std::string http_answer(std::string_view request, const std::function<std::string()>& page, std::string_view type);

}  // namespace shmb::tools
