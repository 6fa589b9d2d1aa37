// SPDX-License-Identifier: Apache-2.0
// The writers and readers of the storm: eight processes, each with several roles, over every kind of queue.
#pragma once

#include <string>
#include <vector>

#include "client/queue/pool.hpp"
#include "client/queue/queue.hpp"
#include "tests/storm/ledger.hpp"

namespace storm {

using Kind = shmb::pool::QueueKind;

struct QueuePlan {
  const char* name;
  Kind kind;
  std::uint32_t flags, cells, cell_size;
};
enum QueueNumber : std::uint32_t { line_a, line_b, claim_a, claim_b, forward, once, ring, drops, queue_count };
static_assert(queue_count <= kMostQueues);
inline constexpr QueuePlan kQueues[queue_count] = {
    {"line_a", Kind::spsc, 0, 16, 64},    {"line_b", Kind::spsc, 0, 64, 128},
    {"claim_a", Kind::mpmc, 0, 16, 64},   {"claim_b", Kind::mpmc, 0, 64, 128},
    {"forward", Kind::mpmc, 0, 16, 64},   {"once", Kind::mpmc, shmb::pool::kQueueAtLeastOnce, 16, 64},
    {"ring", Kind::broadcast, 0, 16, 64}, {"drops", Kind::broadcast, shmb::pool::kQueueDropOldest, 16, 128},
};

struct Role {
  std::vector<std::uint32_t> writes, reads;
  bool slow = false;
  bool forwards = false;  // what it takes from claim_a goes on through `forward`
};
inline const Role kRoles[kWorkers] = {
    {{line_a, claim_a}, {claim_b}},
    {{claim_b, once}, {line_a, ring}},
    {{line_b, ring}, {claim_a}},
    {{claim_b}, {line_b, claim_a, drops}},
    {{claim_a, drops}, {claim_b, once}},
    {{forward}, {claim_a, ring}, false, true},
    {{once}, {claim_b, forward, drops}, true},
    {{claim_a}, {forward, once, ring}, true},
};

inline shmb::client::PoolSpec pool_plan() {
  shmb::client::PoolSpec spec;
  spec.name = "storm";
  spec.classes = {{256, 32, 96}, {4096, 16, 48}, {65536, 4, 8}};
  spec.lanes = 256;
  spec.queues = queue_count;
  spec.lane_bytes = 4 << 20;
  return spec;
}

inline shmb::client::QueueSpec queue_plan(std::uint32_t number, bool reads, bool writes) {
  const QueuePlan& plan = kQueues[number];
  shmb::client::QueueSpec spec;
  spec.name = plan.name;
  spec.kind = plan.kind;
  spec.flags = plan.flags;
  spec.cells = plan.cells;
  spec.cell_size = plan.cell_size;
  spec.reader = reads;
  spec.writer = writes;
  spec.spin = 2'000;
  return spec;
}

}  // namespace storm
