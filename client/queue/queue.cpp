// SPDX-License-Identifier: Apache-2.0
// The ends of a queue: opening and closing them, and following the directory. Sending is in queue_send.cpp, receiving
// in queue_receive.cpp.
#include "client/queue/queue.hpp"

#include <algorithm>
#include <bit>

#include "client/queue/queue_set.hpp"
#include "client/region/obtain.hpp"
#include "client/session/call.hpp"
#include "client/session/late_reply.hpp"

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
    return error(Status::invalid, "only a mpmc queue delivers at least once");
  return {};
}

// The broker declares a participant dead before it takes its ends away. A process that has the event of the death must
// not count it any more.
std::uint32_t count_live(const pool::View& view, std::uint64_t ends) {
  std::uint32_t count = 0;
  for (; ends != 0; ends &= ends - 1) {
    const auto index = static_cast<std::size_t>(std::countr_zero(ends));
    const auto stamp = pool::Stamp::of(view.participant(index).stamp.load(std::memory_order_acquire));
    count += stamp.state == static_cast<std::uint8_t>(pool::ParticipantState::live);
  }
  return count;
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

}  // namespace

Result<std::unique_ptr<Queue>> Queue::open(const std::shared_ptr<Pool>& pool, const QueueSpec& given) {
  const QueueSpec spec = with_wait(given);
  SHMB_TRY_VOID(checked(spec));
  SHMB_TRY_VOID(pool->enter());
  if (spec.writer && pool->read_only())
    return error(Status::denied, "this process opened the pool read-only: it cannot write to its queues");
  std::unique_ptr<Queue> queue(new Queue(pool, spec));
  const Deadline until = spec.open_only ? Deadline::after(spec.wait, SHMB_NAME_WAIT) : Deadline::now();
  for (bool late = false;;) {
    const std::uint32_t before = pool->change();
    auto opened = queue->open_ends(false);
    if (opened) return queue;
    if (opened.error().status != Status::not_found || !spec.open_only || !waits_for_name(spec.wait))
      return std::unexpected(opened.error());
    // The broker moves the directory's change word, and wakes, when a queue is made.
    Pool::Lock lock(pool->me().lock());
    SHMB_TRY(moved, pool->sleep({}, [&] { return pool->change() != before; }, until));
    // Other queues of the pool move it too, so the clock counts. Changes made meanwhile are checked once more.
    if (!moved || late)
      return error(Status::deadline, "the queue did not appear before the deadline: " + opened.error().sentence);
    late = until.passed();
  }
}

Result<std::unique_ptr<Queue>> Queue::open_alone(const std::shared_ptr<Session>& session, const std::string& address,
                                                 QueueSpec spec) {
  if (session->is_local()) return needs_broker("pools and queues");
  SHMB_TRY(parsed, names::parse_region(address));
  spec.name = parsed.name;
  spec = with_wait(std::move(spec));
  SHMB_TRY_VOID(checked(spec));
  Pool::Opening opening;
  opening.address = address;
  opening.timeout = spec.timeout;
  if (spec.open_only) opening.wait = spec.wait;
  const Deadline until = Deadline::after(spec.wait);
  for (int attempt = 0;; ++attempt) {
    auto pool = Pool::open(session, opening);
    if (!pool && pool.error().status == Status::not_found && !spec.open_only) {
      if (parsed.owner_uid || !parsed.group.empty())
        return error(Status::not_found, "there is no queue at '" + address +
                                            "', and it is made in the session's own group only: say '" + parsed.name +
                                            "', or join the group first");
      PoolSpec made;
      made.name = parsed.name;
      // Room for the lanes that the queue's own settings need, one for each participant of many.
      const std::uint64_t lane =
          pool::lane_bytes(spec.kind, spec.cells != 0 ? spec.cells : 256, spec.cell_size != 0 ? spec.cell_size : 64);
      made.lane_bytes = std::clamp<std::uint64_t>(lane * 16, std::uint64_t{1} << 20, std::uint64_t{15} << 20);
      made.queues = 1;
      pool = Pool::create(session, made, spec.timeout);
    }
    if (!pool && pool.error().status == Status::exists && attempt < 8) continue;  // another process was faster
    if (!pool) return std::unexpected(pool.error());
    if (spec.wait > 0) spec.wait = std::max<std::int64_t>(until.left(), 1);  // the rest of the wait for the pool
    return open(*pool, spec);
  }
}

Result<void> Queue::open_ends(bool again) {
  shmbw_queue_open request{};
  request.pool = pool_->id();
  request.kind = again ? static_cast<std::uint32_t>(kind_) : static_cast<std::uint32_t>(spec_.kind);
  const std::uint32_t flags = again ? flags_ : spec_.flags;
  if (spec_.reader) request.flags |= SHMBW_QUEUE_OPEN_READER;
  if (spec_.writer) request.flags |= SHMBW_QUEUE_OPEN_WRITER;
  if ((flags & pool::kQueueDropOldest) != 0) request.flags |= SHMBW_QUEUE_OPEN_DROP_OLDEST;
  if ((flags & pool::kQueueExpiring) != 0) request.flags |= SHMBW_QUEUE_OPEN_EXPIRING;
  if ((flags & pool::kQueueAtLeastOnce) != 0) request.flags |= SHMBW_QUEUE_OPEN_AT_LEAST_ONCE;
  if (spec_.create_only && !again) request.flags |= SHMBW_QUEUE_OPEN_CREATE_ONLY;
  if (spec_.open_only || again) request.flags |= SHMBW_QUEUE_OPEN_OPEN_ONLY;
  request.cells = again ? cells_ : spec_.cells;
  request.cell_size = again ? cell_size_ : spec_.cell_size;
  if (request.kind == SHMBW_QUEUE_KIND_NONE) request.cells = request.cell_size = 0;
  request.name_len = static_cast<std::uint16_t>(spec_.name.size());
  Session& session = *pool_->session();
  const auto ask = [&] {
    return call<SHMBW_OP_QUEUE_OPEN>(session, request, {spec_.name}, Deadline::after(spec_.timeout));
  };
  std::uint64_t given_back = session.ends_given_back();
  auto answer = ask();
  while (!answer && answer.error().status == Status::busy) {
    // An end that an earlier call asked for may be in the way. Its reply has just come, too late.
    const std::uint64_t now = session.ends_given_back();
    if (std::exchange(given_back, now) == now) break;
    answer = ask();
  }
  if (!answer) {
    Error failure = answer.error();
    if (failure.status == Status::exists && !spec_.create_only)
      if (const std::string what = difference(pool_->view(), spec_); !what.empty())
        failure.sentence = "queue '" + spec_.name + "' exists with other settings: " + what +
                           ". Open it with the same ones, or as it is (SHMB_QUEUE_AS_IS with SHMB_QUEUE_OPEN_ONLY)";
    return std::unexpected(std::move(failure));
  }
  const shmbw_queue_open_reply& opened = answer->fixed;
  if (opened.queue >= pool_->view().queues() || (opened.lane != pool::kNone && opened.lane >= pool_->view().lanes()))
    return error(Status::protocol, "the broker's answer names a queue or a lane that the pool cannot have");
  Pool::Lock lock(pool_->me().lock());
  index_ = opened.queue;
  serial_ = opened.serial;
  const pool::QueueEntry& entry = pool_->view().queue(index_);
  kind_ = static_cast<pool::QueueKind>(entry.kind);
  flags_ = entry.flags;
  cells_ = entry.cells;
  cell_size_ = entry.cell_size;
  deaths_ = entry.deaths.load(std::memory_order_acquire);
  open_ = true;
  incarnation_ = pool_->incarnation();  // other threads need not come here any more
  if (opened.lane != pool::kNone) adopt_out(opened.lane, opened.lane_serial);
  look_around();
  // A ring whose writer died during the join may already belong to another writer. Of that one nothing is missed.
  if (seen_change_ != pool_->change()) look_around();
  if (spec_.writer)
    pool_->fetch_bells(entry.readers.load(std::memory_order_acquire), Deadline::after(spec_.timeout), lock);
  return {};
}

void undo_queue_open(LateReply& late) {
  const auto asked = late.request<shmbw_queue_open>();
  const auto opened = late.fixed<shmbw_queue_open_reply>();
  shmbw_queue_close close{asked.pool, opened.queue, opened.serial, 0, 0};
  if ((asked.flags & SHMBW_QUEUE_OPEN_READER) != 0) close.flags |= SHMBW_QUEUE_CLOSE_READER;
  if ((asked.flags & SHMBW_QUEUE_OPEN_WRITER) != 0) close.flags |= SHMBW_QUEUE_CLOSE_WRITER;
  if ((asked.flags & SHMBW_QUEUE_OPEN_CREATE_ONLY) != 0) close.flags |= SHMBW_QUEUE_CLOSE_REMOVE;  // it made the queue
  late.ask<SHMBW_OP_QUEUE_CLOSE>(close);
}

// A forked child's ends are opened again, by one of its threads. Messages that the parent had in hand stay the
// parent's.
Result<void> Queue::open_in_child() {
  const std::lock_guard one_by_one(pool_->held_over_fork());
  if (incarnation_ == pool_->incarnation()) return {};
  if (open_) {
    descriptor_.reset();
    Pool::Lock lock(pool_->me().lock());
    open_ = false;
    out_ = {};
    ins_.clear();
    pending_ = nullptr;
    borrowed_ = nullptr;
    borrowed_in_ = nullptr;
    borrowed_container_ = pool::kNone;
    holds_.clear();
    idle_holds_.clear();
    idle_bytes_ = 0;
    readers_.clear();
    writers_.clear();
    gone_writers_.clear();
    readers_gone_ = false;
    sent_ = received_count_ = drained_ = in_regions_ = 0;
    given_up_ = false;
  }
  const interrupt::Shield shield;
  if (auto opened = open_ends(true); !opened)
    return error(opened.error().status, "the forked child could not open its own end: " + opened.error().sentence);
  return {};
}

Queue::Queue(std::shared_ptr<Pool> pool, QueueSpec spec)
    : pool_(std::move(pool)), spec_(std::move(spec)), self_(std::make_shared<Queue*>(this)) {}

Queue::~Queue() { (void)close(false, false); }

Result<void> Queue::close(bool all, bool remove) {
  descriptor_.reset();
  if (!std::exchange(open_, false)) return {};
  if (pool_->is_fresh_child() || incarnation_ != pool_->incarnation()) {
    // The parent's ends: forgotten, not closed.
    if (borrowed_ != nullptr) borrowed_->queue_ = nullptr;
    *self_ = nullptr;
    return {};
  }
  {
    Pool::Lock lock(pool_->me().lock());
    let_borrowed_go();
    if (pending_ != nullptr && kind_ == pool::QueueKind::mpmc) pending_->it->give_back(received_.position);
    pending_ = nullptr;
    for (auto& in : ins_)
      if (!in->over) in->it->detach();
  }
  auto closed =
      ask_to_close((spec_.reader ? unsigned{SHMBW_QUEUE_CLOSE_READER} : 0U) |
                   (spec_.writer ? unsigned{SHMBW_QUEUE_CLOSE_WRITER} : 0U) |
                   (all ? unsigned{SHMBW_QUEUE_CLOSE_ALL} : 0U) | (remove ? unsigned{SHMBW_QUEUE_CLOSE_REMOVE} : 0U));
  Pool::Lock lock(pool_->me().lock());
  ins_.clear();
  *self_ = nullptr;
  if (out_.it) {
    // Its messages stay held until they are read. The broker then gives the lane to another writer, which reports that.
    pool_->retire(std::move(out_.it), out_.lane, out_.serial);
    pool_->post_finished(out_.lane, out_.serial, SHMBW_LANE_END_SENDER);
  }
  return closed;
}

Result<void> Queue::ask_to_close(std::uint32_t flags) {
  shmbw_queue_close request{};
  request.pool = pool_->id();
  request.queue = index_;
  request.serial = serial_;
  request.flags = flags;
  SHMB_TRY_VOID(call<SHMBW_OP_QUEUE_CLOSE>(*pool_->session(), request, {}, Deadline::after(spec_.timeout)));
  return {};
}

Result<void> Queue::shutdown(bool remove) {
  SHMB_TRY_VOID(enter());
  return ask_to_close(SHMBW_QUEUE_CLOSE_ALL | (remove ? unsigned{SHMBW_QUEUE_CLOSE_REMOVE} : 0U));
}

// Following the directory

std::optional<pool::LaneView> Queue::lane_view(std::uint32_t lane, std::uint32_t serial, pool::LaneEntry* copy) const {
  const pool::View& view = pool_->view();
  if (lane >= view.lanes()) return std::nullopt;
  const pool::LaneEntry& entry = view.lane(lane);
  const std::uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
  if (pool::Stamp::of(stamp).serial != serial) return std::nullopt;
  const std::uint32_t cells = entry.cells, cell_size = entry.cell_size;
  const std::uint64_t offset = entry.offset;
  copy->queue = entry.queue, copy->queue_serial = entry.queue_serial;
  copy->from = entry.from, copy->from_life = entry.from_life, copy->to = entry.to, copy->to_life = entry.to_life;
  std::atomic_thread_fence(std::memory_order_acquire);
  if (pool::Stamp::of(entry.stamp.load(std::memory_order_relaxed)).serial != serial) return std::nullopt;
  if (!view.lane_fits(offset, kind_, cells, cell_size)) return std::nullopt;
  return pool::LaneView(view.lane_memory(offset), kind_, cells, cell_size);
}

void Queue::adopt_out(std::uint32_t lane, std::uint32_t serial) {
  pool::LaneEntry copy{};
  auto view = lane_view(lane, serial, &copy);
  if (!view) return;
  out_.lane = lane;
  out_.serial = serial;
  out_.to = copy.to;
  out_.to_life = copy.to_life;
  out_.it = std::make_unique<LaneSender>(pool_->me(), *view, kind_, flags_, index_, [self = self_](Held&& held) {
    if (*self != nullptr) (*self)->let_go(std::move(held));
  });
}

// L3: the receiver of a line lane is gone. Messages that it has not read are dropped.
void Queue::drop_out() {
  if (!out_.it) return;
  if (out_.it->in_flight() != 0) give_up();
  out_.it->give_up_all();
  if (batch_ != nullptr) batch_->unshown = 0;
  out_.it.reset();
  pool_->post_finished(out_.lane, out_.serial, SHMBW_LANE_END_SENDER);
  holds_.clear();
  idle_holds_.clear();
  idle_bytes_ = 0;
  out_ = {};
}

bool Queue::has_died(const Peer& peer) const {
  const pool::ParticipantEntry& entry = pool_->view().participant(peer.index);
  const pool::Stamp stamp = pool::Stamp::of(entry.stamp.load(std::memory_order_acquire));
  if (stamp.serial == peer.life && stamp.state == static_cast<std::uint8_t>(pool::ParticipantState::live)) return false;
  const std::uint32_t last_death = entry.last_death.load(std::memory_order_relaxed);
  // No death of a life before the last dead one is recorded. Then any death in this queue counts.
  return last_death > peer.life ? pool_->view().queue(index_).deaths.load(std::memory_order_acquire) != deaths_
                                : last_death == peer.life;
}

void Queue::follow_peers(std::vector<Peer>& known, std::uint64_t mask, std::vector<Peer>& gone) {
  const pool::View& view = pool_->view();
  std::erase_if(known, [&](Peer& peer) {
    const pool::Stamp stamp = pool::Stamp::of(view.participant(peer.index).stamp.load(std::memory_order_acquire));
    const bool live = stamp.state == static_cast<std::uint8_t>(pool::ParticipantState::live);
    if (stamp.serial == peer.life && live && (mask >> peer.index & 1) != 0) return false;
    peer.died = has_died(peer);
    gone.push_back(peer);
    return true;
  });
  for (std::uint64_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto index = static_cast<std::uint32_t>(std::countr_zero(rest));
    const pool::Stamp stamp = pool::Stamp::of(view.participant(index).stamp.load(std::memory_order_acquire));
    if (stamp.state != static_cast<std::uint8_t>(pool::ParticipantState::live)) continue;
    const Peer peer{index, stamp.serial};
    if (std::ranges::find(known, peer) == known.end()) known.push_back(peer);
  }
}

void Queue::look_for_reader() {
  const pool::View& view = pool_->view();
  if (out_.it) {
    const pool::Stamp stamp = pool::Stamp::of(view.lane(out_.lane).stamp.load(std::memory_order_acquire));
    if (stamp.serial == out_.serial && stamp.state == static_cast<std::uint8_t>(pool::LaneState::open) &&
        pool_->me().alive(out_.to, out_.to_life))
      return;
    drop_out();
  }
  for (std::uint32_t i = 0; i < view.lanes(); ++i) {
    const pool::Stamp stamp = pool::Stamp::of(view.lane(i).stamp.load(std::memory_order_acquire));
    const bool reader_gone = stamp.state == static_cast<std::uint8_t>(pool::LaneState::reader_gone);
    if (stamp.state != static_cast<std::uint8_t>(pool::LaneState::open) && !reader_gone) continue;
    pool::LaneEntry copy{};
    if (!lane_view(i, stamp.serial, &copy) || copy.queue != index_ || copy.queue_serial != serial_) continue;
    if (copy.from != pool_->me().index() || copy.from_life != pool_->me().life()) continue;
    if (reader_gone) {  // it came and went between two looks: that lane holds nothing of this process
      pool_->post_finished(i, stamp.serial, SHMBW_LANE_END_SENDER);
      continue;
    }
    if (!pool_->me().alive(copy.to, copy.to_life)) continue;
    adopt_out(i, stamp.serial);
    return;
  }
}

void Queue::look_for_lanes_to_read() {
  const pool::View& view = pool_->view();
  Participant& me = pool_->me();
  // Ends that are over stay known until the broker has taken the lane back, so that they are not opened again.
  std::erase_if(ins_, [&](const std::unique_ptr<In>& in) {
    const pool::Stamp stamp = pool::Stamp::of(view.lane(in->lane).stamp.load(std::memory_order_acquire));
    if (stamp.serial == in->serial && stamp.state != static_cast<std::uint8_t>(pool::LaneState::free)) {
      const bool closed = stamp.state == static_cast<std::uint8_t>(pool::LaneState::writer_gone);
      // For a lane that was given up as broken, the broker gets no report while its writer is there.
      if (in->over && closed && !in->writer_closed) pool_->post_finished(in->lane, in->serial, SHMBW_LANE_END_RECEIVER);
      in->writer_closed = closed;
      return false;
    }
    return in->over && in.get() != pending_ && in.get() != borrowed_in_;
  });
  for (std::uint32_t i = 0; i < view.lanes(); ++i) {
    const pool::Stamp stamp = pool::Stamp::of(view.lane(i).stamp.load(std::memory_order_acquire));
    const auto state = static_cast<pool::LaneState>(stamp.state);
    if (state != pool::LaneState::open && state != pool::LaneState::writer_gone) continue;
    // a lane that belongs to another queue by now has moved the change word too
    if (view.lane(i).queue != index_) continue;
    if (std::ranges::any_of(ins_, [&](auto& in) { return in->lane == i && in->serial == stamp.serial; })) continue;
    pool::LaneEntry copy{};
    auto lane = lane_view(i, stamp.serial, &copy);
    if (!lane || copy.queue != index_ || copy.queue_serial != serial_) continue;
    if (kind_ == pool::QueueKind::spsc && (copy.to != me.index() || copy.to_life != me.life())) continue;
    // An old ring is read only if the broker attached this reader before the ring's first message.
    if (kind_ == pool::QueueKind::broadcast &&
        (state != pool::LaneState::open || view.queue(index_).writer_lane.load(std::memory_order_acquire) != i) &&
        lane->reader(me.index()).position.load(std::memory_order_relaxed) == 0)
      continue;
    auto in = std::make_unique<In>();
    in->lane = i;
    in->serial = stamp.serial;
    in->from = copy.from;
    in->from_life = copy.from_life;
    in->writer_closed = state == pool::LaneState::writer_gone;
    in->it = std::make_unique<LaneReceiver>(me, *lane, kind_, flags_, index_, copy.from, copy.from_life);
    if (!in->it->attach()) continue;
    // The writer came and went between two looks.
    if (const Peer writer{copy.from, copy.from_life}; std::ranges::find(writers_, writer) == writers_.end() &&
                                                      std::ranges::find(gone_writers_, writer) == gone_writers_.end())
      gone_writers_.push_back({writer.index, writer.life, has_died(writer)});
    ins_.push_back(std::move(in));
  }
  // Rings are read one after the other, in the order of their writers.
  if (kind_ == pool::QueueKind::broadcast)
    std::ranges::sort(
        ins_, [](const auto& a, const auto& b) { return static_cast<std::int32_t>(a->serial - b->serial) < 0; });
}

void Queue::look_around() {
  seen_change_ = pool_->change();
  pool_->notice();
  const pool::QueueEntry& entry = pool_->view().queue(index_);
  const pool::Stamp stamp = pool::Stamp::of(entry.stamp.load(std::memory_order_acquire));
  if (stamp.serial != serial_ || stamp.state != static_cast<std::uint8_t>(pool::QueueState::open)) {
    closed_ = true;
    std::atomic_thread_fence(std::memory_order_seq_cst);  // see closed_meanwhile()
  }
  if (stamp.serial != serial_) return;
  if (spec_.reader) {
    follow_peers(writers_, entry.writers.load(std::memory_order_acquire), gone_writers_);
    look_for_lanes_to_read();
    leave_read_lanes();
  }
  if (spec_.writer) {
    std::vector<Peer> gone;
    const std::uint64_t readers = entry.readers.load(std::memory_order_acquire);
    follow_peers(readers_, readers, gone);
    pool_->want_bells(readers);
    if (kind_ == pool::QueueKind::spsc) look_for_reader();
    const auto died = static_cast<std::uint32_t>(std::ranges::count_if(gone, &Peer::died));
    ended_.readers_died += died;
    // Its place in the ring is gone with it, so it is unknown how far it had read.
    if (kind_ == pool::QueueKind::broadcast && died != 0 && sent_ != drained_) give_up();
    if (!gone.empty() && readers_.empty()) {
      readers_gone_ = true;
      ++ended_.readers_gone;
    }
  }
  deaths_ = entry.deaths.load(std::memory_order_acquire);
}

std::unexpected<Error> Queue::broken_error(const char* what) const {
  return error(Status::broken, std::string(what) + " of queue '" + spec_.name +
                                   "' is impossible: a participant has written over the pool's shared words");
}

Result<QueueFacts> Queue::facts() {
  SHMB_TRY_VOID(enter());
  Pool::Lock lock(pool_->me().lock());
  look_around();
  const pool::QueueEntry& entry = pool_->view().queue(index_);
  QueueFacts out;
  out.kind = kind_;
  out.reader = spec_.reader;
  out.writer = spec_.writer;
  out.closed = closed_;
  out.flags = flags_;
  out.cells = cells_;
  out.inline_bytes = cell_size_ - 8;
  if (!closed_ || pool::Stamp::of(entry.stamp.load(std::memory_order_acquire)).serial == serial_) {
    out.readers = count_live(pool_->view(), entry.readers.load(std::memory_order_acquire));
    out.writers = count_live(pool_->view(), entry.writers.load(std::memory_order_acquire));
    out.deaths = entry.deaths.load(std::memory_order_relaxed);
  }
  for (const auto& in : ins_) {
    if (in->over) continue;
    ++out.lanes;
    out.depth += in->it->lag();
    out.lost += in->it->lost();
  }
  if (out_.it) {
    ++out.lanes;
    if (!spec_.reader) out.depth = out_.it->in_flight();
    out.expired += out_.it->expired();
  }
  out.sent = sent_;
  out.received = received_count_;
  out.expired += expired_;
  out.in_regions = in_regions_;
  out.pool = pool_->id();
  out.name = spec_.name;
  return out;
}

Result<int> Queue::descriptor() {
  SHMB_TRY_VOID(enter());
  if (!spec_.reader) return error(Status::denied, "this handle is no reader of the queue");
  if (QueueSet* const set = own_set()) return set->descriptor();
  auto set = std::make_unique<QueueSet>();
  SHMB_TRY_VOID(set->add(*this, nullptr));
  auto fd = set->descriptor();
  if (!fd) return fd;
  {
    Pool::Lock lock(pool_->me().lock());
    if (!descriptor_) {
      descriptor_ = std::move(set);
      return fd;
    }
  }
  return own_set()->descriptor();  // another thread was faster: its caller polls that one already
}

QueueSet* Queue::own_set() {
  Pool::Lock lock(pool_->me().lock());
  return descriptor_.get();
}

Result<void> Queue::rearm() {
  QueueSet* const set = own_set();
  return set != nullptr ? set->rearm() : Result<void>();
}

}  // namespace shmb::client
