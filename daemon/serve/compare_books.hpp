// SPDX-License-Identifier: Apache-2.0
// Compares the books with the objects, in brokers of tests. A change that was not noted fails the first test that makes
// it. The sums of the accounts are made once more from the records alone: a broker that begins from the books has no
// other source for them. Each number of a descriptor must be open, and that of one owner alone.
#pragma once

namespace shmb::daemon {

class Ledger;

// Logs each difference as a bug of the broker's own. Looks at all records where they are few, and now and then where
// they are many.
void compare_books(Ledger& ledger);
// Of all, now: after a start from the books of another broker.
void compare_all_books(Ledger& ledger);

}  // namespace shmb::daemon
