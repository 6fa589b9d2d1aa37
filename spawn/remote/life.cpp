// SPDX-License-Identifier: Apache-2.0
// See life.hpp.
#include "spawn/remote/life.hpp"

namespace shmb::remote {

std::unexpected<Error> Life::forked_error() {
  return error(Status::forked,
               "this process is a forked child of a worker: it is in no world; it may join one with init");
}

Result<void> Life::open() const {
  if (forked()) return forked_error();
  const std::lock_guard lock(monitor_.mutex());
  return open_locked();
}

Result<void> Life::open_locked() const {
  if (forked()) return forked_error();
  if (closed_) return error(Status::closed, "this worker has been shut down: call init first");
  if (lost_) return std::unexpected(*lost_);
  return {};
}

Error Life::closed_or(Error why) const {
  auto is_open = open();
  return is_open ? std::move(why) : std::move(is_open.error());
}

bool Life::lose(const Error& why) {
  if (lost_ || closed_) return false;
  lost_ = why;
  return true;
}

}  // namespace shmb::remote
