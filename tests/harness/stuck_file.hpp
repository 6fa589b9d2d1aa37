// SPDX-License-Identifier: Apache-2.0
// A file whose close(2) waits for ever: it lies on a FUSE file system of a process that never answers FLUSH. Any client
// can make such a file and send its descriptor. A thread in that close cannot be killed until the server is gone.
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "tests/harness/child.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/support/shared.hpp"

namespace harness {

class StuckFile {
 public:
  StuckFile() : device_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    if (device_ < 0) return;
    const std::string options = "fd=" + std::to_string(device_) + ",rootmode=40000,user_id=0,group_id=0";
    if (::mount("shmb-test", folder_.path().c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) return;
    mounted_ = true;
    server_ = Child::run([this] { return serve(); });
    ::close(device_);
    device_ = -1;
  }
  StuckFile(const StuckFile&) = delete;
  StuckFile& operator=(const StuckFile&) = delete;
  ~StuckFile() {
    release();
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
    if (device_ >= 0) ::close(device_);
  }
  bool there() const { return mounted_; }  // false: not permitted here
  std::string path() const { return folder_.file("file"); }
  int flushes() const { return *flushes_; }  // closes that wait
  void release() {
    server_ = Child::run([] { return 0; });
  }  // ends the server, and with it each wait

 private:
  int serve() const {
    alignas(8) char in[FUSE_MIN_READ_BUFFER * 2];
    for (;;) {
      const ssize_t size = ::read(device_, in, sizeof in);
      if (size < 0 && errno == EINTR) continue;
      if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) return 0;
      const auto& asked = *reinterpret_cast<const fuse_in_header*>(in);
      fuse_attr file{};
      file.ino = asked.opcode == FUSE_LOOKUP ? 2 : asked.nodeid;
      file.mode = file.ino == 1 ? S_IFDIR | 0755 : S_IFREG | 0644;
      file.nlink = 1;
      if (asked.opcode == FUSE_FLUSH) ++*flushes_;
      else if (asked.opcode == FUSE_INIT) {
        fuse_init_out out{};
        out.major = FUSE_KERNEL_VERSION;
        out.minor = 31;
        out.max_write = 4096;
        answer(asked, &out, sizeof out);
      } else if (asked.opcode == FUSE_LOOKUP) {
        fuse_entry_out out{};
        out.nodeid = 2;
        out.attr = file;
        answer(asked, &out, sizeof out);
      } else if (asked.opcode == FUSE_GETATTR) {
        fuse_attr_out out{};
        out.attr = file;
        answer(asked, &out, sizeof out);
      } else if (asked.opcode == FUSE_OPEN) {
        const fuse_open_out out{};
        answer(asked, &out, sizeof out);
      } else if (asked.opcode != FUSE_FORGET && asked.opcode != FUSE_INTERRUPT) {
        answer(asked, nullptr, 0, asked.opcode == FUSE_RELEASE ? 0 : -ENOSYS);
      }
    }
  }
  void answer(const fuse_in_header& asked, const void* body, std::size_t size, int error = 0) const {
    alignas(8) char out[256];
    const fuse_out_header head{static_cast<std::uint32_t>(sizeof head + size), error, asked.unique};
    std::memcpy(out, &head, sizeof head);
    if (size > 0) std::memcpy(out + sizeof head, body, size);
    (void)!::write(device_, out, sizeof head + size);
  }

  TempDir folder_;
  int device_ = -1;
  bool mounted_ = false;
  support::Shared<std::atomic<int>> flushes_;
  Child server_ = Child::run([] { return 0; });
};

}  // namespace harness
