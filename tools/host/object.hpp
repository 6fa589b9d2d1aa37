// SPDX-License-Identifier: Apache-2.0
// One piece of shared memory of the host, made by any program, and what was seen of its holders. Its identity is unique
// in the kernel: a file system and an inode number, or an IPC namespace and a SysV id.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shmb::host {

enum class Kind : std::uint8_t {
  file,       // a file on a tmpfs mounted at /dev/shm
  semaphore,  // one that sem_open(3) made there
  hugetlb,    // a file on a hugetlbfs mount
  sysv,       // a segment of shmget(2)
  region,     // a memfd of a shmbroker
  memfd,      // another memfd
  deleted,    // a file without a name that a process still holds
  anonymous,  // mmap(MAP_SHARED | MAP_ANONYMOUS)
};
std::string kind_text(Kind kind);

struct Key {
  std::uint64_t space = 0;  // device number, or the inode number of the IPC namespace
  std::uint64_t id = 0;     // inode number, or shmid
  bool sysv = false;
  friend auto operator<=>(const Key&, const Key&) = default;
};

struct Holder {
  std::size_t process = 0;   // index in Inventory::processes
  std::uint64_t mapped = 0;  // bytes of its address space
  std::uint32_t descriptors = 0;
};

// The conclusion from the evidence. Only `orphan` and `stale` are ever proposed for removal without being named.
enum class Verdict : std::uint8_t {
  held,    // a process has it open, mapped or attached
  orphan,  // no process holds it, and its creator is known to be dead
  stale,   // no process holds it, a known program leaves such objects behind, and it is old
  idle,    // no process holds it, and nothing says that it is lost
  unseen,  // holders may exist where the caller may not look
};
std::string verdict_text(Verdict verdict);

struct Object {
  Key key;
  Kind kind = Kind::file;
  std::string place;               // "/dev/shm", "SysV", "memfd": the column WHERE
  std::string name;                // exact bytes: path below the mount, memfd name, "shmid 5"
  std::vector<std::string> names;  // of a file with hard links: all that were found, `name` first
  std::size_t mount = 0;           // index in Inventory::mounts, for files
  std::string reach;               // path by which this process reaches the file, "/proc/77/root/dev/shm/x"; or empty
  std::uint64_t size = 0;          // bytes, from stat(2) or IPC_STAT
  bool size_is_least = false;      // only mappings were seen: it may be larger
  std::uint64_t touched = 0;       // bytes with memory or swap behind them
  bool touched_known = false;
  std::string through;  // for one without a name: the path of a holder's /proc entry that leads to it; or empty
  std::uint64_t links = 0;
  std::uint32_t uid = 0;
  std::uint32_t mode = 0;
  std::int64_t changed = 0;    // last use that the kernel notes, seconds of CLOCK_REALTIME
  pid_t creator = 0;           // as the kernel noted it (SysV), in the object's own PID namespace
  std::uint64_t attached = 0;  // SysV: by the kernel's count
  std::uint64_t ipc_namespace = 0;
  std::vector<Holder> holders;

  // Filled in by PageBooks (pages.hpp):
  std::uint64_t resident = 0;  // bytes of `touched` that are in memory
  bool resident_known = false;
  std::vector<std::string> cgroups;  // cgroups that its pages are charged to, the one with most pages first
  std::string why_no_cgroup;         // why `cgroups` is empty

  // Filled in by judge() (verdict.hpp):
  Verdict verdict = Verdict::idle;
  std::string program;                // "NCCL", when the name is known
  std::string glob;                   // the pattern that matched
  std::string creator_text;           // "mara 41877 dead"
  std::vector<std::string> evidence;  // sentences, the deciding one last
};

}  // namespace shmb::host
