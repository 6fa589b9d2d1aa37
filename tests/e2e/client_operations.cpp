// SPDX-License-Identifier: Apache-2.0
// An operation that fails may take nothing with it: so each has a part that prepares, and one that can be tried again.
#include "tests/e2e/client_operations.hpp"

#include <unistd.h>

#include "tests/harness/snapshot.hpp"

namespace e2e {
namespace {

using shmbroker::Message;
using shmbroker::Part;
using shmbroker::Pool;
using shmbroker::Queue;
using shmbroker::QueueSet;
using shmbroker::Role;
using Done = shmbroker::Result<void>;
using std::chrono::milliseconds;
using std::chrono::seconds;

template <class T>
Done done(const shmbroker::Result<T>& result) {
  if (!result) return result.error();
  return {};
}

// Into a list, or into an optional.
template <class T, class Keep>
Done kept(shmbroker::Result<T>&& result, Keep& place) {
  if (!result) return result.error();
  if constexpr (requires { place.push_back(std::move(*result)); }) place.push_back(std::move(*result));
  else place.emplace(std::move(*result));
  return {};
}

Done nothing(Stage&) { return {}; }

Done own_region(Stage& stage) { return kept(stage.session->try_create(8 * KiB), stage.own); }

shmbroker::PoolOptions pool_options() {
  shmbroker::PoolOptions options;
  options.name = "a-pool-whose-name-is-longer-than-a-short-string";
  options.classes = {{.slot_size = 4096, .slots = 4}};
  options.name_with_holders = true;
  return options;
}

Done with_pool(Stage& stage) { return kept(Pool::try_create(*stage.session, pool_options()), stage.pool); }

// Both ends of one queue, in one process.
Done with_queue(Stage& stage) {
  if (auto made = with_pool(stage); !made) return made;
  const shmbroker::QueueOptions options{.kind = shmbroker::QueueKind::mpmc, .cells = 16};
  if (auto made = kept(stage.pool->try_open_queue("q", Role::writer, options), stage.out); !made) return made;
  if (auto made = kept(stage.pool->try_open_queue("q", Role::reader, options), stage.in); !made) return made;
  return kept(Message::try_make(), stage.message);
}

Done with_region_and_queue(Stage& stage) {
  if (auto made = own_region(stage); !made) return made;
  return with_queue(stage);
}

// One message and no more is there.
Done one_message(Stage& stage) {
  Message message;
  NEED_STATUS(stage.in->try_receive(message, Timeout::no_wait()), ok);
  message.done();
  NEED_STATUS(stage.in->try_receive(message, Timeout::no_wait()), empty);
  return {};
}

Done queue_is_empty(Stage& stage) {
  Message message;
  NEED_STATUS(stage.in->try_receive(message, Timeout::no_wait()), empty);
  return {};
}

const std::string kLongText(3000, 'x');

// A message with a part of each kind is under way.
Done send_each(Stage& stage) {
  if (auto made = with_region_and_queue(stage); !made) return made;
  auto slot = stage.pool->try_acquire(100, Timeout::no_wait());
  if (!slot) return slot.error();
  return stage.out->try_send_parts({Part("bytes"), Part(*slot), Part(*stage.own)}, {.type = 7});
}

Done received(Stage& stage) {
  if (auto sent = send_each(stage); !sent) return sent;
  return stage.in->try_receive_kept(*stage.message, Timeout::no_wait());
}

}  // namespace

std::vector<Operation> session_operations(const std::string& socket) {
  return {
      {"connect", nothing,
       [socket](Stage&) { return done(Session::try_connect({.socket = socket, .join_group = false})); }},
      {"ping", nothing, [](Stage& stage) { return stage.session->try_ping(); }},
      {"join", nothing, [](Stage& stage) { return done(stage.session->try_join("job")); }},
      {"join by token", nothing,
       [](Stage& stage) {
         auto made = stage.session->try_create_group(
             {.name = "a-group-whose-name-is-longer-than-a-short-string", .adopt_existing = true});
         if (!made) return Done(made.error());
         return done(stage.session->try_join(made->token));
       }},
      {"leave", [](Stage& stage) { return done(stage.session->try_join("job")); },
       [](Stage& stage) { return stage.session->try_leave(); }},
      {"watch a region, and the event descriptor", nothing,
       [](Stage& stage) {
         if (auto watch = stage.session->try_watch(stage.foreign, SHMB_EVENT_BIT_GONE); !watch)
           return Done(watch.error());
         return done(stage.session->try_event_descriptor());
       }},
      {"watch a name", nothing,
       [](Stage& stage) { return done(stage.session->try_watch_name("job/a-name-that-is-not-there-yet")); }},
      {"watch reclaims", nothing, [](Stage& stage) { return done(stage.session->try_watch_reclaims()); }},
      {"unwatch",
       [](Stage& stage) {
         auto watch = stage.session->try_watch(stage.foreign, SHMB_EVENT_BIT_GONE);
         if (watch) stage.watch = watch->id;
         return done(watch);
       },
       [](Stage& stage) { return stage.session->try_unwatch(stage.watch); }},
      {"next event",
       [](Stage& stage) {
         auto region = stage.session->try_create(8 * KiB);
         if (!region) return Done(region.error());
         if (auto watch = stage.session->try_watch(region->id(), SHMB_EVENT_BIT_GONE); !watch)
           return Done(watch.error());
         return region->try_release();
       },
       [](Stage& stage) { return done(stage.session->try_next_event(seconds(20))); }},
  };
}

std::vector<Operation> region_operations() {
  return {
      {"create 4 KiB", nothing, [](Stage& stage) { return kept(stage.session->try_create(4096), stage.made); }},
      {"create with a name", nothing,
       [](Stage& stage) {
         return kept(stage.session->try_create(
                         4096, {.name = "a-name-that-is-longer-than-a-short-string", .name_with_holders = true}),
                     stage.made);
       }},
      {"create 4 MiB", nothing, [](Stage& stage) { return kept(stage.session->try_create(4 * MiB), stage.made); }},
      {"create recycled",
       [](Stage& stage) {
         stage.session->create(4 * MiB).release();
         return stage.session->try_ping();
       },
       [](Stage& stage) { return kept(stage.session->try_create(4 * MiB), stage.made); }},
      {"create 3 at once", nothing,
       [](Stage& stage) {
         const std::uint64_t lengths[] = {100, 4 * MiB, 5000};
         auto regions = stage.session->try_create_many(lengths);
         if (!regions) return Done(regions.error());
         Done first;
         for (auto& one : *regions)
           if (auto each = kept(std::move(one), stage.made); !each && first) first = each;
         return first;
       }},
      {"attach to read", nothing,
       [](Stage& stage) { return kept(stage.session->try_attach(stage.foreign), stage.attached); }},
      {"attach to write", nothing,
       [](Stage& stage) { return kept(stage.session->try_attach_writable(stage.foreign), stage.made); }},
      {"attach by name, waiting", nothing,
       [](Stage& stage) {
         return kept(stage.session->try_attach("job/weights", {.wait = seconds(5)}), stage.attached);
       }},
      {"attach by ticket", nothing,
       [](Stage& stage) { return kept(stage.session->try_attach(stage.ticket), stage.attached); }},
      {"publish", own_region,
       [](Stage& stage) {
         auto published = std::move(*stage.own).try_publish();
         if (!published) return Done(published.error());
         stage.attached.push_back(std::move(*published));
         stage.own.reset();
         return Done();
       }},
      {"release", own_region,
       [](Stage& stage) {
         auto released = stage.own->try_release();
         stage.own.reset();
         return released;
       }},
      {"ticket", own_region,
       [](Stage& stage) { return done(stage.own->try_ticket(Rights::read, 1, milliseconds(20))); }},
      {"lend", own_region, [](Stage& stage) { return done(stage.own->try_lend(Rights::read, 1, milliseconds(20))); }},
      {"map a part", own_region, [](Stage& stage) { return done(stage.own->try_map(4096, 4096, true)); }},
      {"descriptor", own_region,
       [](Stage& stage) {
         auto fd = stage.own->try_descriptor();
         if (!fd) return Done(fd.error());
         ::close(*fd);
         return Done();
       }},
      {"stat", nothing, [](Stage& stage) { return done(stage.session->try_stat("job/weights")); }},
      {"create and publish in a local session", nothing,
       [](Stage&) {
         const auto local = Session::try_connect({.local_only = true});
         if (!local) return Done(local.error());
         auto region = local->try_create(4 * MiB);
         if (!region) return Done(region.error());
         return done(std::move(*region).try_publish());
       }},
  };
}

std::vector<Operation> pool_operations() {
  return {
      {"make a pool", nothing, with_pool},
      {"open a pool", with_pool,
       [](Stage& stage) {
         return done(Pool::try_open(*stage.session, "a-pool-whose-name-is-longer-than-a-short-string"));
       }},
      {"open the ends of a queue", with_pool,
       [](Stage& stage) {
         const shmbroker::QueueOptions options{.kind = shmbroker::QueueKind::mpmc, .cells = 16};
         if (auto made = kept(stage.pool->try_open_queue("q", Role::writer, options), stage.out); !made) return made;
         return kept(stage.pool->try_open_queue("q", Role::reader, options), stage.in);
       }},
      {"open a queue that needs no pool", nothing,
       [](Stage& stage) {
         return done(shmbroker::try_open_queue(*stage.session, "alone", Role::both, {.create_only = true}));
       }},
      {"acquire a slot", with_pool,
       [](Stage& stage) { return kept(stage.pool->try_acquire(100, Timeout::no_wait()), stage.slots); }},
      {"send bytes", with_queue, [](Stage& stage) { return stage.out->try_send("hello", Timeout::no_wait()); },
       one_message},
      {"send many bytes", with_queue, [](Stage& stage) { return stage.out->try_send(kLongText, Timeout::no_wait()); },
       one_message},
      {"send three parts", with_region_and_queue,
       [](Stage& stage) {
         auto slot = stage.pool->try_acquire(100, Timeout::no_wait());
         if (!slot) return Done(slot.error());
         return stage.out->try_send_parts({Part("bytes"), Part(*slot), Part(*stage.own)}, {.wait = Timeout::no_wait()});
       },
       one_message},
      {"receive three parts", send_each,
       [](Stage& stage) { return stage.in->try_receive(*stage.message, Timeout::no_wait()); }, queue_is_empty},
      {"take a slot", received,
       [](Stage& stage) { return kept(stage.pool->try_take_slot(*stage.message, 1), stage.slots); }},
      {"take a region", received, [](Stage& stage) { return kept(stage.message->try_take_region(2), stage.attached); }},
      {"wait for one of a set",
       [](Stage& stage) {
         if (auto made = with_queue(stage); !made) return made;
         return stage.out->try_send("hello", Timeout::no_wait());
       },
       [](Stage& stage) {
         if (auto made = kept(QueueSet::try_make(), stage.set); !made) return made;
         if (auto added = stage.set->try_add(*stage.in); !added) return added;
         return done(stage.set->try_wait(seconds(20)));
       },
       one_message},
      // The first one of a pool makes the doorbell, which stays.
      {"the descriptor of a queue",
       [](Stage& stage) {
         if (auto made = with_queue(stage); !made) return made;
         auto other = stage.pool->try_open_queue("r", Role::both, {.kind = shmbroker::QueueKind::mpmc});
         return other ? done(other->try_descriptor()) : Done(other.error());
       },
       [](Stage& stage) { return done(stage.in->try_descriptor()); }},
      {"close the ends of a queue", with_queue,
       [](Stage& stage) {
         auto closed = stage.out ? stage.out->try_close() : Done();
         stage.out.reset();
         if (!closed) return closed;
         closed = stage.in ? stage.in->try_close() : Done();
         stage.in.reset();
         return closed;
       }},
      {"remove a pool", with_pool, [](Stage& stage) { return stage.pool->try_remove(); }},
  };
}

Stage::There Stage::there() const { return {!!own, !!pool, !!out, !!in, !!set, !!message}; }

void Stage::drop_made(const There& before) {
  made.clear();
  attached.clear();
  slots.clear();
  const auto drop = [](auto& object, bool was_there) {
    if (!was_there) object.reset();
  };
  drop(message, before[5]);
  drop(set, before[4]);
  drop(in, before[3]);
  drop(out, before[2]);
  drop(pool, before[1]);
  drop(own, before[0]);
}

void Stage::drop_all() { drop_made({}); }

Owner::Owner(World& world)
    : session(world.connect()), weights([this] {
        session.create_group({.name = "job"});
        session.join("job");
        return session.create(4096, {.name = "weights"});
      }()) {}

void prepare(World& world, const Owner& owner, const Operation& operation, Stage& stage) {
  stage.session = world.connect();
  stage.foreign = owner.weights.id();
  stage.ticket = owner.weights.lend(Rights::read, 10);
  stage.made.reserve(4);  // what the test itself keeps needs no memory later
  stage.attached.reserve(4);
  stage.slots.reserve(4);
  NEED_STATUS(operation.prepare(stage), ok);
}

bool trial(World& world, harness::RawClient& admin, const Operation& operation, const Try& attempt, Score& score) {
  const Owner owner(world);
  const std::uint64_t of_others = leases(admin);
  Stage stage;
  prepare(world, owner, operation, stage);
  const harness::Snapshot before = harness::take_snapshot();
  const std::uint64_t prepared = leases(admin);
  const Stage::There there = stage.there();
  const Attempt outcome = attempt(stage);
  const bool failed = !outcome.result;
  if (failed) {
    NEED(outcome.reached);
    NEED(!sentence_of(outcome.result).empty());
    NEED(sentence_of(outcome.result) != shmb_status_text(static_cast<int>(outcome.result.error().status())));
  }
  const bool lost = stage.session->info().lost != 0;
  NEED(!lost || outcome.may_lose);
  if (outcome.reached) {
    ++score.trials;
    score.failed += failed;
    score.lost += lost;
  }
  const bool consumed = there[0] && !stage.own;
  if (failed) {
    stage.drop_made(there);
    // The session lives: what a failed operation was granted must be given back, not only be forgotten.
    const std::uint64_t due = prepared - (consumed ? 1 : 0);
    if (!lost && !eventually([&] { return leases(admin) == due; }))
      e2e::failed(__FILE__, __LINE__, std::to_string(leases(admin)) + " leases, not " + std::to_string(due));
    const auto left = harness::differences(before, harness::take_snapshot());
    // A release that fails has unmapped all the same; a lost session may have closed its socket.
    for (const std::string& what : left)
      if (what.starts_with("left open") || what.starts_with("left mapped")) e2e::failed(__FILE__, __LINE__, what);
  }
  if (lost) {
    NEED_STATUS(stage.session->try_ping(), session_lost);
    stage.drop_all();
    stage.session.reset();
    NEED(eventually([&] { return leases(admin) == of_others; }));
    stage.session = world.connect();
  }
  // Published, but there was no room to map it for reading: the handle stays and may be mapped.
  if (failed && stage.own && stage.own->info().state == SHMB_REGION_PUBLISHED) {
    NEED_STATUS(stage.own->try_map(0, 4096), ok);
  } else {
    if (lost || (failed && consumed)) NEED_STATUS(operation.prepare(stage), ok);
    if (lost || failed) NEED_STATUS(operation.run(stage), ok);
    if (operation.verify) NEED_STATUS(operation.verify(stage), ok);
  }
  NEED_STATUS(stage.session->try_ping(), ok);
  return outcome.reached;
}

std::uint64_t leases(harness::RawClient& admin) { return admin.status().fixed<shmbw_status_reply>().leases; }

bool empty(harness::RawClient& admin) {
  const auto now = admin.status().fixed<shmbw_status_reply>();
  return now.regions + now.leases + now.tickets + now.watches + now.groups + now.bytes == 0 && now.sessions == 1;
}

harness::RawClient admin_of(World& world) {
  harness::RawClient admin = harness::RawClient::connect(world.broker().admin());
  NEED(admin.hello().ok());
  return admin;
}

}  // namespace e2e
