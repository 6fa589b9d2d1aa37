// SPDX-License-Identifier: Apache-2.0
// The rules of names, in one place for broker, library and tool; and the label a region's memfd carries.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace shmb::names {

inline constexpr std::size_t kMaxName = 96;
inline constexpr std::size_t kMaxMemfdName = 249;  // measured: memfd_create takes no more

// 1 to 96 bytes of [A-Za-z0-9._-], no leading dot. `what` opens the sentence: "group name", "region name".
Result<void> check(std::string_view name, std::string_view what);

// How people write the number of a group, a pool or a world: "@17". A shell takes it as it is, where "#17" begins a
// comment.
std::string id_text(std::uint64_t id);

// UID:GROUP/NAME, GROUP/NAME, NAME; GROUP may be @id (an unnamed group). Anything else is a sentence. #id is
// accepted everywhere, and given back as @id: two texts for one id would be two names.
struct Address {
  std::optional<std::uint32_t> owner_uid;
  std::string group;  // empty: the session's own
  std::string name;   // empty only from parse_group
};
Result<Address> parse_region(std::string_view text);
Result<Address> parse_group(std::string_view text);             // UID:GROUP or GROUP or @id
bool is_group_id(std::string_view group);                       // it begins as one, and so is no name
std::optional<std::uint64_t> group_id(std::string_view group);  // "@17" or "#17" -> 17

// shmb:<birth epoch>.<id>.<generation>.<owner uid>:<group>/<region>, hex without leading zeros (law 7). An unnamed
// group is #id in hex digits, an unnamed region is empty.
struct Label {
  std::uint64_t epoch = 0, id = 0;
  std::uint32_t generation = 0, owner_uid = 0;
  std::string group, region;
};
std::string memfd_name(const Label& label);
// The same without allocation, for the broker: `group` empty is the unnamed group `group_id`. NUL-terminated in `out`.
struct LabelView {
  std::uint64_t epoch = 0, id = 0;
  std::uint32_t generation = 0, owner_uid = 0;
  std::string_view group, region;
  std::uint64_t group_id = 0;
};
using MemfdName = std::array<char, kMaxMemfdName + 1>;
const char* write_memfd_name(MemfdName& out, const LabelView& label);
std::optional<Label> parse_memfd_name(std::string_view name);

// 32 lower-case hex digits <-> 16 bytes (tickets, group tokens).
std::string format_token(const std::uint8_t (&token)[16]);
bool parse_token(std::string_view text, std::uint8_t (&token)[16]);
// SHMBROKER_GROUP=<name>:<token>
struct GroupTicket {
  std::string name;
  std::uint8_t token[16] = {};
};
// `what`: what the caller calls the text, for the sentence of a refusal.
Result<GroupTicket> parse_group_variable(std::string_view text, std::string_view what = "SHMBROKER_GROUP");
std::string format_group_variable(std::string_view name, const std::uint8_t (&token)[16]);

}  // namespace shmb::names
