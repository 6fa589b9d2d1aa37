// SPDX-License-Identifier: Apache-2.0
// The ends that a session can come to: its process has ended, its socket is closed, or the broker disconnected it.
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
void session_disconnected(Ledger& ledger, Session& session);

}  // namespace shmb::daemon
