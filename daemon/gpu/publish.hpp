// SPDX-License-Identifier: Apache-2.0
// A publication of GPU memory succeeds whole or leaves nothing, like a create. Only the driver knows what the
// descriptors stand for, and the broker never asks the driver. The broker checks what it can: the descriptors are the
// driver's, and keeper and share are two open files. The first import proves that they are memory of that size.
//
// A large region comes in several packets, because a packet carries at most 253 descriptors. The first one makes the
// region, and add_gpu_chunks() adds the rest. Until it is whole it cannot be imported.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

class Session;
struct Gpu;
struct Lease;
struct Region;

inline constexpr std::uint64_t kMaxManifest = std::uint64_t{4} << 20;

struct PublishedGpu {
  Region* region = nullptr;
  const Lease* lease = nullptr;
};
// `descriptors`: those of this element. The function moves out any that it keeps.
Result<PublishedGpu> publish_gpu(Gpu& gpu, Session& session, const shmbw_gpu_publish& wish, std::string_view name,
                                 std::span<Fd> descriptors);
// Adds chunks to a region that is not whole yet.
Result<void> add_gpu_chunks(Gpu& gpu, Session& session, Region& region, const shmbw_gpu_chunks& wish,
                            std::span<Fd> descriptors);

}  // namespace shmb::daemon
