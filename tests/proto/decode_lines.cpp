// SPDX-License-Identifier: Apache-2.0
// The codec behind a pipe, for tests/proto/read_vectors.py --agree: a line "direction n_fds table hex" in, one of JSON
// out.
#include <cstdio>
#include <iostream>
#include <sstream>

#include "tests/proto/any_message.hpp"
#include "tests/proto/hex.hpp"

int main() {
  using namespace shmb::wire;
  constexpr std::string_view kTables[] = {"-",          "regions",     "groups",  "sessions",     "leases", "tickets",
                                          "uids",       "pools",       "queues",  "participants", "worlds", "workers",
                                          "references", "gpu_regions", "reports", "refusals"};
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string direction, table, hex;
    std::size_t n_fds = 0;
    words >> direction >> n_fds >> table >> hex;
    std::uint32_t number = SHMBW_TABLE_UIDS;
    for (std::uint32_t i = 1; i < std::size(kTables); ++i)
      if (table == kTables[i]) number = i;
    auto bytes = test::from_hex(hex == "-" ? "" : hex);
    bytes.shrink_to_fit();  // so that the address sanitizer sees a byte read behind the packet
    const auto way = direction == "request" ? Direction::request : Direction::from_broker;
    std::cout << test::to_json(test::decode(bytes, n_fds, way, number)).dump() << "\n";
  }
}
