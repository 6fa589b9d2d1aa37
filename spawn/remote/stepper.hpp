// SPDX-License-Identifier: Apache-2.0
// A noun of remote that has to wait lets its worker do the pending work meanwhile. The worker implements this interface
// (agent.hpp), so that a noun that waits need not know the others.
#pragma once

#include "spawn/remote/monitor.hpp"

namespace shmb::remote {

class Stepper {
 public:
  // All are called with the lock, and release it meanwhile.
  // Ends the calls whose deadlines have passed, runs callbacks, and sends small messages where there is room.
  virtual void catch_up(Lock& lock) = 0;
  // Does one piece of pending work, or sleeps until `until`. The caller then checks its condition again.
  // `serves`: calls of others may run in it.
  virtual void step(Lock& lock, client::Deadline until, bool serves) = 0;
  // Whether this thread may take in what has arrived: no other one does, and few calls of others wait already.
  virtual bool may_look() const = 0;
  virtual void look(Lock& lock) = 0;

 protected:
  ~Stepper() = default;
};

}  // namespace shmb::remote
