// SPDX-License-Identifier: Apache-2.0
// Sizes and durations as people write them, both ways, and quoting of bytes that came from outside.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace shmb {

// "4096", "64K", "1.5G", "2TiB": powers of 1024. Refuses negatives, overflow and unknown units with a sentence.
Result<std::uint64_t> parse_size(std::string_view text);
// "50%" of `whole`, or a size.
Result<std::uint64_t> parse_size_or_percent(std::string_view text, std::uint64_t whole);
// "0", "250ms", "10s", "5m", "2h", "7d" in nanoseconds; "until-released" and "forever" are -1.
Result<std::int64_t> parse_duration(std::string_view text);
std::string format_size(std::uint64_t bytes);  // "64.0 MiB", exact below 1 KiB: "512 B"
std::string format_duration(std::int64_t ns);  // "3h12m", "10m", "1.5s", "120us"; -1: "until released"
std::string quoted(std::string_view text);     // printable, control bytes as \xNN, at most 120 bytes shown
std::string errno_text(int value);             // "No space left on device (ENOSPC)"
std::string status_text(Status status);        // "not_found"

}  // namespace shmb
