// SPDX-License-Identifier: Apache-2.0
// One allocation for each tensor: the struct that is handed out, its shape, and the reference to the region.
#include "cuda/dlpack.hpp"

#include <memory>
#include <vector>

namespace shmb::cuda {
namespace {

struct Handed {
  DlManaged managed{};
  Region::Handle region;
  std::vector<std::int64_t> shape, strides;
};

void take_back(DLManagedTensorVersioned* self) {
  const std::unique_ptr<Handed> handed(static_cast<Handed*>(reinterpret_cast<DlManaged*>(self)->context));
  handed->region->unpin_mapping();
}

}  // namespace

Result<DLManagedTensorVersioned*> to_dlpack(const Region::Handle& region, const Tensor& tensor) {
  SHMB_TRY_VOID(fits(tensor, region->memory().length));
  auto handed = std::make_unique<Handed>();
  handed->region = region;
  handed->shape = tensor.shape;
  handed->strides = tensor.strides_or_rows();
  // From here on nothing fails that would leave the region pinned.
  const Address pointer = region->pin_mapping();
  if (pointer == 0) {
    region->unpin_mapping();
    return error(Status::invalid, region->called() + " is asleep: wake it first");
  }
  DlManaged& managed = handed->managed;
  managed.major = 1;
  managed.context = handed.get();
  managed.deleter = take_back;
  managed.flags = region->access() == Access::read ? kDlReadOnly : 0;
  managed.tensor.data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer));
  managed.tensor.device = {kDlCuda, region->reached_by()};
  managed.tensor.dimensions = static_cast<std::int32_t>(handed->shape.size());
  managed.tensor.type = tensor.type;
  managed.tensor.shape = handed->shape.data();
  managed.tensor.strides = handed->strides.data();
  managed.tensor.byte_offset = tensor.offset;
  return reinterpret_cast<DLManagedTensorVersioned*>(&handed.release()->managed);
}

}  // namespace shmb::cuda
