// SPDX-License-Identifier: Apache-2.0
// See pool_client.hpp.
#include "tests/daemon/books/pool_client.hpp"

#include <cstring>

namespace shmb::daemon::test {

using pool::QueueKind;
using pool::Stamp;

Packet& pool_create(Client& client, const PoolRequest& wish) {
  shmbw_pool_create fixed{};
  fixed.group = wish.group;
  fixed.keep = wish.keep;
  fixed.flags = wish.flags;
  fixed.slots = wish.slots;
  fixed.lanes = wish.lanes;
  fixed.queues = wish.queues;
  fixed.segments = wish.segments;
  fixed.lane_bytes = wish.lane_bytes;
  fixed.name_len = static_cast<std::uint16_t>(wish.name.size());
  return client.call(SHMBW_OP_POOL_CREATE, fixed, wish.name);
}

Packet& pool_join(Client& client, std::uint64_t pool, std::uint32_t flags) {
  shmbw_pool_join fixed{};
  fixed.pool = pool;
  fixed.flags = flags;
  return client.call(SHMBW_OP_POOL_JOIN, fixed);
}

Packet& pool_join(Client& client, std::string_view group, std::string_view name, std::uint32_t flags) {
  shmbw_pool_join fixed{};
  fixed.flags = flags;
  fixed.group_len = static_cast<std::uint16_t>(group.size());
  fixed.name_len = static_cast<std::uint16_t>(name.size());
  return client.call(SHMBW_OP_POOL_JOIN, fixed, std::string(group) + std::string(name));
}

PoolClient map_pool(Packet& reply) {
  REQUIRE(reply.status() == Status::ok);
  REQUIRE(reply.fds.size() == 2);
  static_assert(sizeof(shmbw_pool_create_reply) == sizeof(shmbw_pool_join_reply));
  const auto fixed = reply.fixed<shmbw_pool_join_reply>();
  PoolClient out;
  out.pool = fixed.pool;
  out.group = fixed.group;
  out.index = fixed.participant;
  out.life = fixed.life;
  auto directory = Mapping::map(reply.fds[0].get(), 0, fixed.directory_bytes, Access::read);
  auto control = Mapping::map(reply.fds[1].get(), 0, fixed.control_bytes, Access::read_write);
  REQUIRE(directory);
  REQUIRE(control);
  out.directory = std::move(*directory);
  out.control = std::move(*control);
  out.directory_fd = std::move(reply.fds[0]);
  out.control_fd = std::move(reply.fds[1]);
  auto view = pool::View::open({out.directory.data(), out.directory.size()}, {out.control.data(), out.control.size()});
  REQUIRE(view);
  out.view = *view;
  return out;
}

Packet& pool_leave(Client& client, std::uint64_t pool) {
  return client.call(SHMBW_OP_POOL_LEAVE, shmbw_pool_leave{pool, 0, 0});
}

Packet& pool_segment(Client& client, std::uint64_t pool, shmbw_region_ref region, std::uint64_t slot_size,
                     std::uint32_t slots) {
  return client.call(SHMBW_OP_POOL_SEGMENT, shmbw_pool_segment{pool, region, slot_size, slots, 0});
}

Packet& queue_open(Client& client, std::uint64_t pool, std::string_view name, const QueueRequest& wish) {
  shmbw_queue_open fixed{};
  fixed.pool = pool;
  fixed.kind = wish.kind;
  fixed.flags = wish.flags;
  fixed.cells = wish.cells;
  fixed.cell_size = wish.cell_size;
  fixed.name_len = static_cast<std::uint16_t>(name.size());
  return client.call(SHMBW_OP_QUEUE_OPEN, fixed, name);
}

shmbw_queue_open_reply opened(Packet& reply) {
  REQUIRE(reply.status() == Status::ok);
  return reply.fixed<shmbw_queue_open_reply>();
}

Packet& queue_close(Client& client, std::uint64_t pool, const shmbw_queue_open_reply& queue, std::uint32_t flags) {
  return client.call(SHMBW_OP_QUEUE_CLOSE, shmbw_queue_close{pool, queue.queue, queue.serial, flags, 0});
}

void lane_finished(Client& client, std::uint64_t pool, std::uint32_t lane, std::uint32_t serial, std::uint32_t end) {
  client.batch<shmbw_lane_finished>(SHMBW_OP_LANE_FINISHED, {{pool, lane, serial, end, 0}}, {}, SHMBW_HEADER_NO_REPLY);
}

Status queue_hold(Client& client, std::uint64_t pool, std::uint32_t lane, std::uint32_t serial, shmbw_region_ref region,
                  std::uint32_t flags) {
  Packet& reply = client.batch<shmbw_queue_hold>(SHMBW_OP_QUEUE_HOLD, {{pool, lane, serial, region, flags, 0}});
  auto batch = wire::BatchView::open(reply.view());
  REQUIRE(batch);
  return static_cast<Status>(batch->element<shmbw_queue_hold_reply>(0)->outcome.status);
}

pool::LaneView lane_words(const pool::View& view, std::uint32_t index) {
  const pool::LaneEntry& lane = view.lane(index);
  const auto kind = static_cast<QueueKind>(view.queue(lane.queue).kind);
  REQUIRE(view.lane_fits(lane.offset, kind, lane.cells, lane.cell_size));
  return {view.lane_memory(lane.offset), kind, lane.cells, lane.cell_size};
}

pool::LaneState lane_state(const pool::View& view, std::uint32_t lane) {
  return static_cast<pool::LaneState>(Stamp::of(view.lane(lane).stamp.load()).state);
}

Stamp participant(const pool::View& view, std::uint32_t index) {
  return Stamp::of(view.participant(index).stamp.load());
}

std::uint32_t lanes_in_use(const pool::View& view) {
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < view.lanes(); ++i) count += lane_state(view, i) != pool::LaneState::free;
  return count;
}

void publish_slot(const pool::LaneView& lane, std::uint64_t position, std::uint32_t slot, bool expiring,
                  std::int64_t deadline) {
  pool::Cell& cell = lane.cell(position);
  pool::Handle handle{};
  handle.slot = slot;
  if (expiring) std::memcpy(cell.body(), &deadline, sizeof deadline);
  std::memcpy(cell.body() + (expiring ? sizeof deadline : 0), &handle, sizeof handle);
  cell.word.store(pool::CellWord::full(position, pool::kTagSlot));
}

void publish_bytes(const pool::LaneView& lane, std::uint64_t position, std::uint8_t length) {
  lane.cell(position).word.store(pool::CellWord::full(position, length));
}

}  // namespace shmb::daemon::test
