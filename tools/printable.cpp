// SPDX-License-Identifier: Apache-2.0
// See printable.hpp.
#include "tools/printable.hpp"

#include <cstdint>

#include "tools/host/width.hpp"

namespace shmb::tools {
namespace {

bool ascii_alone = false;

bool harmless(std::uint32_t code) {
  if (ascii_alone && code >= 0x7f) return false;
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;
  if ((code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e)) return false;
  return !(code >= 0x2060 && code <= 0x206f) && code != 0xfeff;
}

}  // namespace

void print_ascii_alone(bool alone) { ascii_alone = alone; }

std::string printable(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    const host::Character next = host::first_character(text);
    if (next.size != 0 && harmless(next.code)) {
      out += text.substr(0, next.size);
      text.remove_prefix(next.size);
      continue;
    }
    for (std::size_t i = 0; i < (next.size == 0 ? 1 : next.size); ++i) {
      const auto value = static_cast<unsigned char>(text[i]);
      out += "\\x";
      out += digits[value >> 4];
      out += digits[value & 15];
    }
    text.remove_prefix(next.size == 0 ? 1 : next.size);
  }
  return out;
}

}  // namespace shmb::tools
