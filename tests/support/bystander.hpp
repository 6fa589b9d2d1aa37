// SPDX-License-Identifier: Apache-2.0
// A well-behaved user of the broker in its own process, while others attack the broker. Its two sessions create, map,
// write, attach, compare, release and ping without end. The first wrong result ends it with a sentence. So it shows
// whether one bad peer delays others (law 8).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "tests/harness/child.hpp"
#include "tests/support/shared.hpp"

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

  struct State {
    std::atomic<long> rounds{0}, begun{0};
    std::atomic<std::uint64_t> group{0}, region{0};
    std::atomic<bool> pause{false}, paused{false}, stop{false}, failed{false};
    char wrong[512]{};
  };

 private:
  support::Shared<State> shared_;
  std::optional<harness::Child> child_;
};

}  // namespace wire_test
