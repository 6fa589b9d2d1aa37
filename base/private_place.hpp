// SPDX-License-Identifier: Apache-2.0
// The place of a user's private broker outside of XDG_RUNTIME_DIR. Any user can guess the name of the first place,
// <tmp>/shmbroker-<uid>, and make it first. Then the second one is used: <tmp>/shmbroker-<uid>-<32 random hex digits>.
// No other user can make a directory of this owner or, in a sticky directory, rename or remove it. So all programs of a
// uid find it by its owner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.hpp"

namespace shmb {

std::string first_place(const std::string& temporary, std::uint32_t uid);

// The second place of `uid`, if there is one: a directory of that owner, readable for no other user.
std::optional<std::string> second_place(const std::string& temporary, std::uint32_t uid);

// The same, and makes it if there is none. Programs that make one at the same time agree on one.
Result<std::string> make_second_place(const std::string& temporary, std::uint32_t uid);

}  // namespace shmb
