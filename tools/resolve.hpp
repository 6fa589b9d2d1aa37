// SPDX-License-Identifier: Apache-2.0
// The forms of a region's address: NAME (in the group of SHMBROKER_GROUP, else in `shell-<uid>`), GROUP/NAME,
// UID:GROUP/NAME, or @ID and @ID.GENERATION as `list -q` prints them. GROUP may be @ID too. A pool has the same forms.
// A queue is its pool's address, a colon and its name: GROUP/POOL:QUEUE, @ID:QUEUE.
#pragma once

#include <optional>
#include <string>

#include "client/face/shmbroker.h"
#include "tools/session.hpp"
#include "tools/view.hpp"

namespace shmb::tools {

struct Target {
  std::optional<shmb_region_id> id;  // @ID
  std::string address;               // else
  std::string text;                  // as typed
};

Result<Target> resolve(const std::string& text);
// not_found, in the words of library and broker. It names another group of this user that has the name.
Error nothing_there(const char* what, const Target& target, const Viewer& viewer);
Result<Region> attach(const Session& session, const Target& target, const shmb_attach_options& options);
// The one region's row, or not_found with a sentence.
Result<RegionRow> find(const Viewer& viewer, const Target& target);
Result<PoolRow> find_pool(const Viewer& viewer, const Target& target);
Result<QueueRow> find_queue(const Viewer& viewer, const PoolRow& pool, const std::string& name);
// Removes ":QUEUE" from an address and returns it. Empty: it has none.
std::string take_queue(std::string& address);

}  // namespace shmb::tools
