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
  no_driver = 40,
  stub_driver,
  driver_too_old,
  no_device,
  device_not_found,
  device_not_visible,
  different_mig_instance,
  not_supported,
  bad_fd,
  not_exportable,
  too_small,
  out_of_memory,
  not_permitted,
  context_poisoned,
  device_lost,
  mps,
  already_registered,
  forked_child,
  producer_dead,
  generation_mismatch,
  detached,
  device_not_pinned,
  region_poisoned,
  region_invalid,
  other_kind,
  driver_failed,
  pinned,
};
inline constexpr Status kLastStatus = Status::pinned;

}  // namespace shmb
