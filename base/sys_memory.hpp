// SPDX-License-Identifier: Apache-2.0
// System calls on memory files. Each wrapper makes one call, repeats on EINTR, and asks the fault seam first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/fd.hpp"

namespace shmb::sys {

enum class Pages { normal, hugetlb };  // hugetlb: of 2 MiB, out of the reserve of the host (vm.nr_hugepages)
// memfd_create(2) with CLOEXEC and ALLOW_SEALING, and NOEXEC_SEAL where `no_exec` and the kernel knows it (6.3).
Sys<Fd> memfd_create(const char* name, bool no_exec, Pages pages = Pages::normal);
Sys<void> truncate(int fd, std::uint64_t length);
// fallocate(2) of a memory file: pages or an errno, never a signal. For clients only (law 3).
Sys<void> allocate(int fd, std::uint64_t offset, std::uint64_t length);
Sys<void> set_mode(int fd, unsigned mode);  // fchmod; a memfd is born 0777 and anyone who holds it could reopen it
Sys<void> add_seals(int fd, int seals);     // F_ADD_SEALS; F_SEAL_WRITE gives EBUSY while a writable map exists
Sys<int> seals(int fd);
Sys<Fd> reopen_read_only(int fd);  // open("/proc/self/fd/N", O_RDONLY|O_CLOEXEC): a new open file description

struct FileFacts {
  std::uint64_t size = 0;
  std::uint64_t touched = 0;  // st_blocks * 512: bytes with memory behind them
  std::uint32_t uid = 0;
  std::uint32_t mode = 0;
  std::uint64_t device = 0, inode = 0;
  bool is_socket = false, is_directory = false, is_regular = false;
};
Sys<FileFacts> file_facts(int fd);
// The end of the last part of [offset, offset + bytes) with memory behind it; `offset` where there is none.
Sys<std::uint64_t> memory_end(int fd, std::uint64_t offset, std::uint64_t bytes);

Sys<void*> mmap(void* hint, std::size_t length, int protection, int flags, int fd, std::uint64_t offset);
Sys<void> munmap(void* address, std::size_t length);
Sys<void*> mremap(void* address, std::size_t length, std::size_t new_length);  // it may move
Sys<void> madvise(void* address, std::size_t length, int advice);
// mbind(2): all memory of the range comes from this NUMA node, for every process that maps the file. Pages that are
// there already are moved. EINVAL: the host has no such node, or this process may not use it.
Sys<void> bind_to_node(void* address, std::size_t length, unsigned node);

}  // namespace shmb::sys
