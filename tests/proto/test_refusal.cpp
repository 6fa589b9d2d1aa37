// SPDX-License-Identifier: Apache-2.0
// A refusal says what is short, whose, how much is used, what was asked and what to change; and it survives the wire.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "proto/refusal.hpp"

namespace {

using namespace shmb;
using namespace shmb::wire;

constexpr std::uint64_t kGib = std::uint64_t{1} << 30;

Shortage shortage(std::uint16_t slot, std::uint16_t scope, std::uint64_t id, std::uint64_t limit, std::uint64_t used,
                  std::uint64_t asked) {
  return {slot, scope, id, limit, used, asked};
}

std::string said(const Shortage& numbers, std::string_view whose = {}, std::string_view remedy = {},
                 std::string_view holders = {}) {
  return limit_refusal(numbers, whose, remedy, holders).sentence;
}

Error over_the_wire(const Error& error, std::size_t room = SHMBW_MAX_MESSAGE) {
  std::vector<std::byte> memory(room);
  Bytes packet = write_error_reply(memory, SHMBW_OP_CREATE, 3, error);
  REQUIRE_FALSE(packet.empty());
  auto view = open_packet(packet, 0, Direction::from_broker);
  REQUIRE(view);
  CHECK(view->header.op == (SHMBW_REPLY | SHMBW_OP_CREATE));
  CHECK(view->header.tag == 3);
  return read_error_reply(*view);
}

void check_same(const Error& a, const Error& b) {
  CHECK(a.status == b.status);
  CHECK(a.system_errno == b.system_errno);
  CHECK(a.shortage.slot == b.shortage.slot);
  CHECK(a.shortage.scope == b.shortage.scope);
  CHECK(a.shortage.scope_id == b.shortage.scope_id);
  CHECK(a.shortage.limit == b.shortage.limit);
  CHECK(a.shortage.used == b.shortage.used);
  CHECK(a.shortage.asked == b.shortage.asked);
  CHECK(a.sentence == b.sentence);
}

TEST_CASE("a limit on bytes names limit, scope, asked, used and remedy") {
  const auto numbers = shortage(SHMBW_SLOT_BYTES, SHMBW_SCOPE_GROUP, 2, 54 * kGib, 52 * kGib + kGib / 10, 8 * kGib);
  CHECK(said(numbers, "group 'train' (uid 1000)", "raise limits.group.train.bytes or release regions") ==
        "limit: bytes of group 'train' (uid 1000): asked 8.0 GiB, used 52.1 of 54.0 GiB; "
        "raise limits.group.train.bytes or release regions");
  CHECK(said(numbers, "group 'train'", "release regions", "'kv' 30.0 GiB, others 22.1 GiB") ==
        "limit: bytes of group 'train': asked 8.0 GiB, used 52.1 of 54.0 GiB; held by 'kv' 30.0 GiB, others 22.1 GiB; "
        "release regions");
}

TEST_CASE("units stand once where both numbers have the same, twice where they differ, and counts have none") {
  CHECK(said(shortage(SHMBW_SLOT_BYTES, SHMBW_SCOPE_UID, 7, 2 * kGib, 4096, 3 * kGib)) ==
        "limit: bytes of uid 7: asked 3.0 GiB, used 4.0 KiB of 2.0 GiB");
  CHECK(said(shortage(SHMBW_SLOT_BYTES, SHMBW_SCOPE_HOST, 0, 100, 0, 101)) ==
        "limit: bytes of the host: asked 101 B, used 0 of 100 B");
  CHECK(said(shortage(SHMBW_SLOT_KEEP, SHMBW_SCOPE_UID, 7, 3'600'000'000'000, 0, 7'200'000'000'000)) ==
        "limit: keep time of uid 7: asked 2h, used 0 of 1h");
  CHECK(said(shortage(SHMBW_SLOT_REGIONS, SHMBW_SCOPE_SESSION, 5, 100, 100, 1), "", "release regions") ==
        "limit: regions of session 5: asked 1, used 100 of 100; release regions");
}

TEST_CASE("every slot and scope has its own words") {
  std::vector<std::string> words;
  for (std::uint16_t slot = SHMBW_SLOT_NONE; slot <= SHMBW_SLOT_TIMELINES; ++slot)
    words.push_back(said(shortage(slot, SHMBW_SCOPE_HOST, 0, 10, 10, 1)));
  for (std::uint16_t scope = SHMBW_SCOPE_NONE; scope <= SHMBW_SCOPE_WATCHED; ++scope)
    if (scope != SHMBW_SCOPE_HOST) words.push_back(said(shortage(SHMBW_SLOT_LEASES, scope, 9, 10, 10, 1)));
  std::sort(words.begin(), words.end());
  CHECK(std::unique(words.begin(), words.end()) == words.end());
  CHECK(said(shortage(999, 999, 0, 1, 1, 1)).starts_with("limit: capacity of this request"));
}

TEST_CASE("a missing object is reported in the caller's words, with where to look") {
  const auto told = [](const Sought& sought) {
    const Error error = not_found(sought);
    CHECK(error.status == Status::not_found);
    return error.sentence;
  };
  CHECK(
      told({.name = "kv", .group = "train"}) ==
      "no region 'kv' in group 'train', or not for this caller; `shmbroker list --group 'train'` shows what there is");
  CHECK(told({.what = "pool", .name = "kv", .group = "@17", .owner_uid = 1001}) ==
        "no pool 'kv' in group '1001:@17', or not for this caller; `shmbroker list --group '1001:@17'` shows what "
        "there is");
  CHECK(told({.id = 17, .generation = 2}) ==
        "no region 17 of generation 2, or not for this caller; `shmbroker list` shows what there is");
  CHECK(told({.what = "group", .id = 17}) ==
        "no group @17, or not for this caller; `shmbroker list --groups` shows what there is");
  // Another user's groups are shown to root, and only if it asks for all.
  CHECK(told({.what = "group", .name = "train", .owner_uid = 1001}) ==
        "no group '1001:train', or not for this caller; `shmbroker list --groups --all-groups` shows what there is");
  CHECK(told({.name = "kv", .group = "@3", .elsewhere = "train/kv"}) ==
        "no region 'kv' in group '@3', or not for this caller; there is one in another group of this user, 'train/kv': "
        "programs that are started apart are in different groups, so name the group, or start them with one `shmbroker "
        "run`; `shmbroker list` shows what there is");
  CHECK(
      told({.name = "p", .group = "g", .other_kind = "pool"}) ==
      "no region 'p' in group 'g', but a pool of that name: open it as a pool; `shmbroker list --group 'g'` shows what "
      "there is");
  CHECK(told({.what = "group", .name = "a\x1b[2Jb"}).find('\x1b') == std::string::npos);
  CHECK(told({.name = "kv"}).starts_with("no region 'kv' in the session's own group, which is not there yet, or not"));
}

TEST_CASE("the status tells a short limit from short memory and a full descriptor table") {
  CHECK(limit_refusal(shortage(SHMBW_SLOT_BYTES, 1, 0, 1, 1, 1), "", "").status == Status::limit);
  CHECK(limit_refusal(shortage(SHMBW_SLOT_MEMORY, SHMBW_SCOPE_CGROUP, 0, 1, 1, 1), "", "").status == Status::no_memory);
  CHECK(limit_refusal(shortage(SHMBW_SLOT_DESCRIPTORS, 1, 0, 1, 1, 1), "", "").status == Status::no_descriptors);
}

TEST_CASE("an error goes over the wire unchanged") {
  Error limit = limit_refusal(shortage(SHMBW_SLOT_BYTES, SHMBW_SCOPE_GROUP, UINT64_MAX, UINT64_MAX - 1, 3, 4),
                              "group 'g'", "release");
  check_same(over_the_wire(limit), limit);
  Error system{Status::system, ENOSPC, {}, "memfd_create for region 'kv': No space left on device (ENOSPC)"};
  check_same(over_the_wire(system), system);
}

TEST_CASE("a sentence is cut to 400 bytes and never inside a character") {
  for (std::size_t lead = 0; lead < 4; ++lead) {
    Error error{Status::invalid, 0, {}, std::string(lead, 'x')};
    while (error.sentence.size() < 500) error.sentence += "\xf0\x9f\x90\xa7";  // 4 bytes each
    const Error read = over_the_wire(error);
    CAPTURE(lead);
    CHECK(read.sentence.size() <= kMaxSentence);
    CHECK(read.sentence.size() > kMaxSentence - 4);
    CHECK((read.sentence.size() - lead) % 4 == 0);
    CHECK(error.sentence.starts_with(read.sentence));
  }
  Error exact{Status::invalid, 0, {}, std::string(kMaxSentence, 'x')};
  CHECK(over_the_wire(exact).sentence.size() == kMaxSentence);
}

TEST_CASE("a reply that does not fit in its buffer is not written") {
  std::byte memory[64 + 3];
  CHECK(write_error_reply(memory, 1, 1, Error{Status::invalid, 0, {}, "abcd"}).empty());
  CHECK(write_error_reply(memory, 1, 1, Error{Status::invalid, 0, {}, "abc"}).size() == 67);
}

TEST_CASE("a refusal of another version is still a reason") {
  auto read = [](std::size_t fixed, std::byte fill, std::int32_t status) {
    std::vector<std::byte> memory(24 + fixed + 2, fill);
    shmbw_header header{};
    header.size = static_cast<std::uint32_t>(memory.size());
    header.op = SHMBW_REPLY | SHMBW_OP_CREATE;
    header.status = status;
    header.fixed = static_cast<std::uint16_t>(fixed);
    std::memcpy(memory.data(), &header, sizeof header);
    std::memcpy(memory.data() + memory.size() - 2, "no", 2);
    return read_error_reply(*open_packet(memory, 0, Direction::from_broker));
  };
  CHECK(read(0, std::byte{0}, SHMB_E_LIMIT).status == Status::limit);
  CHECK(read(0, std::byte{0}, SHMB_E_LIMIT).sentence == "no");
  CHECK(read(8, std::byte{1}, SHMB_E_SYSTEM).system_errno == 0x01010101);
  CHECK(read(80, std::byte{1}, SHMB_E_LIMIT).shortage.asked == 0x0101010101010101);
  CHECK(static_cast<int>(read(40, std::byte{0}, 12345).status) == 12345);
}

TEST_CASE("without a sentence the status speaks, and control bytes of a foreign broker never reach the terminal") {
  CHECK(from_wire(Status::stale, {}, "").sentence == "the region under this id has another generation");
  CHECK(from_wire(static_cast<Status>(777), {}, "").sentence.find("does not know") != std::string::npos);
  CHECK(from_wire(Status::invalid, {}, "a\x1b[2J\nb\x7f").sentence == "a [2J b ");
}

TEST_CASE("the detail of a batch element carries the same, and a full batch of refusals fits in one packet") {
  Error error =
      limit_refusal(shortage(SHMBW_SLOT_BYTES, SHMBW_SCOPE_UID, 1000, 10, 5, 6), "uid 1000", std::string(600, 'r'));
  for (std::size_t count : {1, 2, 100, 253}) {
    const std::size_t room = detail_room(count, sizeof(shmbw_attach_reply));
    const std::string detail = element_detail(error, room);
    CAPTURE(count);
    CHECK(detail.size() == room);
    CHECK(room >= 194);
    CHECK(32 + count * (sizeof(shmbw_attach_reply) + room) <= SHMBW_MAX_MESSAGE);
    const Error read = read_element_detail(SHMB_E_LIMIT, detail);
    CHECK(read.status == Status::limit);
    CHECK(read.shortage.asked == 6);
    CHECK(error.sentence.starts_with(read.sentence));
    CHECK(read.sentence.starts_with("limit: bytes of uid 1000: asked 6 B, used 5 of 10 B"));
  }
  CHECK(detail_room(1, 64) == kMaxDetail);
  CHECK(detail_room(0, 64) == kMaxDetail);
  CHECK(detail_room(1, 65535) == 0);
  CHECK(element_detail(error, 39).empty());
  CHECK(element_detail(error, 40).size() == 40);
}

TEST_CASE("a detail that is shorter than its struct, or absent, is read as far as it goes") {
  CHECK(read_element_detail(SHMB_E_BUSY, "").sentence == "in use: the request would take something from others");
  CHECK(read_element_detail(SHMB_E_BUSY, std::string("\1\0", 2)).shortage.slot == 1);
}

}  // namespace
