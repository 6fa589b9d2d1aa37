// SPDX-License-Identifier: Apache-2.0
// The types that the workers of the tests share.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/spawn/remote_world.hpp"

namespace remote_test {

struct OwnError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Counter {
 public:
  explicit Counter(int start) : value_(start) { ++words().numbers[14]; }
  Counter(Counter&& other) noexcept : value_(other.value_), held_(std::move(other.held_)) { ++words().numbers[14]; }
  ~Counter() { --words().numbers[14]; }
  int add(int by) { return value_ += by; }
  int value() const { return value_; }
  void hold(const Remote<Counter>& other) { held_.push_back(other); }

 private:
  int value_;
  std::vector<Remote<Counter>> held_;
};

}  // namespace remote_test
