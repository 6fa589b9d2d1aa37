// SPDX-License-Identifier: Apache-2.0
// All of law 6: read-only is read-only. System mode: mode 0600 under the broker's uid bounds every other uid, readers
// get an O_RDONLY reopen. Private mode: mode bits bind nobody, so the first read-only grant closes writing for ever:
// all writers have reported that they mapped, then FUTURE_WRITE, and only then an O_RDONLY descriptor leaves. Since
// that seal is for ever it is the last step: a request refused for another reason must not have closed writing.
// PROT_READ maps of an O_RDWR descriptor made before that seal could be mprotected to writable afterwards (measured).
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <string_view>

#include "base/compat.hpp"
#include "base/fd.hpp"
#include "base/result.hpp"

namespace shmb::daemon {

class World;
class Session;
struct Region;
struct Lease;

// What closes writing to whoever does not write yet, and what publishes. Both are put on by another thread
// (sealer.hpp).
inline constexpr int kClosingSeals = F_SEAL_FUTURE_WRITE, kPublishingSeals = F_SEAL_WRITE | F_SEAL_SEAL;

// What the session may have of the region at most, 0: it may not know of it.
std::uint32_t authority(Session& session, const Region& region);

// Whether a lease with `rights` may be had now. Changes nothing.
Result<void> admit_rights(const World& world, const Session& session, const Region& region, std::uint32_t rights);

// Whether the grant of these `rights` closes writing to the region for ever.
bool closes_writing(const World& world, const Session& session, const Region& region, std::uint32_t rights);

// A descriptor of its own; `what` it is of, for the sentence of a failure.
Result<Fd> reopen_read_only(int fd, std::string_view what);

// The descriptor for a lease with `rights`, good until the reply is sent (World::reply_owned).
Result<int> lend_descriptor(World& world, Region& region, std::uint32_t rights);

// What keeps a region from ever being published; what the kernel said against the seals; and what follows once they are
// on: the publication makes every lease read-only.
// `own` is the lease of the session that asks. Others that were lent a descriptor for writing have mapped it, or the
// kernel would refuse it to them after the seal.
Result<void> may_be_published(const Region& region, const Lease& own);
Error publication_refused(int code);
Error closing_refused(int code);
void sealed(World& world, Region& region, int seals);

}  // namespace shmb::daemon
