// SPDX-License-Identifier: Apache-2.0
// Bytes as the golden vectors write them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace shmb::wire::test {

inline std::vector<std::byte> from_hex(std::string_view text) {
  auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::vector<std::byte> out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<std::byte>(digit(text[i]) << 4 | digit(text[i + 1])));
  return out;
}

}  // namespace shmb::wire::test
