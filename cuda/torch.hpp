// SPDX-License-Identifier: Apache-2.0
// Blocks of the torch allocator, found again by any address in them.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/region.hpp"

namespace shmb::cuda {

Result<Address> torch_allocate(std::uint64_t bytes, int device);
bool torch_free(Address address);  // false: not a block of this allocator

struct TorchBlock {
  Region::Handle region;
  std::uint64_t offset = 0;
};
// The block around an address, in the session of its future publisher.
Result<TorchBlock> torch_block(const std::shared_ptr<client::Session>& session, Address address);

}  // namespace shmb::cuda
