// SPDX-License-Identifier: Apache-2.0
// The traits of each message: whether it is answered, the descriptors it brings and grants, and the request that undoes
// it. The table itself is wire_traits.hpp, made from messages.toml. Broker and library read it instead of their own
// lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "proto/shmb_wire.h"

namespace shmb::wire {

// Whether the header flag no_reply may stand in the request. always: the request has no reply, with or without it.
enum class NoReply : std::uint8_t { refused, allowed, if_flags, always };

// Descriptors that a reply may carry. per_element: at most one for each element of the batch.
enum class FdsOut : std::uint8_t { none, some, per_element };

// One value of the field `flags` of a plain request, where the request is several in one.
struct FlagsValue {
  std::uint16_t offset = 0;  // of the field in the fixed part
  std::uint32_t value = 0;   // 0: no such value
};

struct Traits {
  const char* name = "";  // in capitals, as in sentences; empty: no such message
  bool batch = false;
  bool has_reply = false;
  NoReply no_reply = NoReply::refused;
  FlagsValue no_reply_if = {};  // with NoReply::if_flags
  bool fds_in = false;          // it may bring descriptors; how many, its other fields say
  FdsOut fds_out = FdsOut::none;
  FlagsValue refused_over_share =
      {};                    // with this value it is refused, not held back, where a process is over its share
  bool again = false;        // it changes nothing, so it may be served twice
  FlagsValue again_if = {};  // the same, with this value
  bool spends = false;       // it gives up a handle, so its sender cannot repeat it
  std::uint16_t undo = 0;    // the request that gives back what a reply has granted; 0: none
  constexpr bool known() const { return *name != '\0'; }
};

// Whether the plain request whose fixed part is `fixed` has that value. A sender may know a shorter struct.
inline bool has_value(std::span<const std::byte> fixed, const FlagsValue& wanted) {
  std::uint32_t flags = 0;
  if (wanted.value == 0 || fixed.size() < wanted.offset + sizeof flags) return false;
  std::memcpy(&flags, fixed.data() + wanted.offset, sizeof flags);
  return flags == wanted.value;
}

// Whether a request of that kind and with that fixed part changes nothing. A broker that gets one a second time serves
// it again. It repeats the answers of all others.
inline bool is_served_again(const Traits& traits, std::span<const std::byte> fixed) {
  return traits.again || has_value(fixed, traits.again_if);
}

// Whether the header flag no_reply may stand in a request of that kind and with that fixed part.
inline bool may_have_no_reply(const Traits& traits, std::span<const std::byte> fixed) {
  return traits.no_reply == NoReply::if_flags ? has_value(fixed, traits.no_reply_if)
                                              : traits.no_reply != NoReply::refused;
}

}  // namespace shmb::wire
