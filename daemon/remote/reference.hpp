// SPDX-License-Identifier: Apache-2.0
// The one table of remote references. A reference lives while it has a fork: a user's hold. It is booked for the
// receiver before the message that carries it leaves. So the death of a user drops what it held and nothing else. A
// message that outlives its sender carries a valid fork, and no order of messages between workers matters.
//
// The states of a reference: registered (its value was asked for), taken, ready, failed, owner_gone. The first outcome
// that is booked stands for all workers. Only the end of the owner changes it again: the value belongs to one life of a
// worker, and the next life of that rank does not have it.
//
// A fork is in flight until its user takes it. Either end may drop it: the user by a release, or by its death. The last
// fork ends the reference, and the owner is notified. So the owner keeps no count of its own.
//
// A key is the rank of its maker and a counter that no later life of that rank repeats.
#pragma once

#include <cstdint>
#include <memory>
#include <memory_resource>
#include <set>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "daemon/books/booked.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/list.hpp"

namespace shmb::daemon {

struct Worlds;
struct Worker;
struct World;
struct Reference;

struct RefKey {
  std::uint64_t counter = 0;
  std::uint32_t creator = 0;
  friend auto operator<=>(const RefKey&, const RefKey&) = default;
  static RefKey of(const shmbw_ref_id& id) { return {id.counter, id.creator}; }
  shmbw_ref_id to_wire() const { return {counter, creator, 0}; }
};

struct OfReference;
struct OfUser;
struct OfOwner;
// The fork carries the charge, because a reference always has a fork. Tables may be long, so both structs are kept
// small.
struct Fork : Hook<Fork, OfReference>, Hook<Fork, OfUser>, books::Booked<Fork> {
  std::uint64_t counter = 0;
  std::uint32_t creator = 0;
  bool in_flight = false;  // its user has not taken it yet
  bool tell = false;       // its user is notified of changes
  Reference* reference = nullptr;
  Worker* user = nullptr;
  Charge charge;

  RefKey key() const { return {counter, creator}; }
};
struct Reference : Hook<Reference, OfOwner>, books::Booked<Reference> {
  std::uint64_t counter = 0;
  std::uint32_t creator = 0;
  std::uint32_t state = SHMBW_REF_STATE_NONE;
  List<Fork, OfReference> forks;
  Worker* owner = nullptr;
  std::int64_t created = 0;            // unique, so it is also the cursor of LIST
  std::unique_ptr<std::string> error;  // set when the state is failed
  std::uint32_t failure_place = books::kNowhere;

  RefKey key() const { return {counter, creator}; }
  bool settled() const { return state >= SHMBW_REF_STATE_READY; }
  std::uint32_t in_flight() const;
};

struct ByKey {
  using is_transparent = void;
  template <class T>
  static RefKey key(const T& item) {
    return item.key();
  }
  static RefKey key(const RefKey& key) { return key; }
  template <class A, class B>
  bool operator()(const A& a, const B& b) const {
    return key(a) < key(b);
  }
};
// Elements change, but never the fields that order them. find() returns them as changeable.
using References = std::pmr::set<Reference, ByKey>;
using Forks = std::pmr::set<Fork, ByKey>;
template <class Table>
typename Table::value_type* find(Table& table, const RefKey& key) {
  auto at = table.find(key);
  return at == table.end() ? nullptr : const_cast<typename Table::value_type*>(&*at);
}

inline constexpr std::size_t kMaxReferenceError = 400;

// Notes that its record must be written again.
void changed(Reference& reference);
void changed(Fork& fork);
// They are about to end with the world.
void end_records(World& world);

struct BookedReference {
  Reference* reference = nullptr;
  Fork* fork = nullptr;
};
Result<BookedReference> book_reference(Worlds& worlds, Worker& maker, const shmbw_ref_create& wish);
// For one life of the user's rank; 0: whichever is present.
Result<Fork*> book_fork(Worlds& worlds, Worker& maker, const RefKey& reference, std::uint32_t user, std::uint32_t life);
Result<Fork*> take_fork(Worker& user, const RefKey& fork, bool tell);
Result<void> release_fork(Worker& by, const RefKey& fork);
// Returns the reference; its state afterwards is in it.
Result<Reference*> settle_reference(Worker& by, const RefKey& reference, std::uint32_t state, std::string_view error);
Result<Reference*> find_reference(Worker& by, const RefKey& reference);

// A worker is gone. Drops its forks, also those in flight to it, and the values that it owned. Returns the number of
// forks.
std::uint32_t drop_forks(Worker& user);
void orphan_references(Worker& owner);
std::uint64_t user_ranks(const Reference& reference);

}  // namespace shmb::daemon
