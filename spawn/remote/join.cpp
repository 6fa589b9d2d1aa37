// SPDX-License-Identifier: Apache-2.0
// See join.hpp.
#include "spawn/remote/join.hpp"

#include <algorithm>
#include <utility>

#include "client/session/connect.hpp"
#include "client/session/views.hpp"
#include "spawn/remote/address.hpp"

namespace shmb::remote {
namespace {

using client::Deadline;

constexpr std::uint32_t kMostWorkers = 64, kMostThreads = 256;
// No event says that all are in the pool. The pause doubles: 64 workers that look often keep the last ones from coming.
constexpr std::int64_t kFirstLookAtPool = 1'000'000, kLastLookAtPool = 64'000'000;
// Where a dead one's place is not free yet. Nobody tells of that: it depends on what others have read.
constexpr std::int64_t kLookAtPlace = 10'000'000;

}  // namespace

Result<CheckedWish> check(Wanted wish) {
  if (wish.rank < 0) {
    auto rank = number_of("RANK");
    if (!rank)
      return error(Status::invalid, "the rank of this worker is " + rank.error().sentence + ": ranks count from 0");
    wish.rank = *rank;
  }
  if (wish.world_size == 0) {
    auto size = number_of("WORLD_SIZE");
    if (!size)
      return error(Status::invalid, "the size of the world is " + size.error().sentence + ": it counts all workers");
    wish.world_size = *size;
  }
  if (wish.world_size < 1)
    return error(Status::invalid, "a world has 1 to 64 workers, not " + std::to_string(wish.world_size));
  if (static_cast<std::uint32_t>(wish.world_size) > kMostWorkers)
    return std::unexpected(Error{Status::limit,
                                 0,
                                 {.limit = kMostWorkers, .asked = static_cast<std::uint64_t>(wish.world_size)},
                                 "a world has at most 64 workers (the participants of its pool), not " +
                                     std::to_string(wish.world_size) + "; make several worlds"});
  if (wish.rank < 0 || wish.rank >= wish.world_size)
    return error(Status::invalid, "rank " + std::to_string(wish.rank) + " is out of range: the ranks of a world of " +
                                      std::to_string(wish.world_size) + " are 0 to " +
                                      std::to_string(wish.world_size - 1));
  if (wish.threads > kMostThreads)
    return error(Status::invalid, "a worker has at most 256 threads, not " + std::to_string(wish.threads) +
                                      ": ask for fewer, or spread its calls over several workers");
  SHMB_TRY(address, address_of(wish.address));
  SHMB_TRY_VOID(check_host(address.host));
  wish.address = address.text;
  return CheckedWish{std::move(wish), address.port};
}

Joining::Joining(const CheckedWish& wish, Place& place, Monitor& monitor, const Life& life, const Roster& roster,
                 Workers& workers, Arrivals& arrivals)
    : wish_(wish),
      place_(place),
      monitor_(monitor),
      life_(life),
      roster_(roster),
      workers_(workers),
      arrivals_(arrivals),
      deadline_(Deadline::after(wish.timeout, SHMB_REMOTE_INIT_TIMEOUT)) {}

// For calls that take a duration: at least a moment, for 0 would be their default.
std::int64_t Joining::time_left() const {
  return deadline_.endless() ? client::kForever : std::max<std::int64_t>(deadline_.left(), 1);
}

Result<void> Joining::take_place() {
  client::ConnectOptions options;
  options.socket = wish_.socket;
  options.timeout = time_left();
  SHMB_TRY(session, client::connect(options));
  place_.session = std::move(session);
  client::WorldRequest joining;
  joining.port = wish_.port;
  joining.rank = place_.rank;
  joining.world_size = place_.size;
  joining.address = place_.address;
  joining.name = wish_.name;
  auto given = client::join_world(*place_.session, joining, deadline_);
  for (; !given && given.error().status == Status::not_ready && !deadline_.passed();
       given = client::join_world(*place_.session, joining, deadline_))
    (void)place_.session->next_remote_event(earlier(deadline_, Deadline::after(kLookAtPlace)));
  if (!given) return std::unexpected(given.error());
  place_.life = given->life;
  place_.world = given->world;
  place_.group = given->group;
  pool_ = given->pool;
  complete_ = (given->flags & SHMBW_WORLD_STATE_COMPLETE) != 0;
  return {};
}

Result<void> Joining::enter() {
  SHMB_TRY_VOID(open_inbox());
  SHMB_TRY_VOID(await_world());
  return await_peers();
}

Error Joining::give_up(Error why) {
  const auto left = client::leave_world(*place_.session, place_.world, Deadline::after(0));
  if (!left && (left.error().status == Status::exists || left.error().status == Status::worker_gone))
    return left.error();
  return why;
}

Result<void> Joining::look_at_world() {
  client::Selection selection;
  selection.region.id = place_.world;
  SHMB_TRY(list, client::list_worlds(*place_.session, selection, deadline_));
  for (const client::WorldRow& row : list.rows) {
    if (row.record.world != place_.world) continue;
    pool_ = row.record.pool;
    complete_ = complete_ || (row.record.flags & SHMBW_WORLD_STATE_COMPLETE) != 0;
    return {};
  }
  return std::unexpected(place_.world_ended());
}

// Worker 0 of a complete world has left. But the event may be older than the list that said so: then it is about a
// worker that gave up, and whose rank another one has taken.
Result<void> Joining::look_at_first() {
  client::Selection selection;
  selection.region.id = place_.world;
  SHMB_TRY(list, client::list_workers(*place_.session, selection, deadline_));
  for (const client::WorkerRow& row : list.rows)
    if (row.record.rank == 0 && row.record.state != SHMBW_WORKER_STATE_LEFT) return {};
  return error(Status::worker_gone, "worker 0 of the world at " + place_.address +
                                        " left when that was complete, before this worker was in its pool");
}

// The next thing that happens in the world, while it comes together.
Result<void> Joining::await_event() {
  SHMB_TRY(event, place_.session->next_remote_event(deadline_));
  if (!event) {
    (void)workers_.read();
    return error(Status::deadline,
                 "the world at " + place_.address + " was not complete before the deadline: " + roster_.missing());
  }
  if (event->kind == client::RemoteEvent::Kind::gap) return look_at_world();
  if (event->kind != client::RemoteEvent::Kind::world_changed) return {};
  switch (event->change) {
    case SHMBW_WORLD_CHANGE_COMPLETE:
      complete_ = true;
      return {};
    case SHMBW_WORLD_CHANGE_POOL:
      return pool_ == 0 ? look_at_world() : Result<void>();
    case SHMBW_WORLD_CHANGE_DIED:
      (void)workers_.read();
      return error(Status::worker_gone, "worker " + std::to_string(event->rank) + " of the world at " + place_.address +
                                            " died while it was waited for");
    case SHMBW_WORLD_CHANGE_LEFT:
      if (!complete_ || event->rank != 0) return {};  // only worker 0 makes the pool, and no other takes its place
      return look_at_first();
    case SHMBW_WORLD_CHANGE_ENDED:
      return std::unexpected(place_.world_ended());
    default:
      return {};
  }
}

Result<void> Joining::open_inbox() {
  for (;;) {
    if (place_.rank != 0)
      while (pool_ == 0) SHMB_TRY_VOID(await_event());
    const std::uint64_t pool = pool_;
    auto opened = open_inbox_in(pool);
    if (opened || pool == 0 || opened.error().status != Status::not_found) return opened;
    // It has gone with the worker that made it and gave up, before another one came to it.
    SHMB_TRY_VOID(look_at_world());
    if (pool_ == pool) return opened;
  }
}

// `pool` 0: this worker makes it.
Result<void> Joining::open_inbox_in(std::uint64_t pool) {
  const bool makes_pool = pool == 0;
  const bool succeeds_another = place_.life > place_.size;
  const auto open = [&] {
    return Inbox::open(place_.session, place_.group, pool, place_.rank, place_.size, time_left());
  };
  auto inbox = open();
  // A dead one's place in the pool is free when what it wrote has been read.
  for (; !inbox && succeeds_another && !makes_pool && inbox.error().status == Status::limit && !deadline_.passed();
       inbox = open())
    if (auto event = place_.session->next_remote_event(earlier(deadline_, Deadline::after(kLookAtPlace)));
        event && *event)
      arrivals_.put_off(**event);
  if (!inbox) return std::unexpected(inbox.error());
  const std::uint64_t made = (*inbox)->pool_id();
  {
    const std::lock_guard lock(monitor_.mutex());
    monitor_.set_inbox(std::move(*inbox));
  }
  if (!makes_pool) return {};
  SHMB_TRY_VOID(client::tell_world_pool(*place_.session, place_.world, made, deadline_));
  return {};
}

Result<void> Joining::await_world() {
  while (!complete_) SHMB_TRY_VOID(await_event());
  return {};
}

// Workers that have left or died since the world was complete are not waited for.
Result<void> Joining::await_peers() {
  SHMB_TRY_VOID(workers_.read());
  for (std::int64_t pause = kFirstLookAtPool;; pause = std::min(2 * pause, kLastLookAtPool)) {
    SHMB_TRY(inside, monitor_.inbox()->participants());
    if (inside >= roster_.present()) return {};
    if (deadline_.passed())
      return error(Status::deadline, "the world at " + place_.address + " is complete, but only " +
                                         std::to_string(inside) + " of its " + std::to_string(place_.size) +
                                         " workers came to its pool in time");
    SHMB_TRY(event, place_.session->next_remote_event(earlier(deadline_, Deadline::after(pause))));
    if (!event) continue;
    if (event->kind == client::RemoteEvent::Kind::gap) (void)workers_.read();
    const std::lock_guard lock(monitor_.mutex());
    if (event->kind == client::RemoteEvent::Kind::world_changed) workers_.take_event(*event);
    else arrivals_.put_off(*event);
    if (life_.lost()) return std::unexpected(*life_.lost());
  }
}

}  // namespace shmb::remote
