// SPDX-License-Identifier: Apache-2.0
// The identity of the peer, by the kernel's word alone. The client's word is used only to reject a wrong guess. Each
// fact is optional: one that the kernel does not give, for any errno, is "unknown" and never a reason to refuse or to
// fail.
#pragma once

#include <cstdint>

#include "base/fd.hpp"
#include "daemon/transport/link.hpp"

namespace shmb::daemon {

struct Identity {
  Peer facts;
  Fd pidfd;
  bool pidfd_is_certain = false;  // from SO_PEERPIDFD; else from pidfd_open on a pid that may have been reused
};

Identity identify(int socket, bool admin);
// The same of a connection that the broker before this one has identified. It owns the pidfd from now on.
Identity known_peer(const BrokerEvents::Open& open);

// Checks an uncertain pidfd. It is kept only if its process began at the time in HELLO, is alive, and the socket is
// still connected. Then the pid was not reused between connect(2) and pidfd_open(2). False: the pidfd was dropped.
bool confirm_start_time(Identity& identity, int socket, std::uint64_t start_time);

bool hung_up(int socket);  // the peer and all that share its socket have closed it

}  // namespace shmb::daemon
