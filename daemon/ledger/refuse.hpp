// SPDX-License-Identifier: Apache-2.0
// The sentences of refusals: limit, scope, used, asked, the largest holders and the key to raise (law 5). Holders that
// the client may not see are given as one number, never by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace shmb::daemon {

struct Host;
struct Groups;
class Session;

// " in /etc/shmbroker.conf, then kill -HUP 4123", behind a key of the configuration. Empty where no file was read.
std::string in_config(const Host& host);

Error refuse_limit(Groups& groups, const Session& session, const Shortage& shortage);
Error refuse_create_rate(Groups& groups, const Session& session, const Shortage& shortage);
Error refuse_descriptors(Host& host, const Shortage& shortage);

// One answer for absent and forbidden, byte for byte. It repeats what was asked for, and says nothing that only the
// ledger knows. By name: an empty text of the group means the session's own group.
Error no_such_region(std::uint64_t id);
// Adds what the client may have meant: an object of the other kind, or one in another group of its user.
Error no_such_name(Groups& groups, Session& session, std::string_view what, std::uint32_t owner, std::string_view group,
                   std::string_view name);
Error no_such_group(std::uint64_t id);
Error no_such_group(const Session& session, std::uint32_t owner, std::string_view text);
Error no_lease(std::uint64_t region);  // for requests that only a holder of a lease may make
Error no_such_ticket();
Error stale_region(std::uint64_t id, std::uint32_t asked, std::uint32_t now);

inline Error plain(Status status, std::string sentence) { return Error{status, 0, {}, std::move(sentence)}; }

}  // namespace shmb::daemon
