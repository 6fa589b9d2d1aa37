// SPDX-License-Identifier: Apache-2.0
// How a broker is made. All other traffic goes through the seam of link.hpp.
#pragma once

#include <memory>

#include "daemon/ledger/host.hpp"
#include "daemon/transport/link.hpp"

namespace shmb::daemon {

// Config::descriptors_reserved and the limits come from `config`.
Result<std::unique_ptr<BrokerEvents>> make_broker(const Config& config, BrokerFacts facts);

}  // namespace shmb::daemon
