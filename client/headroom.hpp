// SPDX-License-Identifier: Apache-2.0
// Is there room for this much memory? Asked before a region is populated, because over a cgroup's limit the kernel
// answers with SIGKILL, not with an errno (measured: also fallocate and MADV_POPULATE_WRITE). It is a check, not a
// reservation: two creates at once may both see the same room.
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

// One memory cgroup that bounds us.
struct CgroupRoom {
  std::string path;  // "/sys/fs/cgroup/user.slice/..."
  std::uint64_t limit = 0, usage = 0, reclaimable = 0;
  std::uint64_t free() const { return limit + reclaimable > usage ? limit + reclaimable - usage : 0; }
};

// The memory cgroups above us, innermost first, as far up as they are visible. Only those with a limit. `root` is put
// before every path (tests lay out a tree of their own).
std::vector<CgroupRoom> cgroup_rooms(const std::string& root = {});

// MemAvailable less 5 % of MemTotal; nullopt where /proc/meminfo does not tell.
std::optional<std::uint64_t> host_room(const std::string& root = {});

// no_memory with the cgroup's path and the numbers, or nothing. For small sums an answer of the last quarter of a
// second is used again as long as they stay far below the room it found: /proc costs more than a create.
Result<void> check_headroom(std::uint64_t bytes);
// The same. Where there is no room, the broker gives up recycled memory of this user first, and what it is freeing is
// waited for; the refusal says how much that was. Local sessions have no such memory.
Result<void> find_headroom(Session& session, std::uint64_t bytes, Deadline deadline);
Result<void> check_headroom_at(const std::string& root, std::uint64_t bytes, std::uint64_t* room = nullptr);

// vm.overcommit_memory=2: a store to a page over the commit limit is SIGBUS, so nothing may stay unpopulated.
bool strict_overcommit();

}  // namespace shmb::client
