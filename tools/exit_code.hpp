// SPDX-License-Identifier: Apache-2.0
// How every verb ends. `run` is the exception: it passes the command's status on (spawn/ranks/supervisor.hpp).
#pragma once

#include "base/status.hpp"

namespace shmb::tools {

inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNoBroker = 3;
inline constexpr int kExitRefused = 4;
inline constexpr int kExitNotFound = 5;
inline constexpr int kExitFindings = 6;  // leaks, gc, doctor: something was found
inline constexpr int kExitUnseen = 7;    // they found nothing, but could not see all
inline constexpr int kExitDeadline = 124;

constexpr int exit_code(Status status) {
  switch (status) {
    case Status::ok:
      return kExitOk;
    case Status::invalid:
      return kExitUsage;
    case Status::no_broker:
    case Status::session_lost:
      return kExitNoBroker;
    case Status::not_found:
    case Status::stale:
      return kExitNotFound;
    case Status::deadline:
      return kExitDeadline;
    case Status::exists:
    case Status::limit:
    case Status::denied:
    case Status::not_ready:
    case Status::write_closed:
    case Status::still_mapped:
    case Status::group_ended:
    case Status::busy:
    case Status::no_memory:
    case Status::no_descriptors:
      return kExitRefused;
    default:
      return kExitError;
  }
}

}  // namespace shmb::tools
