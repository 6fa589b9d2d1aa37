// SPDX-License-Identifier: Apache-2.0
// The ends that a session can come to. Two facts decide what is given back: the socket is at its end, and the process
// has ended. They come in either order.
//
// - The socket ends first (end_session). Leases, watches, tickets that are bound to the session, its roles and its
//   place in the group go at once. If the process still runs, or may, its places in pools and its leases of GPU memory
//   stay, because the memory may still be mapped. When the process ends, they go too (session_process_ended).
// - The process ends first (session_process_died). A forked child holds the socket, and is the heir of the leases. The
//   child does not inherit roles and tickets that are bound to the session: it supervises no group and is no worker.
//   The places in pools end, and so do leases of GPU memory, which a fork does not copy.
// - The broker disconnects a session that does not read (session_disconnected). The leases stay until the process ends.
//   The process may come back with a new connection, which takes them over (take_over).
#pragma once

#include "base/sys_process.hpp"

namespace shmb::daemon {

class Ledger;
class Session;

// A process whose connection the broker closed (law 8) is back: its objects continue under the new session.
void take_over(Ledger& ledger, Session& heir, Session& from);
// Gives everything back.
void end_session(Ledger& ledger, Session& session);
void session_process_died(Ledger& ledger, Session& session, const sys::ExitInfo* how);
// The process has ended. session_process_died may report later how it ended.
void session_process_ended(Ledger& ledger, Session& session);
// No later report of its process will come. The session is gone afterwards.
void forget_session(Ledger& ledger, Session& session);
void session_disconnected(Ledger& ledger, Session& session);

}  // namespace shmb::daemon
