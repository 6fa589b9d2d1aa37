// SPDX-License-Identifier: Apache-2.0
// The table of traits agrees with the structs of the wire, and says what it said when this test was written: a message
// that changes its kind by accident fails here.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "proto/codec.hpp"
#include "proto/wire_traits.hpp"

namespace {

using namespace shmb;
using namespace shmb::wire;

// The names of the requests whose traits `chosen` accepts, in the order of their numbers.
template <class Chosen>
std::string names_where(Chosen chosen) {
  std::string names;
  for (const Traits& traits : kTraits)
    if (traits.known() && chosen(traits)) names += (names.empty() ? "" : " ") + std::string(traits.name);
  return names;
}

constexpr auto kWithReply = [] {
  std::array<bool, kTraits.size()> table{};
#define SHMB_ROW(op, name, batch) table[op] = true;
  SHMBW_REPLIES(SHMB_ROW)
#undef SHMB_ROW
  return table;
}();

TEST_CASE("every request has a row that says whether it is a batch and whether it has a reply") {
  std::size_t known = 0;
#define SHMB_ROW(op, message, is_batch)                                 \
  CHECK(traits_of(op).known());                                         \
  CHECK_EQ(traits_of(op).batch, is_batch);                              \
  CHECK_EQ(traits_of(op).has_reply, kWithReply[op]);                    \
  CHECK_EQ(traits_of(op).no_reply == NoReply::always, !kWithReply[op]); \
  ++known;
  SHMBW_REQUESTS(SHMB_ROW)
#undef SHMB_ROW
  CHECK_EQ(std::ranges::count_if(kTraits, [](const Traits& traits) { return traits.known(); }), known);
}

TEST_CASE("a number that no message has, has traits that allow nothing") {
  for (const std::uint16_t op : {std::uint16_t{0}, std::uint16_t{39}, std::uint16_t{kTraits.size()},
                                 std::uint16_t{0x3fff}, std::uint16_t{0xffff}}) {
    CAPTURE(op);
    const Traits& traits = traits_of(op);
    CHECK_FALSE(traits.known());
    CHECK(traits.no_reply == NoReply::refused);
    CHECK(traits.fds_out == FdsOut::none);
    CHECK_FALSE(traits.fds_in);
    CHECK_FALSE(traits.spends);
    CHECK_FALSE(traits.again);
    CHECK_EQ(traits.undo, 0);
  }
}

TEST_CASE("the kinds of requests are those of PROTOCOL.md") {
  CHECK_EQ(names_where([](const Traits& traits) { return traits.no_reply == NoReply::always; }), "READY LANE_FINISHED");
  CHECK_EQ(names_where([](const Traits& traits) { return traits.no_reply == NoReply::allowed; }),
           "RELEASE QUEUE_HOLD REF_RELEASE REF_SETTLE GPU_REPORT");
  CHECK_EQ(names_where([](const Traits& traits) { return traits.no_reply == NoReply::if_flags; }), "POOL_DOORBELL");
  CHECK_EQ(names_where([](const Traits& traits) { return traits.fds_in; }),
           "POOL_DOORBELL GPU_DEVICE GPU_PUBLISH GPU_CHUNKS");
  CHECK_EQ(names_where([](const Traits& traits) { return traits.fds_out == FdsOut::per_element; }), "CREATE ATTACH");
  CHECK_EQ(names_where([](const Traits& traits) { return traits.fds_out == FdsOut::some; }),
           "PUBLISH POOL_CREATE POOL_JOIN POOL_DOORBELL GPU_OPEN GPU_MORE GPU_TIMELINE BOOKS");
  CHECK_EQ(names_where([](const Traits& traits) { return traits.spends; }), "RELEASE POOL_LEAVE QUEUE_CLOSE");
  CHECK_EQ(names_where([](const Traits& traits) { return traits.again; }), "LIST STATUS REF_ASK GPU_MORE BOOKS");
  CHECK_EQ(names_where([](const Traits& traits) { return traits.undo == SHMBW_OP_RELEASE; }),
           "CREATE ATTACH GPU_PUBLISH GPU_OPEN GPU_TIMELINE");
  CHECK_EQ(names_where([](const Traits& traits) { return traits.undo != 0; }),
           "CREATE ATTACH TICKET_CREATE GROUP_CREATE GROUP_JOIN WATCH POOL_CREATE POOL_JOIN QUEUE_OPEN WORLD_JOIN "
           "REF_CREATE REF_FORK GPU_PUBLISH GPU_OPEN GPU_TIMELINE");
}

TEST_CASE("the undo of a request is a known request") {
  for (const Traits& traits : kTraits)
    if (traits.undo != 0) CHECK_MESSAGE(traits_of(traits.undo).known(), traits.name);
}

TEST_CASE("of a doorbell the value of its flags decides") {
  const Traits& traits = traits_of(SHMBW_OP_POOL_DOORBELL);
  const auto fixed_of = [](std::uint32_t flags) {
    shmbw_pool_doorbell request{};
    request.flags = flags;
    std::vector<std::byte> bytes(sizeof request);
    std::memcpy(bytes.data(), &request, sizeof request);
    return bytes;
  };
  CHECK(may_have_no_reply(traits, fixed_of(SHMBW_DOORBELL_RING)));
  CHECK_FALSE(may_have_no_reply(traits, fixed_of(SHMBW_DOORBELL_GET)));
  CHECK_FALSE(may_have_no_reply(traits, fixed_of(SHMBW_DOORBELL_RING | SHMBW_DOORBELL_GET)));
  CHECK(has_value(fixed_of(SHMBW_DOORBELL_GET), traits.refused_over_share));
  CHECK_FALSE(has_value(fixed_of(SHMBW_DOORBELL_SET), traits.refused_over_share));
  CHECK(is_served_again(traits, fixed_of(SHMBW_DOORBELL_GET)));
  CHECK_FALSE(is_served_again(traits, fixed_of(SHMBW_DOORBELL_SET)));
  CHECK_FALSE(is_served_again(traits, fixed_of(SHMBW_DOORBELL_RING)));
  // Cut off before the end of the field: it is zero.
  const auto ring = fixed_of(SHMBW_DOORBELL_RING);
  for (std::size_t size = 0; size < offsetof(shmbw_pool_doorbell, participant); ++size)
    CHECK_FALSE(may_have_no_reply(traits, std::span(ring).first(size)));
}

}  // namespace
