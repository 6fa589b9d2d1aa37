// SPDX-License-Identifier: Apache-2.0
// A program may close descriptors that are not its own, also those of the library. A wait for such a descriptor would
// never end. So it is an error, in these words.
#pragma once

namespace shmb::client {

inline constexpr const char* kClosedDescriptor =
    "the program closed a descriptor of the library; close only descriptors that the program has opened";

}  // namespace shmb::client
