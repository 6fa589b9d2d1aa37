// SPDX-License-Identifier: Apache-2.0
// Why a request failed. The numbers are the protocol's; proto/codec.cpp checks them against messages.toml, because
// base may not include proto.
#pragma once

#include <cstdint>

namespace shmb {

enum class Status : std::int32_t {
  ok = 0,
  invalid,
  too_new,
  unknown_op,
  unknown_flags,
  unsupported,
  not_found,
  exists,
  limit,
  denied,
  not_ready,
  write_closed,
  still_mapped,
  stale,
  group_ended,
  busy,
  version,
  no_memory,
  no_descriptors,
  system,
  deadline,
  no_broker,
  session_lost,
  protocol,
  local_only,
  closed,
  forked,
  full,
  empty,
  peer_gone,
  broken,
  poisoned,
  world_taken,
  no_world,
  worker_gone,
  owner_gone,
  raised,
  no_function,
  leaking,
};
inline constexpr Status kLastStatus = Status::leaking;

}  // namespace shmb
