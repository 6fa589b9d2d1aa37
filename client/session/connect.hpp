// SPDX-License-Identifier: Apache-2.0
// Finding the broker, in this order:
// - The explicit socket, then SHMBROKER_SOCKET. After these there is no further step, because the caller named a
//   broker.
// - The system's broker, the user's private one, and a private one that is started now.
// - No broker, only where the caller allows it.
// Every step that was passed over is a clause of the sentence that `how` and every failure show.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "client/session/deadline.hpp"
#include "client/session/session.hpp"

namespace shmb::client {

struct ConnectOptions {
  std::string socket;   // explicit path
  std::string group;    // "<name>:<token>"; empty: SHMBROKER_GROUP
  std::string program;  // the name of the session in `list`
  bool local_ok = false, local_only = false, no_start = false, admin = false, no_group = false;
  std::int64_t timeout = 0;
};

// Where to search. The defaults are those of the process.
struct Places {
  std::string system_socket = "/run/shmbroker/socket";
  std::optional<std::string> socket_variable, runtime_dir_variable, group_variable, daemon_variable;
  std::string temporary_dir = "/tmp";
  std::string config_home;  // where a private broker searches shmbroker.conf; empty: nowhere
  uid_t uid = 0;
};
Places process_places();  // secure_getenv: a set-id program does not follow its caller's variables

Result<std::shared_ptr<Session>> connect(const ConnectOptions& options, const Places& places);
inline Result<std::shared_ptr<Session>> connect(const ConnectOptions& options = {}) {
  return connect(options, process_places());
}

// One connection attempt until the deadline (it waits while the backlog is full). system_errno of the Error has the
// reason.
Result<Fd> connect_socket(const std::string& path, Deadline deadline);

// A broker that ends takes down the connections that it has not greeted, and its successor may listen already. So a
// greeting that meets the end of the connection is tried again, after pauses that double.
class GreetingTries {
 public:
  // After a greeting that failed. False: that was the last one.
  bool again(const Error& failure, Deadline deadline);

 private:
  int left_ = 6;
  std::int64_t pause_ = 2'000'000;
};

// The directory of the private broker: $XDG_RUNTIME_DIR/shmbroker if it belongs to this user, else
// <tmp>/shmbroker-<uid>.
struct PrivateDirectory {
  std::string path;
  std::string note;     // why XDG_RUNTIME_DIR is not used
  bool shared = false;  // in the temporary directory, where every user could have made it first
};
PrivateDirectory private_directory(const Places& places);
// Checks owner and type by lstat, and that others cannot write: a directory that another user made is refused.
// not_found: there is none.
Result<void> check_directory(const std::string& path, uid_t uid);

}  // namespace shmb::client
