// SPDX-License-Identifier: Apache-2.0
// The limits of a session, and its state as LIST shows it.
#include "daemon/ledger/session.hpp"

#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/ticket.hpp"

namespace shmb::daemon {

Session::Session(Host& host, std::uint64_t number, Link& connection, Account& uid_account)
    : books(host.books),
      id(number),
      line(number),
      link(&connection),
      uid(connection.peer().uid),
      pid(connection.peer().pid),
      admin(connection.peer().admin),
      has_pidfd(connection.peer().has_pidfd),
      socket(connection.descriptors_held().socket),
      pidfd(connection.descriptors_held().pidfd),
      account(SHMBW_SCOPE_SESSION, number, &uid_account, &host.own_bug),
      leases(&host.nodes),
      watches(&host.nodes),
      pools(&host.nodes),
      awaited(&host.nodes),
      numbers(number),
      connected(host.now()) {
  apply_limits(host);
  changed(*this);
}

void changed(Session& session) { session.books.sessions.note(session); }

void Session::apply_limits(const Host& host) {
  account.set_limit(Resource::leases, host.config.limits.session_leases);
  account.set_limit(Resource::watches, host.config.limits.session_watches);
  account.set_limit(Resource::tickets, ticket_share(host, *account.parent()));
}

Session::~Session() = default;

std::uint32_t Session::wire_state() const {
  if (phase == Phase::ended) return SHMBW_SESSION_STATE_LEAVING;
  if (lazy) return SHMBW_SESSION_STATE_DISCONNECTED;
  if (process_gone) return SHMBW_SESSION_STATE_HEIR;
  if (supervises && !group) return SHMBW_SESSION_STATE_SUPERVISOR;
  return SHMBW_SESSION_STATE_MEMBER;
}

// The transport counts the two descriptors of the session that asks already. Its user's share does not count them yet.
std::optional<Shortage> session_shortage(const Accounts& accounts, std::uint32_t uid, bool admin) {
  auto full = accounts.descriptor_shortage(uid, 0, admin);
  // Its own two are open already.
  if (full) full->used -= full->asked = 2;
  if (full || admin) return full;
  return accounts.share_shortage(uid, 2);
}

}  // namespace shmb::daemon
