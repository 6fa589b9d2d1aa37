// SPDX-License-Identifier: Apache-2.0
// What of this host decides whether programs get shared memory, each with a verdict, the reason, and the command that
// changes it. It only reads. Each check looks at files below `root`, so that tests lay out hosts of their own; what the
// kernel tells by calls alone (limits of this process, io_uring) comes in by `Probes`.
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
  std::string advice;  // a command of the shell that changes it; empty: nothing to change, or no command can
};

struct Limit {
  std::uint64_t soft = 0, hard = 0;
  bool unlimited = false, hard_unlimited = false;
};

// The answers that are not in a file.
struct Probes {
  Limit open_files, locked_memory;
  int io_uring_error = 0;  // errno of io_uring_setup(2), 0: it works
  std::uint32_t uid = 0;
  std::string user;  // its name; empty where it has none
  bool cuda_library = false;
};
Probes probe();

// Without the broker's own two lines (daemon, access), which the verb adds. `inventory` is judged.
std::vector<Check> examine(const Inventory& inventory, const Probes& probes, const std::string& root = {});

}  // namespace shmb::host
