// SPDX-License-Identifier: Apache-2.0
// The address of a world: HOST:PORT, where the host must be this one, because workers share its memory. And the numbers
// of a worker as a launcher gives them, in the environment.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.hpp"

namespace shmb::remote {

struct Address {
  std::string text, host;
  std::uint32_t port = 0;
};

// `given` empty: MASTER_ADDR and MASTER_PORT.
Result<Address> address_of(const std::string& given);
// No name is looked up: a name server may take its time, and what it says of this host is not needed.
Result<void> check_host(const std::string& host);
Result<std::int32_t> number_of(const char* variable);

}  // namespace shmb::remote
