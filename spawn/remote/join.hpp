// SPDX-License-Identifier: Apache-2.0
// How a worker comes into its world. The workers find each other at the broker, by user and port.
//
// The steps: the broker gives the worker its place. Worker 0 makes the pool in the group of the world and reports it to
// the broker; the others open it. Then the worker waits until the world is complete and all workers are in the pool.
// The pool goes with the last worker in it, and the first one may leave at once. Where the world runs already, the
// worker takes a dead one's place in it and in the pool. One thread joins, and no other has the worker yet. Events
// about references are kept until messages are read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "spawn/remote/arrivals.hpp"

namespace shmb::remote {

struct Wanted {
  std::string name, address, socket;
  std::int32_t rank = 0;        // below 0: RANK
  std::int32_t world_size = 0;  // 0: WORLD_SIZE
  std::uint32_t threads = 0;
  std::int64_t timeout = 0, call_timeout = 0;  // ns; 0: the defaults
  std::function<void(std::unique_ptr<Request>)> request;
  void (*drop)(void* context, void* object) = nullptr;
  void* context = nullptr;
};

// A wish in which nothing is left to the environment, and all is within bounds.
struct CheckedWish : Wanted {
  std::uint32_t port = 0;
};
Result<CheckedWish> check(Wanted wish);

class Joining {
 public:
  Joining(const CheckedWish& wish, Place& place, Monitor& monitor, const Life& life, const Roster& roster,
          Workers& workers, Arrivals& arrivals);

  Result<void> take_place();  // connects; from here on the worker has to leave the world again
  Result<void> enter();       // until all are there
  // Leaves the world. If the world has failed before it was complete, the broker gives all its workers the same cause.
  // Then that cause is returned instead of `why`.
  Error give_up(Error why);

 private:
  Result<void> open_inbox();
  Result<void> open_inbox_in(std::uint64_t pool);
  Result<void> await_world();
  Result<void> await_peers();
  Result<void> await_event();
  Result<void> look_at_world();
  Result<void> look_at_first();
  std::int64_t time_left() const;  // of `deadline_`, in ns; at least 1

  const CheckedWish& wish_;
  Place& place_;
  Monitor& monitor_;
  const Life& life_;
  const Roster& roster_;
  Workers& workers_;
  Arrivals& arrivals_;
  const client::Deadline deadline_;
  bool complete_ = false;   // the world
  std::uint64_t pool_ = 0;  // as the broker tells it; 0: there is none yet
};

}  // namespace shmb::remote
