// SPDX-License-Identifier: Apache-2.0
// Processes as /proc shows them. Everything here may vanish between two reads, and much of it may be forbidden. A
// process that is gone is left out. One that may not be read is kept and counted as unseen.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace shmb::host {

struct Process {
  pid_t pid = 0;
  std::uint64_t start = 0;  // clock ticks since boot
  std::string program;      // the kernel's 15 bytes of its name
  std::uint32_t uid = 0;
  std::uint64_t mount_ns = 0, ipc_ns = 0, pid_ns = 0;  // inode numbers; 0: may not be looked at
  std::vector<pid_t> pids;                             // in each PID namespace, ours first; read where it is nested
  bool seen = false;                                   // its mappings and its descriptors were read
  int denied = 0;                                      // not seen: the errno that says why
  std::vector<std::string> missed;                     // seen, but not all of it: a sentence for each thing
};

struct Mapping {
  std::uint64_t start = 0, end = 0, offset = 0, device = 0, inode = 0;
  std::string_view permissions;  // "rw-s"
  std::string_view path;         // as the kernel writes it: a new line is \012; empty for anonymous memory
};

struct Descriptor {
  std::string number;
  std::string link;  // what readlink(2) says: "/dev/shm/x", "/memfd:x (deleted)"
};

class Proc {
 public:
  // `root` is /proc, or a copy of one in tests.
  static Sys<Proc> open(const std::string& root);

  Sys<std::vector<pid_t>> pids() const;
  // Fills in the facts from stat and the namespaces. ENOENT, ESRCH: it is gone. If stat may not be read, only its
  // number, its user and the reason (`denied`) are set.
  Sys<Process> process(pid_t pid) const;
  // Both call `each` for every entry; for all threads' tables where the first thread has ended. EACCES: the caller may
  // not see it. ENOENT, ESRCH: it is gone.
  Sys<void> mappings(pid_t pid, const std::function<void(const Mapping&)>& each) const;
  Sys<void> descriptors(pid_t pid, const std::function<void(const Descriptor&)>& each) const;
  Sys<std::string> text(const std::string& path) const;  // a file below the root, whole
  std::string path(pid_t pid, const std::string& rest) const { return root_ + "/" + std::to_string(pid) + "/" + rest; }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
  mutable std::string buffer_;  // of the largest file so far: a scan reads thousands
};

// The names in a directory, in the kernel's order, without "." and "..".
Sys<std::vector<std::string>> names_in(int directory);

// One line of /proc/PID/maps; false: it is not one.
bool parse_mapping(std::string_view line, Mapping& out);

// Whether a process, or its entry in /proc, has ended meanwhile.
bool is_gone(Errno why);

}  // namespace shmb::host
