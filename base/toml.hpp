// SPDX-License-Identifier: Apache-2.0
// toml++, header only and without exceptions of its own. Version 3.3 asserts where a text should be refused: "[ = 3" is
// one. An assertion would end the program, and so a broker at a reload. Here it is an exception, which `parse_toml`
// turns into a refusal. NDEBUG must not turn it into an assumption, either. The broker's configuration and the patterns
// of the tool are read by it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

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

// The table, or the refusal with `path` and the line.
inline Result<toml::table> parse_toml(std::string_view text, const std::string& path) {
  std::size_t line = 1;
  bool in_comment = false;
  for (const char c : text) {
    if (c == '\n') ++line;
    in_comment = c != '\n' && (in_comment || c == '#');
    if (!in_comment && (c & 0x80) != 0)
      return error(Status::invalid,
                   path + ":" + std::to_string(line) + ": only comments may have other bytes than ASCII");
  }
  try {
    auto parsed = toml::parse(text, path);
    if (parsed) return std::move(parsed).table();
    const auto& failure = parsed.error();
    return error(Status::invalid,
                 path + ":" + std::to_string(failure.source().begin.line) + ": " + std::string(failure.description()));
  } catch (const TomlAsserted&) {
    return error(Status::invalid, path + ": a table's name or a key is no TOML: look at brackets, quotes and dots");
  }
}

}  // namespace shmb
