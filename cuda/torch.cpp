// SPDX-License-Identifier: Apache-2.0
// The allocator pair for torch.cuda.MemPool: a tensor is born in a region, and publishing it copies nothing. torch asks
// for blocks of 2 MiB and more, so a region for each costs little. If torch frees memory while a handle to it exists,
// the memory stays mapped for that handle.
#include "cuda/torch.hpp"

#include <map>
#include <mutex>

namespace shmb::cuda {
namespace {

struct TorchBlocks {
  std::mutex mutex;
  std::map<Address, Region::Handle> by_address;
};

// Never destroyed: torch frees its caches while static objects are destroyed.
TorchBlocks& torch_blocks() {
  static TorchBlocks* const all = new TorchBlocks;
  return *all;
}

}  // namespace

Result<Address> torch_allocate(std::uint64_t bytes, int device) {
  SHMB_TRY(driver, Driver::load());
  SHMB_TRY(here, driver->at(device));
  AllocateSpec spec;
  spec.device = device;
  spec.rdma = here->rdma;  // as torch's own memory and NCCL's
  spec.zero = false;       // torch does not promise zeroed memory either, and must not wait here
  SHMB_TRY(made, Region::allocate(nullptr, bytes, spec));
  const Address address = made->pointer();
  TorchBlocks& all = torch_blocks();
  std::lock_guard lock(all.mutex);
  all.by_address.emplace(address, std::move(made));
  return address;
}

bool torch_free(Address address) {
  if (Driver::loaded() == nullptr) return false;
  Region::Handle last;
  {
    TorchBlocks& all = torch_blocks();
    std::lock_guard lock(all.mutex);
    const auto found = all.by_address.find(address);
    if (found == all.by_address.end()) return false;
    last = std::move(found->second);
    all.by_address.erase(found);
  }
  // torch frees with its locks held, perhaps during a capture. So nothing is asked here, and the next allocation, or
  // one that finds no memory, ends what the device is done with.
  return true;
}

Result<TorchBlock> torch_block(const std::shared_ptr<client::Session>& session, Address address) {
  SHMB_TRY_VOID(Driver::load());
  TorchBlock block;
  {
    TorchBlocks& all = torch_blocks();
    std::lock_guard lock(all.mutex);
    auto after = all.by_address.upper_bound(address);
    if (after != all.by_address.begin()) {
      const auto& [begin, region] = *std::prev(after);
      if (address - begin < region->memory().length) {
        block.region = region;
        block.offset = address - begin;
      }
    }
  }
  if (block.region == nullptr)
    return error(Status::not_found,
                 "shmb_torch_alloc did not make this memory: share memory of other allocators with "
                 "shmb_gpu_adopt (cuMemCreate) or shmb_gpu_lend (cudaMalloc)");
  SHMB_TRY_VOID(block.region->bind(session));
  return block;
}

}  // namespace shmb::cuda
