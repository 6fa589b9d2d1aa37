// SPDX-License-Identifier: Apache-2.0
// DLPack, with its C structs declared here, so that users need none of its headers. A tensor that was handed out keeps
// its memory until its receiver calls the deleter. `data` is the first element's own address and `byte_offset` is 0:
// PyTorch up to 2.9 ignores the offset, and every tensor of a region would be the first one.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/region.hpp"

// The names are DLPack's.
struct DLManagedTensor;
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
struct DlUnversioned {  // DLManagedTensor: the form before 1.0, which cannot say that memory is read-only
  DlTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor* self);
};
inline constexpr std::int32_t kDlCpu = 1, kDlCuda = 2;
inline constexpr std::uint64_t kDlReadOnly = 1;
static_assert(sizeof(DlTensor) == 48 && sizeof(DlManaged) == 80 && sizeof(DlUnversioned) == 64);

// The memory that tensors lie in, on any device.
struct DlMemory {
  void* begin = nullptr;
  DlDevice device{};
  bool read_only = false;
  std::shared_ptr<const void> kept;  // keeps the memory; a tensor holds it until its deleter is called
};
DLManagedTensorVersioned* hand_out(const Tensor& tensor, DlMemory memory);
// For memory that may be written.
DLManagedTensor* hand_out_unversioned(const Tensor& tensor, DlMemory memory);

// Returns invalid if the tensor does not lie in the region, or if the region is asleep.
Result<DLManagedTensorVersioned*> to_dlpack(const Region::Handle& region, const Tensor& tensor);
// Also denied, if the mapping is read-only.
Result<DLManagedTensor*> to_dlpack_unversioned(const Region::Handle& region, const Tensor& tensor);

}  // namespace shmb::cuda
