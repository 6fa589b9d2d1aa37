// SPDX-License-Identifier: Apache-2.0
// Life of a world: made by the first worker, complete with the last, gone when all have left or died. While it is
// complete and no worker has left in order, a dead worker may be replaced. A world that fails before it is complete is
// gone then.
#include "daemon/remote/world.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/watch.hpp"
#include "daemon/pools/pool.hpp"
#include "daemon/pools/pools.hpp"
#include "daemon/remote/worlds.hpp"

namespace shmb::daemon {
namespace {

constexpr std::size_t kMaxWorkerName = 127, kMaxAddress = 255;
// How long a worker that began after its world had failed waits for the ranks that have the cause to come again.
constexpr std::int64_t kDoubt = 5'000'000'000;
constexpr std::uint32_t kMaxWorkers = 64;  // one pool takes no more participants

bool worker_name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-' || c == ':';
}

Result<void> check_join(const shmbw_world_join& wish, std::string_view address, std::string_view name) {
  if (wish.port == 0 || wish.port > 65'535)
    return error(Status::invalid, "a world's port is 1 to 65535, not " + std::to_string(wish.port));
  if (wish.world_size == 0) return error(Status::invalid, "a world has 1 to 64 workers, not 0");
  if (wish.world_size > kMaxWorkers) {
    Error refused = plain(Status::limit, "a world has at most 64 workers, asked " + std::to_string(wish.world_size) +
                                             ": they meet in one pool, which takes no more participants");
    refused.shortage = {SHMBW_SLOT_PARTICIPANTS, SHMBW_SCOPE_POOL, 0, kMaxWorkers, 0, wish.world_size};
    return std::unexpected(refused);
  }
  if (wish.rank >= wish.world_size)
    return error(Status::invalid, "rank " + std::to_string(wish.rank) + " is out of range: a world of " +
                                      std::to_string(wish.world_size) + " has ranks 0 to " +
                                      std::to_string(wish.world_size - 1));
  if (name.empty() || name.size() > kMaxWorkerName || !std::ranges::all_of(name, worker_name_letter))
    return error(Status::invalid, "worker name " + quoted(name.substr(0, 48)) + ": names of workers are 1 to " +
                                      std::to_string(kMaxWorkerName) + " bytes of A-Z a-z 0-9 . _ : -");
  if (address.empty() || address.size() > kMaxAddress ||
      !std::ranges::all_of(address, [](char c) { return c > 0x20 && c < 0x7f; }))
    return error(Status::invalid, "a world's address is 1 to 255 printable bytes without blanks, as localhost:29500");
  return {};
}

std::string world_text(const World& world) {
  return "port " + std::to_string(world.port) + " of uid " + std::to_string(world.uid);
}

std::unexpected<Error> taken(const World& there) {
  return error(Status::world_taken, world_text(there) + " is taken by world " + std::to_string(there.id) + " (" +
                                        there.address + "), which runs with " + std::to_string(there.present) + " of " +
                                        std::to_string(there.workers.size()) +
                                        " workers: choose another MASTER_PORT, or end that world");
}

// The place of a dead worker is free only when its process has ended. A worker that has only closed its connection
// still reads messages that are meant for its successor.
bool still_in_pool(Worlds& worlds, const Worker& worker) {
  Pool* pool = worker.participant == Worker::kNoPlace ? nullptr : find_pool(worlds.pools, worker.home->pool);
  if (!pool) return false;
  const Participant& place = pool->participants[worker.participant];
  return place.life == worker.participant_life && place.state == pool::ParticipantState::live;
}

std::string of_pid(const Worker& worker) { return worker_text(worker) + ", pid " + std::to_string(worker.pid); }

// The kernel has reported its end, and the ledger gets it in a moment.
bool just_ending(const Worker& worker) {
  return worker.session && worker.session->link && worker.session->link->process_over();
}

std::unexpected<Error> wait_for_end(const World& there, const Worker& worker) {
  return error(Status::not_ready,
               of_pid(worker) + ", of the world at " + world_text(there) + " is just ending: join again in a moment");
}

// Whether the worker may replace its predecessor in a complete world. The predecessor has died or is about to.
Result<void> may_replace(Worlds& worlds, const World& there, const Worker& before) {
  const std::string where = "the world at " + world_text(there);
  if (before.present()) {
    if (just_ending(before)) return wait_for_end(there, before);
    return taken(there);
  }
  if (there.ending)
    return error(Status::world_taken, where +
                                          " is ending, because a worker has left it in order: no worker can take the "
                                          "place of " +
                                          worker_text(before) +
                                          ", which died; a new world begins there when the others have left, or "
                                          "with the first of them that joins again");
  if (pool_of(worlds, there) == 0)
    return error(Status::world_taken, where + " has no pool, because " + worker_text(before) +
                                          " died before others came to it: it ends when its other workers have left");
  if (still_in_pool(worlds, before))
    return error(Status::not_ready, of_pid(before) + ", of " + where +
                                        " has closed its connection, but its process has not ended: its place is "
                                        "free when it has");
  return {};
}

const Worker* namesake(const World& there, std::string_view name) {
  const auto found =
      std::ranges::find_if(there.workers, [&](const auto& one) { return one->present() && one->name == name; });
  return found == there.workers.end() ? nullptr : found->get();
}

std::string rank_and_pid(std::uint32_t rank, std::uint32_t pid) {
  return "rank " + std::to_string(rank) + (pid == 0 ? "" : " (pid " + std::to_string(pid) + ")");
}

// Whether the worker may enter the world at this port. False: that world is ending, and a new one takes its port.
Result<bool> may_enter(Worlds& worlds, const World& there, const shmbw_world_join& wish, std::string_view name) {
  const bool same_size = wish.world_size == there.workers.size();
  if (there.complete) {
    const Worker& before = *there.workers[wish.rank];
    if (!same_size || before.name != name) return taken(there);
    // The same worker comes again after it has left in order. Others may be slower to leave.
    if (before.state == SHMBW_WORKER_STATE_LEFT) return false;
    SHMB_TRY_VOID(may_replace(worlds, there, before));
    return true;
  }
  if (!same_size)
    return error(Status::invalid, "the world at " + world_text(there) + " has " + std::to_string(there.workers.size()) +
                                      " workers by those that are there, " + std::to_string(wish.world_size) +
                                      " by this one: all must say the same world_size");
  if (const Worker& other = *there.workers[wish.rank]; other.present()) {
    if (just_ending(other)) return wait_for_end(there, other);
    return error(Status::exists, "rank " + std::to_string(wish.rank) + " of the world at " + world_text(there) +
                                     " is " + worker_text(other) + " of pid " + std::to_string(other.pid) +
                                     " already: each worker has a rank of its own");
  }
  const Worker* const other = namesake(there, name);
  if (other && just_ending(*other)) return wait_for_end(there, *other);
  return true;
}

std::unique_ptr<Worker> make_life(World& home, std::uint32_t rank) {
  auto made = std::make_unique<Worker>();
  made->home = &home;
  made->rank = rank;
  return made;
}

void end_record(World& home, Worker& worker) {
  Books& books = home.worlds.host.books;
  books.end<books::WorkerRecord>(books.workers, worker);
}

// The dead worker keeps what it owned. Its successor continues the counter, so no two references have the same name.
void replace(World& home, std::uint32_t rank) {
  std::unique_ptr<Worker> before = std::exchange(home.workers[rank], make_life(home, rank));
  home.workers[rank]->first_counter = home.workers[rank]->last_counter = before->last_counter;
  if (before->owned.empty()) {
    end_record(home, *before);
  } else {
    changed(*before);
    home.past.push_back(std::move(before));
  }
  ++home.replaced;
  changed(home);
}

void forget_port(Worlds& worlds, const World& world) {
  auto at = worlds.by_port.find({world.uid, world.port});
  if (at != worlds.by_port.end() && at->second == &world) worlds.by_port.erase(at);
}

Result<World*> make_world(Worlds& worlds, Session& founder, const shmbw_world_join& wish, std::string_view address) {
  SHMB_TRY(group, own_group(worlds.groups, founder));
  Uid& uid = worlds.accounts.hold_uid(founder.uid);
  auto charge = uid.account.charge(Resource::worlds, 1);
  if (!charge) {
    worlds.accounts.drop_uid(founder.uid);
    return std::unexpected(refuse_limit(worlds.groups, founder, charge.error()));
  }
  const std::uint64_t id = ++worlds.last_id;
  World& made = worlds.all.try_emplace(id, worlds, id, *group, wish.world_size).first->second;
  made.uid = founder.uid;
  made.port = wish.port;
  made.address = address;
  made.created = worlds.host.now();
  made.charge = std::move(*charge);
  changed(made);
  group->worlds.push_back(made);
  worlds.by_port[{made.uid, made.port}] = &made;
  return &made;
}

// No worker is in it any more.
void destroy_world(Worlds& worlds, World& world) {
  forget_port(worlds, world);
  Group& group = *world.group;
  const std::uint32_t uid = world.uid;
  group.worlds.remove(world);
  end_records(world);
  for (const auto* lives : {&world.workers, &world.past})
    for (const auto& worker : *lives) end_record(world, *worker);
  worlds.host.books.end<books::WorldRecord>(worlds.host.books.worlds, world);
  worlds.all.erase(world.id);
  settle_group(worlds.groups, group);
  worlds.accounts.drop_uid(uid);
}

// The world can never be complete. Its workers learn that from an event, and the cause from the reply to their next
// request, because an event may be lost. Ranks that have not come learn it when they do. `told`: ranks that know it
// already, one bit each.
void fail_world(Worlds& worlds, World& there, const Error& why, std::uint64_t told) {
  const auto cause = std::make_shared<const Error>(why);
  worlds.host.log(6, cause->sentence);
  for (const auto& worker : there.workers) {
    if (!worker->session) continue;
    told |= std::uint64_t{1} << worker->rank;
    worker->session->failed_world = there.id;
    changed(*worker->session);
    worker->session->failure = cause;
  }
  worlds.failed.note({.uid = there.uid,
                      .port = there.port,
                      .world_size = static_cast<std::uint32_t>(there.workers.size()),
                      .told = told,
                      .at = worlds.host.now(),
                      .last_pid = worlds.host.facts.last_pid(),
                      .cause = cause});
  end_world(worlds, there);
}

Error name_twice(const World& there, const Worker& one, const Session& two, std::uint32_t rank) {
  return {.status = Status::exists,
          .sentence = "the name " + quoted(one.name) + " in the world at " + world_text(there) + " is that of " +
                      rank_and_pid(one.rank, one.pid) + " and of " + rank_and_pid(rank, two.pid) +
                      ": each worker has a name of its own, so this world has ended before it was complete"};
}

}  // namespace

World::World(Worlds& owner, std::uint64_t number, Group& of, std::uint32_t size)
    : worlds(owner), id(number), group(&of), workers(size), references(&owner.host.nodes), forks(&owner.host.nodes) {
  for (std::uint32_t rank = 0; rank < size; ++rank) workers[rank] = make_life(*this, rank);
}

World::~World() = default;

void changed(World& world) { world.worlds.host.books.worlds.note(world); }
void changed(Worker& worker) { worker.home->worlds.host.books.workers.note(worker); }

bool Worker::past() const { return home->workers[rank].get() != this; }

std::uint32_t World::flags() const {
  std::uint32_t flags = 0;
  if (complete) flags |= SHMBW_WORLD_STATE_COMPLETE;
  if (ending) flags |= SHMBW_WORLD_STATE_ENDING;
  return flags;
}

std::uint32_t World::died() const {
  return static_cast<std::uint32_t>(
      std::ranges::count(workers, SHMBW_WORKER_STATE_DIED, [](const auto& one) { return one->state; }));
}

std::uint64_t pool_of(Worlds& worlds, const World& world) {
  return find_pool(worlds.pools, world.pool) ? world.pool : 0;
}

std::string worker_text(const Worker& worker) {
  return "worker " + std::to_string(worker.rank) + " ('" + worker.name + "')";
}

void tell_world(World& world, shmbw_world_change change, std::uint32_t rank, const Session* except) {
  for (const auto& worker : world.workers)
    if (worker->session && worker->session != except)
      tell_world_changed(*worker->session, world.id, change, rank, world.workers[rank]->life, world.present);
}

Result<Worker*> join_world(Worlds& worlds, Session& session, const shmbw_world_join& wish, std::string_view address,
                           std::string_view name) {
  if (session.worker)
    return error(Status::busy, "this session is " + worker_text(*session.worker) + " of the world at " +
                                   world_text(*session.worker->home) + " already: leave that one first");
  SHMB_TRY_VOID(check_join(wish, address, name));
  const FailedWorlds::Late late = worlds.failed.tell(session, wish, worlds.host.now());
  if (late.certain) return std::unexpected(*late.cause);
  World* there = nullptr;
  if (auto at = worlds.by_port.find({session.uid, wish.port}); at != worlds.by_port.end()) {
    SHMB_TRY(enters, may_enter(worlds, *at->second, wish, name));
    if (enters) there = at->second;
  }
  if (const Worker* const other = there && !there->complete ? namesake(*there, name) : nullptr) {
    const Error why = name_twice(*there, *other, session, wish.rank);
    fail_world(worlds, *there, why, std::uint64_t{1} << wish.rank);
    return std::unexpected(why);
  }
  if (!there) {
    SHMB_TRY(made, make_world(worlds, session, wish, address));
    there = made;
    if (late.cause) {
      there->doubt = late.cause;
      there->in_the_know = late.told;
      worlds.host.timers.set(*there, worlds.host.now() + kDoubt);
    }
  }
  if (there->doubt && (there->in_the_know >> wish.rank & 1) != 0) {  // the job has been started again
    there->doubt.reset();
    there->cancel();
  }
  // A worker without a group joins that of the world. So what the workers share lives as long as any of them, not only
  // as long as the first. All of them can also reuse its memory (the shelf).
  if (!session.group && !session.ended_group) join_group(worlds.groups, session, *there->group);
  if (there->workers[wish.rank]->state == SHMBW_WORKER_STATE_DIED) replace(*there, wish.rank);
  Worker& worker = *there->workers[wish.rank];
  worker.session = &session;
  worker.name = name;
  worker.uid = session.uid;
  worker.pid = session.pid;
  worker.serial = ++worlds.host.last_serial;
  worker.life = ++there->last_life;
  worker.state = SHMBW_WORKER_STATE_PRESENT;
  session.worker = &worker;
  session.failure.reset();
  ++there->present;
  tell_world(*there, SHMBW_WORLD_CHANGE_JOINED, worker.rank, &session);
  changed(worker);
  const bool last = !there->complete && there->present == there->workers.size();
  there->complete = there->complete || last;
  changed(*there);
  if (last) tell_world(*there, SHMBW_WORLD_CHANGE_COMPLETE, worker.rank, &session);
  return &worker;
}

void leave_world(Worlds& worlds, Session& session, bool died) {
  Worker* leaving = std::exchange(session.worker, nullptr);
  if (!leaving) return;
  Worker& worker = *leaving;
  World& world = *worker.home;
  worker.session = nullptr;  // it gets no further event
  worker.state = died ? SHMBW_WORKER_STATE_DIED : SHMBW_WORKER_STATE_LEFT;
  changed(worker);
  --world.present;
  const std::uint32_t forks = drop_forks(worker);
  const std::uint32_t owned = worker.owned.size();
  orphan_references(worker);
  if (died)
    worlds.host.log(6, worker_text(worker) + ", pid " + std::to_string(worker.pid) + ", of the world at " +
                           world_text(world) + " died: " + std::to_string(forks) + " holds on references dropped, " +
                           std::to_string(owned) + " of its own are lost to others");
  if (world.complete && !died) world.ending = true;
  changed(world);
  tell_world(world, died ? SHMBW_WORLD_CHANGE_DIED : SHMBW_WORLD_CHANGE_LEFT, worker.rank);
  if (!world.complete && died && world.present != 0) {
    const Error why = {.status = Status::worker_gone,
                       .sentence = of_pid(worker) + ", of the world at " + world_text(world) +
                                   " died before that was complete, so it has ended"};
    return fail_world(worlds, world, why, std::uint64_t{1} << worker.rank);
  }
  if (!world.complete) {  // as if it had never come: another worker may take the rank
    worker.name.clear();
    worker.state = SHMBW_WORKER_STATE_ABSENT;
  }
  if (world.present == 0) destroy_world(worlds, world);
}

void World::on_timer(std::int64_t) {
  const Error why = *doubt;
  fail_world(worlds, *this, why, in_the_know);
}

void end_world(Worlds& worlds, World& world) {
  tell_world(world, SHMBW_WORLD_CHANGE_ENDED, 0);
  for (const auto& worker : world.workers)
    if (worker->session) std::exchange(worker->session, nullptr)->worker = nullptr;
  destroy_world(worlds, world);
}

void move_worker(Session& from, Session& to) {
  to.failed_world = from.failed_world;
  changed(to);
  to.failure = from.failure;
  if (!from.worker || to.worker) return;
  to.worker = std::exchange(from.worker, nullptr);
  to.worker->session = &to;
  changed(*to.worker);
}

void note_participant(Session& session, const Pool& pool, std::uint32_t index) {
  Worker* worker = session.worker;
  if (!worker || worker->home->pool != pool.id) return;
  worker->participant = index;
  worker->participant_life = pool.participants[index].life;
  changed(*worker);
}

void forget_past(World& world, const Worker& worker) {
  if (world.workers[worker.rank].get() == &worker) return;
  std::erase_if(world.past, [&](const auto& one) {
    if (one.get() != &worker) return false;
    end_record(world, *one);
    return true;
  });
}

Result<Worker*> worker_in(const Session& session, std::uint64_t world) {
  if (!session.worker && session.failure && world == session.failed_world) return std::unexpected(*session.failure);
  if (!session.worker || (world != 0 && session.worker->home->id != world))
    return error(Status::no_world, world == 0 ? "this session is in no world of workers"
                                              : "this session is no worker of world " + std::to_string(world) +
                                                    ": it never was, has left, or the world has ended");
  return session.worker;
}

Result<Worker*> working_in(const Session& session, std::uint64_t world) {
  auto worker = worker_in(session, world);
  if (worker && !(*worker)->home->complete)
    return error(Status::not_ready, "the world is not complete: " + std::to_string((*worker)->home->present) + " of " +
                                        std::to_string((*worker)->home->workers.size()) + " workers have joined");
  return worker;
}

}  // namespace shmb::daemon
