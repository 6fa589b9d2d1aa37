// SPDX-License-Identifier: Apache-2.0
// Order of an open: check all words, make the lanes that it needs, enter the ends. A failure leaves nothing.
//
// When a lane is made depends on the kind of its queue. An spsc queue has one lane, which is made when it has both
// ends. An mpmc or broadcast queue has a lane for each writer, which is made when that writer opens.
//
// The states of a lane, in its stamp:
// - open: its sender may send.
// - writer_gone: the sender has closed its end, is through, or is gone. No further message comes. Receivers take the
// rest.
// - reader_gone: the receiver of an spsc lane has closed its end or is gone. The sender learns of it by this state.
// - free: settle_lanes() gives the entry out again. The sender is gone and no process can receive from it any more
// (D7).
//
// A stamp also has a serial that rises with each new lane. So a request that names an earlier lane of the same entry is
// refused. The memory of a lane is free with its entry, except for a ring (broadcast). The queue keeps that for its
// next writer, because a slow reader may still look at it.
#include "daemon/pools/queue.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/text.hpp"
#include "daemon/ledger/grant.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/pools/pool.hpp"
#include "daemon/pools/pools.hpp"
#include "proto/names.hpp"

namespace shmb::daemon {

using pool::kNone;
using pool::LaneState;
using pool::QueueKind;
using pool::QueueState;

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

std::uint64_t bit(std::uint32_t participant) { return std::uint64_t{1} << participant; }

// Their records follow, and their entries in the directory.
void queue_changed(Pool& pool, std::uint32_t queue) {
  changed(pool.queues[queue]);
  pool.show_queue(queue);
}
void lane_changed(Pool& pool, std::uint32_t lane) {
  changed(pool.lanes[lane]);
  pool.show_lane(lane);
}

void set_state(Pool& pool, std::uint32_t lane, LaneState state) {
  pool.lanes[lane].state = state;
  lane_changed(pool, lane);
}

bool alive(const Pool& pool, std::uint32_t participant, std::uint32_t life) {
  const Participant& who = pool.participants[participant];
  return who.life == life && who.state == pool::ParticipantState::live;
}

bool sender_gone(const Pool& pool, const LaneBook& lane) {
  return lane.sender_finished || !alive(pool, lane.from, lane.from_life);
}

// Cells that are written in one turn: 128 KiB at most, often in fresh pages.
constexpr std::uint32_t kCellsOfTurn = 1024;

struct LaneRequest {
  std::uint32_t queue = 0, from = 0, to = kNone;
};

Error no_lane(const Pool& pool, shmbw_slot slot, std::uint64_t limit, std::uint64_t used, std::uint64_t asked) {
  return refuse_in_pool(
      pool, slot, limit, used, asked,
      "make the pool with more of it, or wait until the lanes of participants that have left are read");
}

// A reader that has the queue open gets all messages of a new ring. It is attached at the first message before the
// writer knows the ring, whenever the reader looks at the directory next.
void attach_readers(const pool::LaneView& ring, std::uint64_t readers) {
  for (; readers != 0; readers &= readers - 1)
    // the stamp releases it
    ring.reader(static_cast<std::size_t>(std::countr_zero(readers))).position.store(1, kRelaxed);
}

Result<std::uint32_t> make_lane(Pool& pool, const LaneRequest& wish) {
  const pool::View& view = pool.view;
  const QueueBook& queue = pool.queues[wish.queue];
  const QueueKind kind = queue.kind;
  std::uint32_t free = kNone, used = 0;
  std::optional<std::uint64_t> offset;
  for (std::uint32_t i = 0; i < pool.lanes.size(); ++i) {
    const LaneBook& lane = pool.lanes[i];
    if (lane.in_use()) {
      ++used;
    } else if (lane.cells != 0) {
      // The ring of an earlier writer of this queue: same kind, same sizes.
      if (kind == QueueKind::broadcast && pool.of_queue(lane, wish.queue)) {
        free = i;
        offset = lane.offset;
        break;
      }
      ++used;
    } else if (free == kNone) {
      free = i;
    }
  }
  if (free == kNone) return std::unexpected(no_lane(pool, SHMBW_SLOT_LANES, pool.lanes.size(), used, 1));
  const std::uint64_t bytes = pool::lane_bytes(kind, queue.cells, queue.cell_size);
  if (!offset) offset = find_lane_memory(pool, bytes);
  if (!offset)
    return std::unexpected(no_lane(pool, SHMBW_SLOT_LANE_BYTES, view.control_area().size() - pool.lane_memory,
                                   lane_memory_used(pool), bytes));
  const LaneInMaking made = std::exchange(pool.making, {});
  const std::uint32_t ready =
      made.offset == *offset && made.kind == kind && made.cells == queue.cells && made.cell_size == queue.cell_size
          ? made.ready
          : 0;
  pool::prepare_cells(view.lane_memory(*offset), kind, queue.cells, queue.cell_size, ready, queue.cells - ready);
  if (kind == QueueKind::broadcast)
    attach_readers({view.lane_memory(*offset), kind, queue.cells, queue.cell_size}, queue.readers);
  LaneBook& lane = pool.lanes[free];
  lane.row = ++pool.pools.host.last_serial;
  lane.state = LaneState::open;
  lane.sender_finished = lane.receiver_done = false;
  lane.through = 0;
  lane.serial = ++pool.last_lane_serial;
  lane.queue = wish.queue;
  lane.queue_serial = queue.serial;
  lane.from = wish.from;
  lane.from_life = pool.participants[wish.from].life;
  lane.to = wish.to;
  lane.to_life = wish.to == kNone ? 0 : pool.participants[wish.to].life;
  lane.cells = queue.cells;
  lane.cell_size = queue.cell_size;
  lane.offset = *offset;
  changed(lane);
  changed(pool);  // last_lane_serial
  give(pool, Gift::What::lane, free);
  return free;
}

void drop_hold(Pools& pools, LaneBook& book, std::map<std::uint64_t, LaneHold>::iterator at) {
  Region& region = *at->second.region;
  Books& books = pools.host.books;
  books.end<books::HoldRecord>(books.holds, at->second);
  book.holds.erase(at);
  --region.pool_holds;
  // A receiver of the region has mapped it by its own lease, whose end says whether it is unmapped.
  release_region(pools.regions, region, true);
}

void free_lane(Pools& pools, Pool& pool, std::uint32_t index) {
  LaneBook& lane = pool.lanes[index];
  QueueBook& queue = pool.queues[lane.queue];
  queue.in_regions += known_lane(pool, index).words.in_regions().load(kRelaxed);
  changed(queue);
  if (queue.kind != QueueKind::broadcast) lane.cells = 0;
  set_state(pool, index, LaneState::free);
  while (!lane.holds.empty()) drop_hold(pools, lane, lane.holds.begin());
}

// The sender's end is closed or its process is gone: no further message comes.
void close_sender(Pool& pool, std::uint32_t index) {
  const LaneBook& lane = pool.lanes[index];
  if (lane.state == LaneState::open) set_state(pool, index, LaneState::writer_gone);
  QueueBook& queue = pool.queues[lane.queue];
  if (queue.writer_lane != index || queue.kind != QueueKind::broadcast) return;
  queue.writer_lane = kNone;
  queue_changed(pool, lane.queue);
}

void close_receiver(Pool& pool, std::uint32_t index) {
  LaneBook& lane = pool.lanes[index];
  lane.receiver_done = true;
  changed(lane);
  if (lane.state == LaneState::open) set_state(pool, index, LaneState::reader_gone);
}

// Closes ends of a queue that the participant does not have any more.
void close_ends(Pool& pool, std::uint32_t queue, std::uint32_t participant, bool reader, bool writer) {
  QueueBook& book = pool.queues[queue];
  if (reader) book.readers &= ~bit(participant);
  if (writer) book.writers &= ~bit(participant);
  queue_changed(pool, queue);
  const std::uint32_t life = pool.participants[participant].life;
  for (std::uint32_t i = 0; i < pool.lanes.size(); ++i) {
    LaneBook& lane = pool.lanes[i];
    if (!lane.in_use() || !pool.of_queue(lane, queue)) continue;
    if (writer && lane.is_from(participant, life)) close_sender(pool, i);
    if (reader && lane.is_to(participant, life)) close_receiver(pool, i);
    if (!reader) continue;
    // Its report counts for this end only. The next reader on this index may use the lane again.
    lane.through &= ~bit(participant);
    changed(lane);
    // Also in rings that it has not looked at yet. Otherwise its next end would begin at a position that is overwritten
    // by then.
    if (const KnownLane known = known_lane(pool, i); known.kind == QueueKind::broadcast)
      known.words.reader(participant).position.store(0, std::memory_order_release);
  }
}

std::uint32_t flags_of(const shmbw_queue_open& wish) {
  std::uint32_t flags = 0;
  if ((wish.flags & SHMBW_QUEUE_OPEN_DROP_OLDEST) != 0) flags |= pool::kQueueDropOldest;
  if ((wish.flags & SHMBW_QUEUE_OPEN_EXPIRING) != 0) flags |= pool::kQueueExpiring;
  if ((wish.flags & SHMBW_QUEUE_OPEN_AT_LEAST_ONCE) != 0) flags |= pool::kQueueAtLeastOnce;
  return flags;
}

// Cells that the caller leaves open (0) are those of the existing queue.
shmbw_queue_open with_cells(shmbw_queue_open wish, const QueueBook* there) {
  constexpr std::uint32_t kCells = 256, kCellSize = 64;
  if (wish.kind == SHMBW_QUEUE_KIND_NONE) return wish;
  if (wish.cells == 0) wish.cells = there != nullptr ? there->cells : kCells;
  if (wish.cell_size == 0) wish.cell_size = there != nullptr ? there->cell_size : kCellSize;
  return wish;
}

Result<void> check_words(const Participant& caller, const shmbw_queue_open& wish, std::string_view name) {
  if ((wish.flags & ~std::uint32_t{SHMBW_QUEUE_OPEN_KNOWN}) != 0)
    return error(Status::unknown_flags, "a flag of queue_open is not known to this broker");
  if (auto valid = names::check(name, "queue name"); !valid) return valid;
  const bool writer = (wish.flags & SHMBW_QUEUE_OPEN_WRITER) != 0;
  if (!writer && (wish.flags & SHMBW_QUEUE_OPEN_READER) == 0)
    return error(Status::invalid, "open a queue as reader, as writer or as both");
  if (writer && caller.read_only)
    return error(Status::denied, "this session joined the pool read_only: it cannot write to queues");
  const bool open_only = (wish.flags & SHMBW_QUEUE_OPEN_OPEN_ONLY) != 0;
  if (open_only && (wish.flags & SHMBW_QUEUE_OPEN_CREATE_ONLY) != 0)
    return error(Status::invalid, "create_only and open_only exclude each other");
  if (wish.kind == SHMBW_QUEUE_KIND_NONE) {
    if (!open_only) return error(Status::invalid, "a queue without a kind can only be opened (open_only)");
    return {};
  }
  if (wish.kind > SHMBW_QUEUE_KIND_BROADCAST) return error(Status::invalid, "a queue is spsc, mpmc or broadcast");
  if ((wish.flags & SHMBW_QUEUE_OPEN_DROP_OLDEST) != 0 && wish.kind != SHMBW_QUEUE_KIND_BROADCAST)
    return error(Status::invalid, "only a broadcast queue can drop its oldest messages");
  if ((wish.flags & SHMBW_QUEUE_OPEN_AT_LEAST_ONCE) != 0 && wish.kind != SHMBW_QUEUE_KIND_MPMC)
    return error(Status::invalid, "only an mpmc queue delivers at least once");
  if (!std::has_single_bit(wish.cells) || wish.cells < 2 || wish.cells > 65536)
    return error(Status::invalid, "the cells of a lane are a power of two from 2 to 65536");
  if (wish.cell_size != 64 && wish.cell_size != 128) return error(Status::invalid, "a cell has 64 or 128 bytes");
  return {};
}

std::uint32_t find_queue(const Pool& pool, std::string_view name) {
  for (std::uint32_t i = 0; i < pool.queues.size(); ++i) {
    const QueueBook& queue = pool.queues[i];
    if (queue.in_use() && !queue.removed && queue.name == name) return i;
  }
  return kNone;
}

// Whether there are messages that a new reader may take. Messages of the other kinds end with the reader they were sent
// to.
bool has_unread(const Pool& pool, std::uint32_t queue) {
  if (pool.queues[queue].kind != QueueKind::mpmc) return false;
  for (std::uint32_t i = 0; i < pool.lanes.size(); ++i) {
    const LaneBook& lane = pool.lanes[i];
    if (!lane.in_use() || !pool.of_queue(lane, queue)) continue;
    if (unread(known_lane(pool, i).words, QueueKind::mpmc) != 0) return true;
  }
  return false;
}

Result<void> may_open(const Pool& pool, std::uint32_t queue, std::uint32_t participant, const shmbw_queue_open& wish,
                      std::string_view name) {
  const QueueBook& book = pool.queues[queue];
  if ((wish.flags & SHMBW_QUEUE_OPEN_CREATE_ONLY) != 0)
    return error(Status::exists, "the pool has a queue " + quoted(name) + " already");
  if (wish.kind != SHMBW_QUEUE_KIND_NONE &&
      (static_cast<std::uint32_t>(book.kind) != wish.kind || book.flags != flags_of(wish) || book.cells != wish.cells ||
       book.cell_size != wish.cell_size))
    return error(Status::exists, "queue " + quoted(name) +
                                     " has another kind, other flags or other cells; open it as it is (kind none, "
                                     "open_only) or use another name");
  if (book.state == QueueState::closed) {
    const bool reads_only =
        (wish.flags & (SHMBW_QUEUE_OPEN_READER | SHMBW_QUEUE_OPEN_WRITER)) == SHMBW_QUEUE_OPEN_READER;
    if (!reads_only || !has_unread(pool, queue))
      return error(Status::closed, "queue " + quoted(name) + " is closed: nobody may send" +
                                       (reads_only ? ", and nothing is left in it for a new reader" : ""));
  }
  if ((wish.flags & SHMBW_QUEUE_OPEN_READER) != 0) {
    if ((book.readers & bit(participant)) != 0)
      return error(Status::busy, "this session reads queue " + quoted(name) + " already");
    if (book.kind == QueueKind::spsc && book.readers != 0)
      return error(Status::busy, "queue " + quoted(name) + " is spsc and has its reader");
  }
  if ((wish.flags & SHMBW_QUEUE_OPEN_WRITER) != 0) {
    if ((book.writers & bit(participant)) != 0)
      return error(Status::busy, "this session writes queue " + quoted(name) + " already");
    if (book.kind != QueueKind::mpmc && book.writers != 0)
      return error(Status::busy, "queue " + quoted(name) + " has its writer");
  }
  return {};
}

// The offset at which make_lane() will put the lane.
std::optional<std::uint64_t> lane_offset(const Pool& pool, std::uint32_t queue, const LaneInMaking& needed) {
  if (queue != kNone && needed.kind == QueueKind::broadcast)
    for (const LaneBook& lane : pool.lanes)
      if (!lane.in_use() && lane.cells != 0 && pool.of_queue(lane, queue)) return lane.offset;
  return find_lane_memory(pool, pool::lane_bytes(needed.kind, needed.cells, needed.cell_size));
}

Result<std::uint32_t> make_queue(Pools& pools, Pool& pool, const shmbw_queue_open& wish, std::string_view name) {
  std::uint32_t index = 0;
  while (index < pool.queues.size() && pool.queues[index].in_use()) ++index;
  if (index == pool.queues.size())
    return std::unexpected(refuse_in_pool(pool, SHMBW_SLOT_QUEUES, index, index, 1,
                                          "remove queues that are not used any more, or make the pool with more"));
  QueueBook& queue = pool.queues[index];
  queue.row = ++pools.host.last_serial;
  queue.state = QueueState::open;
  queue.kind = static_cast<QueueKind>(wish.kind);
  queue.removed = false;
  ++queue.serial;
  queue.flags = flags_of(wish);
  queue.cells = wish.cells;
  queue.cell_size = wish.cell_size;
  queue.readers = queue.writers = 0;
  queue.generation = queue.deaths = 0;
  queue.writer_lane = kNone;
  queue.in_regions = 0;
  queue.name = name;
  changed(queue);
  give(pool, Gift::What::queue, index);
  return index;
}

// By now only its rings have kept memory.
void free_queue(Pool& pool, std::uint32_t index) {
  for (std::uint32_t i = 0; i < pool.lanes.size(); ++i)
    if (LaneBook& lane = pool.lanes[i]; lane.cells != 0 && pool.of_queue(lane, index)) {
      lane.cells = 0;
      lane_changed(pool, i);
    }
  pool.queues[index].state = QueueState::free;
  queue_changed(pool, index);
}

void close_for_all(Pool& pool, std::uint32_t queue) {
  if (pool.queues[queue].state != QueueState::open) return;
  pool.queues[queue].state = QueueState::closed;
  queue_changed(pool, queue);
}

}  // namespace

bool make_lane_ready(Session& session, Pool& pool, std::uint32_t participant, const shmbw_queue_open& asked,
                     std::string_view name) {
  LaneInMaking& making = pool.making;
  if (making.session != 0 && making.session != session.id) return false;  // that session's lane is made first
  const std::uint32_t queue = find_queue(pool, name);
  const bool fresh = queue == kNone;
  const shmbw_queue_open wish = with_cells(asked, fresh ? nullptr : &pool.queues[queue]);
  const bool reader = (wish.flags & SHMBW_QUEUE_OPEN_READER) != 0, writer = (wish.flags & SHMBW_QUEUE_OPEN_WRITER) != 0;
  // The open itself reports what is wrong or short.
  const bool refused = !check_words(pool.participants[participant], wish, name) ||
                       (fresh ? wish.kind == SHMBW_QUEUE_KIND_NONE || (wish.flags & SHMBW_QUEUE_OPEN_OPEN_ONLY) != 0
                              : !may_open(pool, queue, participant, wish, name));
  LaneInMaking needed;
  if (!refused) {
    const QueueBook* const there = fresh ? nullptr : &pool.queues[queue];
    needed.kind = there ? there->kind : static_cast<QueueKind>(wish.kind);
    needed.cells = there ? there->cells : wish.cells;
    needed.cell_size = there ? there->cell_size : wish.cell_size;
    const bool read = reader || (there && there->readers != 0);
    const bool written = writer || (there && there->writers != 0);
    const bool makes = needed.kind == QueueKind::spsc ? read && written : writer;
    const auto offset = makes ? lane_offset(pool, queue, needed) : std::nullopt;
    if (offset) {
      needed.session = session.id;
      needed.offset = *offset;
    }
  }
  if (needed.session == 0) {
    making = {};
    return true;
  }
  if (!making.same(needed)) making = needed;
  if (making.cells - making.ready <= kCellsOfTurn) return true;
  pool::prepare_cells(pool.view.lane_memory(making.offset), making.kind, making.cells, making.cell_size, making.ready,
                      kCellsOfTurn);
  making.ready += kCellsOfTurn;
  return false;
}

Result<OpenedQueue> open_queue(Pools& pools, Pool& pool, std::uint32_t participant, const shmbw_queue_open& asked,
                               std::string_view name) {
  std::uint32_t queue = find_queue(pool, name);
  const shmbw_queue_open wish = with_cells(asked, queue == kNone ? nullptr : &pool.queues[queue]);
  SHMB_TRY_VOID(check_words(pool.participants[participant], wish, name));
  const bool fresh = queue == kNone;
  if (fresh) {
    if ((wish.flags & SHMBW_QUEUE_OPEN_OPEN_ONLY) != 0)
      return error(Status::not_found, "the pool has no queue " + quoted(name));
    SHMB_TRY(made, make_queue(pools, pool, wish, name));
    queue = made;
  } else if (auto may = may_open(pool, queue, participant, wish, name); !may) {
    return std::unexpected(may.error());
  }
  QueueBook& book = pool.queues[queue];
  const bool reader = (wish.flags & SHMBW_QUEUE_OPEN_READER) != 0;
  const bool writer = (wish.flags & SHMBW_QUEUE_OPEN_WRITER) != 0;
  const std::uint64_t readers = book.readers | (reader ? bit(participant) : 0);
  const std::uint64_t writers = book.writers | (writer ? bit(participant) : 0);
  OpenedQueue out{queue, book.serial, kNone, 0};

  std::optional<LaneRequest> lane_wish;
  if (book.kind != QueueKind::spsc) {
    if (writer) lane_wish = {queue, participant, kNone};
  } else if (readers != 0 && writers != 0) {
    lane_wish = {queue, static_cast<std::uint32_t>(std::countr_zero(writers)),
                 static_cast<std::uint32_t>(std::countr_zero(readers))};
  }
  if (lane_wish) {
    auto lane = make_lane(pool, *lane_wish);
    if (!lane) {
      if (fresh) free_queue(pool, queue);
      return std::unexpected(lane.error());
    }
    if (book.kind != QueueKind::spsc) {
      out.lane = *lane;
      out.lane_serial = pool.lanes[*lane].serial;
    }
    if (book.kind == QueueKind::broadcast) {
      book.writer_lane = *lane;
      ++book.generation;
    }
  }
  book.readers = readers;
  book.writers = writers;
  changed(book);
  give(pool, Gift::What::ends, queue);
  pool.tell_peers();
  return out;
}

Result<EndsLeft> close_queue(Pools& pools, Pool& pool, std::uint32_t participant, const shmbw_queue_close& wish) {
  if ((wish.flags & ~std::uint32_t{SHMBW_QUEUE_CLOSE_KNOWN}) != 0)
    return error(Status::unknown_flags, "a flag of queue_close is not known to this broker");
  if (wish.queue >= pool.queues.size() || pool.queues[wish.queue].serial != wish.serial ||
      !pool.queues[wish.queue].in_use())
    return error(Status::not_found, "the pool has no such queue");
  QueueBook& book = pool.queues[wish.queue];
  const bool reader = (wish.flags & SHMBW_QUEUE_CLOSE_READER) != 0;
  const bool writer = (wish.flags & SHMBW_QUEUE_CLOSE_WRITER) != 0;
  constexpr std::uint32_t kForAll = SHMBW_QUEUE_CLOSE_ALL | SHMBW_QUEUE_CLOSE_REMOVE;
  if ((wish.flags & kForAll) != 0 && pool.participants[participant].read_only)
    return error(Status::denied, "this session joined the pool read_only: it cannot close a queue for others");
  if (reader && (book.readers & bit(participant)) == 0)
    return error(Status::not_found, "this session does not read the queue");
  if (writer && (book.writers & bit(participant)) == 0)
    return error(Status::not_found, "this session does not write the queue");
  close_ends(pool, wish.queue, participant, reader, writer);
  if ((wish.flags & SHMBW_QUEUE_CLOSE_ALL) != 0) close_for_all(pool, wish.queue);
  if ((wish.flags & SHMBW_QUEUE_CLOSE_REMOVE) != 0) {
    book.removed = true;
    changed(book);
  }
  const EndsLeft left{static_cast<std::uint32_t>(std::popcount(book.readers)),
                      static_cast<std::uint32_t>(std::popcount(book.writers))};
  settle_lanes(pools, pool);
  pool_changed(pool);
  return left;
}

void close_queues(Pool& pool) {
  for (std::uint32_t i = 0; i < pool.queues.size(); ++i) close_for_all(pool, i);
}

void drop_ends(Pool& pool, std::uint32_t participant, bool died) {
  for (std::uint32_t i = 0; i < pool.queues.size(); ++i) {
    QueueBook& queue = pool.queues[i];
    const bool reader = (queue.readers & bit(participant)) != 0, writer = (queue.writers & bit(participant)) != 0;
    if (!queue.in_use() || (!reader && !writer)) continue;
    if (died) queue.deaths += (reader ? 1U : 0U) + (writer ? 1U : 0U);
    close_ends(pool, i, participant, reader, writer);
  }
  // Lanes of ends that were closed earlier keep their state until now.
  const std::uint32_t life = pool.participants[participant].life;
  for (LaneBook& lane : pool.lanes)
    if (lane.in_use() && lane.is_to(participant, life)) {
      lane.receiver_done = true;
      changed(lane);
    }
}

bool lane_finished(Pool& pool, std::uint32_t participant, const shmbw_lane_finished& wish) {
  if (wish.lane >= pool.lanes.size()) return false;
  LaneBook& lane = pool.lanes[wish.lane];
  if (!lane.in_use() || lane.serial != wish.serial) return false;
  const std::uint32_t life = pool.participants[participant].life;
  if (wish.end == SHMBW_LANE_END_SENDER) {
    if (!lane.is_from(participant, life) || lane.sender_finished) return false;
    lane.sender_finished = true;
    changed(lane);
    close_sender(pool, wish.lane);
    return true;
  }
  // A receiver is through only with a lane that gets no further message.
  const QueueBook& queue = pool.queues[lane.queue];
  const bool over = lane.state == LaneState::writer_gone || queue.state == QueueState::closed;
  if (wish.end != SHMBW_LANE_END_RECEIVER || !over) return false;
  if (lane.to != kNone) {
    if (!lane.is_to(participant, life) || lane.receiver_done) return false;
    lane.receiver_done = true;
    changed(lane);
    return true;
  }
  if ((queue.readers & ~lane.through & bit(participant)) == 0) return false;
  lane.through |= bit(participant);
  changed(lane);
  return true;
}

Result<void> hold_region(Pools& pools, Session& session, Pool& pool, std::uint32_t participant,
                         const shmbw_queue_hold& wish) {
  if ((wish.flags & ~std::uint32_t{SHMBW_QUEUE_HOLD_KNOWN}) != 0)
    return error(Status::unknown_flags, "a flag of queue_hold is not known to this broker");
  LaneBook* const lane = wish.lane < pool.lanes.size() ? &pool.lanes[wish.lane] : nullptr;
  if (!lane || !lane->in_use() || lane->serial != wish.serial ||
      !lane->is_from(participant, pool.participants[participant].life))
    return error(Status::not_found, "no such lane, or not one of this session");
  auto held = lane->holds.find(wish.region.id);
  if ((wish.flags & SHMBW_QUEUE_HOLD_DROP) != 0) {
    if (held == lane->holds.end()) return error(Status::not_found, "the lane does not hold that region");
    drop_hold(pools, *lane, held);
    return {};
  }
  if (lane->sender_finished) return error(Status::closed, "this session is through with the lane");
  if (held != lane->holds.end()) return {};
  Region* region = pools.regions.find(wish.region.id);
  Lease* lease = region ? find_lease(session, *region) : nullptr;
  if (!lease) return std::unexpected(no_lease(wish.region.id));
  if (wish.region.generation != 0 && wish.region.generation != region->generation)
    return std::unexpected(stale_region(region->id, wish.region.generation, region->generation));
  if (((lease->rights | authority(session, *region)) & SHMBW_RIGHT_SHARE) == 0)
    return error(Status::denied, "the lease does not carry share: the region cannot be passed on");
  auto charge = pool.group->account.charge(Resource::leases, 1);
  if (!charge) return std::unexpected(refuse_limit(pools.groups, session, charge.error()));
  LaneHold& hold = lane->holds[region->id];
  hold.row = ++pools.host.last_serial;
  hold.lane = lane;
  hold.region = region;
  hold.charge = std::move(*charge);
  pools.host.books.holds.note(hold);
  ++region->pool_holds;
  return {};
}

bool lane_received(Pool& pool, std::uint32_t index) {
  const LaneBook& lane = pool.lanes[index];
  const KnownLane known = known_lane(pool, index);
  if (!known) return true;
  if (lane.to != kNone) return lane.receiver_done;
  const QueueBook& queue = pool.queues[lane.queue];
  const std::uint64_t waiting = queue.readers & ~lane.through;
  if (known.kind == QueueKind::broadcast) return !attached(known.words, waiting);
  if (waiting != 0) return false;
  // Later consumers may take what is left, also in a closed queue, until no consumer can come any more.
  return (queue.removed && queue.readers == 0) || all_done(known.words);
}

bool settle_lanes(Pools& pools, Pool& pool) {
  bool changed = false;
  std::vector<bool> used(pool.queues.size(), false);
  for (std::uint32_t i = 0; i < pool.lanes.size(); ++i) {
    const LaneBook& lane = pool.lanes[i];
    if (!lane.in_use()) continue;
    if (sender_gone(pool, lane) && lane_received(pool, i)) {
      free_lane(pools, pool, i);
      changed = true;
    } else {
      used[lane.queue] = true;
    }
  }
  for (std::uint32_t i = 0; i < pool.queues.size(); ++i) {
    const QueueBook& queue = pool.queues[i];
    if (!queue.removed || used[i] || !queue.in_use()) continue;
    if (queue.readers != 0 || queue.writers != 0) continue;
    free_queue(pool, i);
    changed = true;
  }
  return changed;
}

std::size_t drop_idle_holds(Pools& pools, Pool& pool, std::uint32_t index, bool& waits) {
  LaneBook& book = pool.lanes[index];
  const auto idle = [](const auto& hold) { return !hold.second.region->needed(); };
  if (std::ranges::none_of(book.holds, idle)) return 1;
  const KnownLane known = known_lane(pool, index);
  if (known && !lane_received(pool, index) && unread_by(known, pool.queues[book.queue].readers)) {
    waits = true;
  } else {
    for (auto at = book.holds.begin(); at != book.holds.end();)
      if (const auto here = at++; idle(*here)) drop_hold(pools, book, here);
  }
  return std::max<std::uint32_t>(book.cells, 1);
}

void drop_lanes(Pools& pools, Pool& pool) {
  for (LaneBook& book : pool.lanes)
    while (!book.holds.empty()) drop_hold(pools, book, book.holds.begin());
}

std::uint32_t unread_lanes(Pool& pool, std::uint32_t participant) {
  std::uint32_t count = 0;
  const std::uint32_t life = pool.participants[participant].life;
  for (std::uint32_t i = 0; i < pool.lanes.size(); ++i) {
    const LaneBook& lane = pool.lanes[i];
    if (!lane.in_use() || !lane.is_from(participant, life) || lane_received(pool, i)) continue;
    if (const KnownLane known = known_lane(pool, i); unread(known.words, known.kind) != 0) ++count;
  }
  return count;
}

std::optional<std::uint64_t> find_lane_memory(const PoolTables& tables, std::uint64_t bytes) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;  // offset, end
  for (const LaneBook& lane : tables.lanes)
    if (lane.keeps_memory()) taken.emplace_back(lane.offset, lane.offset + tables.bytes_of(lane));
  std::ranges::sort(taken);
  taken.emplace_back(tables.view.control_area().size(), 0);
  std::uint64_t at = tables.lane_memory;
  for (auto [begin, end] : taken) {
    if (begin >= at && begin - at >= bytes) return at;
    at = std::max(at, end);
  }
  return std::nullopt;
}

std::uint64_t lane_memory_used(const PoolTables& tables) {
  std::uint64_t sum = 0;
  for (const LaneBook& lane : tables.lanes)
    if (lane.keeps_memory()) sum += tables.bytes_of(lane);
  return sum;
}

}  // namespace shmb::daemon
