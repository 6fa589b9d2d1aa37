// SPDX-License-Identifier: Apache-2.0
// Who is at the other end, by the kernel's word alone (the client's word is used only to be disbelieved). Each fact is
// optional: whatever cannot be had, for whatever errno, is "unknown" and never a reason to refuse or to fail.
#pragma once

#include <cstdint>

#include "base/fd.hpp"
#include "daemon/link.hpp"

namespace shmb::daemon {

struct Identity {
  Peer facts;
  Fd pidfd;
  bool pidfd_is_certain = false;  // from SO_PEERPIDFD; else from pidfd_open on a number that may have been reused
};

Identity identify(int socket, bool admin);

// Settles an uncertain pidfd: it stays only if its process began when HELLO says, is alive, and the socket is still
// connected, so that the number was not reused between connect(2) and pidfd_open(2). False: the pidfd is dropped.
bool confirm_start_time(Identity& identity, int socket, std::uint64_t start_time);

bool hung_up(int socket);  // the peer and all who share its socket have closed it

}  // namespace shmb::daemon
