// SPDX-License-Identifier: Apache-2.0
// The birth of a timeline (ledger/timeline.hpp).
#pragma once

#include <string_view>

#include "base/result.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

class Session;
struct Gpu;
struct Region;

// Makes a timeline as a region of the session, which is its producer.
Result<Region*> make_timeline(Gpu& gpu, Session& session, const shmbw_gpu_timeline& wish, std::string_view name);

}  // namespace shmb::daemon
