// SPDX-License-Identifier: Apache-2.0
// The view of one session, and how the ledger's objects look on the wire.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shmb::daemon {

struct Groups;
class Session;
struct Group;
struct Region;

// The group of `owner` that a text names ('' the session's own, '@id' an unnamed one). Null if the session may not
// address it.
Group* addressed_group(Groups& groups, Session& session, std::uint32_t owner, std::string_view text);
std::uint32_t region_flags(const Region& region);
std::string rights_text(std::uint32_t rights);

}  // namespace shmb::daemon
