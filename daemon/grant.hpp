// SPDX-License-Identifier: Apache-2.0
// All of law 6: read-only is read-only. System mode: mode 0600 under the broker's uid bounds every other uid, readers
// get an O_RDONLY reopen. Private mode: mode bits bind nobody, so the first read-only grant closes writing for ever:
// all writers have reported that they mapped, then FUTURE_WRITE, and only then an O_RDONLY descriptor leaves. Since
// that seal is for ever it is the last step: a request refused for another reason must not have closed writing.
// PROT_READ maps of an O_RDWR descriptor made before that seal could be mprotected to writable afterwards (measured).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/fd.hpp"
#include "base/result.hpp"

namespace shmb::daemon {

class World;
class Session;
struct Region;

// What the session may have of the region at most, 0: it may not know of it.
std::uint32_t authority(Session& session, const Region& region);

// Whether a lease with `rights` may be had now. Changes nothing.
Result<void> admit_rights(const World& world, const Session& session, const Region& region, std::uint32_t rights);

// Whether the grant of these `rights` closes writing to the region for ever.
bool closes_writing(const World& world, const Session& session, const Region& region, std::uint32_t rights);

// Closes writing where a lease with these admitted `rights` asks for it. After everything else that can fail, and
// before the reply.
Result<void> seal_for_rights(const World& world, const Session& session, Region& region, std::uint32_t rights);

// A descriptor of its own; `what` it is of, for the sentence of a failure.
Result<Fd> reopen_read_only(int fd, std::string_view what);

// The descriptor for a lease with `rights`, good until the reply is sent (World::reply_owned).
Result<int> lend_descriptor(World& world, Region& region, std::uint32_t rights);

// The writer has unmapped: WRITE and SEAL, on another thread (sealer.hpp). What keeps a region from ever being
// published; what the kernel said against the seals; and what follows once they are on: every lease is read-only.
Result<void> may_be_published(const Region& region);
Error publication_refused(int code);
void published(World& world, Region& region);

}  // namespace shmb::daemon
