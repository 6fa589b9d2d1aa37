// SPDX-License-Identifier: Apache-2.0
// Rescue intervals: the periods of looks that only a lost wake-up, or a lost message, makes necessary. Every such look
// takes its interval from rescue_interval(), so the tests can switch all of them off. Then a lost wake-up hangs at once
// instead of being late.
//
// A deadline, an expiry or a grace that a caller sees is no rescue. Nor is a look at a fact that no event reports, such
// as a name that does not exist yet, memory of the kernel, or a broker that may have been killed.
//
// The tests switch rescues off by an environment variable, because child processes, programs and brokers inherit that.
// Only code that is compiled with SHMB_TEST_SEAM reads it, and such code is never installed.
#pragma once

#include <cstdint>

namespace shmb {

#ifdef SHMB_TEST_SEAM
namespace fault {
bool rescues_are_off();
}
#endif

inline constexpr const char* kNoRescueVariable = "SHMBROKER_TEST_NO_RESCUE";  // any value but an empty one

// False: every look has a reason, and a wait that ends by its clock does not look a last time.
bool rescues();

// `nanoseconds`, or decades where rescues are off. The sum with a time of CLOCK_MONOTONIC does not overflow.
std::int64_t rescue_interval(std::int64_t nanoseconds);

}  // namespace shmb
