// SPDX-License-Identifier: Apache-2.0
// The second part of load_books: pools with their participants, segments, queues and lanes, and the regions that lanes
// hold. Groups, regions and sessions are there already. The records have been checked (daemon/books/last_pools.hpp).
//
// Two processes at least know a pool besides the broker: its participants, who go on with it while no broker is there.
// So a pool is not made anew. The next broker maps the same two files, and its tables follow from the records. Of what
// the dead broker has done since its last commit the directory may show a part. resume_pools writes all of it again.
//
// A repair leaves nothing that must be known: the one of a participant that is dead or has left begins again.
#pragma once

#include "base/result.hpp"
#include "daemon/books/last_books.hpp"

namespace shmb::daemon {

class Ledger;
class Session;

// Fails where a pool cannot be mapped, for want of memory or of address space. The broker ends then, and the next one
// tries again.
Result<void> load_pools(Ledger& ledger, const books::LastBooks& last);
// Its process may live on, and nothing will report its end: the pools in which it is end for all.
void lose_pools_of(Ledger& ledger, const Session& session);
// The last step. Sessions that cannot go on have ended.
void resume_pools(Ledger& ledger);

}  // namespace shmb::daemon
