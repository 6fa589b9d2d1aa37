// SPDX-License-Identifier: Apache-2.0
// The one reply that is being built, and the descriptors that go with it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/fd.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

struct Reply {
  Reply() {
    fds.reserve(SHMBW_MAX_BATCH);
    owned.reserve(SHMBW_MAX_BATCH);
  }
  std::unique_ptr<std::byte[]> buffer = std::make_unique<std::byte[]>(SHMBW_MAX_MESSAGE);
  std::vector<int> fds;
  std::vector<Fd> owned;  // reopened for this reply, closed after it
};

}  // namespace shmb::daemon
