// SPDX-License-Identifier: Apache-2.0
// The plan of a supervisor: how many ranks of what, and how they are ended. It goes from the caller to the spawner
// program in a sealed memory file, so the limit of the command line does not apply.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "spawn/face/shmbroker_spawn.h"

namespace shmb::spawn {

inline constexpr std::int64_t kGrace = 5'000'000'000;        // of `run`, and where the parent has died
inline constexpr std::int64_t kRankGrace = SHMB_RANK_GRACE;  // of spawn, as torch's
inline constexpr std::int64_t kStartTimeout = SHMB_RANK_START_TIMEOUT;
inline constexpr std::int32_t kMostRanks = 1024;
inline constexpr std::size_t kMostArguments = std::size_t{1} << 30;  // of all ranks together

enum class Method : std::uint32_t { spawn, fork, forkserver, command };
enum class Stdio : std::uint32_t { inherit, null, files, prefix };

struct Plan {
  Method method = Method::command;
  std::int32_t nprocs = 1;             // ranks here
  std::int32_t shards = 1, shard = 0;  // hosts with as many ranks each; the number of this one
  bool channels = false;               // ranks have a control channel; a bare command has none
  bool rank_variables = false;         // RANK and its like are set
  std::string program;                 // file to execute; empty: command[0], searched in PATH
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  // set for the ranks
  std::string directory;                                         // empty: the caller's
  std::string function, arguments;
  std::string master_address = "127.0.0.1";
  std::uint16_t master_port = 0;  // 0: a free one is chosen
  std::int64_t voluntary = 0;     // after the first failure, before the signal
  std::int64_t grace = kGrace;    // between the signal and SIGKILL
  std::int64_t start_timeout = kStartTimeout;
  std::optional<std::int64_t> kill_rest;  // the processes that ranks leave behind are ended, with this grace
  Stdio stdio = Stdio::inherit;
  std::string stdio_path;  // of `files`: PATH.RANK.out and .err
  bool group = false;      // whether a supervised group is made
  std::string socket, group_name;
  std::uint64_t group_limit = 0;
  pid_t parent = 0;  // the tree ends with this process; 0: with none
  // The session whose end ends what the ranks give to the parent; 0: none.
  std::uint64_t parent_epoch = 0, parent_session = 0;

  // Method fork only, never in bytes: runs in the child and returns its exit status.
  int (*entry)(void*) = nullptr;
  void* context = nullptr;

  std::string encode() const;
  static Result<Plan> decode(std::string_view bytes);
  std::int32_t rank(std::int32_t local) const { return shard * nprocs + local; }
  std::int32_t world() const { return shards * nprocs; }
};

// Checks the plan before any process is started. The error says what cannot be done.
Result<void> check(const Plan& plan);

}  // namespace shmb::spawn
