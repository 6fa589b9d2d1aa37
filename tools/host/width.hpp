// SPDX-License-Identifier: Apache-2.0
// The number of terminal columns of a text: two for a character of Chinese, Japanese or Korean and for most emoji, none
// for a mark that is combined with the character before it, else one. The C library's table of C.UTF-8 decides,
// whatever the locale is. Any thread may call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shmb::host {

struct Character {
  std::uint32_t code = 0;
  std::size_t size = 0;  // bytes; 0: not valid UTF-8, so one byte is taken by itself
};
Character first_character(std::string_view text);

// A byte that is no UTF-8 counts as the \xNN that people are shown.
std::size_t columns(std::string_view text);

// Bytes at the beginning of `text`, whole characters with their marks.
std::size_t bytes_within(std::string_view text, std::size_t most_columns);  // as many as fit
std::size_t bytes_over(std::string_view text, std::size_t least_columns);   // as few as take so many, or all

}  // namespace shmb::host
