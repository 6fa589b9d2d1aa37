// SPDX-License-Identifier: Apache-2.0
// Starting a private broker on demand, as a child of no process. It must survive its starter's whole process tree, and
// inherit nothing (no descriptor, signal mask, environment or directory). The host program must never see it, or the
// process in between, in a wait(2) of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "client/session/connect.hpp"
#include "client/session/deadline.hpp"

namespace shmb::client {

struct Started {
  bool by_us = false;  // false: another starter was faster
};
// Works under the lock `<directory>/start.lock`, so one of many starters starts it. Returns when the broker listens.
Result<Started> start_private_broker(const std::string& directory, const Places& places, Deadline deadline);

// SHMBROKER_DAEMON, else `shmbrokerd` beside the library, else the installed one. The error lists what was tried.
Result<std::string> find_daemon(const Places& places);
// The same for any program that is installed beside the daemon: `named` is the value of `variable`.
Result<std::string> find_program(const std::optional<std::string>& named, const std::string& variable,
                                 const std::string& name);

// Runs `program` with `arguments`, detached as described above. Standard error goes to `log`, and descriptor 3 of the
// new process is `ready`. `pid_in_between` tells tests which process was waited for.
struct Detached {
  int in_between = 0;
};
// `setting` ("NAME=value", or empty) is the only variable of its environment besides PATH and LC_ALL.
Result<Detached> run_detached(const std::string& program, const std::vector<std::string>& arguments, int log, int ready,
                              const std::string& setting = {});

}  // namespace shmb::client
