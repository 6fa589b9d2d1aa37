// SPDX-License-Identifier: Apache-2.0
// Cutting the kernel's texts: words and numbers, in place.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

namespace shmb::host {

// Takes the part of `line` before `end`, and `end` itself, off it.
inline std::string_view next_word(std::string_view& line, char end = ' ') {
  const std::size_t at = std::min(line.find(end), line.size());
  const std::string_view word = line.substr(0, at);
  line.remove_prefix(std::min(at + 1, line.size()));
  return word;
}

inline std::string_view without_blanks(std::string_view text) {  // at its start
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return text;
}

// The number at the start of `text`, behind blanks; 0 where there is none.
template <class N = std::uint64_t>
N number(std::string_view text, int base = 10) {
  N value{};
  text = without_blanks(text);
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

}  // namespace shmb::host
