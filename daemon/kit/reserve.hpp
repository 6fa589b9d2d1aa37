// SPDX-License-Identifier: Apache-2.0
// The broker lives through an allocation that fails. It keeps some memory that it does not use. When an allocation
// fails, that memory is given up and the allocation is repeated, so what is under way ends as if nothing had happened.
// From then on memory is low: the broker refuses requests that need memory, until it has the reserve again. Nowhere
// else does the code have to expect that an allocation fails.
//
// The reserve is not touched, so it is address space and no resident memory.
#pragma once

#include <cstddef>

namespace shmb::daemon::reserve {

// More than one turn takes: a page of a LIST of 100,000 rows, a batch of 253 creates.
inline constexpr std::size_t kBytes = std::size_t{4} << 20;

void keep();    // from now on, in the whole process
bool low();     // it is given up
void refill();  // tries to have it again

}  // namespace shmb::daemon::reserve
