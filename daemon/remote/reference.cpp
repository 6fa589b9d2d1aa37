// SPDX-License-Identifier: Apache-2.0
// Booking, passing on and dropping. Every end of a fork is in end_fork: the last fork ends its reference.
#include "daemon/remote/reference.hpp"

#include <algorithm>

#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/watch.hpp"
#include "daemon/remote/world.hpp"
#include "daemon/remote/worlds.hpp"

namespace shmb::daemon {
namespace {

constexpr std::uint32_t kOwnFork = 0xffff'ffff;

std::unexpected<Error> no_such_reference() {
  return error(Status::not_found, "no such reference in this world: nobody holds it any more, or it never was");
}

// A rank that may use a reference. `life` 0: whichever life is present.
Result<Worker*> living(const Worker& asker, std::uint32_t rank, std::uint32_t life, const char* role) {
  World& home = *asker.home;
  if (rank >= home.workers.size())
    return error(Status::invalid, std::string(role) + " " + std::to_string(rank) + " is out of range: the world has " +
                                      std::to_string(home.workers.size()) + " workers");
  Worker& worker = *home.workers[rank];
  if (life != 0 && life != worker.life)
    return error(Status::worker_gone, worker_text(worker) + " has died, and another process has its place");
  if (!worker.present())
    return error(Status::worker_gone,
                 worker_text(worker) + (worker.state == SHMBW_WORKER_STATE_DIED ? " has died" : " has left"));
  return &worker;
}

Result<Charge> charge_fork(Worlds& worlds, const Worker& maker) {
  auto charge = worlds.accounts.uids.at(maker.uid).account.charge(Resource::references, 1);
  if (!charge) return std::unexpected(refuse_limit(worlds.groups, *maker.session, charge.error()));
  return std::move(*charge);
}

Fork& add_fork(Worker& maker, Reference& reference, Worker& user, Charge charge) {
  Fork fresh;
  fresh.counter = ++maker.last_counter;
  changed(maker);
  fresh.creator = maker.rank;
  Fork& fork = const_cast<Fork&>(*maker.home->forks.emplace_hint(maker.home->forks.end(), std::move(fresh)));
  fork.reference = &reference;
  fork.user = &user;
  fork.charge = std::move(charge);
  reference.forks.push_back(fork);
  user.forks.push_back(fork);
  changed(fork);
  return fork;
}

void end_record(Books& books, Reference& reference) {
  books.end<books::ReferenceRecord>(books.references, reference);
  books.store.erase<books::FailureRecord>(reference.failure_place);
}

void end_fork(World& home, Fork& fork) {
  Books& books = home.worlds.host.books;
  Reference& reference = *fork.reference;
  reference.forks.remove(fork);
  fork.user->forks.remove(fork);
  books.end<books::ForkRecord>(books.forks, fork);
  home.forks.erase(home.forks.find(fork.key()));
  if (!reference.forks.empty()) return;
  Worker& owner = *reference.owner;
  if (owner.session) tell_ref_unused(*owner.session, home.id, reference.key().to_wire());
  owner.owned.remove(reference);
  end_record(books, reference);
  home.references.erase(home.references.find(reference.key()));
  if (owner.owned.empty()) forget_past(home, owner);
}

void tell_users(const Reference& reference, const Session* except) {
  std::uint64_t told = 0;
  reference.forks.each([&](const Fork& fork) {
    const std::uint64_t bit = std::uint64_t{1} << fork.user->rank;
    if (!fork.tell || (told & bit) != 0 || !fork.user->session || fork.user->session == except) return;
    told |= bit;
    tell_ref_changed(*fork.user->session, fork.user->home->id, reference.key().to_wire(), reference.state,
                     reference.owner->rank);
  });
}

// The owner may, and so may a user with a fork. Both lists may be long, so they are searched side by side.
bool may_pass_on(const Worker& maker, const Reference& reference) {
  if (reference.owner == &maker) return true;
  const Fork* of_reference = reference.forks.first();
  const Fork* of_maker = maker.forks.first();
  while (of_reference && of_maker) {
    if (of_reference->user == &maker && !of_reference->in_flight) return true;
    if (of_maker->reference == &reference && !of_maker->in_flight) return true;
    of_reference = List<Fork, OfReference>::next(*of_reference);
    of_maker = List<Fork, OfUser>::next(*of_maker);
  }
  return false;
}

}  // namespace

void changed(Reference& reference) { reference.owner->home->worlds.host.books.references.note(reference); }
void changed(Fork& fork) { fork.user->home->worlds.host.books.forks.note(fork); }

void end_records(World& world) {
  Books& books = world.worlds.host.books;
  for (const Fork& fork : world.forks) books.end<books::ForkRecord>(books.forks, const_cast<Fork&>(fork));
  for (const Reference& reference : world.references) end_record(books, const_cast<Reference&>(reference));
}

std::uint32_t Reference::in_flight() const {
  std::uint32_t count = 0;
  forks.each([&](const Fork& fork) { count += fork.in_flight; });
  return count;
}

std::uint64_t user_ranks(const Reference& reference) {
  std::uint64_t ranks = 0;
  reference.forks.each([&](const Fork& fork) { ranks |= std::uint64_t{1} << fork.user->rank; });
  return ranks;
}

Result<BookedReference> book_reference(Worlds& worlds, Worker& maker, const shmbw_ref_create& wish) {
  SHMB_TRY(owner, living(maker, wish.owner, wish.owner_life, "owner"));
  const bool own = owner == &maker;
  if (wish.state < SHMBW_REF_STATE_REGISTERED || wish.state > SHMBW_REF_STATE_FAILED ||
      (!own && wish.state != SHMBW_REF_STATE_REGISTERED))
    return error(Status::invalid, "a reference begins as registered; as taken, ready or failed only by its owner");
  Worker* user = &maker;
  if (wish.user != kOwnFork) {
    if (!own) return error(Status::denied, "only the owner gives the first fork of a reference to somebody else");
    SHMB_TRY(receiver, living(maker, wish.user, wish.user_life, "user"));
    user = receiver;
  }
  RefKey key{maker.last_counter + 1, maker.rank};
  if ((wish.flags & SHMBW_REF_CREATE_GIVEN_COUNTER) != 0) {
    key.counter = wish.counter;
    if (!own || !maker.made(key) || key.counter > maker.last_counter)
      return error(Status::invalid, "given_counter is for a reference that this worker made and owned before");
    if (find(maker.home->references, key)) return error(Status::exists, "the reference is in the table: fork it");
  } else if (wish.counter != 0) {
    return error(Status::invalid, "a counter without the flag given_counter: the broker counts");
  }
  SHMB_TRY(charge, charge_fork(worlds, maker));
  maker.last_counter = std::max(maker.last_counter, key.counter);
  Reference fresh;
  fresh.counter = key.counter;
  fresh.creator = key.creator;
  Reference& reference = const_cast<Reference&>(*maker.home->references.emplace(std::move(fresh)).first);
  reference.state = wish.state;
  reference.owner = owner;
  reference.created = worlds.last_reference = std::max(worlds.host.now(), worlds.last_reference + 1);
  owner->owned.push_back(reference);
  changed(reference);
  Fork& fork = add_fork(maker, reference, *user, std::move(charge));
  fork.in_flight = wish.user != kOwnFork;
  fork.tell = !fork.in_flight && (wish.flags & SHMBW_REF_CREATE_TELL) != 0;
  return BookedReference{&reference, &fork};
}

Result<Fork*> book_fork(Worlds& worlds, Worker& maker, const RefKey& key, std::uint32_t user, std::uint32_t life) {
  Reference* reference = find(maker.home->references, key);
  if (!reference) return no_such_reference();
  if (!may_pass_on(maker, *reference))
    return error(Status::denied, "a reference is passed on by its owner, or by a worker that has taken a fork of it");
  if (reference->state == SHMBW_REF_STATE_OWNER_GONE)
    return error(Status::owner_gone, worker_text(*reference->owner) + ", the owner of the reference, is gone");
  SHMB_TRY(receiver, living(maker, user, life, "user"));
  SHMB_TRY(charge, charge_fork(worlds, maker));
  Fork& fork = add_fork(maker, *reference, *receiver, std::move(charge));
  fork.in_flight = true;
  return &fork;
}

Result<Fork*> take_fork(Worker& user, const RefKey& key, bool tell) {
  Fork* fork = find(user.home->forks, key);
  if (!fork || fork->user != &user) return error(Status::not_found, "no such fork for this worker");
  fork->in_flight = false;
  fork->tell = fork->tell || tell;
  changed(*fork);
  return fork;
}

Result<void> release_fork(Worker& by, const RefKey& key) {
  Fork* fork = find(by.home->forks, key);
  const bool own = fork && fork->user == &by;
  const bool unsent = fork && fork->in_flight && by.made(key);
  if (!own && !unsent) return error(Status::not_found, "no such fork of this worker");
  end_fork(*by.home, *fork);
  return {};
}

Result<Reference*> settle_reference(Worker& by, const RefKey& key, std::uint32_t state, std::string_view text) {
  if (state < SHMBW_REF_STATE_TAKEN || state > SHMBW_REF_STATE_FAILED)
    return error(Status::invalid, "a reference moves on to taken, ready or failed");
  if (state != SHMBW_REF_STATE_FAILED && !text.empty())
    return error(Status::invalid, "an error text goes with the state failed alone");
  if (text.size() > kMaxReferenceError)
    return error(Status::invalid, "the error text of a reference has at most 400 bytes, not " +
                                      std::to_string(text.size()) + ": the whole of it travels in a message");
  Reference* reference = find(by.home->references, key);
  if (!reference) return no_such_reference();
  const bool owner = reference->owner == &by;
  if (!owner && !(by.made(key) && state == SHMBW_REF_STATE_FAILED))
    return error(Status::denied, "the owner says what became of a reference; its creator may only say failed");
  if (reference->settled() || state <= reference->state) return reference;
  reference->state = state;
  changed(*reference);
  if (!text.empty()) reference->error = std::make_unique<std::string>(text);
  tell_users(*reference, by.session);
  return reference;
}

Result<Reference*> find_reference(Worker& by, const RefKey& key) {
  Reference* reference = find(by.home->references, key);
  if (!reference) return no_such_reference();
  return reference;
}

std::uint32_t drop_forks(Worker& user) {
  std::uint32_t count = 0;
  for (; Fork* fork = user.forks.first(); ++count) end_fork(*user.home, *fork);
  return count;
}

void orphan_references(Worker& owner) {
  owner.owned.each([](Reference& reference) {
    reference.state = SHMBW_REF_STATE_OWNER_GONE;
    reference.error.reset();
    changed(reference);
  });
}

}  // namespace shmb::daemon
