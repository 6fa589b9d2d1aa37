// SPDX-License-Identifier: Apache-2.0
// What /proc says about memory and processes, and what this machine lets a test do. Read with plain calls: the seam of
// base must not reach it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/harness/proc.hpp"

namespace e2e {

using harness::contents;
using harness::open_descriptors;

// Of the mapping that begins at `address` in this process: KiB lines of /proc/self/smaps, as bytes.
struct Resident {
  std::uint64_t rss = 0, huge = 0;
};
Resident resident(const void* address);

std::uint64_t shmem_bytes();  // /proc/meminfo Shmem

void limit_descriptors(std::size_t most);

// Namespaces of their own. Each is entered for good by the calling process: for actors. False: not allowed here.
bool enter_mount_namespace();
bool mount_tmpfs(const std::string& at, const std::string& options);
bool can_mount();  // asked in a process of its own

pid_t parent_of(pid_t pid);     // -1: none such
bool process_lives(pid_t pid);  // neither gone nor a zombie
std::vector<pid_t> all_processes();
std::vector<pid_t> processes_with(const std::string& argument);  // in their command line

}  // namespace e2e
