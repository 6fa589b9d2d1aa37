// SPDX-License-Identifier: Apache-2.0
// A region of the host that the driver has registered, so that devices can access it and copies need no staging. A
// mapping is registered once in a process, however many pins it has. The broker gets a report before the pages are
// pinned, and after they are free again. Meanwhile it neither publishes nor recycles the region, because CPU and device
// would then see different pages. If the region's handle is released meanwhile, the pin keeps mapping and lease.
#pragma once

#include <cstdint>
#include <memory>

#include "client/calls/gpu_calls.hpp"
#include "client/region/region.hpp"
#include "cuda/driver.hpp"

namespace shmb::cuda {

class PinnedHost {
 public:
  using Handle = std::unique_ptr<PinnedHost>;
  static Result<Handle> pin(client::Region& region, client::Deadline deadline);
  PinnedHost(const PinnedHost&) = delete;
  PinnedHost& operator=(const PinnedHost&) = delete;
  ~PinnedHost();

  Address address() const;  // on every device of this process

 private:
  class Registration;
  PinnedHost(std::uint64_t serial, std::shared_ptr<Registration> registration)
      : serial_(serial), registration_(std::move(registration)) {}
  const std::uint64_t serial_;  // of the region's handle
  std::shared_ptr<Registration> registration_;
};

}  // namespace shmb::cuda
