// SPDX-License-Identifier: Apache-2.0
// The fields that the channel reads of packets which others have built: of requests on their way out, and of replies
// and events. These may be longer or shorter than this library knows.
#pragma once

#include <algorithm>
#include <array>
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

// The first bytes behind the header, as far as there are some.
template <std::size_t size>
std::array<std::byte, size> body_of(std::span<const std::byte> packet) {
  std::array<std::byte, size> body{};
  const auto whole = packet.subspan(sizeof(shmbw_header));
  std::ranges::copy(whole.first(std::min(size, whole.size())), body.begin());
  return body;
}

inline void set_tag(std::span<std::byte> packet, std::uint64_t tag) {
  std::memcpy(packet.data() + offsetof(shmbw_header, tag), &tag, sizeof tag);
}

inline std::string_view text_of(const wire::PacketView& view, std::size_t length) {
  auto text = wire::TextReader(view.rest).take(length);
  return text.value_or(std::string_view{});
}

}  // namespace shmb::client
