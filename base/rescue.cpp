// SPDX-License-Identifier: Apache-2.0
// See rescue.hpp.
#include "base/rescue.hpp"

#ifdef SHMB_TEST_SEAM
#include <cstdlib>
#endif

namespace shmb {

#ifdef SHMB_TEST_SEAM

namespace fault {
bool rescues_are_off() {
  const char* const value = std::getenv(kNoRescueVariable);
  return value != nullptr && *value != '\0';
}
}  // namespace fault

bool rescues() {
  static const bool on = !fault::rescues_are_off();
  return on;
}

std::int64_t rescue_interval(std::int64_t nanoseconds) { return rescues() ? nanoseconds : INT64_MAX / 4; }

#else

bool rescues() { return true; }
std::int64_t rescue_interval(std::int64_t nanoseconds) { return nanoseconds; }

#endif

}  // namespace shmb
