// SPDX-License-Identifier: Apache-2.0
// The checks of a queue's settings, and how they differ from those of the existing queue.
#include "client/queue/queue_spec.hpp"

#include <algorithm>
#include <bit>

#include "client/region/obtain.hpp"

namespace shmb::client {
namespace {

std::string kind_name(pool::QueueKind kind) {
  switch (kind) {
    case pool::QueueKind::spsc:
      return "spsc";
    case pool::QueueKind::mpmc:
      return "mpmc";
    case pool::QueueKind::broadcast:
      return "broadcast";
    default:
      return "none";
  }
}

}  // namespace

Result<void> checked(const QueueSpec& spec) {
  SHMB_TRY_VOID(names::check(spec.name, "queue name"));
  if (!spec.reader && !spec.writer)
    return error(Status::invalid, "a queue is opened as its reader, as its writer, or as both");
  if (spec.create_only && spec.open_only)
    return error(Status::invalid, "SHMB_QUEUE_CREATE_ONLY and SHMB_QUEUE_OPEN_ONLY exclude each other");
  if (spec.kind == pool::QueueKind::none && !spec.open_only)
    return error(Status::invalid, spec.writer
                                      ? "a writer says which kind of queue it makes, or opens the queue as it is "
                                        "(SHMB_QUEUE_AS_IS with SHMB_QUEUE_OPEN_ONLY)"
                                      : "a queue as it is (SHMB_QUEUE_AS_IS) can only be opened: say which kind "
                                        "SHMB_QUEUE_CREATE_ONLY makes");
  if (spec.kind > pool::QueueKind::broadcast)
    return error(Status::invalid, "the kind of a queue is SHMB_QUEUE_SPSC, SHMB_QUEUE_MPMC or SHMB_QUEUE_BROADCAST");
  if (spec.cells != 0 && (!std::has_single_bit(spec.cells) || spec.cells < 2 || spec.cells > 65536))
    return error(Status::invalid,
                 "the cells of a queue are a power of two from 2 to 65536, not " + std::to_string(spec.cells));
  if (spec.cell_size != 0 && spec.cell_size != 64 && spec.cell_size != 128)
    return error(Status::invalid, "a queue has 56 or 120 inline bytes");
  if ((spec.flags & pool::kQueueDropOldest) != 0 && spec.kind > pool::QueueKind::none &&
      spec.kind != pool::QueueKind::broadcast)
    return error(Status::invalid, "only a broadcast queue can drop its oldest messages");
  if ((spec.flags & pool::kQueueAtLeastOnce) != 0 && spec.kind > pool::QueueKind::none &&
      spec.kind != pool::QueueKind::mpmc)
    return error(Status::invalid, "only an mpmc queue delivers at least once");
  return {};
}

// A reader that names no kind takes the existing queue, and waits for it.
QueueSpec with_wait(QueueSpec spec) {
  if (spec.kind != pool::QueueKind::none || !spec.reader || spec.writer || spec.open_only || spec.create_only)
    return spec;
  spec.open_only = true;
  if (spec.wait == 0) spec.wait = spec.timeout != 0 ? spec.timeout : kDefaultTimeout;
  return spec;
}

// Names the setting in which the existing queue differs.
std::string difference(const pool::View& view, const QueueSpec& spec) {
  for (std::size_t i = 0; i < view.queues(); ++i) {
    const pool::QueueEntry& entry = view.queue(i);
    const std::uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
    if (pool::Stamp::of(stamp).state == static_cast<std::uint8_t>(pool::QueueState::free)) continue;
    const std::size_t length = std::min<std::size_t>(entry.name_length, sizeof entry.name);
    if (std::string_view(entry.name, length) != spec.name) continue;
    const auto kind = static_cast<pool::QueueKind>(entry.kind);
    if (kind != spec.kind) return "its kind is " + kind_name(kind) + ", not " + kind_name(spec.kind);
    if (spec.cells != 0 && entry.cells != spec.cells)
      return "it has " + std::to_string(entry.cells) + " cells, not " + std::to_string(spec.cells);
    if (spec.cell_size != 0 && entry.cell_size != spec.cell_size)
      return "it has " + std::to_string(entry.cell_size - 8) + " inline bytes, not " +
             std::to_string(spec.cell_size - 8);
    const std::uint32_t other = entry.flags ^ spec.flags;
    const auto one = [&](std::uint32_t bit, const char* name) {
      return std::string(name) + ((entry.flags & bit) != 0 ? " is set" : " is not set") + " for it";
    };
    if ((other & pool::kQueueDropOldest) != 0) return one(pool::kQueueDropOldest, "DROP_OLDEST");
    if ((other & pool::kQueueExpiring) != 0) return one(pool::kQueueExpiring, "EXPIRING");
    if ((other & pool::kQueueAtLeastOnce) != 0) return one(pool::kQueueAtLeastOnce, "AT_LEAST_ONCE");
  }
  return {};
}

}  // namespace shmb::client
