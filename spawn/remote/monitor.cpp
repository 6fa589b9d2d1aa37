// SPDX-License-Identifier: Apache-2.0
// See monitor.hpp.
#include "spawn/remote/monitor.hpp"

#include <algorithm>

#include "base/sys_process.hpp"

namespace shmb::remote {
namespace {

// Most calls take less. A request that comes while nobody leads waits so long at most.
constexpr std::int64_t kVacant = 200'000;

}  // namespace

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

void Monitor::wake_for_work() {
  if (leading_ && leader_serves_ && leader_ == std::this_thread::get_id()) changed_.notify_all();
  else wake();
}

void Monitor::idle(Lock& lock, client::Deadline until) {
  const interrupt::Exposed exposed;
  std::int64_t time = until.time();
  told_idle_ = false;
  const bool watches = !watched_ && inbox_ && (!leading_ || leads_ != leads_seen_);
  if (watches) {
    watched_ = true;
    leads_seen_ = leads_;
    time = std::min(time, sys::now_monotonic() + kVacant);
  }
  idle_.wait_until(lock, time);
  if (watches) watched_ = false;
  told_idle_ = false;
}

bool Monitor::may_lead_idly() const {
  return leader_ == std::this_thread::get_id() || vacant_since_ + kVacant <= sys::now_monotonic();
}

void Monitor::watch_lead() {
  if (!leading_ && !watched_ && !told_idle_) wake_idle();
}

void Monitor::leave_lead() {
  leading_ = false;
  ++leads_;
  vacant_since_ = sys::now_monotonic();
  changed_.notify_all();
  watch_lead();
}

void Monitor::await_no_leader(Lock& lock) {
  const interrupt::Shield shield;
  while (leading_) changed_.wait(lock, client::Deadline::after(client::kForever));
}

}  // namespace shmb::remote
