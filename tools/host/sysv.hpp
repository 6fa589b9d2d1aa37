// SPDX-License-Identifier: Apache-2.0
// SysV segments of one IPC namespace, as /proc/sysvipc/shm lists them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace shmb::host {

struct Segment {
  int shmid = 0;
  std::int64_t key = 0;
  std::uint32_t mode = 0;  // permission bits; 01000: removed, freed with its last user; 02000: locked
  std::uint64_t size = 0, attached = 0, resident = 0, swapped = 0;
  pid_t creator = 0, last = 0;  // of shmget(2), of the last shmat(2) or shmdt(2)
  std::uint32_t uid = 0;
  std::int64_t changed = 0;  // the latest of attach, detach and change
};
std::vector<Segment> parse_sysv(std::string_view text);
// Runs `work` inside the IPC namespace that `path` (/proc/PID/ns/ipc) names, on a thread of its own. Needs
// CAP_SYS_ADMIN; EPERM without.
Sys<void> in_ipc_namespace(const std::string& path, const std::function<void()>& work);

}  // namespace shmb::host
