// SPDX-License-Identifier: Apache-2.0
// The fields that the channel reads of packets which others have built: of requests on their way out, and of replies
// and events. These may be longer or shorter than this library knows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "proto/codec.hpp"
#include "proto/packet.hpp"

namespace shmb::client {

template <class T>
T fixed_part(const wire::PacketView& view) {
  T out{};  // lenient: a reply's unknown tail belongs to a newer broker that knows we do not read it
  if (!view.fixed.empty()) std::memcpy(&out, view.fixed.data(), std::min(sizeof out, view.fixed.size()));
  return out;
}

inline std::uint16_t op_of(std::span<const std::byte> packet) {
  shmbw_header header;
  std::memcpy(&header, packet.data(), sizeof header);
  return header.op;
}

// Of the requests whose reply may have to be given back in different ways.
inline std::uint32_t flags_of(std::span<const std::byte> packet) {
  std::uint32_t flags = 0;
  const std::uint16_t op = op_of(packet);
  std::size_t at = sizeof(shmbw_header);
  if (op == SHMBW_OP_GROUP_CREATE) at += offsetof(shmbw_group_create, flags);
  else if (op == SHMBW_OP_QUEUE_OPEN) at += offsetof(shmbw_queue_open, flags);
  else if (op == SHMBW_OP_GROUP_JOIN) at += offsetof(shmbw_group_join, flags);
  else return 0;
  if (at + sizeof flags <= packet.size()) std::memcpy(&flags, packet.data() + at, sizeof flags);
  return flags;
}

// Requests that spend a handle: nobody can repeat them.
inline bool is_last(std::span<const std::byte> packet) {
  const std::uint16_t op = op_of(packet);
  return op == SHMBW_OP_RELEASE || op == SHMBW_OP_QUEUE_CLOSE || op == SHMBW_OP_POOL_LEAVE;
}

// The number that a request names and its reply does not: needed to give back what the reply grants.
inline std::uint64_t subject_of(std::span<const std::byte> packet) {
  const std::uint16_t op = op_of(packet);
  std::size_t at = sizeof(shmbw_header);
  if (op == SHMBW_OP_QUEUE_OPEN) at += offsetof(shmbw_queue_open, pool);
  else if (op == SHMBW_OP_GROUP_LEAVE) at += offsetof(shmbw_group_leave, group);
  else return 0;
  std::uint64_t subject = 0;
  if (at + sizeof subject <= packet.size()) std::memcpy(&subject, packet.data() + at, sizeof subject);
  return subject;
}

inline void set_tag(std::span<std::byte> packet, std::uint64_t tag) {
  std::memcpy(packet.data() + offsetof(shmbw_header, tag), &tag, sizeof tag);
}

inline std::string_view text_of(const wire::PacketView& view, std::size_t length) {
  auto text = wire::TextReader(view.rest).take(length);
  return text.value_or(std::string_view{});
}

}  // namespace shmb::client
