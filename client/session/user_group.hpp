// SPDX-License-Identifier: Apache-2.0
// The group in which programs of one user meet that were started apart: "shell-<uid>". `shmbroker put` makes it, and so
// does join_user_group(). An address without a group that the session's own group does not have is looked up in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/session/session.hpp"
#include "proto/names.hpp"

namespace shmb::client {

std::string user_group_name(std::uint32_t uid);

// Where `address` is looked up next. Nothing: it names its group.
std::optional<names::Address> in_user_group(Session& session, const names::Address& address);

// The answer of the first place, with the second one in its sentence.
Error in_neither(Error first, const names::Address& second);

// The session becomes a member. Where there is no such group it is made, and then keeps its regions for an hour after
// its last member.
Result<std::uint64_t> join_user_group(Session& session, Deadline deadline);

}  // namespace shmb::client
