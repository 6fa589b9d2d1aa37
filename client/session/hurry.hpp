// SPDX-License-Identifier: Apache-2.0
// For an end that makes many requests, such as that of a worker with a queue to each other one. If the broker has left
// one of them unanswered, it will hardly answer the next in time, and the deadlines would add up. While a Hurry is on,
// the requests of its thread are sent, and their answers are not waited for: a call returns DEADLINE at once. The
// broker serves the requests when it goes on, and what it grants is given back like after any deadline.
#pragma once

#include <utility>

namespace shmb::client {

class Hurry {
 public:
  explicit Hurry(bool on) : before_(std::exchange(on_, on_ || on)) {}
  Hurry(const Hurry&) = delete;
  Hurry& operator=(const Hurry&) = delete;
  ~Hurry() { on_ = before_; }
  static bool on() { return on_; }

 private:
  static inline thread_local bool on_ = false;
  const bool before_;
};

}  // namespace shmb::client
