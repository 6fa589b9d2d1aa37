// SPDX-License-Identifier: Apache-2.0
// The checks of a pool's settings, and the sentences for those that cannot be.
#include "client/queue/pool_spec.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "client/region/obtain.hpp"
#include "proto/pool_layout.hpp"
#include "proto/refusal.hpp"

namespace shmb::client {

Result<PoolSpec> checked(PoolSpec spec) {
  if (!spec.name.empty()) SHMB_TRY_VOID(names::check(spec.name, "pool name"));
  if (spec.replace && spec.name.empty()) return error(Status::invalid, "replace needs a name");
  std::uint64_t slots = 0;
  for (SizeClass& one : spec.classes) {
    if (one.slot_size == 0) return error(Status::invalid, "a slot has at least one byte");
    if (one.slots == 0) return error(Status::invalid, "a size class begins with at least one slot");
    if (one.slots_limit == 0) one.slots_limit = one.slots;
    if (one.slots_limit < one.slots)
      return error(Status::invalid, "shmb_size_class.slots_limit (" + std::to_string(one.slots_limit) +
                                        ") is less than slots (" + std::to_string(one.slots) + ")");
    slots += one.slots_limit;
    if (one.slots_limit > pool::kMaxSlots || slots > pool::kMaxSlots)
      return error(Status::invalid, "a pool has at most " + std::to_string(pool::kMaxSlots) +
                                        " slots, all classes together; use larger slots, or several pools");
    if (one.slot_size > kMaxLength || pool::stride_of(one.slot_size) > kMaxLength / one.slots)
      return error(Status::invalid, std::to_string(one.slots) + " slots of " + format_size(one.slot_size) +
                                        " are more than a region can have (" + format_size(kMaxLength) + ")");
  }
  std::ranges::sort(spec.classes, {}, &SizeClass::slot_size);
  for (std::size_t i = 1; i < spec.classes.size(); ++i)
    if (spec.classes[i].slot_size == spec.classes[i - 1].slot_size)
      return error(Status::invalid, "two size classes have the same slot size");
  return spec;
}

}  // namespace shmb::client
