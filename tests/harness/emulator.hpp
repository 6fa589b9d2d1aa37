// SPDX-License-Identifier: Apache-2.0
// Whether a translator of system calls stands between this program and the kernel: tools/arm64.cross says so by a
// variable. A case that needs what the translator does not pass on skips itself aloud, with its name in the reason.
#pragma once

#include <cstdlib>

#include "tests/harness/sanitizer.hpp"

namespace harness {

inline bool emulated() {
  static const bool is = std::getenv("SHMB_TEST_EMULATOR") != nullptr;
  return is;
}

// As kSlowdown, for cases that also run translated.
inline int slowdown() { return emulated() ? 50 : kSlowdown; }

}  // namespace harness
