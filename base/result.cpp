// SPDX-License-Identifier: Apache-2.0
// The bridge from an errno to a sentence. The status gives the kind of shortage, so that a client can react without
// reading text.
#include "base/result.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/sys_process.hpp"
#include "base/text.hpp"

namespace shmb {

namespace {

Status status_of(int code) {
  switch (code) {
    case ENOMEM:
    case ENOSPC:
      return Status::no_memory;
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS:
      return Status::no_descriptors;
    default:
      return Status::system;
  }
}

// The limit on descriptors or on the size of files, and the remedy. It names the process, because a client may read a
// shortage of its broker.
std::string advice_for(int code) {
  if (code == ENFILE) return ": the machine has as many files open as it may (sysctl fs.file-max): raise that";
  if (code == EFBIG) {
    rlimit size{};
    if (::getrlimit(RLIMIT_FSIZE, &size) != 0 || size.rlim_cur == RLIM_INFINITY) return {};
    return ": RLIMIT_FSIZE of pid " + std::to_string(::getpid()) + " is " + std::to_string(size.rlim_cur) +
           " bytes, and counts for shared memory too: raise the limit (ulimit -f)";
  }
  if (code != EMFILE) return {};
  const auto limit = sys::descriptor_limit();
  if (!limit) return {};
  return ": RLIMIT_NOFILE of pid " + std::to_string(::getpid()) + " is " + std::to_string(limit->soft) +
         ": close descriptors there, or raise the limit (ulimit -n" +
         (limit->hard > limit->soft ? ", up to " + std::to_string(limit->hard) : "") + ")";
}

}  // namespace

std::unexpected<Error> system_failure(Errno code, const std::string& what) {
  return std::unexpected(
      Error{status_of(code.value), code.value, {}, what + ": " + errno_text(code.value) + advice_for(code.value)});
}

}  // namespace shmb
