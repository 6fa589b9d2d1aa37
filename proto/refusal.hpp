// SPDX-License-Identifier: Apache-2.0
// How a refusal looks: the broker writes the sentence once, beside the numbers, and every language prints the same.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "proto/codec.hpp"

namespace shmb::wire {

inline constexpr std::size_t kMaxSentence = 400;  // bytes on the wire; longer ones are cut at a character

// "limit: bytes of group 'train' (uid 1000): asked 8.0 GiB, used 52.1 of 54.0 GiB; raise limits.group.train.bytes or
// ..." `whose` names the scope for people ("group 'train' (uid 1000)"); empty: from the numbers. `remedy` is what to
// change. `holders` ("'kv' 30.0 GiB, others 22.1 GiB") may be empty. Status limit; for slot memory no_memory, for slot
// descriptors no_descriptors.
Error limit_refusal(const Shortage& shortage, std::string_view whose, std::string_view remedy,
                    std::string_view holders = {});

// The object that was searched, in the caller's words. The answer is made of nothing else. So a missing object and one
// that the caller may not see look the same, byte for byte.
struct Sought {
  std::string_view what = "region";  // "pool", "group"
  std::string_view name = {};        // empty: it was asked for by its number
  std::uint64_t id = 0;
  std::uint32_t generation = 0;  // of a region; 0: any
  std::string_view group = {};   // where the name was looked for; empty: the asker has none of its own yet
  std::optional<std::uint32_t> owner_uid = {};  // of the group, where one was given
  // Hints, only of what the asker may address.
  std::string_view other_kind = {};  // what has that name there: "pool" where a region was asked for
  std::string_view elsewhere = {};   // the address of what has that name in another group of the asker's user
};
// "no region 'kv' in group 'train', or not for this caller; `shmbroker list --group 'train'` shows what there is"
Error not_found(const Sought& sought);

shmbw_refusal to_wire(const Error& error);
Error from_wire(Status status, const shmbw_refusal& refusal, std::string_view sentence);

// A whole error reply: fixed part shmbw_refusal, rest the sentence.
Bytes write_error_reply(std::span<std::byte> buffer, std::uint16_t op, std::uint64_t tag, const Error& error);
// The Error inside a reply whose header.status is not 0.
Error read_error_reply(const PacketView& reply);
// A batch element's detail (outcome.detail_len bytes): shmbw_refusal then sentence. 253 refusals with whole sentences
// would not fit in a packet, so each is cut to its share: `room` = detail_room(count, element size).
inline constexpr std::size_t kMaxDetail = sizeof(shmbw_refusal) + kMaxSentence;
constexpr std::size_t detail_room(std::size_t count, std::size_t element_size) {
  const std::size_t share = (SHMBW_MAX_MESSAGE - sizeof(shmbw_header) - sizeof(shmbw_batch)) / (count ? count : 1);
  return share < element_size ? 0 : share - element_size < kMaxDetail ? share - element_size : kMaxDetail;
}
std::string element_detail(const Error& error, std::size_t room);
Error read_element_detail(std::int32_t status, std::string_view detail);

}  // namespace shmb::wire
