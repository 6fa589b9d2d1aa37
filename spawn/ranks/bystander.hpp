// SPDX-License-Identifier: Apache-2.0
// The broker that listens at a socket. A process of the tree may have started it. As an orphan it is then a child of
// the supervisor, but it serves others too. So the end of the tree neither waits for it nor signals it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spawn/ranks/tree.hpp"

namespace shmb::spawn {

class Bystander {
 public:
  explicit Bystander(std::string socket) : socket_(std::move(socket)) {}
  // Its pid while it lives. When there is none, it is searched again at intervals.
  std::vector<pid_t> pids();

 private:
  std::string socket_;
  std::optional<Process> broker_;
  std::int64_t looked_at_ = 0;
};

}  // namespace shmb::spawn
