// SPDX-License-Identifier: Apache-2.0
// The rank's side: its facts, what it runs, the report of its outcome, and its requests to the others. There is one
// state per process, never destroyed. A forked child of a rank is no rank.
//
// Threads: any thread of the rank may ask. One of those that wait reads the channel and hands the others their replies,
// as in client/session/channel.hpp. The library starts no thread for it.
//
// The outcome is reported once: the result (finish_rank), or the exception (raise_in_rank). A rank that ends without a
// report has failed as "unfinished", also with exit status 0. So a function that calls exit(0) too early is noticed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "client/session/deadline.hpp"
#include "spawn/face/shmbroker_spawn.h"
#include "spawn/ranks/link.hpp"
#include "spawn/ranks/verdict.hpp"

namespace shmb::spawn {

inline constexpr std::int64_t kRankDeadline = SHMB_RANK_WAIT;  // for requests to other ranks

struct RankFacts {
  std::int32_t rank = 0, local_rank = 0, world_size = 1, local_world_size = 1, shard = 0;
  std::string function, arguments;
  std::uint64_t parent_epoch = 0, parent_session = 0;  // of Plan
};

// Whether this process is a rank, by its environment. In the fork server it runs `preload` and returns only in the
// ranks. nullptr: no rank. The facts live as long as the process.
Result<const RankFacts*> enter_rank(void (*preload)());
// Whether a supervisor waits for this process to call enter_rank(): it is a rank or the fork server, and has not yet.
bool awaited_as_rank();
// Reports to the supervisor that a region is lent to the parent. The parent then keeps its session, so that it can take
// the region.
Result<void> announce_lent(client::Deadline deadline);
Result<void> finish_rank(std::string_view result);
// An exception is being thrown that nothing in the function catches: the failure counts from now on.
Result<void> throw_in_rank(std::string_view type);
Result<void> raise_in_rank(std::string_view type, std::string_view text, std::string_view trace,
                           const std::vector<Cause>& causes);
// Returns the payload of the reply.
Result<std::string> ask(Op op, std::string_view payload, client::Deadline deadline);
// For the child of a fork that is a rank from birth.
void become_forked_rank(Fd control, std::string begin_payload);

}  // namespace shmb::spawn
