// SPDX-License-Identifier: Apache-2.0
// The common part of the tests of pools and queues.
#pragma once

#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <string_view>

#include "client/queue/queue_set.hpp"
#include "tests/harness/child.hpp"
#include "tests/support/session.hpp"
#include "tests/support/until.hpp"

namespace support {

using shmb::client::kForever;
using shmb::client::kNoWait;
using shmb::client::Message;
using shmb::client::OutPart;
using shmb::client::PartKind;
using shmb::client::Pool;
using shmb::client::PoolSpec;
using shmb::client::Queue;
using shmb::client::QueueSet;
using shmb::client::QueueSpec;
using shmb::client::Slot;
using Kind = shmb::pool::QueueKind;

inline PoolSpec slots_of(const std::string& name, std::uint64_t size, std::uint32_t slots, std::uint32_t limit = 0) {
  PoolSpec spec;
  spec.name = name;
  spec.classes = {{size, slots, limit}};
  return spec;
}
inline shmb::Result<std::shared_ptr<Pool>> make_pool(const std::shared_ptr<Session>& session, const PoolSpec& spec) {
  return Pool::create(session, spec, 0);
}
inline shmb::Result<std::shared_ptr<Pool>> try_pool(const std::shared_ptr<Session>& session, const std::string& address,
                                                    bool read_only = false) {
  Pool::Opening opening;
  opening.address = address;
  opening.read_only = read_only;
  return Pool::open(session, opening);
}
inline QueueSpec queue_spec(const std::string& name, Kind kind, bool reader, bool writer, std::uint32_t cells = 64) {
  QueueSpec spec;
  spec.name = name;
  spec.kind = kind;
  spec.reader = reader;
  spec.writer = writer;
  spec.cells = cells;
  return spec;
}
inline std::unique_ptr<Queue> reader(const std::shared_ptr<Pool>& pool, const std::string& name, Kind kind,
                                     std::uint32_t cells = 64) {
  return must(Queue::open(pool, queue_spec(name, kind, true, false, cells)));
}
inline std::unique_ptr<Queue> writer(const std::shared_ptr<Pool>& pool, const std::string& name, Kind kind,
                                     std::uint32_t cells = 64) {
  return must(Queue::open(pool, queue_spec(name, kind, false, true, cells)));
}
inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
inline std::string text_of(const Message& message, std::size_t part = 0) {
  if (part >= message.count() || message.part(part).data == nullptr) return "(nothing)";
  return {reinterpret_cast<const char*>(message.part(part).data), message.part(part).length};
}
inline OutPart bytes_part(std::string_view text) {
  OutPart part;
  part.data = bytes_of(text).data();
  part.length = text.size();
  return part;
}
inline OutPart slot_part(const Slot& slot) {
  OutPart part;
  part.kind = PartKind::slot;
  part.slot = slot;
  return part;
}
inline OutPart region_part(Region& region) {
  OutPart part;
  part.kind = PartKind::region;
  part.region = &region;
  return part;
}
inline bool is_asleep(Pool& pool) { return pool.view().wait(pool.me().index()).sleep.load() != 0; }
// A second session of the same group.
inline std::shared_ptr<Session> beside(const harness::BrokerFixture& broker, const std::shared_ptr<Pool>& pool) {
  auto other = open(broker);
  must(other->join_group("#" + std::to_string(pool->group()), 0, Deadline::after(0)));
  return other;
}
// The pool by another participant, in a session of its own.
inline std::shared_ptr<Pool> fellow(const harness::BrokerFixture& broker, const std::shared_ptr<Pool>& pool) {
  Pool::Opening opening;
  opening.id = pool->id();
  return must(Pool::open(beside(broker, pool), opening));
}
// A child of this process that opens the pool in a session of its own and runs `body`, whose value is its exit status.
inline constexpr int kNotInPool = 96;
inline harness::Child child_in(const harness::BrokerFixture& broker, const std::shared_ptr<Pool>& pool,
                               const std::function<int(const std::shared_ptr<Pool>& joined)>& body) {
  Pool::Opening opening;
  opening.id = pool->id();
  return harness::Child::run([&broker, &body, opening, group = "#" + std::to_string(pool->group())] {
    const auto session = try_open(broker.socket());
    if (!session || !(*session)->join_group(group, 0, Deadline::after(0))) return kNotInPool;
    const auto joined = Pool::open(*session, opening);
    return joined ? body(*joined) : kNotInPool;
  });
}

// In a child, where a failed case could not be told: the step that failed is its exit status.
#define STEP(number, condition)      \
  do {                               \
    if (!(condition)) return number; \
  } while (false)

}  // namespace support
