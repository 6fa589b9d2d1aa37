// SPDX-License-Identifier: Apache-2.0
// The node of a GPU, for a broker that cannot open it itself: a GPU whose last open node closes forgets its memory,
// also what others hold descriptors of.
#pragma once

#include "base/fd.hpp"
#include "cuda/driver.hpp"

namespace shmb::cuda {

// An own open of it, close-on-exec. The error says what could not be read or opened.
Result<Fd> open_device_node(const DeviceInfo& device);

}  // namespace shmb::cuda
