// SPDX-License-Identifier: Apache-2.0
// Room in cgroups and on the host, on trees laid out in a folder.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "base/mapping.hpp"
#include "client/region/headroom.hpp"
#include "proto/shmb_wire.h"
#include "tests/harness/temp_dir.hpp"

using namespace shmb;
using namespace shmb::client;

namespace {

struct Tree {
  harness::TempDir folder;
  void file(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = folder.path() + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  void version2(const std::string& own, const std::string& root = "/") const {
    file("/proc/self/mountinfo", "20 1 0:5 / /proc rw - proc proc rw\n41 31 0:38 " + root +
                                     " /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
    file("/proc/self/cgroup", "0::" + own + "\n");
  }
  void group2(const std::string& path, const std::string& max, const std::string& current,
              const std::string& stat) const {
    file("/sys/fs/cgroup" + path + "/memory.max", max + "\n");
    file("/sys/fs/cgroup" + path + "/memory.current", current + "\n");
    file("/sys/fs/cgroup" + path + "/memory.stat", stat);
  }
};

}  // namespace

TEST_CASE("version 2: every level up to the mount counts, and page cache is room") {
  const Tree tree;
  tree.version2("/user/job");
  tree.group2("/user/job", "max", "5000", "anon 1\ninactive_file 10\nactive_file 20\n");
  tree.group2("/user", "100000", "60000", "inactive_file_extra 7\ninactive_file 1000\nactive_file 500\n");
  const auto rooms = cgroup_rooms(tree.folder.path());
  REQUIRE(rooms.size() == 1);
  CHECK(rooms[0].path == "/sys/fs/cgroup/user");
  CHECK(rooms[0].free() == 100000 + 1500 - 60000);
  CHECK(check_headroom_at(tree.folder.path(), 41500).has_value());
  auto refused = check_headroom_at(tree.folder.path(), 41501);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().status == Status::no_memory);
  CHECK(refused.error().sentence.find("/sys/fs/cgroup/user") != std::string::npos);
  CHECK(refused.error().shortage.slot == SHMBW_SLOT_MEMORY);
  CHECK(refused.error().shortage.scope == SHMBW_SCOPE_CGROUP);
  CHECK(refused.error().shortage.limit == 100000);
  CHECK(refused.error().shortage.used == 60000);
  CHECK(refused.error().shortage.asked == 41501);
}

TEST_CASE("version 1: the memory hierarchy, total page cache, and its number for 'no limit'") {
  const Tree tree;
  tree.file("/proc/self/mountinfo",
            "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
            "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n");
  tree.file("/proc/self/cgroup", "4:memory:/job\n2:cpu,cpuacct:/other\n0::/\n");
  tree.file("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "8192\n");
  tree.file("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "9000\n");
  tree.file("/sys/fs/cgroup/memory/job/memory.stat",
            "inactive_file 5\ntotal_inactive_file 100\ntotal_active_file 50\n");
  tree.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  tree.file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
  const auto rooms = cgroup_rooms(tree.folder.path());
  REQUIRE(rooms.size() == 1);
  CHECK(rooms[0].path == "/sys/fs/cgroup/memory/job");
  CHECK(rooms[0].reclaimable == 150);
  CHECK(rooms[0].free() == 0);
}

TEST_CASE("in a container our path may be the host's: the mount's top bounds us") {
  const Tree tree;
  tree.version2("/docker/abc", "/docker/abc");
  tree.group2("", "1000", "400", "");
  REQUIRE(cgroup_rooms(tree.folder.path()).size() == 1);
  CHECK(cgroup_rooms(tree.folder.path())[0].free() == 600);
  tree.version2("/somewhere/else");
  CHECK(cgroup_rooms(tree.folder.path())[0].free() == 600);
  tree.version2("/../outside");
  CHECK(cgroup_rooms(tree.folder.path())[0].free() == 600);
}

TEST_CASE("the host keeps 5 % of its memory") {
  const Tree tree;
  tree.file("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:         1 kB\nMemAvailable:    150 kB\n");
  CHECK(*host_room(tree.folder.path()) == 100 * 1024);
  CHECK(check_headroom_at(tree.folder.path(), 100 * 1024).has_value());
  auto refused = check_headroom_at(tree.folder.path(), 100 * 1024 + 1);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().shortage.scope == SHMBW_SCOPE_HOST);
  tree.file("/proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    20 kB\n");
  CHECK(*host_room(tree.folder.path()) == 0);
}

TEST_CASE("no /proc, no cgroups, broken numbers: nothing is known and nothing is refused") {
  const Tree tree;
  CHECK(cgroup_rooms(tree.folder.path()).empty());
  CHECK_FALSE(host_room(tree.folder.path()).has_value());
  CHECK(check_headroom_at(tree.folder.path(), UINT64_MAX / 2).has_value());
  tree.version2("/job");
  tree.group2("/job", "lots", "many", "inactive_file\n");
  tree.file("/proc/self/mountinfo", "garbage\n - \n1 2 3 - cgroup2\n41 31 0:38 / /sys/fs/cgroup rw - cgroup2 x rw\n");
  CHECK(cgroup_rooms(tree.folder.path()).empty());
}

TEST_CASE("more than this machine has is refused here and now, small sums are not") {
  CHECK(check_headroom(4096).has_value());
  CHECK(check_headroom(4096).has_value());
  CHECK_FALSE(check_headroom(std::uint64_t{1} << 50).has_value());
}

TEST_CASE("the cgroup of version 2 of this process is its folder, if that is visible here") {
  const Tree tree;
  CHECK(own_cgroup(tree.folder.path()).empty());
  tree.version2("/user/job");
  CHECK(own_cgroup(tree.folder.path()).empty());  // a path that only the host sees
  tree.file("/sys/fs/cgroup/user/job/cgroup.procs", "");
  CHECK(own_cgroup(tree.folder.path()) == tree.folder.path() + "/sys/fs/cgroup/user/job");
  tree.file("/proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n");
  CHECK(own_cgroup(tree.folder.path()).empty());
}

TEST_CASE("a refusal of hugetlb pages says what is reserved, and counts what is promised to others as used") {
  const Tree tree;
  tree.file("/proc/meminfo",
            "MemTotal: 1000 kB\nHugePages_Total:      10\nHugePages_Free:        7\nHugePages_Rsvd:        3\n");
  const Error refused = reserve_too_small(5 * kHugePage, tree.folder.path());
  CHECK(refused.status == Status::no_memory);
  CHECK(refused.shortage.limit == 10 * kHugePage);
  CHECK(refused.shortage.used == 6 * kHugePage);
  CHECK(refused.shortage.asked == 5 * kHugePage);
  CHECK(refused.sentence.find("vm.nr_hugepages") != std::string::npos);
}

TEST_CASE("a NUMA node has its free memory and the pages of files that can be dropped") {
  const Tree tree;
  const std::string& root = tree.folder.path();
  CHECK(check_node_room(3, UINT64_MAX / 2, false, root).has_value());  // not described: the kernel decides
  tree.file("/sys/devices/system/node/node3/meminfo",
            "Node 3 MemTotal:       1000 kB\nNode 3 MemFree:         100 kB\nNode 3 Active(file):     20 kB\n"
            "Node 3 Inactive(file):   30 kB\nNode 3 HugePages_Total:     4\nNode 3 HugePages_Free:      2\n");
  CHECK(check_node_room(3, 150 * 1024, false, root).has_value());
  auto refused = check_node_room(3, 150 * 1024 + 1, false, root);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().status == Status::no_memory);
  CHECK(refused.error().sentence.find("NUMA node 3") != std::string::npos);
  CHECK(check_node_room(3, 2 * kHugePage, true, root).has_value());
  CHECK_FALSE(check_node_room(3, 3 * kHugePage, true, root).has_value());
}
