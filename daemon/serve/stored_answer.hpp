// SPDX-License-Identifier: Apache-2.0
// The answers that are in the books, for sessions that number their packets (feature RESUME).
//
// A broker may die between the commit of a request and its answer. Then the next broker gets the packet once more. It
// must not serve it, and the client must have its answer. So the bytes of a session's last answer are committed with
// the request, in records of 256 bytes. One answer is enough, because no request with an answer is served before the
// answer to the one before it was read.
//
// Descriptors are not stored. They are looked up again from what the answer names, a region or a pool, and from what
// the session still holds of it. The function of a message for that is `lend_again`. The request that came again says
// which rights were asked for.
//
// Requests that change nothing (`again` in proto/messages.toml) have no stored answer. They are served once more.
//
// A batch that takes several turns is committed with each of them. Then the answer as far as it is written is stored
// too, with the element to go on with. It has records of its own: a one-way batch may be in service while the answer
// before it is still needed.
#pragma once

#include "daemon/books/last_books.hpp"
#include "daemon/serve/answer.hpp"

namespace shmb::daemon {

// The request has been served. `answer`: its bytes, which are about to be sent; empty for one-way requests.
void store_answer(const Request& request, wire::Bytes answer);
// The packet has come again, and its answer is still to be sent.
void repeat_answer(const Request& request);

// Into sessions that have their numbers already. What does not fit together is logged and left out.
void load_answers(Ledger& ledger, const books::LastBooks& last);
// With the records of the session's numbers and answers.
void end_numbers(Books& books, SessionNumbers& numbers);

// The session's lease, as an answer names it that is sent again.
Result<Lease*> lease_again(const Request& request, const shmbw_region_ref& region);

// The descriptors of an answer that is sent again, into Reply::fds. Places of descriptors that the answer names are set
// in it. not_found: the session does not hold any more what the answer grants.
#define SHMB_LEND_AGAIN(op, name, batch) \
  Result<void> lend_again(const Request& request, const shmbw_##name& wish, shmbw_##name##_reply& reply);
SHMBW_REQUESTS_LENDING(SHMB_LEND_AGAIN)
#undef SHMB_LEND_AGAIN

}  // namespace shmb::daemon
