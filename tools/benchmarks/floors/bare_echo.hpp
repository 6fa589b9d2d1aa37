// SPDX-License-Identifier: Apache-2.0
// Bare servers: the least a broker could do for a request. They keep no books, look at no byte, check nobody.
#pragma once

#include <string>

#include "tools/benchmarks/kit/process.hpp"

namespace shmb::bench {

// Answers every packet with `reply_size` bytes, and one descriptor where `descriptor`. Serves until killed.
Child start_bare_echo(const std::string& engine, const std::string& path, std::size_t reply_size, bool descriptor);

}  // namespace shmb::bench
