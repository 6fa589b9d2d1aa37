// SPDX-License-Identifier: Apache-2.0
// System calls on files by their path, and on the descriptors that starting a broker needs. Each wrapper makes one
// call, repeats on EINTR, and asks the fault seam first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace shmb::sys {

struct PathFacts {
  std::uint64_t size = 0;
  std::uint32_t uid = 0;
  std::uint32_t mode = 0;  // permission bits, 07777
  bool is_socket = false, is_directory = false, is_link = false, is_regular = false;
};
Sys<PathFacts> path_facts(const char* path, bool follow = false);  // lstat, or stat
Sys<void> make_directory(const char* path, unsigned mode);
Sys<void> set_path_mode(const char* path, unsigned mode);
Sys<void> set_path_owner(const char* path, std::uint32_t uid, std::uint32_t gid);
Sys<void> remove_file(const char* path);
Sys<void> remove_directory(const char* path);  // an empty one
// The names in a directory that begin with `prefix`, in order.
Sys<std::vector<std::string>> names_in(const char* directory, std::string_view prefix);
Sys<void> may_execute(const char* path);
Sys<void> lock_file(int fd);  // flock(2), exclusive; EWOULDBLOCK: another process has it
Sys<void> unlock_file(int fd);
Sys<std::array<Fd, 2>> pipe();                           // read, write; O_CLOEXEC
Sys<std::size_t> read(int fd, std::span<std::byte> to);  // once; 0: the end
Sys<Fd> duplicate_above(int fd, int least);              // F_DUPFD_CLOEXEC
Sys<void> set_close_on_exec(int fd);                     // for a descriptor that another program made
Sys<void> set_nonblocking(int fd);                       // the same

}  // namespace shmb::sys
