// SPDX-License-Identifier: Apache-2.0
// The sentences of refusals: limit, scope, used, asked, the largest holders and the key to raise (law 5). Holders that
// the asker may not see are one number, never names.
#pragma once

#include <string>

#include "base/result.hpp"

namespace shmb::daemon {

class World;
class Session;

Error refuse_limit(World& world, const Session& session, const Shortage& shortage);
Error refuse_descriptors(World& world, std::uint64_t wanted);

// One answer for absent and forbidden, byte for byte.
Error no_such_region();
Error no_such_name();
Error no_such_group();
Error no_such_ticket();
Error stale_region(std::uint64_t id, std::uint32_t asked, std::uint32_t now);

inline Error plain(Status status, std::string sentence) { return Error{status, 0, {}, std::move(sentence)}; }

}  // namespace shmb::daemon
