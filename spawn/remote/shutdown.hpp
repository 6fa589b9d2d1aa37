// SPDX-License-Identifier: Apache-2.0
// The end of a worker.
//
// Graceful: the workers meet three times (meeting.hpp), and serve while they wait. The first meeting is for the calls.
// Then references are given up, and the second one is for the broker's table. The third one is over when every worker
// has counted the references that others still hold to its values. A worker that left earlier would take its references
// along. Dead workers are not waited for, but their successors are. At its deadline a worker leaves all the same.
//
// Then, and at once in a local shutdown, the worker closes. Waiting calls fail, the leading thread returns, values are
// destroyed, and the worker leaves the world at the broker. After that only handles are destroyed.
// If the broker leaves one request of the end unanswered, the answers to the others are not waited for.
#pragma once

#include <cstdint>
#include <optional>

#include "spawn/face/shmbroker_remote.h"
#include "spawn/remote/meeting.hpp"
#include "spawn/remote/server.hpp"

namespace shmb::remote {

inline constexpr std::int64_t kShutdownTimeout = SHMB_REMOTE_SHUTDOWN_TIMEOUT;

struct ShutdownRequest {
  bool local = false, keep_references = false, report_leaks = false;
  std::int64_t timeout = 0;  // ns; 0 is kShutdownTimeout
};

class Shutdown {
 public:
  Shutdown(const Place& place, Monitor& monitor, Life& life, Callbacks& callbacks, const Roster& roster,
           References& references, Calls& calls, Sender& sender, Server& server, Meeting& meeting, Stepper& stepper)
      : place_(place),
        monitor_(monitor),
        life_(life),
        callbacks_(callbacks),
        roster_(roster),
        references_(references),
        calls_(calls),
        sender_(sender),
        server_(server),
        meeting_(meeting),
        stepper_(stepper) {}

  struct Ended {
    std::uint32_t leaks = 0;  // values of this worker that others still hold
    std::optional<Error> error;
  };
  // Without the lock, once: a second thread is refused. In a child that a user's function has forked meanwhile, and
  // that returns here, it does nothing more.
  Ended run(const ShutdownRequest& wish);

 private:
  struct Remains;
  std::optional<Error> begin();
  void meet_all(const ShutdownRequest& wish, Ended& out, bool& answers);
  std::optional<Error> meet(std::uint64_t phase, client::Deadline deadline);
  bool idle() const;
  std::string why_late() const;
  bool close(Remains& remains);
  void gather(Remains& remains);

  const Place& place_;
  Monitor& monitor_;
  Life& life_;
  Callbacks& callbacks_;
  const Roster& roster_;
  References& references_;
  Calls& calls_;
  Sender& sender_;
  Server& server_;
  Meeting& meeting_;
  Stepper& stepper_;
};

}  // namespace shmb::remote
