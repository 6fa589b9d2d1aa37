// SPDX-License-Identifier: Apache-2.0
// Numbers with units in and out. Parsing is exact integer arithmetic. No size is ever rounded to another magnitude
// in silence, and a value that does not fit in 64 bits is refused.
#include "base/text.hpp"

#include <array>
#include <cstdio>
#include <cstring>
#include <optional>

namespace shmb {

namespace {

__extension__ typedef unsigned __int128 Wide;  // products of two 64-bit numbers never overflow

constexpr std::uint64_t kMaxU64 = ~std::uint64_t{0};
constexpr std::int64_t kMaxI64 = INT64_MAX;

struct Decimal {
  std::uint64_t digits = 0;  // "1.5" is 15
  std::uint64_t scale = 1;   // and 10
  std::string_view unit;
};

enum class Trouble { none, not_a_number, too_large };

// Digits, at most one point, then the unit. No sign, no exponent, no locale.
Trouble split_number(std::string_view text, Decimal& out) {
  bool seen_digit = false, seen_point = false;
  std::size_t i = 0;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !seen_point && seen_digit) {
      seen_point = true;
      continue;
    }
    if (c < '0' || c > '9') break;
    seen_digit = true;
    // Beyond twelve decimals nothing changes by a byte even at TiB; drop them instead of overflowing.
    if (seen_point && out.scale >= 1'000'000'000'000) continue;
    if (__builtin_mul_overflow(out.digits, 10, &out.digits) ||
        __builtin_add_overflow(out.digits, static_cast<std::uint64_t>(c - '0'), &out.digits))
      return Trouble::too_large;
    if (seen_point) out.scale *= 10;
  }
  if (!seen_digit || text[i - 1] == '.') return Trouble::not_a_number;
  out.unit = text.substr(i);
  if (!out.unit.empty() && out.unit.front() == ' ') out.unit.remove_prefix(1);
  return Trouble::none;
}

std::optional<std::uint64_t> scaled(const Decimal& number, std::uint64_t factor, std::uint64_t limit) {
  const auto product = static_cast<Wide>(number.digits) * factor / number.scale;
  if (product > limit) return std::nullopt;
  return static_cast<std::uint64_t>(product);
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// 0 where unknown. K, KB and KiB are the same: powers of 1024, as usual for sizes of memory.
std::uint64_t size_factor(std::string_view unit) {
  constexpr std::string_view kLetters = "kmgtpe";
  if (unit.empty() || unit == "B" || unit == "b") return 1;
  const std::size_t power = kLetters.find(lower(unit.front()));
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = unit.substr(1);
  if (!(rest.empty() || rest == "B" || rest == "b" || rest == "iB" || rest == "i")) return 0;
  return std::uint64_t{1} << (10 * (power + 1));
}

std::uint64_t duration_factor(std::string_view unit) {
  struct Unit {
    std::string_view name;
    std::uint64_t nanoseconds;
  };
  constexpr std::uint64_t kSecond = 1'000'000'000;
  constexpr std::array kUnits = {
      Unit{"ns", 1},           Unit{"us", 1'000},         Unit{"ms", 1'000'000},     Unit{"s", kSecond},
      Unit{"m", 60 * kSecond}, Unit{"min", 60 * kSecond}, Unit{"h", 3600 * kSecond}, Unit{"d", 86'400 * kSecond}};
  for (const Unit& known : kUnits)
    if (known.name == unit) return known.nanoseconds;
  return 0;
}

std::string with_point(std::uint64_t tenths, const char* unit) {
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + unit;
}

// "1.5s", "10s": tenths only where they matter.
std::string short_decimal(std::uint64_t value, std::uint64_t unit, const char* name) {
  const std::uint64_t tenths = value / (unit / 10);
  return tenths % 10 == 0 ? std::to_string(tenths / 10) + name : with_point(tenths, name);
}

std::string two_units(std::uint64_t large, const char* large_name, std::uint64_t small, const char* small_name) {
  std::string text = std::to_string(large) + large_name;
  if (small != 0) text += std::to_string(small) + small_name;
  return text;
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  Decimal number;
  switch (split_number(text, number)) {
    case Trouble::not_a_number:
      return error(Status::invalid, "size " + quoted(text) + " is not a number: write it like 4096, 64K, 1.5G or 2TiB");
    case Trouble::too_large:
      return error(Status::invalid, "size " + quoted(text) + " is too large for 64 bits");
    case Trouble::none:
      break;
  }
  const std::uint64_t factor = size_factor(number.unit);
  if (factor == 0)
    return error(Status::invalid,
                 "size " + quoted(text) + " has an unknown unit: use K, M, G, T, P or E (powers of 1024)");
  if (factor == 1 && number.scale != 1)
    return error(Status::invalid, "size " + quoted(text) + " is a fraction of a byte");
  const auto bytes = scaled(number, factor, kMaxU64);
  if (!bytes) return error(Status::invalid, "size " + quoted(text) + " is too large for 64 bits");
  return *bytes;
}

Result<std::uint64_t> parse_size_or_percent(std::string_view text, std::uint64_t whole) {
  if (text.empty() || text.back() != '%') return parse_size(text);
  Decimal number;
  if (split_number(text.substr(0, text.size() - 1), number) != Trouble::none || !number.unit.empty() ||
      number.digits / number.scale > 100 || (number.digits / number.scale == 100 && number.digits % number.scale != 0))
    return error(Status::invalid, "share " + quoted(text) + " is not between 0% and 100%");
  number.scale *= 100;
  return *scaled(number, whole, whole);
}

Result<std::int64_t> parse_duration(std::string_view text) {
  if (text == "until-released" || text == "forever") return -1;
  if (text == "0") return 0;
  Decimal number;
  switch (split_number(text, number)) {
    case Trouble::not_a_number:
      return error(Status::invalid,
                   "duration " + quoted(text) + " is not a number with a unit: write it like 250ms, 10s, 5m, 2h or 7d");
    case Trouble::too_large:
      return error(Status::invalid, "duration " + quoted(text) + " is too long");
    case Trouble::none:
      break;
  }
  const std::uint64_t factor = duration_factor(number.unit);
  if (factor == 0)
    return error(Status::invalid, "duration " + quoted(text) + " needs a unit: ns, us, ms, s, m, h or d");
  const auto nanoseconds = scaled(number, factor, kMaxI64);
  if (!nanoseconds) return error(Status::invalid, "duration " + quoted(text) + " is too long");
  return static_cast<std::int64_t>(*nanoseconds);
}

std::string format_size(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  constexpr std::array kNames = {" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
  unsigned power = 1;
  const auto tenths_at = [&] {
    const auto unit = static_cast<Wide>(1) << (10 * power);
    return static_cast<std::uint64_t>((static_cast<Wide>(bytes) * 10 + unit / 2) / unit);
  };
  while (power < kNames.size() && tenths_at() >= 10'240) ++power;  // rounding may carry: never "1024.0 KiB"
  return with_point(tenths_at(), kNames[power - 1]);
}

std::string format_duration(std::int64_t ns) {
  if (ns < 0) return "until released";
  const auto value = static_cast<std::uint64_t>(ns);
  if (value < 1'000) return std::to_string(value) + (value == 0 ? "" : "ns");
  if (value < 1'000'000) return short_decimal(value, 1'000, "us");
  if (value < 1'000'000'000) return short_decimal(value, 1'000'000, "ms");
  const std::uint64_t seconds = value / 1'000'000'000;
  if (seconds < 60) return short_decimal(value, 1'000'000'000, "s");
  const std::uint64_t minutes = seconds / 60, hours = minutes / 60;
  if (hours == 0) return two_units(minutes, "m", seconds % 60, "s");
  if (hours < 24) return two_units(hours, "h", minutes % 60, "m");
  return two_units(hours / 24, "d", hours % 24, "h");
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 120;
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f || c == '\'' || c == '\\') {
      char escaped[5];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  out += text.size() > kShown ? "'..." : "'";
  return out;
}

std::string errno_text(int value) {
  const char* text = ::strerrordesc_np(value);
  const char* name = ::strerrorname_np(value);
  if (text == nullptr || name == nullptr) return "error " + std::to_string(value);
  return std::string(text) + " (" + name + ")";
}

std::string status_text(Status status) {
  constexpr std::array kNames = {
      "ok",          "invalid",      "too_new",  "unknown_op", "unknown_flags",  "unsupported",  "not_found",
      "exists",      "limit",        "denied",   "not_ready",  "write_closed",   "still_mapped", "stale",
      "group_ended", "busy",         "version",  "no_memory",  "no_descriptors", "system",       "deadline",
      "no_broker",   "session_lost", "protocol", "local_only", "closed",         "forked"};
  static_assert(kNames.size() == static_cast<std::size_t>(Status::forked) + 1);
  const auto index = static_cast<std::size_t>(status);
  return index < kNames.size() ? kNames[index] : "status " + std::to_string(static_cast<std::int32_t>(status));
}

}  // namespace shmb
