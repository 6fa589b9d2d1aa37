// SPDX-License-Identifier: Apache-2.0
// The library's DLPack structs over memory of the host, so that a PyTorch without a GPU can be asked what it makes of
// them. Plain C, for dlpack_torch_test.py.
#include <algorithm>
#include <cstdlib>

#include "cuda/dlpack.hpp"

namespace {

int alive = 0;  // blocks that a tensor still keeps

shmb::cuda::DlMemory block(const unsigned char* bytes, std::size_t count, bool read_only) {
  auto* const copy = static_cast<unsigned char*>(std::malloc(count));
  if (copy == nullptr) std::abort();
  std::copy(bytes, bytes + count, copy);
  ++alive;
  const auto end = [](unsigned char* own) {
    std::free(own);
    --alive;
  };
  return {copy, {shmb::cuda::kDlCpu, 0}, read_only, std::shared_ptr<unsigned char>(copy, end)};
}

shmb::cuda::Tensor floats(std::uint64_t offset, std::int64_t count) {
  shmb::cuda::Tensor tensor;
  tensor.name = "t";
  tensor.type = {2, 32, 1};
  tensor.shape = {count};
  tensor.offset = offset;
  return tensor;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* twin_versioned(const unsigned char* bytes, std::size_t count,
                                                                       std::uint64_t offset, std::int64_t elements) {
  return shmb::cuda::hand_out(floats(offset, elements), block(bytes, count, true));
}

extern "C" __attribute__((visibility("default"))) void* twin_unversioned(const unsigned char* bytes, std::size_t count,
                                                                         std::uint64_t offset, std::int64_t elements) {
  return shmb::cuda::hand_out_unversioned(floats(offset, elements), block(bytes, count, false));
}

extern "C" __attribute__((visibility("default"))) int twin_alive() { return alive; }
