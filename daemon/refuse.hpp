// SPDX-License-Identifier: Apache-2.0
// The sentences of refusals: limit, scope, used, asked, the largest holders and the key to raise (law 5). Holders that
// the asker may not see are one number, never names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace shmb::daemon {

class World;
class Session;

Error refuse_limit(World& world, const Session& session, const Shortage& shortage);
Error refuse_descriptors(World& world, const Shortage& shortage);

// One answer for absent and forbidden, byte for byte: it says what was asked for and nothing that only the books know.
// By name: where the group's text is empty, that is the asker's own.
Error no_such_region(std::uint64_t id);
// Says too what the caller may have meant: a thing of the other kind, or one in another group of its user.
Error no_such_name(World& world, Session& session, std::string_view what, std::uint32_t owner, std::string_view group,
                   std::string_view name);
Error no_such_group(std::uint64_t id);
Error no_such_group(const Session& session, std::uint32_t owner, std::string_view text);
Error no_lease(std::uint64_t region);  // where only a lease gives a say
Error no_such_ticket();
Error stale_region(std::uint64_t id, std::uint32_t asked, std::uint32_t now);

inline Error plain(Status status, std::string sentence) { return Error{status, 0, {}, std::move(sentence)}; }

}  // namespace shmb::daemon
