// SPDX-License-Identifier: Apache-2.0
// Contents that show what happened to them: every stretch names itself, and ends in a sum over all of it. A stretch of
// which some words belong to another message, or that is another message's as a whole, does not read back.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace storm {

inline std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccd;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53;
  return value ^ value >> 33;
}

// Whom a message is from and which it is: {stream:24, sequence:24, seal of the content:16}.
struct Ident {
  std::uint32_t stream = 0, sequence = 0;
  static constexpr std::uint32_t kMost = (1 << 24) - 1;
  std::uint64_t word(std::uint64_t content) const {
    return std::uint64_t{stream} << 40 | std::uint64_t{sequence} << 16 | (mix(content) & 0xffff);
  }
  static Ident of(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word >> 40), static_cast<std::uint32_t>(word >> 16 & kMost)};
  }
  static bool seals(std::uint64_t word, std::uint64_t content) { return (word & 0xffff) == (mix(content) & 0xffff); }
};

constexpr std::size_t kLeastContent = 24;

// {content, bytes, words that follow from both, sum}. `to` is a multiple of 8 and at least kLeastContent.
inline void write_content(std::span<std::byte> to, std::uint64_t content) {
  auto put = [&](std::size_t at, std::uint64_t value) { std::memcpy(to.data() + at, &value, sizeof value); };
  const std::uint64_t bytes = to.size();
  put(0, content);
  put(8, bytes);
  std::uint64_t sum = mix(content) ^ bytes, state = mix(content + bytes);
  for (std::size_t at = 16; at + 8 < bytes; at += 8) {
    state = state * 6364136223846793005 + 1442695040888963407;
    put(at, state);
    sum = (sum << 7 | sum >> 57) ^ state;
  }
  put(bytes - 8, sum);
}

// The fault in it; nullptr: nothing, and `content` is what it was written with.
inline const char* content_fault(std::span<const std::byte> from, std::uint64_t& content) {
  auto get = [&](std::size_t at) {
    std::uint64_t value;
    std::memcpy(&value, from.data() + at, sizeof value);
    return value;
  };
  if (from.size() < kLeastContent || from.size() % 8 != 0) return "a length that nobody wrote";
  content = get(0);
  const std::uint64_t bytes = from.size();
  if (get(8) != bytes) return "it belongs to a message of another length";
  std::uint64_t sum = mix(content) ^ bytes, state = mix(content + bytes);
  for (std::size_t at = 16; at + 8 < bytes; at += 8) {
    state = state * 6364136223846793005 + 1442695040888963407;
    if (get(at) != state) return "torn: a word of another message";
    sum = (sum << 7 | sum >> 57) ^ state;
  }
  return get(bytes - 8) == sum ? nullptr : "torn: the sum is another one";
}

}  // namespace storm
