// SPDX-License-Identifier: Apache-2.0
// Hooks by which tests lose messages of one kind that reach a worker, or hold each one back for a while. They are
// compiled only with SHMB_TEST_SEAM, as base/fault.hpp. In the shipped build every question is a constant, and its
// branch disappears. The lock of the worker guards them.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "base/sys_process.hpp"
#include "spawn/remote/state.hpp"

namespace shmb::remote {

#ifdef SHMB_TEST_SEAM
class TestHooks {
 public:
  struct Trouble {
    Kind kind = Kind::create;
    int lose = 0;
    std::int64_t delay = 0;
  };
  void set(Trouble trouble) { trouble_ = trouble; }

  bool loses(Kind kind) { return kind == trouble_.kind && trouble_.lose > 0 && trouble_.lose-- > 0; }
  // True: the message was taken, and comes out of due() later.
  bool holds_back(Arrived& arrived) {
    if (arrived.message.head.kind != trouble_.kind || trouble_.delay <= 0) return false;
    held_back_.emplace_back(sys::now_monotonic() + trouble_.delay, std::move(arrived));
    return true;
  }
  bool holds_any() const { return !held_back_.empty(); }
  std::optional<Arrived> due() {
    if (held_back_.empty() || held_back_.front().first > sys::now_monotonic()) return std::nullopt;
    Arrived late = std::move(held_back_.front().second);
    held_back_.pop_front();
    return late;
  }
  // No worker refers to the value any more, and its creation has not come. The creation may be held back here.
  void unused(RefId id) {
    if (std::ranges::any_of(held_back_, [id](const auto& one) { return one.second.message.head.reference == id; }))
      unused_.insert(id);
  }
  bool was_unused(RefId id) { return unused_.erase(id) != 0; }

 private:
  Trouble trouble_;
  std::deque<std::pair<std::int64_t, Arrived>> held_back_;
  std::set<RefId> unused_;
};
#else
class TestHooks {
 public:
  static constexpr bool loses(Kind) { return false; }
  static constexpr bool holds_back(Arrived&) { return false; }
  static constexpr bool holds_any() { return false; }
  static std::optional<Arrived> due() { return std::nullopt; }
  static constexpr void unused(RefId) {}
  static constexpr bool was_unused(RefId) { return false; }
};
#endif

}  // namespace shmb::remote
