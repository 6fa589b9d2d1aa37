// SPDX-License-Identifier: Apache-2.0
// A write(2) to a file that does not end until it is let go, and holds the file's lock meanwhile. Its source is a page
// that comes when the test says so (userfaultfd(2); any user can do the same with a file system of its own). A hostile
// client can do this to memory that the broker is to seal.
#pragma once

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "base/fd.hpp"

namespace harness {

class StuckWrite {
 public:
  explicit StuckWrite(int file) {
    faults_ = shmb::Fd::adopt(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
    if (!faults_) return;
    uffdio_api api{};
    api.api = UFFD_API;
    page_ = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uffdio_register what{};
    what.range = {reinterpret_cast<std::uintptr_t>(page_), kPage};
    what.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (::ioctl(faults_.get(), UFFDIO_API, &api) != 0 || page_ == MAP_FAILED ||
        ::ioctl(faults_.get(), UFFDIO_REGISTER, &what) != 0)
      return;
    writer_ = std::thread([this, file] { written_ = ::pwrite(file, page_, 1, 0) == 1; });
    pollfd asked{faults_.get(), POLLIN, 0};
    stuck_ = ::poll(&asked, 1, 30'000) == 1;  // the page is missed only with the lock held
  }
  StuckWrite(const StuckWrite&) = delete;
  StuckWrite& operator=(const StuckWrite&) = delete;
  ~StuckWrite() {
    let_go();
    if (page_ != MAP_FAILED) ::munmap(page_, kPage);
  }

  bool stuck() const { return stuck_; }  // false: not allowed here
  bool let_go() {
    if (writer_.joinable()) {
      uffdio_zeropage zero{};
      zero.range = {reinterpret_cast<std::uintptr_t>(page_), kPage};
      (void)::ioctl(faults_.get(), UFFDIO_ZEROPAGE, &zero);
      writer_.join();
    }
    return written_;
  }

 private:
  static constexpr std::size_t kPage = 4096;
  shmb::Fd faults_;
  void* page_ = MAP_FAILED;
  std::thread writer_;
  bool stuck_ = false, written_ = false;
};

}  // namespace harness
