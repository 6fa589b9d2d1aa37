// SPDX-License-Identifier: Apache-2.0
// See exposition.hpp.
#include "tools/metrics/exposition.hpp"

#include <fmt/format.h>

#include <limits>

namespace shmb::tools {
namespace {

constexpr std::string_view kPrefix = "shmbroker_";

// The text is UTF-8 to its reader. User names may be any bytes, so bytes beyond ASCII and control bytes are replaced.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\', out += c;
    else if (c == '\n') out += "\\n";
    else out += c < ' ' || c > '~' ? '?' : c;  // char may be signed or not: bytes from 0x80 on fail one of the two
  }
  return out;
}

}  // namespace

void Exposition::family(std::string_view name, Kind kind, std::string_view unit, std::string_view help) {
  name_ = std::string(kPrefix) + std::string(name);
  suffix_ = kind == Kind::counter ? "_total" : kind == Kind::info ? "_info" : "";
  const char* const type = kind == Kind::counter ? "counter" : kind == Kind::info ? "info" : "gauge";
  text_ += fmt::format("# TYPE {} {}\n", name_, type);
  if (!unit.empty()) text_ += fmt::format("# UNIT {} {}\n", name_, unit);
  text_ += fmt::format("# HELP {} {}\n", name_, escaped(help));
}

void Exposition::sample(const Labels& labels, std::string_view value) {
  text_ += name_ + suffix_;
  char before = '{';
  for (const auto& [label, content] : labels) {
    text_ += fmt::format("{}{}=\"{}\"", before, label, escaped(content));
    before = ',';
  }
  if (!labels.empty()) text_ += '}';
  text_ += ' ';
  text_ += value;
  text_ += '\n';
}

std::string Exposition::finish() { return std::move(text_ += "# EOF\n"); }

std::string metric_number(std::uint64_t value) { return std::to_string(value); }

std::string metric_limit(std::uint64_t value) {
  return value == std::numeric_limits<std::uint64_t>::max() ? "+Inf" : metric_number(value);
}

std::string metric_seconds(std::int64_t nanoseconds) {
  return fmt::format("{:.3f}", static_cast<double>(nanoseconds) / 1e9);
}

}  // namespace shmb::tools
