// SPDX-License-Identifier: Apache-2.0
// Closing and copying of descriptors. close(2) is never repeated. Linux frees the number before it reports EINTR, so
// a second close could hit a descriptor that another thread has just got.
#include "base/fd.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/sys_call.hpp"

namespace shmb {

void Fd::reset() {
  if (fd_ < 0) return;
  const int saved = errno;  // destructors run between a failed call and the reading of its errno
  ::close(std::exchange(fd_, -1));
  errno = saved;
}

Sys<Fd> Fd::dup() const {
  return sys::call_fd(fault::Call::dup, [&] { return ::fcntl(fd_, F_DUPFD_CLOEXEC, 0); });
}

Fd Fd::moved_up() && {
  const int higher = ::fcntl(fd_, F_DUPFD_CLOEXEC, 3);
  return higher < 0 ? std::move(*this) : adopt(higher);
}

}  // namespace shmb
