// SPDX-License-Identifier: Apache-2.0
// The service manager that started this process, systemd or one that speaks as it does. It names two protocols in the
// environment. Both are spoken here without libsystemd, which a privileged process does not need:
//
// - NOTIFY_SOCKET (sd_notify(3)): the address of a datagram socket. Each message is text of lines NAME=VALUE. The
//   broker says READY=1 when clients can connect, RELOADING=1 while it reads its limits again, and STOPPING=1 when it
//   ends. STATUS= is for a person who asks `systemctl status`.
// - LISTEN_FDS, LISTEN_PID, LISTEN_FDNAMES (sd_listen_fds(3)): listening sockets from descriptor 3 on, with a name
//   each. The manager keeps them while the broker restarts. So clients that connect meanwhile wait in the backlog, and
//   none gets an error.
//
// The socket is opened and connected once, before the privileges go, because later the broker may open none. The
// variables are removed from the environment. A message never stops the broker: a manager that does not read costs at
// most one second, at a change of state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace shmb::daemon {

class ServiceManager {
 public:
  // Reads and removes the variables. A socket that is none of ours is an error: what its clients expect is unknown.
  static Result<ServiceManager> from_environment();

  // A socket of that name, "broker" or "admin", once; empty: the manager has passed none.
  Fd take(std::string_view name);
  const std::string& address() const { return address_; }  // NOTIFY_SOCKET; empty: none
  bool notified() const { return static_cast<bool>(notify_); }
  int number() const { return notify_.get(); }
  void forget() { (void)notify_.release(); }         // the number is another file's now: nobody is notified any more
  const std::string& loss() const { return loss_; }  // why it is not notified, though it asked; empty: nothing is lost

  void ready(const std::string& status);
  void reloading();  // `ready` comes next, whether or not the reload succeeded
  void stopping(const std::string& status);
  void failed(const std::string& sentence);  // the start; the manager shows it

 private:
  struct Passed {
    std::string name;
    Fd socket;
  };
  Result<void> take_sockets();
  void open_notify();
  void say(const std::string& message);

  std::vector<Passed> sockets_;
  Fd notify_;
  std::string address_, loss_;
};

}  // namespace shmb::daemon
