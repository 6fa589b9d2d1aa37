// SPDX-License-Identifier: Apache-2.0
// `Fd` owns one descriptor. Moved-from is empty; copying is the named call `dup`.
#pragma once

#include <utility>

#include "base/result.hpp"

namespace shmb {

class Fd {
 public:
  Fd() = default;
  static Fd adopt(int fd) { return Fd(fd); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();         // close(2); EINTR means closed on Linux
  Sys<Fd> dup() const;  // F_DUPFD_CLOEXEC: same open file description
  // The same open file under a number above 2. A program may run with its standard descriptors closed. What it prints
  // must not go into our sockets and memory. In a full table it keeps the number that it has.
  Fd above_standard() && { return fd_ < 0 || fd_ > 2 ? std::move(*this) : std::move(*this).moved_up(); }

 private:
  explicit Fd(int fd) : fd_(fd) {}
  Fd moved_up() &&;
  int fd_ = -1;
};

}  // namespace shmb
