// SPDX-License-Identifier: Apache-2.0
// The parts of the main job; each prints what it saw and throws when a promise was not kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace main_job {

// Five processes in three groups map the region at `address` and compute its SHA-256; none copies it.
void checksum(const std::string& address, const std::string& sha256);
// A writer and three readers exchange data in a shared region; a reader, then the writer die by SIGKILL.
void exchange();
// A process that may only read tries to write in every way there is; as user `uid` where given.
void read_only(const std::string& socket, std::optional<std::uint32_t> uid);
// Leaves a daemon behind (double fork, session of its own) that holds 32 MiB; its pid goes to `pid_file`.
void leave_daemon(const std::string& pid_file);

}  // namespace main_job
