// SPDX-License-Identifier: Apache-2.0
// Memory files, one wrapper per call. A pretended kernel answers here as the old one would.
#include "base/sys_memory.hpp"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>

#include "base/compat.hpp"
#include "base/sys_call.hpp"

namespace shmb::sys {

using fault::Call;

Sys<Fd> memfd_create(const char* name, bool no_exec, Pages pages) {
  // Before 6.3 MFD_NOEXEC_SEAL gives EINVAL; learned once, so that an old kernel costs no second call each time.
  static std::atomic<bool> unknown_flag{false};
  constexpr unsigned kTwoMiB = 21U << 26;  // MFD_HUGE_2MB: the size's logarithm
  const unsigned flags =
      MFD_CLOEXEC | MFD_ALLOW_SEALING | (pages == Pages::hugetlb ? unsigned{MFD_HUGETLB} | kTwoMiB : 0U);
  if (no_exec && !unknown_flag.load(std::memory_order_relaxed) && !fault::pretends_before(6, 3)) {
    auto made = call_fd(Call::memfd_create, [&] { return ::memfd_create(name, flags | MFD_NOEXEC_SEAL); });
    if (made || made.error().value != EINVAL) return made;
    if (const int fd = ::memfd_create(name, flags); fd >= 0) {
      unknown_flag = true;  // only the flag was wrong, not the name
      return Fd::adopt(fd).above_standard();
    }
    return sys_error(errno);
  }
  return call_fd(Call::memfd_create, [&] { return ::memfd_create(name, flags); });
}

Sys<void> truncate(int fd, std::uint64_t length) {
  return call_void(Call::ftruncate, [&] {
    if (length > INT64_MAX) {
      errno = EFBIG;
      return -1;
    }
    return ::ftruncate(fd, static_cast<off_t>(length));
  });
}

Sys<void> allocate(int fd, std::uint64_t offset, std::uint64_t length) {
  return call_void(Call::fallocate,
                   [&] { return ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(length)); });
}

Sys<void> set_mode(int fd, unsigned mode) {
  return call_void(Call::fchmod, [&] { return ::fchmod(fd, static_cast<mode_t>(mode)); });
}

Sys<void> add_seals(int fd, int seals) {
  return call_void(Call::add_seals, [&] { return ::fcntl(fd, F_ADD_SEALS, seals); });
}

Sys<int> seals(int fd) {
  return call(Call::get_seals, [&] { return ::fcntl(fd, F_GET_SEALS); });
}

Sys<Fd> reopen_read_only(int fd) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return call_fd(Call::reopen, [&] { return ::open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY); });
}

Sys<FileFacts> file_facts(int fd) {
  struct stat found;
  if (auto made = call_void(Call::fstat, [&] { return ::fstat(fd, &found); }); !made)
    return std::unexpected(made.error());
  FileFacts facts;
  facts.size = static_cast<std::uint64_t>(found.st_size);
  facts.touched = static_cast<std::uint64_t>(found.st_blocks) * 512;
  facts.uid = found.st_uid;
  facts.mode = found.st_mode;
  facts.device = found.st_dev;
  facts.inode = found.st_ino;
  facts.is_socket = S_ISSOCK(found.st_mode);
  facts.is_directory = S_ISDIR(found.st_mode);
  facts.is_regular = S_ISREG(found.st_mode);
  return facts;
}

Sys<std::uint64_t> memory_end(int fd, std::uint64_t offset, std::uint64_t bytes) {
  std::uint64_t end = offset;
  for (const std::uint64_t limit = offset + bytes; end < limit;) {
    auto data = call(Call::fstat, [&] { return ::lseek(fd, static_cast<off_t>(end), SEEK_DATA); });
    if (!data && data.error().value == ENXIO) break;
    if (!data) return std::unexpected(data.error());
    if (static_cast<std::uint64_t>(*data) >= limit) break;
    SHMB_TRY(hole, call(Call::fstat, [&] { return ::lseek(fd, *data, SEEK_HOLE); }));
    end = std::min(static_cast<std::uint64_t>(hole), limit);
  }
  return end;
}

Sys<void*> mmap(void* hint, std::size_t length, int protection, int flags, int fd, std::uint64_t offset) {
  return call(Call::mmap, [&] { return ::mmap(hint, length, protection, flags, fd, static_cast<off_t>(offset)); });
}

Sys<void> munmap(void* address, std::size_t length) {
  return call_void(Call::munmap, [&] { return ::munmap(address, length); });
}

Sys<void*> mremap(void* address, std::size_t length, std::size_t new_length) {
  return call(Call::mremap, [&] { return ::mremap(address, length, new_length, MREMAP_MAYMOVE); });
}

Sys<void> madvise(void* address, std::size_t length, int advice) {
  const bool hidden =
      (advice == MADV_COLLAPSE && fault::pretends_before(6, 1)) ||
      ((advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE) && fault::pretends_before(5, 14));
  if (hidden) return sys_error(EINVAL);
  return call_void(Call::madvise, [&] { return ::madvise(address, length, advice); });
}

Sys<void> bind_to_node(void* address, std::size_t length, unsigned node) {
  std::array<unsigned long, 16> nodes{};  // the kernel knows 1,024 nodes at most
  constexpr unsigned kBits = 8 * sizeof(unsigned long);
  return call_void(Call::mbind, [&] {
    if (node >= nodes.size() * kBits) {
      errno = EINVAL;
      return -1L;
    }
    nodes[node / kBits] = 1UL << (node % kBits);
    // The highest node is one less than the number that is passed.
    return ::syscall(SYS_mbind, address, length, MPOL_BIND, nodes.data(), nodes.size() * kBits + 1,
                     MPOL_MF_STRICT | MPOL_MF_MOVE);
  });
}

}  // namespace shmb::sys
