// SPDX-License-Identifier: Apache-2.0
// One life of one of the storm's processes: joins, sends and receives in its roles until it has to leave, or is
// killed.
#pragma once

#include <cstdint>
#include <string>

#include "tests/storm/ledger.hpp"

namespace storm {

struct Place {
  std::string socket;
  std::uint64_t group = 0, pool = 0;
};

// 0, or 1 after ledger.fail().
int live(Ledger& ledger, const Place& place, std::uint32_t worker, std::uint64_t seed);

const char* queue_name(std::uint32_t queue);
const char* doing_name(std::uint32_t doing);  // of Worker::doing

}  // namespace storm
