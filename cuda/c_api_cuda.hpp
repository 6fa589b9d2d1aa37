// SPDX-License-Identifier: Apache-2.0
// The common part of the C functions of GPU memory: handles, and the start of each call. The rules are those of
// client/c_api/c_api.hpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/c_api/c_api.hpp"
#include "cuda/lease.hpp"
#include "cuda/notices.hpp"
#include "cuda/region.hpp"
#include "cuda/shmbroker_cuda.h"

struct shmb_gpu_region {
  shmb::cuda::Region::Handle it;
};
struct shmb_gpu_lease {
  std::unique_ptr<shmb::cuda::Lease> it;
};

namespace shmb::cuda::c_api {

// Frees what can be freed, as far as there is memory to find that out. Gives how many were freed.
inline std::size_t free_deferred() noexcept {
  std::size_t freed = 0;
  (void)client::c_api::guarded_to_end(nullptr, [&]() -> Result<void> {
    freed = Notices::run_deferred();
    return {};
  });
  return freed;
}

// As client::c_api::guarded, and afterwards frees what can be freed. Only for calls that may wait for the device
// anyway: a `free` does (cudaFree). It may even wait for work that another call, such as a signal, is about to enqueue.
template <class Body>
int guarded_and_free(shmb_error* out, Body&& body) noexcept {
  const int done = client::c_api::guarded_to_end(out, body);
  const std::size_t freed = free_deferred();
  // The freed memory may be what the call lacked.
  return done == SHMB_E_OUT_OF_MEMORY && freed != 0 ? client::c_api::guarded_to_end(out, body) : done;
}

Result<Region::Handle> region_of(const shmb_gpu_region* region);
Result<Sync> sync_of(std::uint32_t how, shmb_gpu_stream stream);
Result<std::vector<Tensor>> tensors_of(const shmb_gpu_tensor* tensors, std::size_t count);
shmb_gpu_tensor to_c(const Tensor& tensor);  // looks into it

}  // namespace shmb::cuda::c_api
