// SPDX-License-Identifier: Apache-2.0
// System calls of a program that looks at the shared memory of a whole host and removes lost objects. They are about
// files relative to a directory, write leases, SysV segments and namespaces. Each wrapper asks the test seam, makes one
// call, and repeats on EINTR.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/fd.hpp"

namespace shmb::sys {

enum class FileType : std::uint8_t { regular, directory, link, other };

struct FileStat {
  std::uint64_t device = 0;  // as the kernel numbers it: makedev(3) of /proc/PID/maps and mountinfo
  std::uint64_t inode = 0;
  std::uint64_t size = 0;     // bytes
  std::uint64_t touched = 0;  // bytes that have memory or swap behind them
  std::uint64_t links = 0;
  std::int64_t changed = 0;   // ctime, seconds of CLOCK_REALTIME
  std::int64_t modified = 0;  // mtime, the same
  std::uint32_t uid = 0;
  std::uint32_t mode = 0;  // permission bits, 07777
  FileType type = FileType::other;
};
// `directory` may be AT_FDCWD. A link at the end of `path` is followed only where `follow` is set.
Sys<FileStat> file_stat_at(int directory, const char* path, bool follow);
Sys<FileStat> file_stat(int fd);
Sys<std::string> read_link_at(int directory, const char* path);
Sys<Fd> open_at(int directory, const char* path, int flags);  // O_CLOEXEC is added
// openat2(2) that follows no link and does not leave `directory` or its file system: ELOOP, EXDEV.
Sys<Fd> open_beneath(int directory, const char* path, int flags);
// getdents64(2) once: bytes filled in, 0 at the end of the directory.
Sys<std::size_t> read_directory(int fd, std::span<std::byte> to);
Sys<void> make_directory_at(int directory, const char* path, unsigned mode);
Sys<void> remove_at(int directory, const char* path, bool is_directory);
// renameat2(RENAME_NOREPLACE): EEXIST where the new name is taken.
Sys<void> rename_at(int from_directory, const char* from, int to_directory, const char* to);

// fcntl(2) leases. A write lease is granted only while no other open file description of the file exists, in any
// process of any namespace, mapped or not: EAGAIN otherwise. EACCES: neither the owner nor CAP_LEASE. EINVAL: switched
// off, or the file system has none. While it is held every open(2) of the file waits.
Sys<void> take_write_lease(int fd);
Sys<bool> write_lease_holds(int fd);  // false: an open waits for its end, or the kernel has ended it
Sys<void> give_lease_up(int fd);

struct SysvFacts {
  std::uint64_t attached = 0, size = 0;
  std::int64_t changed = 0;
  pid_t creator = 0;
  std::uint32_t uid = 0;
};
Sys<SysvFacts> sysv_facts(int shmid);
Sys<void> remove_sysv(int shmid);  // IPC_RMID

Sys<void> enter_namespace(int fd, int kind);  // setns(2), the calling thread

struct FileSystemUse {
  std::uint64_t size = 0, used = 0;  // bytes; size 0: no limit
  bool read_only = false;
};
Sys<FileSystemUse> file_system_use(const char* path);

}  // namespace shmb::sys
