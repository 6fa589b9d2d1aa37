// SPDX-License-Identifier: Apache-2.0
// Drawing, comparing and hashing of secrets.
#include "daemon/kit/secret.hpp"

#include <bit>

#include "base/sys_process.hpp"

namespace shmb::daemon {

Sys<Secret> Secret::draw() {
  Secret out;
  SHMB_TRY_VOID(sys::random_bytes(std::as_writable_bytes(std::span(out.bytes))));
  return out;
}

bool Secret::same(const Secret& other) const {
  // volatile: the compiler must not leave the loop at the first difference.
  volatile std::uint8_t difference = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    difference = static_cast<std::uint8_t>(difference | (bytes[i] ^ other.bytes[i]));
  return difference == 0;
}

std::size_t SecretHash::operator()(const Secret& secret) const {
  std::uint64_t k[2], m[2];
  std::memcpy(k, key_.bytes.data(), sizeof k);
  std::memcpy(m, secret.bytes.data(), sizeof m);
  std::uint64_t v0 = k[0] ^ 0x736f6d6570736575, v1 = k[1] ^ 0x646f72616e646f6d;
  std::uint64_t v2 = k[0] ^ 0x6c7967656e657261, v3 = k[1] ^ 0x7465646279746573;
  auto round = [&] {
    v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
    v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
  };
  for (std::uint64_t word : {m[0], m[1], std::uint64_t{16} << 56}) {
    v3 ^= word;
    round(), round();
    v0 ^= word;
  }
  v2 ^= 0xff;
  round(), round(), round(), round();
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace shmb::daemon
