// SPDX-License-Identifier: Apache-2.0
// The processes below one process, and how to signal them without ever hitting another process. A pid found in /proc
// may be reused before the signal is sent. So each process is opened as a pidfd first, and its start time is compared
// afterwards. A process that cannot be seen (no /proc, hidepid) is not signalled, but `wait` still counts it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace shmb::spawn {

struct Process {
  pid_t pid = 0;
  pid_t parent = 0;
  char state = '?';              // 'Z' also for a live process whose main thread has ended
  std::uint32_t flags = 0;       // the kernel's, PF_*
  std::uint64_t start_time = 0;  // clock ticks since boot
  std::string name;              // the process' own name: any bytes, so quote before printing
};

// One line of /proc/PID/stat. The name may hold spaces, parentheses and newlines, so the last ')' ends it.
Sys<Process> parse_stat(std::string_view line);
Sys<Process> process(pid_t pid);
// Whether the kernel has begun to end the process. Then no code of its program runs, even if /proc still shows it.
Sys<bool> exiting(pid_t pid);
// Every process below `root`, parents first, without `root`, and without `skip` and what is below those.
Sys<std::vector<Process>> descendants(pid_t root, std::span<const pid_t> skip);
// The direct children of `root`, without `skip`.
Sys<std::vector<Process>> children(pid_t root, std::span<const pid_t> skip);
// Signals exactly this process. ESRCH when it is gone, also when another process has its pid by now.
Sys<void> signal_process(const Process& process, int signal);
// Signals all descendants, with one signal after the other. Returns how many there were.
Sys<std::size_t> signal_tree(pid_t root, std::span<const pid_t> skip, std::span<const int> signals);

}  // namespace shmb::spawn
