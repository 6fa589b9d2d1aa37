// SPDX-License-Identifier: Apache-2.0
// Where a user's private broker lies outside of XDG_RUNTIME_DIR. The first place, <tmp>/shmbroker-<uid>, has a name
// that every user can guess and make first. Then the second place is used: <tmp>/shmbroker-<uid>-<32 random hex
// digits>. Nobody else can make a directory that belongs to us, and in a sticky directory nobody else can remove or
// rename ours: so all programs of a uid find the same second place by its owner, with nothing agreed on before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.hpp"

namespace shmb {

std::string first_place(const std::string& temporary, std::uint32_t uid);

// The second place of `uid`, if there is one: a directory of that owner and of nobody else's reading.
std::optional<std::string> second_place(const std::string& temporary, std::uint32_t uid);

// The same, made where there is none. Programs that make one at the same time agree on one.
Result<std::string> make_second_place(const std::string& temporary, std::uint32_t uid);

}  // namespace shmb
