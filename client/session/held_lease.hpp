// SPDX-License-Identifier: Apache-2.0
// A lease that some handle of a session holds. The session needs it after a fork. A child that becomes a session of its
// own asks the broker for the leases of all handles that it inherited. The rooms above implement it, so the session
// knows leases but no regions.
#pragma once

#include <cstdint>

#include "proto/shmb_wire.h"

namespace shmb::client {

class HeldLease {
 public:
  virtual shmbw_region_ref ref() const = 0;
  virtual std::uint32_t rights() const = 0;
  virtual bool is_mapped() const = 0;
  virtual void not_inherited() = 0;  // the forked child got no lease of its own

 protected:
  ~HeldLease() = default;
};

}  // namespace shmb::client
