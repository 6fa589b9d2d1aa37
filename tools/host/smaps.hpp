// SPDX-License-Identifier: Apache-2.0
// The part of each shared object in a process' own address space, from /proc/PID/smaps.
#pragma once

#include <cstdint>
#include <map>

#include "tools/host/process.hpp"

namespace shmb::host {

struct Part {
  std::uint64_t mapped = 0, resident = 0, proportional = 0, swapped = 0;  // bytes
};
// By device and inode number, of mappings that have an inode.
Sys<std::map<std::pair<std::uint64_t, std::uint64_t>, Part>> parts_of(const Proc& proc, pid_t pid);

}  // namespace shmb::host
