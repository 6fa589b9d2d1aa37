// SPDX-License-Identifier: Apache-2.0
// A well-behaved user of the broker, as a process of its own, while others attack it: two sessions that create, map,
// write, attach, compare, release and ping without end. The first thing that is not exactly right ends it with a
// sentence. It is what "one bad peer hurts nobody" (law 8) is measured by.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "tests/harness/child.hpp"

namespace wire_test {

class Bystander {
 public:
  // With another uid: only for brokers in system mode, and for root.
  explicit Bystander(const std::string& socket, std::optional<uid_t> uid = {});
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;
  ~Bystander();

  // Between pause and resume it holds two sessions, one region with two leases, one group, and asks nothing.
  bool pause();
  void resume();
  long rounds() const;
  bool goes_on();             // a whole round more, begun after this call
  std::string wrong() const;  // "" while it was always served well
  std::uint64_t group() const;
  std::uint64_t region() const;  // the one it always holds

  struct Shared;

 private:
  Shared* shared_;
  std::optional<harness::Child> child_;
};

}  // namespace wire_test
