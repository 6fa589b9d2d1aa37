// SPDX-License-Identifier: Apache-2.0
// A broker begins from the books of the one before it. It makes the objects that the records describe, with the same
// ids, and then goes on as any broker does. So there are two steps:
//
// 1. `load_books` makes the objects: groups, regions with their names, sessions, leases, tickets, and what each of them
//    is charged for. No limit is looked at, as all of that was granted. Nothing is freed. The next commit then makes
//    books of the same content, and from then on a broker after this one would begin from those.
// 2. `end_loaded` ends what cannot go on without a connection, by the ways in which a broker always does. Each session
//    ends as if its process had died: it gives back its leases, its groups end, keeps begin, and reports are made.
//    Regions that nothing holds any more are freed.
//
// These are not loaded, so they end with the broker: pools and worlds (their memory is loaded and then freed, unless it
// has a name, a ticket or a lease), memory of GPUs, watches, and sessions that waited for the end of their process.
#pragma once

#include "daemon/books/last_books.hpp"

namespace shmb::daemon {

class Ledger;

// Into a ledger that has nothing yet.
void load_books(Ledger& ledger, const books::LastBooks& last);
void end_loaded(Ledger& ledger);

}  // namespace shmb::daemon
