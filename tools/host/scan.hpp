// SPDX-License-Identifier: Apache-2.0
// A look at all shared memory of the host, as far as the caller's rights reach, without a daemon.
//
// A scan reads, in this order: the processes; the mounts of each mount namespace; the files on them; the SysV segments
// of each IPC namespace; the mappings and descriptors of each process, which make holders. It opens no object, so it
// holds none. Each fact is true at the moment of its read, and not later. It informs people; removal asks the kernel
// again (removal.hpp).
//
// Facts that could not be seen are counted and reported, never guessed: an absent holder among 2,000 processes means
// nothing if one of them could not be read.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "tools/host/mounts.hpp"
#include "tools/host/object.hpp"
#include "tools/host/process.hpp"

namespace shmb::host {

struct MountUse {
  Mount mount;
  // Bytes, from statvfs(3). size 0: no limit; the kernel reports no use for such a file system. `used` is then `listed`
  // if the mount is for shared memory, and unknown otherwise.
  std::uint64_t size = 0, used = 0;
  bool use_known = false;
  std::uint64_t listed = 0;  // bytes of the objects on it
};

struct Inventory {
  std::vector<Process> processes;
  std::vector<Object> objects;
  std::vector<MountUse> mounts;     // tmpfs and hugetlbfs, each file system once
  std::uint64_t shmem = 0;          // Shmem of /proc/meminfo, bytes
  std::uint64_t kernel_device = 0;  // of the tmpfs inside the kernel: memfds, SysV segments, anonymous memory
  std::int64_t now = 0;             // CLOCK_REALTIME, seconds
  std::size_t unseen_processes = 0;
  struct Aside {
    std::size_t mount = 0;
    std::string folder;  // below the mount
  };
  std::vector<Aside> folders_aside;  // left by a killed gc, or of one that runs (removal.hpp)
  bool nested = false;               // this process is in a PID namespace of its own: outer processes do not show
  bool hidden = false;               // /proc hides processes of other users (hidepid)
  std::vector<std::string> blind;    // a sentence for each thing that could not be seen
  std::vector<std::string> notes;    // other facts for the reader; not about what could not be seen
  bool saw_all() const { return blind.empty(); }
  const Process* find(pid_t pid) const;
};

struct ScanOptions {
  std::string proc = "/proc";
};
// Fails only where /proc itself cannot be read, or shows no processes.
Result<Inventory> scan(const ScanOptions& options);

}  // namespace shmb::host
