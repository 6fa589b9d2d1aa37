// SPDX-License-Identifier: Apache-2.0
// See peer.hpp.
#include "daemon/transport/peer.hpp"

#include <poll.h>

#include "base/kernel.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"

namespace shmb::daemon {
namespace {

bool has_ended(int pidfd) {
  auto ended = sys::poll_readable(pidfd, 0);
  return !ended || *ended;
}

Peer credentials_of(int socket, bool admin) {
  Peer facts;
  facts.admin = admin;
  if (auto credentials = sys::peer_credentials(socket)) {
    facts.uid = credentials->uid;
    facts.gid = credentials->gid;
    facts.pid = credentials->pid;
  } else {
    facts.uid = facts.gid = 0xffff'ffff;  // (uid_t)-1: owns nothing, and equals no user
  }
  if (auto groups = sys::peer_groups(socket)) facts.groups = std::move(*groups);
  return facts;
}

}  // namespace

Identity identify(int socket, bool admin) {
  Identity identity;
  identity.facts = credentials_of(socket, admin);
  Peer& facts = identity.facts;
  // 6.5. It names the process that called connect(2), and the pid cannot have been reused in between. It works even
  // after that process has been reaped.
  if (auto pidfd = sys::peer_pidfd(socket)) {
    identity.pidfd = std::move(*pidfd);
    identity.pidfd_is_certain = true;
  } else if (facts.pid != 0 && kernel().proc) {
    if (auto opened = sys::pidfd_open(static_cast<pid_t>(facts.pid))) identity.pidfd = std::move(*opened);
  }
  facts.has_pidfd = static_cast<bool>(identity.pidfd);
  return identity;
}

Identity known_peer(const BrokerEvents::Open& open) {
  Identity identity;
  identity.facts = credentials_of(open.socket, open.admin);
  identity.pidfd = Fd::adopt(open.pidfd);
  identity.pidfd_is_certain = static_cast<bool>(identity.pidfd);
  identity.facts.has_pidfd = identity.pidfd_is_certain;
  return identity;
}

bool confirm_start_time(Identity& identity, int socket, std::uint64_t start_time) {
  if (!identity.pidfd) return false;
  if (identity.pidfd_is_certain) return true;
  // The order matters: the start time is read first, so a pidfd that is still alive afterwards belongs to it.
  auto began = sys::process_start_time(static_cast<pid_t>(identity.facts.pid));
  if (began && start_time != 0 && *began == start_time && !has_ended(identity.pidfd.get()) && !hung_up(socket)) {
    identity.pidfd_is_certain = true;
    return true;
  }
  identity.pidfd.reset();
  identity.facts.has_pidfd = false;
  return false;
}

bool hung_up(int socket) {
  pollfd entry{socket, 0, 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace shmb::daemon
