// SPDX-License-Identifier: Apache-2.0
// The groups that this session is in, by the order of the replies.
//
// A join or a creation may be answered after its caller got DEADLINE. Then the session leaves that group again, but not
// while another join or creation is under way. Such a caller mostly asks for the same group again, and a leave that
// follows would undo the second answer.
// The owner's mutex guards all of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "proto/codec.hpp"

namespace shmb::client {

struct GroupPlaces {
  std::uint64_t member = 0, supervised = 0;  // 0: none. As the replies said
  // Groups that were granted too late. The session leaves them.
  struct Late {
    std::uint64_t member = 0, supervised = 0;
    std::vector<std::uint64_t> created;
    bool none() const { return member == 0 && supervised == 0 && created.empty(); }
  };
  Late late = {};

  // A granted reply to the plain request `op`, whose fixed part is `request`. `told`: a caller takes the reply.
  void note(std::uint16_t op, const wire::PacketView& reply, std::span<const std::byte> request, bool told);
  // The groups to leave now, as GROUP_LEAVE names them; the caller asks only when no join or creation is under way.
  std::vector<std::uint64_t> take_late();
};

// Requests whose answers may bring a group.
constexpr bool brings_group(std::uint16_t op) { return op == SHMBW_OP_GROUP_JOIN || op == SHMBW_OP_GROUP_CREATE; }

}  // namespace shmb::client
