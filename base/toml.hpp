// SPDX-License-Identifier: Apache-2.0
// toml++, header only and without exceptions of its own. Version 3.3 asserts where a text should be refused: "[ = 3" is
// one. An assertion would end the program, and so a broker at a reload. Here it is an exception, which `parse_toml`
// turns into a refusal. NDEBUG must not turn it into an assumption, either. The broker's configuration and the patterns
// of the tool are read by it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.hpp"

namespace shmb {
struct TomlAsserted {};
[[noreturn, gnu::noinline]] inline void toml_asserted() { throw TomlAsserted{}; }
}  // namespace shmb

#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#define TOML_ASSERT(holds) ((holds) ? static_cast<void>(0) : ::shmb::toml_asserted())
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

namespace shmb {

// The text with a question mark for each byte beyond ASCII in a comment; elsewhere such a byte is refused. toml++ takes
// some letters for impossible, so it must never see one, wherever it thinks that a comment begins.
inline Result<std::string> in_ascii(std::string_view text, const std::string& path) {
  std::string out(text);
  std::size_t line = 1;
  bool in_comment = false, escaped = false, many_lines = false;
  char quote = 0;  // of the string that we are in
  const auto three_from = [&](std::size_t at, char c) { return out.compare(at, 3, std::string(3, c)) == 0; };
  for (std::size_t at = 0; at < out.size(); ++at) {
    const char c = out[at];
    const bool after_backslash = std::exchange(escaped, false);
    if (c == '\n') {
      ++line;
      in_comment = false;
      if (!many_lines) quote = 0;
    } else if ((c & 0x80) != 0) {
      if (!in_comment)
        return error(Status::invalid, path + ":" + std::to_string(line) +
                                          ": only comments may have other bytes than ASCII; in a string write \\uXXXX");
      out[at] = '?';
    } else if (in_comment || after_backslash) {
      continue;
    } else if (quote == 0) {
      in_comment = c == '#';
      if (c != '"' && c != '\'') continue;
      quote = c;
      many_lines = three_from(at, c);
      if (many_lines) at += 2;
    } else if (c == '\\') {
      escaped = quote == '"';
    } else if (c == quote && (!many_lines || three_from(at, c))) {
      if (many_lines) at += 2;
      quote = 0;
      many_lines = false;
    }
  }
  return out;
}

// The table, or the refusal with `path` and the line.
inline Result<toml::table> parse_toml(std::string_view text, const std::string& path) {
  SHMB_TRY(ascii, in_ascii(text, path));
  try {
    auto parsed = toml::parse(ascii, path);
    if (parsed) return std::move(parsed).table();
    const auto& failure = parsed.error();
    return error(Status::invalid,
                 path + ":" + std::to_string(failure.source().begin.line) + ": " + std::string(failure.description()));
  } catch (const TomlAsserted&) {
    return error(Status::invalid, path + ": a table's name or a key is no TOML: look at brackets, quotes and dots");
  }
}

}  // namespace shmb
