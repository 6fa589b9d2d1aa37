// SPDX-License-Identifier: Apache-2.0
// DLPack 1.0, with its C structs declared here, so that users need none of its headers. A tensor that was handed out
// keeps the region's mapping until its receiver calls the deleter.
#pragma once

#include <cstdint>

#include "cuda/region.hpp"

// The names are DLPack's.
struct DLManagedTensorVersioned;

namespace shmb::cuda {

struct DlDevice {
  std::int32_t type;
  std::int32_t id;
};
struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t dimensions;
  TensorType type;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct DlManaged {  // DLManagedTensorVersioned
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(DLManagedTensorVersioned* self);
  std::uint64_t flags;
  DlTensor tensor;
};
inline constexpr std::int32_t kDlCuda = 2;
inline constexpr std::uint64_t kDlReadOnly = 1;
static_assert(sizeof(DlTensor) == 48 && sizeof(DlManaged) == 80);

// Returns invalid if the tensor does not lie in the region, or if the region is asleep.
Result<DLManagedTensorVersioned*> to_dlpack(const Region::Handle& region, const Tensor& tensor);

}  // namespace shmb::cuda
