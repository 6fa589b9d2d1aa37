// SPDX-License-Identifier: Apache-2.0
// The processes below one process, and how to signal them without ever hitting a stranger: a pid found in /proc may
// have died and been given away before the signal is sent, so each is opened as a pidfd first and its start time is
// compared afterwards. What cannot be seen (no /proc, hidepid) is not signalled; `wait` still counts it.
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
  std::string name;              // as the process calls itself: any bytes, quote before printing
};

// One line of /proc/PID/stat. The name may hold spaces, parentheses and newlines, so the last ')' ends it.
Sys<Process> parse_stat(std::string_view line);
Sys<Process> process(pid_t pid);
// Whether the kernel has begun to end the process: it runs none of its program any more, whatever it still shows.
Sys<bool> exiting(pid_t pid);
// Every process below `root`, parents first, without `root`, without `skip` and what is below those.
Sys<std::vector<Process>> descendants(pid_t root, std::span<const pid_t> skip);
// The direct children of `root`, `skip` left out.
Sys<std::vector<Process>> children(pid_t root, std::span<const pid_t> skip);
// Signals exactly this process, ESRCH when it is gone (also when its pid is somebody else's by now).
Sys<void> signal_process(const Process& process, int signal);
// Signals all descendants, with one signal after the other; gives how many there were.
Sys<std::size_t> signal_tree(pid_t root, std::span<const pid_t> skip, std::span<const int> signals);

}  // namespace shmb::spawn
