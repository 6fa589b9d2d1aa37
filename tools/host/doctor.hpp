// SPDX-License-Identifier: Apache-2.0
// The facts of this host that decide whether programs get shared memory, each with a verdict, the reason, and the
// command that changes it. It only reads. Each check looks at files below `root`, so tests can lay out hosts of their
// own. Facts that only system calls give (limits of this process, io_uring) come in `Probes`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/host/scan.hpp"

namespace shmb::host {

enum class Level : std::uint8_t { ok, info, warning, error, unknown };
std::string level_text(Level level);  // "ok", "info", "WARN", "ERROR", "unknown"

struct Check {
  std::string name;  // "/dev/shm"
  Level level = Level::ok;
  std::string reason;  // what was found, and what follows from it
  std::string advice;  // a shell command that changes it; empty: nothing to change, or no command can
};

struct Limit {
  std::uint64_t soft = 0, hard = 0;
  bool unlimited = false, hard_unlimited = false;
};

// Facts that are not in a file.
struct Probes {
  Limit open_files, locked_memory;
  int io_uring_error = 0;  // errno of io_uring_setup(2), 0: it works
  std::uint32_t uid = 0;
  std::string user;  // its name; empty where it has none
  bool cuda_library = false;
};
Probes probe();

// Without the two lines about the broker (daemon, access), which the verb adds. `inventory` is judged already.
std::vector<Check> examine(const Inventory& inventory, const Probes& probes, const std::string& root = {});

}  // namespace shmb::host
