// SPDX-License-Identifier: Apache-2.0
// A manifest on its way: a small file in memory, sealed, so that what an importer has checked stays as it was.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/fd.hpp"

namespace shmb::cuda {

Result<Fd> manifest_file(std::span<const std::byte> bytes);
// `bytes` is the size that the broker told; a file that is not sealed, or another size, is refused.
Result<std::vector<std::byte>> read_manifest(int fd, std::uint64_t bytes);

}  // namespace shmb::cuda
