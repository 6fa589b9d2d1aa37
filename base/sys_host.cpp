// SPDX-License-Identifier: Apache-2.0
// See sys_host.hpp.
#include "base/sys_host.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/result.hpp"
#include "base/sys_call.hpp"

namespace shmb::sys {

using fault::Call;

namespace {

constexpr std::uint64_t kBlock = 512;  // the unit of st_blocks, for any st_blksize

FileType type_of(mode_t mode) {
  if (S_ISREG(mode)) return FileType::regular;
  if (S_ISDIR(mode)) return FileType::directory;
  return S_ISLNK(mode) ? FileType::link : FileType::other;
}

FileStat facts_of(const struct stat& facts) {
  FileStat out;
  out.device = facts.st_dev;
  out.inode = facts.st_ino;
  out.size = static_cast<std::uint64_t>(facts.st_size);
  out.touched = static_cast<std::uint64_t>(facts.st_blocks) * kBlock;
  out.links = facts.st_nlink;
  out.changed = facts.st_ctim.tv_sec;
  out.modified = facts.st_mtim.tv_sec;
  out.uid = facts.st_uid;
  out.mode = facts.st_mode & 07777;
  out.type = type_of(facts.st_mode);
  return out;
}

}  // namespace

Sys<FileStat> file_stat_at(int directory, const char* path, bool follow) {
  struct stat facts{};
  SHMB_TRY_VOID(
      call_void(Call::stat, [&] { return ::fstatat(directory, path, &facts, follow ? 0 : AT_SYMLINK_NOFOLLOW); }));
  return facts_of(facts);
}

Sys<FileStat> file_stat(int fd) {
  struct stat facts{};
  SHMB_TRY_VOID(call_void(Call::fstat, [&] { return ::fstat(fd, &facts); }));
  return facts_of(facts);
}

Sys<std::string> read_link_at(int directory, const char* path) {
  std::string text(256, '\0');
  for (;;) {
    SHMB_TRY(got, call(Call::readlink, [&] { return ::readlinkat(directory, path, text.data(), text.size()); }));
    if (static_cast<std::size_t>(got) < text.size()) {
      text.resize(static_cast<std::size_t>(got));
      return text;
    }
    text.resize(text.size() * 4);
  }
}

Sys<Fd> open_at(int directory, const char* path, int flags) {
  return call_fd(Call::open, [&] { return ::openat(directory, path, flags | O_CLOEXEC); });
}

Sys<Fd> open_beneath(int directory, const char* path, int flags) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV;
  return call_fd(Call::open, [&] { return ::syscall(SYS_openat2, directory, path, &how, sizeof how); });
}

Sys<std::size_t> read_directory(int fd, std::span<std::byte> to) {
  SHMB_TRY(got, call(Call::getdents, [&] { return ::syscall(SYS_getdents64, fd, to.data(), to.size()); }));
  return static_cast<std::size_t>(got);
}

Sys<void> make_directory_at(int directory, const char* path, unsigned mode) {
  return call_void(Call::mkdir, [&] { return ::mkdirat(directory, path, mode); });
}

Sys<void> remove_at(int directory, const char* path, bool is_directory) {
  return call_void(Call::unlink, [&] { return ::unlinkat(directory, path, is_directory ? AT_REMOVEDIR : 0); });
}

Sys<void> rename_at(int from_directory, const char* from, int to_directory, const char* to) {
  return call_void(Call::rename, [&] { return ::renameat2(from_directory, from, to_directory, to, RENAME_NOREPLACE); });
}

Sys<void> take_write_lease(int fd) {
  return call_void(Call::lease, [&] { return ::fcntl(fd, F_SETLEASE, F_WRLCK); });
}

Sys<bool> write_lease_holds(int fd) {
  SHMB_TRY(kind, call(Call::lease, [&] { return ::fcntl(fd, F_GETLEASE); }));
  return kind == F_WRLCK;
}

Sys<void> give_lease_up(int fd) {
  return call_void(Call::lease, [&] { return ::fcntl(fd, F_SETLEASE, F_UNLCK); });
}

Sys<SysvFacts> sysv_facts(int shmid) {
  shmid_ds facts{};
  SHMB_TRY_VOID(call_void(Call::shmctl, [&] { return ::shmctl(shmid, IPC_STAT, &facts); }));
  return SysvFacts{facts.shm_nattch, facts.shm_segsz, facts.shm_ctime, facts.shm_cpid, facts.shm_perm.uid};
}

Sys<void> remove_sysv(int shmid) {
  return call_void(Call::shmctl, [&] { return ::shmctl(shmid, IPC_RMID, nullptr); });
}

Sys<void> enter_namespace(int fd, int kind) {
  return call_void(Call::setns, [&] { return ::setns(fd, kind); });
}

Sys<FileSystemUse> file_system_use(const char* path) {
  struct statvfs facts{};
  SHMB_TRY_VOID(call_void(Call::stat, [&] { return ::statvfs(path, &facts); }));
  FileSystemUse out;
  out.size = static_cast<std::uint64_t>(facts.f_blocks) * facts.f_frsize;
  out.used = static_cast<std::uint64_t>(facts.f_blocks - facts.f_bfree) * facts.f_frsize;
  out.read_only = (facts.f_flag & ST_RDONLY) != 0;
  return out;
}

}  // namespace shmb::sys
