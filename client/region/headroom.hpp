// SPDX-License-Identifier: Apache-2.0
// Checks whether there is room for so many bytes of memory, before a region is populated. Over a cgroup's limit the
// kernel answers with SIGKILL, not with an errno (measured: also fallocate and MADV_POPULATE_WRITE). This is a check,
// not a reservation: two creates at once may both see the same room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace shmb::client {

class Deadline;
class Session;

// One memory cgroup that limits this process.
struct CgroupRoom {
  std::string path;  // "/sys/fs/cgroup/user.slice/..."
  std::uint64_t limit = 0, usage = 0, reclaimable = 0;
  std::uint64_t free() const { return limit + reclaimable > usage ? limit + reclaimable - usage : 0; }
};

// The memory cgroups above this process, innermost first, as far up as they are visible; only those with a limit.
// `root` is put before every path (tests lay out a tree of their own).
std::vector<CgroupRoom> cgroup_rooms(const std::string& root = {});

// The folder of this process' own cgroup of version 2. Empty: there is none, or it is not visible here. Another folder,
// such as the top of the mount, may have other limits.
std::string own_cgroup(const std::string& root = {});

// MemAvailable less 5 % of MemTotal. nullopt: /proc/meminfo does not say.
std::optional<std::uint64_t> host_room(const std::string& root = {});

// no_memory with the cgroup's path and the numbers, or nothing. Reading /proc costs more than a create. So small sums
// use a result of the last quarter of a second again, while they stay far below its room.
Result<void> check_headroom(std::uint64_t bytes);
// As check_headroom. If there is no room, the broker first frees recycled memory of this user, and the call waits for
// memory that is being freed. The refusal says how much that was. Local sessions have no such memory.
Result<void> find_headroom(Session& session, std::uint64_t bytes, Deadline deadline);
Result<void> check_headroom_at(const std::string& root, std::uint64_t bytes, std::uint64_t* room = nullptr);

// no_memory for `bytes` of hugetlb pages of 2 MiB, with the numbers of the host's reserve as they are now.
Error reserve_too_small(std::uint64_t bytes, const std::string& root = {});

// As check_headroom, for one NUMA node, before memory is bound to it: beyond the node's room the kernel would kill.
// With `hugetlb` it counts pages of the node's reserve. A node that the host does not describe passes: the kernel then
// says what is wrong with it.
Result<void> check_node_room(std::uint32_t node, std::uint64_t bytes, bool hugetlb, const std::string& root = {});

// vm.overcommit_memory=2: a store to a page over the commit limit is SIGBUS, so nothing may stay unpopulated.
bool strict_overcommit();

}  // namespace shmb::client
