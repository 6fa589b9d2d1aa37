// SPDX-License-Identifier: Apache-2.0
// A rate of single things, as a token bucket that holds what one second brings. It is one number: the time at which the
// bucket would be full again. So a bucket that nobody used for a second is as a new one, and can be forgotten.
#pragma once

#include <algorithm>
#include <cstdint>

namespace shmb::daemon {

class Rate {
 public:
  static constexpr std::int64_t kSecond = 1'000'000'000;

  // Takes one token of `per_second` (at least 1). False: there is none now.
  bool take(std::int64_t now, std::uint64_t per_second) {
    const std::int64_t token = std::max<std::int64_t>(kSecond / static_cast<std::int64_t>(per_second), 1);
    const std::int64_t full = std::max(full_, now) + token;
    if (full > now + kSecond) return false;
    full_ = full;
    return true;
  }
  bool full(std::int64_t now) const { return full_ <= now; }

 private:
  std::int64_t full_ = 0;
};

}  // namespace shmb::daemon
