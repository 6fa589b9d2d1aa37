// SPDX-License-Identifier: Apache-2.0
// See printable.hpp.
#include "tools/printable.hpp"

#include <cstdint>

namespace shmb::tools {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t size = 0;  // 0: not valid UTF-8
};

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return {};
  std::uint32_t code = lead & (0x7fU >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const bool overlong = (size == 3 && code < 0x800) || (size == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return overlong || surrogate || code > 0x10ffff ? Character{} : Character{code, size};
}

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
    const Character next = first_character(text);
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

std::size_t columns(std::string_view text) {
  std::size_t count = 0;
  for (char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return count;
}

}  // namespace shmb::tools
