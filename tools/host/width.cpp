// SPDX-License-Identifier: Apache-2.0
// See width.hpp.
#include "tools/host/width.hpp"

#include <locale.h>
#include <wchar.h>

#include <algorithm>

namespace shmb::host {
namespace {

constexpr std::size_t kEscaped = 4;  // "\xNN"

// wcwidth(3) asks the thread's locale. Without C.UTF-8 every character counts one.
class Utf8Locale {
 public:
  Utf8Locale() {
    static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    if (utf8 != nullptr) before_ = ::uselocale(utf8);
  }
  Utf8Locale(Utf8Locale&&) = delete;
  ~Utf8Locale() {
    if (before_ != nullptr) ::uselocale(before_);
  }
  std::size_t width(std::uint32_t code) const {
    const int columns = before_ == nullptr ? 1 : ::wcwidth(static_cast<wchar_t>(code));
    return columns < 0 ? 1 : static_cast<std::size_t>(columns);
  }

 private:
  locale_t before_ = nullptr;
};

struct Step {
  std::size_t bytes = 0, columns = 0;
};

// The first character without the marks that follow it.
Step step(std::string_view text, const Utf8Locale& locale) {
  const Character next = first_character(text);
  if (next.size == 0) return {1, kEscaped};
  return {next.size, next.code < 0x80 ? 1 : locale.width(next.code)};
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

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

std::size_t columns(std::string_view text) {
  if (is_ascii(text)) return text.size();
  const Utf8Locale locale;
  std::size_t out = 0;
  while (!text.empty()) {
    const Step next = step(text, locale);
    out += next.columns;
    text.remove_prefix(next.bytes);
  }
  return out;
}

std::size_t bytes_within(std::string_view text, std::size_t most_columns) {
  if (is_ascii(text)) return std::min(text.size(), most_columns);
  const Utf8Locale locale;
  std::size_t bytes = 0, used = 0;
  while (bytes < text.size()) {
    const Step next = step(text.substr(bytes), locale);
    if (used + next.columns > most_columns) break;
    used += next.columns;
    bytes += next.bytes;
  }
  return bytes;
}

std::size_t bytes_over(std::string_view text, std::size_t least_columns) {
  if (is_ascii(text)) return std::min(text.size(), least_columns);
  const Utf8Locale locale;
  std::size_t bytes = 0, used = 0;
  while (bytes < text.size()) {
    const Step next = step(text.substr(bytes), locale);
    if (used >= least_columns && next.columns != 0) break;
    used += next.columns;
    bytes += next.bytes;
  }
  return bytes;
}

}  // namespace shmb::host
