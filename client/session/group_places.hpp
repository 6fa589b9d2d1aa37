// SPDX-License-Identifier: Apache-2.0
// Which groups this session is in, by the replies in their order. A join or a creation that was answered too late for
// its caller is left again, but not while another one is under way: a caller that was told DEADLINE mostly asks again
// for the same, and the broker would see the leave behind what its second answer has granted.
// The owner's mutex guards all of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "proto/codec.hpp"

namespace shmb::client {

struct GroupPlaces {
  std::uint64_t member = 0, supervised = 0;  // 0: none. What the session was told
  // What was granted too late, and is to be left.
  struct Late {
    std::uint64_t member = 0, supervised = 0;
    std::vector<std::uint64_t> created;
    bool none() const { return member == 0 && supervised == 0 && created.empty(); }
  };
  Late late = {};

  // A granted reply to the plain request `op`, whose fixed part is `request`. `told`: a caller takes it.
  void note(std::uint16_t op, const wire::PacketView& reply, std::span<const std::byte> request, bool told);
  // The groups to leave now, as GROUP_LEAVE names them; the caller asks only when no join or creation is under way.
  std::vector<std::uint64_t> take_late();
};

// Requests whose answers may bring a group.
constexpr bool brings_group(std::uint16_t op) { return op == SHMBW_OP_GROUP_JOIN || op == SHMBW_OP_GROUP_CREATE; }

}  // namespace shmb::client
