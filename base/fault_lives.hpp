// SPDX-License-Identifier: Apache-2.0
// The test seam of processes that follow one another (daemon/keep). With the instruction "die_each=N" the first N of
// them kill themselves, each one system call later than the one before it. "die_each=N:SPARED" does so after as many
// that live as usual. Without the seam there is nothing here.
#pragma once

#include "base/fault.hpp"

namespace shmb::fault {

#ifdef SHMB_TEST_SEAM
void begin_life(unsigned lives_before);
#else
inline void begin_life(unsigned) {}
#endif

}  // namespace shmb::fault
