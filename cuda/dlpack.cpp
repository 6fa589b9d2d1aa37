// SPDX-License-Identifier: Apache-2.0
// One allocation for each tensor: the struct that is handed out, its shape, and what keeps its memory.
#include "cuda/dlpack.hpp"

#include <utility>
#include <vector>

namespace shmb::cuda {
namespace {

template <class Managed>
struct Handed {
  Managed managed{};
  std::shared_ptr<const void> kept;
  std::vector<std::int64_t> shape, strides;
};

template <class Managed, class Self>
void take_back(Self* self) {
  delete static_cast<Handed<Managed>*>(reinterpret_cast<Managed*>(self)->context);
}

template <class Managed, class Self>
Handed<Managed>* hand(const Tensor& tensor, DlMemory&& memory) {
  auto handed = std::make_unique<Handed<Managed>>();
  handed->shape = tensor.shape;
  handed->strides = tensor.strides_or_rows();
  handed->kept = std::move(memory.kept);
  handed->managed.context = handed.get();
  handed->managed.deleter = take_back<Managed, Self>;
  DlTensor& made = handed->managed.tensor;
  made.data = static_cast<std::byte*>(memory.begin) + tensor.offset;
  made.device = memory.device;
  made.dimensions = static_cast<std::int32_t>(handed->shape.size());
  made.type = tensor.type;
  made.shape = handed->shape.data();
  made.strides = handed->strides.data();
  return handed.release();
}

// Keeps a region mapped.
class MappingPin {
 public:
  explicit MappingPin(Region::Handle region) : region_(std::move(region)), pointer_(region_->pin_mapping()) {}
  MappingPin(const MappingPin&) = delete;
  MappingPin& operator=(const MappingPin&) = delete;
  ~MappingPin() { region_->unpin_mapping(); }
  Address pointer() const { return pointer_; }  // 0: asleep

 private:
  Region::Handle region_;
  Address pointer_;
};

Result<DlMemory> memory_of(const Region::Handle& region, const Tensor& tensor) {
  SHMB_TRY_VOID(fits(tensor, region->memory().length));
  auto pin = std::make_shared<MappingPin>(region);
  if (pin->pointer() == 0) return region->unmapped();
  DlMemory memory;
  memory.begin = reinterpret_cast<void*>(static_cast<std::uintptr_t>(pin->pointer()));
  memory.device = {kDlCuda, region->reached_by()};
  memory.read_only = !region->may_write();
  memory.kept = std::move(pin);
  return memory;
}

}  // namespace

DLManagedTensorVersioned* hand_out(const Tensor& tensor, DlMemory memory) {
  const bool read_only = memory.read_only;
  DlManaged& managed = hand<DlManaged, DLManagedTensorVersioned>(tensor, std::move(memory))->managed;
  managed.major = 1;
  managed.flags = read_only ? kDlReadOnly : 0;
  return reinterpret_cast<DLManagedTensorVersioned*>(&managed);
}

DLManagedTensor* hand_out_unversioned(const Tensor& tensor, DlMemory memory) {
  return reinterpret_cast<DLManagedTensor*>(&hand<DlUnversioned, DLManagedTensor>(tensor, std::move(memory))->managed);
}

Result<DLManagedTensorVersioned*> to_dlpack(const Region::Handle& region, const Tensor& tensor) {
  SHMB_TRY(memory, memory_of(region, tensor));
  return hand_out(tensor, std::move(memory));
}

Result<DLManagedTensor*> to_dlpack_unversioned(const Region::Handle& region, const Tensor& tensor) {
  SHMB_TRY(memory, memory_of(region, tensor));
  if (memory.read_only)
    return error(Status::denied, region->called() +
                                     " may only be read here, and a DLPack tensor without a version has no flag for "
                                     "read-only memory: ask for the versioned one, or copy the region");
  return hand_out_unversioned(tensor, std::move(memory));
}

}  // namespace shmb::cuda
