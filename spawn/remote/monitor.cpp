// SPDX-License-Identifier: Apache-2.0
// See monitor.hpp.
#include "spawn/remote/monitor.hpp"

namespace shmb::remote {

void Monitor::wake() {
  wake_sleepers();
  wake_leader();
}

void Monitor::wake_leader() {
  if (leading_ && inbox_) inbox_->interrupt();
}

void Monitor::sleep(Lock& lock, client::Deadline until) {
  if (until.endless()) changed_.wait(lock);
  else changed_.wait_until(lock, until.point());
}

void Monitor::await_no_leader(Lock& lock) {
  changed_.wait(lock, [this] { return !leading_; });
}

}  // namespace shmb::remote
