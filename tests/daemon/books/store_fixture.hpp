// SPDX-License-Identifier: Apache-2.0
// Books of a few records without a broker, and what a reader finds in them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapping.hpp"
#include "base/sys_memory.hpp"
#include "daemon/books/image.hpp"
#include "daemon/books/reader.hpp"
#include "daemon/books/store.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon::books::test {

// Places for 4 records of each kind, and for 3 that one request adds. So an image is small.
inline Store small_store(std::uint32_t capacity = 4) {
  auto made = Store::make({.epoch = 0xe10c, .capacity = capacity, .of_request = 3, .no_exec = false});
  REQUIRE(made);
  return std::move(*made);
}

inline SessionRecord session(std::uint64_t id) {
  SessionRecord out;
  out.id = out.line = id;
  out.uid = 1000;
  out.pid = static_cast<std::uint32_t>(100 + id);
  out.socket = static_cast<std::int32_t>(10 * id);
  out.phase = 2;
  out.fork_secret.fill(0xa5);
  std::memcpy(out.library.data(), "demo 1.0", 8);
  return out;
}

inline RegionRecord region(std::uint64_t id, std::uint64_t length = 4096) {
  RegionRecord out;
  out.id = id;
  out.group = 1;
  out.length = out.bytes = length;
  out.keep = -1;
  out.generation = 1;
  out.memory = static_cast<std::int32_t>(100 + id);
  out.heap = true;
  out.hugetlb = true;
  return out;
}

inline GroupRecord group(std::uint64_t id) {
  GroupRecord out;
  out.id = id;
  out.uid = 1000;
  out.token.fill(0xa5);
  return out;
}

inline LeaseRecord lease(std::uint64_t id, std::uint64_t session, std::uint64_t region) {
  LeaseRecord out;
  out.id = id;
  out.session = session;
  out.region = region;
  out.count = 1;
  out.made = true;
  return out;
}

inline TicketRecord ticket(std::uint64_t id, std::uint64_t region, std::uint64_t payer) {
  TicketRecord out;
  out.id = id;
  out.region = region;
  out.maker = out.payer = payer;
  out.expires = 600'000'000'000;
  out.secret.fill(0xa5);
  out.rights = 1;
  out.uses_left = 2;
  out.maker_uid = 1000;
  return out;
}

inline WatchRecord watch(std::uint64_t id, std::uint64_t session, std::uint64_t region) {
  WatchRecord out;
  out.id = id;
  out.session = session;
  out.region = region;
  out.events = 1;
  out.kind = 1;
  return out;
}

inline WorldRecord world(std::uint64_t id, std::uint64_t group) {
  WorldRecord out;
  out.id = id;
  out.group = group;
  out.uid = 1000;
  out.port = 29'500;
  out.size = 2;
  out.last_life = 1;
  std::memcpy(out.address.data(), "localhost:29500", 15);
  return out;
}

inline WorkerRecord worker(std::uint64_t id, std::uint64_t world, std::uint64_t session) {
  WorkerRecord out;
  out.id = id;
  out.world = world;
  out.session = session;
  out.uid = 1000;
  out.life = 1;
  out.participant = 4'294'967'295;
  out.state = 1;
  std::memcpy(out.name.data(), "trainer", 7);
  return out;
}

inline ReferenceRecord reference(std::uint64_t id, std::uint64_t world, std::uint64_t owner) {
  ReferenceRecord out;
  out.id = id;
  out.world = world;
  out.owner = owner;
  out.counter = 1;
  out.state = SHMBW_REF_STATE_FAILED;
  return out;
}

inline ForkRecord fork(std::uint64_t id, std::uint64_t reference, std::uint64_t user) {
  ForkRecord out;
  out.id = id;
  out.reference = reference;
  out.user = user;
  out.in_flight = true;
  return out;
}

inline FailureRecord failure(std::uint64_t reference, std::string_view text) {
  FailureRecord out;
  out.id = reference;
  std::memcpy(out.text.data(), text.data(), text.size());
  return out;
}

inline PoolRecord pool(std::uint64_t id, std::uint64_t group) {
  PoolRecord out;
  out.id = id;
  out.group = group;
  out.lane_bytes = 65'536;
  out.most_slots = 16;
  out.slots = 8;
  out.directory = 200;
  out.control = 201;
  out.last_lane_serial = 9;
  std::memcpy(out.name.data(), "frames", 6);
  return out;
}

inline ParticipantRecord participant(std::uint64_t id, std::uint64_t pool, std::uint64_t session) {
  ParticipantRecord out;
  out.id = id;
  out.pool = pool;
  out.session = session;
  out.life = 1;
  out.uid = 1000;
  out.doorbell = 202;
  out.doorbell_of = 1000;
  out.state = 2;
  return out;
}

inline SegmentRecord segment(std::uint64_t region, std::uint64_t pool) {
  SegmentRecord out;
  out.id = region;
  out.pool = pool;
  out.slot_size = 512;
  out.slots = out.slots_limit = 8;
  return out;
}

inline GpuMemoryRecord gpu_memory(std::uint64_t region, std::uint64_t exporter, std::uint64_t node) {
  GpuMemoryRecord out;
  out.id = region;
  out.exporter = exporter;
  out.node = node;
  out.allocation = 2 << 20;
  out.manifest_bytes = 100;
  out.chunks = 1;
  out.code = -1;
  out.manifest = 203;
  out.kind = SHMBW_GPU_KIND_VMM;
  out.state = SHMBW_GPU_STATE_POISONED;
  out.uuid.fill(0xc0);
  out.handle[63] = 1;
  return out;
}

inline GpuChunkRecord gpu_chunk(std::uint64_t id, std::uint64_t region) {
  GpuChunkRecord out;
  out.id = id;
  out.region = region;
  out.keeper = 204;
  out.share = 205;
  return out;
}

inline GpuNodeRecord gpu_node(std::uint64_t id) {
  GpuNodeRecord out;
  out.id = id;
  out.minor = 3;
  out.uid = 1000;
  out.node = 206;
  out.hold = SHMBW_GPU_HOLD_GIVEN;
  return out;
}

inline GpuDeviceRecord gpu_device(std::uint64_t id, std::uint64_t session, std::uint64_t node) {
  GpuDeviceRecord out;
  out.id = id;
  out.session = session;
  out.node = node;
  out.uuid.fill(0xc0);
  return out;
}

inline QueueRecord queue(std::uint64_t id, std::uint64_t pool) {
  QueueRecord out;
  out.id = id;
  out.pool = pool;
  out.readers = 1;
  out.index = 2;
  out.serial = 3;
  out.flags = 4;
  out.cells = 8;
  out.cell_size = 64;
  out.writer_lane = 4'294'967'295;
  out.deaths = 1;
  out.kind = 2;
  out.state = 1;
  out.removed = true;
  std::memcpy(out.name.data(), "jobs", 4);
  return out;
}

inline LaneRecord lane(std::uint64_t id, std::uint64_t pool, std::uint64_t queue) {
  LaneRecord out;
  out.id = id;
  out.pool = pool;
  out.queue = queue;
  out.offset = 4096;
  out.through = 1;
  out.index = 1;
  out.serial = 9;
  out.from = 1;
  out.from_life = 2;
  out.to = 4'294'967'295;
  out.cells = 8;
  out.cell_size = 64;
  out.state = 2;
  out.sender_finished = true;
  return out;
}

inline HoldRecord hold(std::uint64_t id, std::uint64_t lane, std::uint64_t region) {
  HoldRecord out;
  out.id = id;
  out.lane = lane;
  out.region = region;
  return out;
}

inline PacketsRecord packets(std::uint64_t session) {
  PacketsRecord out;
  out.id = session;
  out.served = 5;
  out.answered = 4;
  return out;
}

inline AnswerRecord answer(std::uint64_t session, std::uint64_t number) {
  AnswerRecord out;
  out.id = session;
  out.number = number;
  out.size = 40;
  out.next = 8;
  std::ranges::fill(std::span(out.bytes).first(40), std::uint8_t{0xa5});
  return out;
}

inline NameRecord name(std::uint64_t id, std::string_view text) {
  NameRecord out;
  out.id = id;
  out.group = 1;
  std::memcpy(out.text.data(), text.data(), text.size());
  return out;
}

// Everything that a reader finds in a private copy.
inline std::vector<std::byte> bytes_of(const Store& store) {
  const auto map = Mapping::map(store.descriptor(), 0, store.bytes(), Access::read);
  REQUIRE(map);
  return {map->data(), map->data() + map->size()};
}
inline std::vector<std::byte> bytes_of(const Fd& copy) {
  const auto map = Mapping::map(copy.get(), 0, sys::file_facts(copy.get())->size, Access::read);
  REQUIRE(map);
  return {map->data(), map->data() + map->size()};
}

struct Found {
  std::string text, refused;
  std::vector<std::string> problems;
};
inline Found read(std::span<std::byte> bytes) {
  auto reader = Reader::open(bytes);
  if (!reader) return {"", reader.error().sentence, {}};
  return {reader->text(), "", reader->problems()};
}
inline std::string text_of(const Store& store) {
  auto bytes = bytes_of(store);
  const Found found = read(bytes);
  CHECK(found.refused == "");
  CHECK(found.problems.size() == (store.behind() ? 1 : 0));  // a reader hears of that, and of nothing else
  return found.text;
}

struct Books {
  Store store;
  std::uint32_t maker = kNowhere, reader = kNowhere, first = kNowhere, second = kNowhere, called = kNowhere,
                owner = kNowhere, held = kNowhere, sent = kNowhere, seen = kNowhere, met = kNowhere, works = kNowhere,
                lent = kNowhere, taken = kNowhere, failed = kNowhere, frames = kNowhere, joined = kNowhere,
                cut = kNowhere, exported = kNowhere, chunk = kNowhere, node = kNowhere, device = kNowhere,
                jobs = kNowhere, way = kNowhere, carried = kNowhere, numbered = kNowhere, answered = kNowhere;
  explicit Books(std::uint32_t capacity = 4) : store(small_store(capacity)) {
    CHECK(store.ready());
    store.begin();
    store.put(maker, session(1));
    store.put(first, region(7));
    store.put(called, name(7, "weights"));
    store.put(owner, group(1));
    store.put(held, lease(3, 1, 7));
    store.put(sent, ticket(4, 7, 1));
    store.put(seen, watch(5, 1, 7));
    store.put(met, world(2, 1));
    store.put(works, worker(6, 2, 1));
    store.put(lent, reference(9, 2, 6));
    store.put(taken, fork(7, 9, 6));
    store.put(failed, failure(9, "ValueError: no"));
    store.put(frames, pool(5, 1));
    store.put(joined, participant(2, 5, 1));
    store.put(cut, segment(7, 5));
    store.put(exported, gpu_memory(7, 1, 3));
    store.put(chunk, gpu_chunk(1, 7));
    store.put(node, gpu_node(3));
    store.put(device, gpu_device(2, 1, 3));
    store.put(jobs, queue(1, 5));
    store.put(way, lane(6, 5, 1));
    store.put(carried, hold(7, 6, 7));
    store.put(numbered, packets(1));
    store.put(answered, answer(1, 6));
    store.totals.last_group = 1;
    store.totals.last_serial = 7;
    store.totals.last_reference = 9;
    store.totals.last_world = 2;
    store.totals.last_session = 1;
    store.totals.last_region = 7;
    CHECK(store.commit());
  }
  void erase_of_region() {
    store.erase<NameRecord>(called);
    store.erase<LeaseRecord>(held);
    store.erase<TicketRecord>(sent);
    store.erase<WatchRecord>(seen);
    store.erase<SegmentRecord>(cut);
    store.erase<GpuMemoryRecord>(exported);
    store.erase<GpuChunkRecord>(chunk);
    store.erase<HoldRecord>(carried);
  }
  void erase_of_group() {
    store.erase<WorldRecord>(met);
    store.erase<WorkerRecord>(works);
    store.erase<ReferenceRecord>(lent);
    store.erase<ForkRecord>(taken);
    store.erase<FailureRecord>(failed);
    store.erase<PoolRecord>(frames);
    store.erase<ParticipantRecord>(joined);
    store.erase<GpuDeviceRecord>(device);
    store.erase<GpuNodeRecord>(node);
    store.erase<QueueRecord>(jobs);
    store.erase<LaneRecord>(way);
  }
  // Now no place for another region is left, and none for more memory.
  void fill() {
    store.begin();
    for (std::uint64_t id = 21; id <= 26; ++id) {
      std::uint32_t place = kNowhere;
      store.put(place, region(id));
    }
    store.totals.last_region = 50;
    CHECK(store.commit());
  }
};

}  // namespace shmb::daemon::books::test
