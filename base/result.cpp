// SPDX-License-Identifier: Apache-2.0
// The bridge from an errno to a sentence: the status says what kind of shortage it was, so that a client can react
// without reading text.
#include "base/result.hpp"

#include <cerrno>

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

}  // namespace

std::unexpected<Error> system_failure(Errno code, const std::string& what) {
  return std::unexpected(Error{status_of(code.value), code.value, {}, what + ": " + errno_text(code.value)});
}

}  // namespace shmb
