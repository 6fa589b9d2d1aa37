// SPDX-License-Identifier: Apache-2.0
// A manifest in transit: a small sealed memory file. So what an importer has checked cannot change.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/fd.hpp"

namespace shmb::cuda {

Result<Fd> manifest_file(std::span<const std::byte> bytes);
// `bytes` is the size that the broker reported. A file that is not sealed, or has another size, is refused.
Result<std::vector<std::byte>> read_manifest(int fd, std::uint64_t bytes);

}  // namespace shmb::cuda
