// SPDX-License-Identifier: Apache-2.0
// A publication of GPU memory succeeds whole or leaves nothing, like a create. What the descriptors stand for only the
// driver knows, whom the broker never asks; it checks what can be checked: that they are the driver's, and that keeper
// and share are two open files. Whether they are memory of that size the first import proves.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

class Session;
class World;
struct Lease;
struct Region;

inline constexpr std::uint64_t kMaxManifest = std::uint64_t{4} << 20;

struct PublishedGpu {
  Region* region = nullptr;
  const Lease* lease = nullptr;
};
// `descriptors`: those of this element; what is kept of them is taken.
Result<PublishedGpu> publish_gpu(World& world, Session& session, const shmbw_gpu_publish& wish, std::string_view name,
                                 std::span<Fd> descriptors);
// Further chunks of a region that is not whole yet.
Result<void> add_gpu_chunks(World& world, Session& session, Region& region, const shmbw_gpu_chunks& wish,
                            std::span<Fd> descriptors);
// Descriptors that an element brings.
std::size_t gpu_descriptors_of(const shmbw_gpu_publish& wish);

}  // namespace shmb::daemon
