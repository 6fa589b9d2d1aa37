// SPDX-License-Identifier: Apache-2.0
// How a broker is made. All other traffic goes through the seam of link.hpp.
#pragma once

#include <memory>

#include "daemon/books/last_books.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/transport/link.hpp"

namespace shmb::daemon {

// Config::descriptors_reserved and the limits come from `config`.
// With `last` it begins from those books and continues their epoch, so the identities of what is kept stay valid. An
// error then closes none of the descriptors in them. The caller takes over the connections (Transport::take_over), or
// calls BrokerEvents::begun() without them.
Result<std::unique_ptr<BrokerEvents>> make_broker(const Config& config, BrokerFacts facts,
                                                  const books::LastBooks* last = nullptr);

}  // namespace shmb::daemon
