// SPDX-License-Identifier: Apache-2.0
// The wait for a name that does not exist yet, of a region or of a pool. The broker sends an event when an object gets
// the name. A queue with a pool of its own waits for that pool. An address without a group means the session's own
// group and then the user's. So such a wait ends too when the session enters or leaves a group, and when its group
// ends.
#pragma once

#include <cstdint>

#include "client/session/session.hpp"
#include "proto/names.hpp"

namespace shmb::client {

enum class Named : std::uint8_t { region, pool };

// Returns when the name may be there: the caller asks again. An error with Status::deadline: it did not come in time.
Result<void> wait_for_name(Session& session, const names::Address& address, Named what, Deadline deadline);

}  // namespace shmb::client
