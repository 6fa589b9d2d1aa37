// SPDX-License-Identifier: Apache-2.0
// All of law 6: read-only is read-only. System mode: mode 0600 under the broker's uid bounds every other uid, so
// readers get an O_RDONLY reopen. Private mode: mode bits bind no process of the uid, so the first read-only grant
// closes writing for ever. First all writers report that they have mapped. Then the broker adds FUTURE_WRITE. Only then
// an O_RDONLY descriptor leaves.
//
// The seal cannot be undone, so it is the last step: a request that is refused for another reason must not close
// writing. A PROT_READ mapping of an O_RDWR descriptor made before the seal could be made writable by mprotect(2)
// (measured).
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <string_view>

#include "base/compat.hpp"
#include "base/fd.hpp"
#include "base/result.hpp"

namespace shmb::daemon {

struct Host;
struct Regions;
class Session;
struct Accounts;
struct Reply;
struct Region;
struct Lease;

// The seals that close writing to processes that do not write yet, and those that publish. Another thread adds both
// (sealer.hpp).
inline constexpr int kClosingSeals = F_SEAL_FUTURE_WRITE, kPublishingSeals = F_SEAL_WRITE | F_SEAL_SEAL;

// The most rights that the session may have to the region. 0: it may not know of the region.
std::uint32_t authority(Session& session, const Region& region);

// Checks whether a lease with `rights` may be granted now. Changes nothing.
Result<void> admit_rights(const Host& host, const Session& session, const Region& region, std::uint32_t rights);

// Whether a grant of `rights` closes writing to the region for ever.
bool closes_writing(const Host& host, const Session& session, const Region& region, std::uint32_t rights);

// Opens a descriptor of its own. `what` names the thing in the sentence of a failure.
Result<Fd> reopen_read_only(int fd, std::string_view what);

// The descriptor for a lease with `rights`. It is valid until the reply is sent (Reply::owned).
Result<int> lend_descriptor(const Accounts& accounts, Reply& reply, Region& region, std::uint32_t rights);

// The steps of a publication: whether the region may be published, the errors of the kernel against the seals, and the
// work after the seals. A publication makes every lease read-only. `own` is the lease of the session that asks. Other
// sessions with a descriptor for writing must have mapped it, because the kernel would refuse that after the seal.
Result<void> may_be_published(const Region& region, const Lease& own);
Error publication_refused(int code);
Error closing_refused(int code);
void sealed(Regions& regions, Region& region, int seals);

}  // namespace shmb::daemon
