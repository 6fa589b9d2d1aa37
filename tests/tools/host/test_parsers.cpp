// SPDX-License-Identifier: Apache-2.0
// What /proc and the pattern files say, read from texts.
#include <doctest/doctest.h>
#include <sys/sysmacros.h>

#include "tools/host/mounts.hpp"
#include "tools/host/patterns.hpp"
#include "tools/host/process.hpp"
#include "tools/host/sysv.hpp"

using namespace shmb::host;

TEST_CASE("a line of maps gives its parts, with and without a path") {
  Mapping mapping;
  REQUIRE(parse_mapping(
      "7f0c8a000000-7f0c8a021000 rw-s 00001000 00:1b 42                         /dev/shm/a b (deleted)", mapping));
  CHECK(mapping.start == 0x7f0c8a000000);
  CHECK(mapping.end == 0x7f0c8a021000);
  CHECK(mapping.offset == 0x1000);
  CHECK(mapping.permissions == "rw-s");
  CHECK(mapping.device == makedev(0, 0x1b));
  CHECK(mapping.inode == 42);
  CHECK(mapping.path == "/dev/shm/a b (deleted)");
  REQUIRE(parse_mapping("1000-2000 r--p 00000000 fe:01 7 ", mapping));
  CHECK(mapping.path.empty());
  CHECK(mapping.device == makedev(0xfe, 1));
  for (const char* wrong :
       {"", "Rss: 4 kB", "1000 rw-p 0 00:00 0", "2000-1000 rw-p 0 00:00 0", "1000-2000 rw 0 00:00 0"})
    CHECK_FALSE(parse_mapping(wrong, mapping));
}

TEST_CASE("mounts tell which of them hold shared memory, and which are covered") {
  const auto all = parse_mountinfo(
      "24 1 254:1 / / rw,relatime - ext4 /dev/vda rw\n"
      "25 24 0:23 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=65536k\n"
      "26 24 0:24 / /mnt/a\\040b\\134 ro - tmpfs none rw\n"
      "27 24 0:25 / /dev/hugepages rw shared:3 master:4 - hugetlbfs none rw,pagesize=2M\n"
      "28 25 0:26 / /dev/shm rw - tmpfs tmpfs rw\n"
      "nonsense\n");
  REQUIRE(all.size() == 5);
  const auto mounts = memory_mounts(all, "/proc/7/root", 99);
  REQUIRE(mounts.size() == 4);
  CHECK(mounts[0].shared_memory);
  CHECK(mounts[0].reach.empty());  // the last one covers it
  CHECK(mounts[1].point == "/mnt/a b\\");
  CHECK(mounts[1].read_only);
  CHECK_FALSE(mounts[1].shared_memory);
  CHECK(mounts[2].type == "hugetlbfs");
  CHECK(mounts[2].shared_memory);
  CHECK(mounts[2].reach == "/proc/7/root/dev/hugepages");
  CHECK(mounts[3].reach == "/proc/7/root/dev/shm");
  CHECK(mounts[3].device == makedev(0, 26));
  CHECK(mounts[3].mount_ns == 99);
}

TEST_CASE("a mount inside one that covers its folder is not covered") {
  const auto all = parse_mountinfo(
      "24 1 254:1 / / rw - ext4 /dev/vda rw\n"
      "30 24 0:6 / /dev rw - devtmpfs none rw\n"
      "31 30 0:27 / /dev/shm rw - tmpfs none rw\n");
  const auto mounts = memory_mounts(all, "", 1);
  REQUIRE(mounts.size() == 1);
  CHECK(mounts[0].reach == "/dev/shm");
}

TEST_CASE("SysV segments are read from the kernel's table") {
  const auto segments = parse_sysv(
      "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      "
      "dtime"
      "      ctime                   rss                  swap\n"
      "        -5          3  1666               1048576   812   900      2  1000  1000  1000  1000  100  300  200"
      "                 8192                 4096\n");
  REQUIRE(segments.size() == 1);
  CHECK(segments[0].key == -5);
  CHECK(segments[0].shmid == 3);
  CHECK(segments[0].mode == 01666);
  CHECK(segments[0].size == 1048576);
  CHECK(segments[0].creator == 812);
  CHECK(segments[0].last == 900);
  CHECK(segments[0].attached == 2);
  CHECK(segments[0].uid == 1000);
  CHECK(segments[0].changed == 300);
  CHECK(segments[0].resident == 8192);
  CHECK(segments[0].swapped == 4096);
}

TEST_CASE("a glob matches within a folder, and gives the creator's number") {
  std::optional<pid_t> pid;
  CHECK(glob_matches("nccl-??????", "nccl-aZ09xy", pid));
  CHECK_FALSE(glob_matches("nccl-??????", "nccl-aZ09xyz", pid));
  CHECK_FALSE(glob_matches("ols/*", "ols/a/b", pid));
  CHECK(glob_matches("joblib_memmapping_folder_{pid}_*/*", "joblib_memmapping_folder_77_ab/x.pkl", pid));
  CHECK(pid == 77);
  CHECK(glob_matches("torch_{pid}_*", "torch_4194303_1_2", pid));
  CHECK(pid == 4194303);
  CHECK_FALSE(glob_matches("torch_{pid}_*", "torch_x_1", pid));
  CHECK_FALSE(glob_matches("torch_{pid}_*", "torch_0_1", pid));
  CHECK_FALSE(glob_matches("torch_{pid}_*", "torch_99999999999_1", pid));
}

TEST_CASE("the patterns that come with the tool are valid, and wrong ones of users are reported by line") {
  std::vector<std::string> notes;
  CHECK(Patterns::load(notes).has_value());
  const auto sentence = [](const char* text) {
    auto parsed = Patterns::parse(text, "my.toml");
    return parsed ? std::string() : parsed.error().sentence;
  };
  CHECK(sentence("").empty());
  CHECK(sentence("[[pattern]]\nprogram = \"a\"\nglob = \"b*\"\nkeep = true\nwhere = \"hugetlb\"\n").empty());
  CHECK(sentence("[[pattern]]\nprogram = \"a\"\n").starts_with("my.toml:1: a pattern needs program and glob"));
  CHECK(sentence("[[pattern]]\nprogram = \"a\"\nglob = 5\n").starts_with("my.toml:3: 'glob' is no key"));
  CHECK(sentence("[[pattern]]\nwhere = \"disk\"\n").starts_with("my.toml:2: 'where' is no key"));
  CHECK(sentence("[[pattern]\n").starts_with("my.toml:1: "));
  CHECK(sentence("[ = 3\n").starts_with("my.toml: "));  // the parser of TOML asserts here
  CHECK(sentence("# gr\xc3\xb6\xc3\x9f"
                 "er\n")
            .empty());
  CHECK(sentence("x\xd0\xaa = 1\n").starts_with("my.toml:1: only comments"));
  CHECK(sentence("pattern = 5\n").starts_with("my.toml:1: expected [[pattern]]"));
}
