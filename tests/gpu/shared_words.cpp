// SPDX-License-Identifier: Apache-2.0
// Made by the holder with plain system calls: the page is ordinary memory to everybody without a GPU.
#include "tests/gpu/shared_words.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/gpu/report.hpp"

namespace shmb::facts {
namespace {
constexpr std::size_t kPage = 4096;
}

int make_words_fd() {
  const int fd = memfd_create("timeline", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, kPage) != 0) fail("memfd: %s", std::strerror(errno));
  return fd;
}

Words::Words(int fd) {
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) fail("mmap of the words: %s", std::strerror(errno));
  page_ = static_cast<std::uint64_t*>(page);
}

void Words::pin() {
  must(cu.host_register(page_, kPage, kHostPortable | kHostDeviceMap), "cuMemHostRegister");
  must(cu.host_address(&device_, page_, 0), "cuMemHostGetDevicePointer");
}

}  // namespace shmb::facts
