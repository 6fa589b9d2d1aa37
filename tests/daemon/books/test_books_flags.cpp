// SPDX-License-Identifier: Apache-2.0
// Flags that the broker does not know: each request that has them is refused with that very word, whatever else is in
// it, and the connection goes on.
#include "tests/daemon/books/books_fixture.hpp"

using namespace shmb;
using namespace shmb::daemon::test;

namespace {

constexpr std::uint32_t kEvery = UINT32_MAX;

template <class T>
Status plain_with_all_flags(Client& client, std::uint16_t op, T wish = {}) {
  wish.flags = kEvery;
  return client.call(op, wish).status();
}

template <class T, class Reply>
Status element_with_all_flags(Client& client, std::uint16_t op, T wish = {}) {
  wish.flags = kEvery;
  Packet& reply = client.batch<T>(op, {wish});
  auto batch = wire::BatchView::open(reply.view());
  REQUIRE(batch);
  return static_cast<Status>(batch->template element<Reply>(0)->outcome.status);
}

}  // namespace

TEST_CASE("every request refuses unknown header flags as unknown, also beside no_reply") {
  World world;
  Client client = world.client();
  for (std::uint16_t op = SHMBW_OP_HELLO; op <= SHMBW_OP_TICKET_REVOKE; ++op) {
    CAPTURE(op);
    for (const std::uint16_t flags : {0xffff, 0xfffe, 0xfffd, 0xfffc, 0x0008, 0x8002})
      CHECK(client.call(op, shmbw_status{}, {}, flags).status() == Status::unknown_flags);
  }
  CHECK(client.link().dropped.empty());
  CHECK(client.call(SHMBW_OP_STATUS, shmbw_status{}).status() == Status::ok);
}

TEST_CASE("each request refuses unknown flags of its fixed part as unknown") {
  World world;
  Client client = world.client();
  const shmbw_region_ref region = client.create().ref();
  const auto unknown = Status::unknown_flags;
  CHECK(element_with_all_flags<shmbw_create, shmbw_create_reply>(client, SHMBW_OP_CREATE) == unknown);
  CHECK(element_with_all_flags<shmbw_attach, shmbw_attach_reply>(client, SHMBW_OP_ATTACH) == unknown);
  CHECK(element_with_all_flags<shmbw_release, shmbw_release_reply>(client, SHMBW_OP_RELEASE) == unknown);
  shmbw_ticket_create ticket{};
  ticket.region = region;
  CHECK(plain_with_all_flags(client, SHMBW_OP_TICKET_CREATE, ticket) == unknown);
  CHECK(plain_with_all_flags<shmbw_tickets_release>(client, SHMBW_OP_TICKETS_RELEASE) == unknown);
  CHECK(plain_with_all_flags<shmbw_group_create>(client, SHMBW_OP_GROUP_CREATE) == unknown);
  CHECK(plain_with_all_flags<shmbw_group_join>(client, SHMBW_OP_GROUP_JOIN) == unknown);
  CHECK(plain_with_all_flags<shmbw_group_end>(client, SHMBW_OP_GROUP_END) == unknown);
  CHECK(plain_with_all_flags<shmbw_watch>(client, SHMBW_OP_WATCH) == unknown);
  CHECK(plain_with_all_flags<shmbw_list>(client, SHMBW_OP_LIST) == unknown);
  CHECK(plain_with_all_flags<shmbw_pool_create>(client, SHMBW_OP_POOL_CREATE) == unknown);
  CHECK(plain_with_all_flags<shmbw_pool_join>(client, SHMBW_OP_POOL_JOIN) == unknown);
  CHECK(plain_with_all_flags<shmbw_pool_leave>(client, SHMBW_OP_POOL_LEAVE) == unknown);
  CHECK(plain_with_all_flags<shmbw_pool_doorbell>(client, SHMBW_OP_POOL_DOORBELL) == unknown);
  CHECK(element_with_all_flags<shmbw_ref_create, shmbw_ref_create_reply>(client, SHMBW_OP_REF_CREATE) == unknown);
  CHECK(element_with_all_flags<shmbw_ref_take, shmbw_ref_take_reply>(client, SHMBW_OP_REF_TAKE) == unknown);
  CHECK(plain_with_all_flags<shmbw_ref_ask>(client, SHMBW_OP_REF_ASK) == unknown);
  CHECK(plain_with_all_flags<shmbw_gpu_device>(client, SHMBW_OP_GPU_DEVICE) == unknown);
  CHECK(plain_with_all_flags<shmbw_gpu_timeline>(client, SHMBW_OP_GPU_TIMELINE) == unknown);
  CHECK(element_with_all_flags<shmbw_gpu_open, shmbw_gpu_open_reply>(client, SHMBW_OP_GPU_OPEN) == unknown);
  CHECK(element_with_all_flags<shmbw_gpu_pinned, shmbw_gpu_pinned_reply>(client, SHMBW_OP_GPU_PINNED) == unknown);
  CHECK(client.link().dropped.empty());
  shmbw_watch events{};
  events.kind = SHMBW_WATCH_KIND_REGION;
  events.region = region;
  events.events = kEvery;
  CHECK(client.call(SHMBW_OP_WATCH, events).status() == unknown);
}

TEST_CASE("unknown flags of queue requests are reported as unknown, whatever the name") {
  World world;
  Client client = world.client();
  shmbw_pool_create wish{};
  wish.slots = 16;
  Packet& made = client.call(SHMBW_OP_POOL_CREATE, wish);
  REQUIRE(made.status() == Status::ok);
  const std::uint64_t pool = made.fixed<shmbw_pool_create_reply>().pool;
  shmbw_queue_open open{};
  open.pool = pool;
  CHECK(plain_with_all_flags(client, SHMBW_OP_QUEUE_OPEN, open) == Status::unknown_flags);
  shmbw_queue_close close{};
  close.pool = pool;
  CHECK(plain_with_all_flags(client, SHMBW_OP_QUEUE_CLOSE, close) == Status::unknown_flags);
  shmbw_queue_hold hold{};
  hold.pool = pool;
  CHECK(element_with_all_flags<shmbw_queue_hold, shmbw_queue_hold_reply>(client, SHMBW_OP_QUEUE_HOLD, hold) ==
        Status::unknown_flags);
}
