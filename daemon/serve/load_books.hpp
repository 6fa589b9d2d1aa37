// SPDX-License-Identifier: Apache-2.0
// A broker begins from the books of the one before it. It makes the objects that the records describe, with the same
// ids, and then goes on as any broker does. So there are three steps:
//
// 1. `load_books` makes the objects: groups, regions with their names, sessions, leases, tickets, watches, pools, and
//    what each of them is charged for. No limit is looked at, as all of that was granted. Nothing is freed. The next
//    commit then makes books of the same content, and from then on a broker after this one would begin from those.
// 2. The transport takes over the connections that are open (BrokerEvents::open_sessions). Each client is told by the
//    event RESUME which of its packets was served last.
// 3. `end_loaded` ends what cannot go on, by the ways in which a broker always does. A session without a connection
// ends
//    as if its process had died: it gives back its leases, its groups end, keeps begin, and reports are made. The pools
//    in which it was end for all, because its process still maps them. Regions that nothing holds any more are freed.
//    Other pools go on.
//
// A session is taken over if it has the feature RESUME, and nothing that is not loaded (LastBooks::resumes). These are
// not loaded, so they end with the broker: worlds, memory of GPUs, and sessions that waited for the end of their
// process.
#pragma once

#include "base/result.hpp"
#include "daemon/books/last_books.hpp"

namespace shmb::daemon {

class Ledger;
class Session;

// Into a ledger that has nothing yet.
Result<void> load_books(Ledger& ledger, const books::LastBooks& last);
// The session is taken over: tells its client so, before any other event.
void tell_resume(Session& session);
void end_loaded(Ledger& ledger);

}  // namespace shmb::daemon
