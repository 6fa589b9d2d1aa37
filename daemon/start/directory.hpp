// SPDX-License-Identifier: Apache-2.0
// The broker's directory: `socket`, `admin`, `broker.lock`. The process that holds the lock is the one broker of the
// directory, until it ends. That alone makes it safe to unlink a socket file that an earlier broker left behind.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.hpp"
#include "daemon/start/config.hpp"

namespace shmb::daemon {

// /run/shmbroker, or $XDG_RUNTIME_DIR/shmbroker, or the user's place in /tmp (base/private_place.hpp). The second is
// used only if it belongs to the caller: sudo leaves another user's variable. In /tmp a second place is made if another
// user has made the first.
std::string default_directory(Mode mode);

// Creates the directory where it is missing. Checks with lstat that it is a directory, owned by `owner`, and closed to
// others as the mode wants. `owner` may differ from the caller's uid only for root, who gives a new directory away.
Result<void> prepare_directory(const std::string& path, Mode mode, std::uint32_t owner, std::uint32_t group);

Result<Fd> lock_directory(const std::string& path);

// A bound, listening socket file. Its end unlinks the file. Create it only under the lock. A file that another program
// listens on is not replaced: under the lock that is no broker, but perhaps a service manager that keeps it for one.
class SocketFile {
 public:
  static Result<SocketFile> create(const std::string& path, unsigned mode);
  // A listening socket from the service manager. The file is the manager's, so its end unlinks nothing.
  explicit SocketFile(Fd passed) : socket_(std::move(passed)) {}
  SocketFile(SocketFile&& other) noexcept;
  SocketFile& operator=(SocketFile&&) = delete;
  ~SocketFile();
  Fd take() { return std::move(socket_); }
  const std::string& path() const { return path_; }  // of the file that its end unlinks; empty: none
  int number() const { return socket_.get(); }
  // Its number names another file now. Neither that nor the path is touched any more.
  void forget() {
    (void)socket_.release();
    path_.clear();
  }
  Sys<Fd> copy() const { return socket_.dup(); }

 private:
  SocketFile(std::string path, Fd socket) : path_(std::move(path)), socket_(std::move(socket)) {}
  std::string path_;
  Fd socket_;
};

}  // namespace shmb::daemon
