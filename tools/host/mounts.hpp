// SPDX-License-Identifier: Apache-2.0
// The mounts that hold shared memory: tmpfs and hugetlbfs, in every mount namespace that the caller may look into. One
// file system may be mounted in many places. It is listed once, by the path on which this process reaches it most
// directly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace shmb::host {

struct Mount {
  std::uint64_t device = 0;  // of the file system
  std::uint64_t id = 0, parent = 0;
  std::string type;     // "tmpfs", "hugetlbfs"
  std::string root;     // which directory of the file system is mounted
  std::string point;    // in its own mount namespace: "/dev/shm"
  std::string reach;    // for this process: "/dev/shm", "/proc/77/root/dev/shm"; empty: covered by another mount
  std::string options;  // "rw,relatime rw,size=65536k": of the mount, then of the file system
  std::uint64_t mount_ns = 0;
  bool shared_memory = false;  // where programs put shared memory: mounted at /dev/shm, or hugetlbfs
  bool read_only = false;
};

// All mounts of /proc/PID/mountinfo, in the kernel's order; `reach` and `mount_ns` are the caller's to fill in.
std::vector<Mount> parse_mountinfo(std::string_view text);
// Those of tmpfs and hugetlbfs, with what is covered by a later mount on the same place marked by an empty `reach`.
std::vector<Mount> memory_mounts(const std::vector<Mount>& all, const std::string& reach_prefix,
                                 std::uint64_t mount_ns);

// Opens `name` below the mount. No component may be a link or lead out of it (EXDEV, ELOOP), because other users may
// change the folders between two calls. An empty name is the mount point.
Sys<Fd> open_beneath(const Mount& mount, const std::string& name, int flags);

}  // namespace shmb::host
