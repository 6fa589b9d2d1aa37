// SPDX-License-Identifier: Apache-2.0
// Whether this worker is in its world: not a forked child, not shut down, and the world not lost.
//
// The states follow one another: open, ending (one thread shuts down), leaving (references are given up), closed. A
// world can be lost in any of them. A forked child is not a worker. This is checked without the lock, and again
// after everything that ran without it: a user's function may have forked and returned in the child.
#pragma once

#include <optional>
#include <utility>

#include "base/result.hpp"
#include "client/session/forked.hpp"
#include "spawn/remote/monitor.hpp"

namespace shmb::remote {

class Life {
 public:
  Life(const Monitor& monitor, client::ForkMark mark) : monitor_(monitor), mark_(std::move(mark)) {}

  // Without the lock:
  bool forked() const { return !mark_.intact(); }
  static std::unexpected<Error> forked_error();
  Result<void> open() const;
  // `why`, unless this worker is not in its world any more. Then that is the reason.
  Error closed_or(Error why) const;

  // With the lock:
  Result<void> open_locked() const;
  bool closed() const { return closed_; }
  bool leaving() const { return leaving_; }
  const std::optional<Error>& lost() const { return lost_; }
  bool begin_end() { return !std::exchange(ending_, true); }  // false: another thread shuts down already
  void leave() { leaving_ = true; }
  void close() { leaving_ = closed_ = true; }
  bool lose(const Error& why);  // false: it was lost or closed before

 private:
  const Monitor& monitor_;
  const client::ForkMark mark_;
  bool ending_ = false, leaving_ = false, closed_ = false;
  std::optional<Error> lost_;
};

}  // namespace shmb::remote
