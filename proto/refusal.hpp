// SPDX-License-Identifier: Apache-2.0
// How a refusal looks: the broker writes the sentence once, beside the numbers, and every language prints the same.
#pragma once

#include <string>

#include "base/result.hpp"
#include "proto/codec.hpp"

namespace shmb::wire {

inline constexpr std::size_t kMaxSentence = 400;  // bytes on the wire; longer ones are cut at a character

// "limit: bytes of group 'train': asked 8.0 GiB, used 52.1 GiB of 54.0 GiB; raise limits.group.train.bytes or ..."
// `whose` names the scope for people ("group 'train'", "uid 1000"), `remedy` what to change, `holders` may be empty.
Error limit_refusal(const Shortage& shortage, std::string_view whose, std::string_view remedy, std::string_view holders = {});

shmbw_refusal to_wire(const Error& error);
Error from_wire(Status status, const shmbw_refusal& refusal, std::string_view sentence);

// A whole error reply: fixed part shmbw_refusal, rest the sentence.
Bytes write_error_reply(std::span<std::byte> buffer, std::uint16_t op, std::uint64_t tag, const Error& error);
// The Error inside a reply whose header.status is not 0.
Error read_error_reply(const PacketView& reply);
// A batch element's detail (outcome.detail_len bytes): shmbw_refusal then sentence.
std::string element_detail(const Error& error);
Error read_element_detail(std::int32_t status, std::string_view detail);

}  // namespace shmb::wire
