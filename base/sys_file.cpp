// SPDX-License-Identifier: Apache-2.0
// See sys_file.hpp.
#include "base/sys_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/result.hpp"
#include "base/sys_call.hpp"
#include "base/sys_process.hpp"

namespace shmb::sys {

using fault::Call;

Sys<PathFacts> path_facts(const char* path, bool follow) {
  struct stat facts{};
  SHMB_TRY_VOID(call_void(Call::stat, [&] { return follow ? ::stat(path, &facts) : ::lstat(path, &facts); }));
  PathFacts out;
  out.size = static_cast<std::uint64_t>(facts.st_size);
  out.uid = facts.st_uid;
  out.mode = facts.st_mode & 07777;
  out.is_socket = S_ISSOCK(facts.st_mode);
  out.is_directory = S_ISDIR(facts.st_mode);
  out.is_link = S_ISLNK(facts.st_mode);
  out.is_regular = S_ISREG(facts.st_mode);
  return out;
}

Sys<void> make_directory(const char* path, unsigned mode) {
  return call_void(Call::mkdir, [&] { return ::mkdir(path, mode); });
}

Sys<void> set_path_mode(const char* path, unsigned mode) {
  return call_void(Call::chmod, [&] { return ::chmod(path, mode); });
}

Sys<void> set_path_owner(const char* path, std::uint32_t uid, std::uint32_t gid) {
  return call_void(Call::chown, [&] { return ::chown(path, uid, gid); });
}

Sys<void> remove_file(const char* path) {
  return call_void(Call::unlink, [&] { return ::unlink(path); });
}

Sys<void> remove_directory(const char* path) {
  return call_void(Call::unlink, [&] { return ::rmdir(path); });
}

Sys<std::vector<std::string>> names_in(const char* directory, std::string_view prefix) {
  SHMB_TRY(opened, open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
  DIR* const stream = ::fdopendir(opened.get());
  if (stream == nullptr) return std::unexpected(Errno{errno});
  (void)opened.release();  // the stream's now
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(stream))
    if (std::string_view(entry->d_name).starts_with(prefix)) names.emplace_back(entry->d_name);
  (void)::closedir(stream);
  std::ranges::sort(names);
  return names;
}

Sys<void> may_execute(const char* path) {
  return call_void(Call::access, [&] { return ::access(path, X_OK); });
}

Sys<void> lock_file(int fd) {
  return call_void(Call::flock, [&] { return ::flock(fd, LOCK_EX | LOCK_NB); });
}

Sys<void> unlock_file(int fd) {
  return call_void(Call::flock, [&] { return ::flock(fd, LOCK_UN); });
}

Sys<std::array<Fd, 2>> pipe() {
  int ends[2];
  if (auto made = call_void(Call::pipe, [&] { return ::pipe2(ends, O_CLOEXEC); }); !made)
    return std::unexpected(made.error());
  return std::array<Fd, 2>{Fd::adopt(ends[0]).above_standard(), Fd::adopt(ends[1]).above_standard()};
}

Sys<std::size_t> read(int fd, std::span<std::byte> to) {
  SHMB_TRY(got, call(Call::read, [&] { return ::read(fd, to.data(), to.size()); }));
  return static_cast<std::size_t>(got);
}

Sys<Fd> duplicate_above(int fd, int least) {
  return call_fd(Call::dup, [&] { return ::fcntl(fd, F_DUPFD_CLOEXEC, least); });
}

Sys<void> set_close_on_exec(int fd) {
  return call_void(Call::dup, [&] { return ::fcntl(fd, F_SETFD, FD_CLOEXEC); });
}

Sys<void> set_nonblocking(int fd) {
  SHMB_TRY(flags, call(Call::dup, [&] { return ::fcntl(fd, F_GETFL); }));
  return call_void(Call::dup, [&] { return ::fcntl(fd, F_SETFL, flags | O_NONBLOCK); });
}

}  // namespace shmb::sys
