// SPDX-License-Identifier: Apache-2.0
// See monitor.hpp.
#include "spawn/remote/monitor.hpp"

namespace shmb::remote {

void Monitor::wake() {
  wake_sleepers();
  wake_leader();
}

void Monitor::wake_leader() {
  // The leader itself looks again behind what it is doing.
  if (leading_ && inbox_ && leader_ != std::this_thread::get_id()) inbox_->interrupt();
}

void Monitor::sleep(Lock& lock, client::Deadline until) {
  const std::int64_t time = until.time();  // a signal that was noted before does not end this sleep
  const interrupt::Exposed exposed;
  changed_.wait_until(lock, time);
}

void Monitor::idle(Lock& lock, client::Deadline until) {
  const interrupt::Exposed exposed;
  idle_.wait_until(lock, until.time());
}

void Monitor::await_no_leader(Lock& lock) {
  const interrupt::Shield shield;
  while (leading_) changed_.wait(lock, client::Deadline::after(client::kForever));
}

}  // namespace shmb::remote
