// SPDX-License-Identifier: Apache-2.0
// A wait for what another thread or process brings about, where no event of it reaches the test. It proves no speed.
#pragma once

#include <unistd.h>

#include <chrono>
#include <functional>

namespace support {

// Looks until it is true, and a last time when a minute has passed.
inline bool eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= end) return holds();
    ::usleep(1000);
  }
  return true;
}

}  // namespace support
