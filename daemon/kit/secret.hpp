// SPDX-License-Identifier: Apache-2.0
// 128-bit secrets: tickets, group tokens, fork secrets. A comparison takes the same time wherever they differ. Tables
// are keyed by a hash under a secret key. So neither the comparison nor the bucket shows a guesser how close a guess
// is.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "base/result.hpp"

namespace shmb::daemon {

struct Secret {
  std::array<std::uint8_t, 16> bytes{};

  static Sys<Secret> draw();  // getrandom(2)
  static Secret from(const std::uint8_t (&raw)[16]) {
    Secret out;
    std::memcpy(out.bytes.data(), raw, sizeof raw);
    return out;
  }
  void to(std::uint8_t (&raw)[16]) const { std::memcpy(raw, bytes.data(), sizeof raw); }
  bool zero() const { return same(Secret{}); }
  bool same(const Secret& other) const;  // constant time
};

// SipHash-2-4 of a secret under a key drawn at start.
class SecretHash {
 public:
  SecretHash() = default;
  explicit SecretHash(const Secret& key) : key_(key) {}
  std::size_t operator()(const Secret& secret) const;

 private:
  Secret key_;
};

struct SecretSame {
  bool operator()(const Secret& a, const Secret& b) const { return a.same(b); }
};

}  // namespace shmb::daemon
