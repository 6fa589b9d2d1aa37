// SPDX-License-Identifier: Apache-2.0
// A client's view of a pool in tests of the books: both areas mapped as the reply's descriptors allow, and the requests
// of pools and queues in one line each.
#pragma once

#include <string_view>

#include "base/mapping.hpp"
#include "proto/pool_layout.hpp"
#include "tests/daemon/books/books_fixture.hpp"

namespace shmb::daemon::test {

struct PoolRequest {
  std::string name = {};
  std::uint32_t slots = 16, lanes = 0, queues = 0, segments = 0;
  std::uint64_t lane_bytes = 0, group = 0;
  std::uint32_t flags = 0;
  std::int64_t keep = 0;
};

struct PoolClient {
  std::uint64_t pool = 0, group = 0;
  std::uint32_t index = 0, life = 0;
  Fd directory_fd, control_fd;
  Mapping directory, control;
  pool::View view;
  std::uint64_t bit() const { return std::uint64_t{1} << index; }
};

Packet& pool_create(Client& client, const PoolRequest& wish = {});
Packet& pool_join(Client& client, std::uint64_t pool, std::uint32_t flags = 0);
Packet& pool_join(Client& client, std::string_view group, std::string_view name, std::uint32_t flags = 0);
PoolClient map_pool(Packet& reply);  // of pool_create or pool_join, which succeeded
Packet& pool_leave(Client& client, std::uint64_t pool);
Packet& pool_segment(Client& client, std::uint64_t pool, shmbw_region_ref region, std::uint64_t slot_size,
                     std::uint32_t slots);

struct QueueRequest {
  std::uint32_t kind = SHMBW_QUEUE_KIND_SPSC;
  std::uint32_t flags = SHMBW_QUEUE_OPEN_READER;
  std::uint32_t cells = 8, cell_size = 64;
};
Packet& queue_open(Client& client, std::uint64_t pool, std::string_view name, const QueueRequest& wish = {});
shmbw_queue_open_reply opened(Packet& reply);
Packet& queue_close(Client& client, std::uint64_t pool, const shmbw_queue_open_reply& queue, std::uint32_t flags);
void lane_finished(Client& client, std::uint64_t pool, std::uint32_t lane, std::uint32_t serial, std::uint32_t end);
Status queue_hold(Client& client, std::uint64_t pool, std::uint32_t lane, std::uint32_t serial, shmbw_region_ref region,
                  std::uint32_t flags = 0);

// The words of the lane, as its entry says.
pool::LaneView lane_words(const pool::View& view, std::uint32_t lane);
pool::LaneState lane_state(const pool::View& view, std::uint32_t lane);
pool::Stamp participant(const pool::View& view, std::uint32_t index);
std::uint32_t lanes_in_use(const pool::View& view);
// As a sender writes it: body, then word.
void publish_slot(const pool::LaneView& lane, std::uint64_t position, std::uint32_t slot, bool expiring = false,
                  std::int64_t deadline = 0);
void publish_bytes(const pool::LaneView& lane, std::uint64_t position, std::uint8_t length = 8);

}  // namespace shmb::daemon::test
