// SPDX-License-Identifier: Apache-2.0
// The one table of remote references. A reference lives while it has a fork: a user's hold, booked for the receiver
// before the message that carries it leaves. So the death of a user drops what it held and nothing else, a message that
// outlives its sender carries a valid fork, and no order of messages between workers matters.
#pragma once

#include <cstdint>
#include <memory>
#include <memory_resource>
#include <set>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "daemon/books.hpp"
#include "daemon/list.hpp"

namespace shmb::daemon {

class World;
struct Worker;
struct Rendezvous;
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
// The charge is the fork's: a reference is never without one. A table may be long: these two are kept small.
struct Fork : Hook<Fork, OfReference>, Hook<Fork, OfUser> {
  std::uint64_t counter = 0;
  std::uint32_t creator = 0;
  bool in_flight = false;  // not taken by its user yet
  bool tell = false;       // its user hears of changes
  Reference* reference = nullptr;
  Worker* user = nullptr;
  Charge charge;

  RefKey key() const { return {counter, creator}; }
};
struct Reference : Hook<Reference, OfOwner> {
  std::uint64_t counter = 0;
  std::uint32_t creator = 0;
  std::uint32_t state = SHMBW_REF_STATE_NONE;
  List<Fork, OfReference> forks;
  Worker* owner = nullptr;
  std::int64_t created = 0;            // no two are the same: it is LIST's cursor, too
  std::unique_ptr<std::string> error;  // with failed

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
// Elements change, but never in what orders them: find() gives them so.
using References = std::pmr::set<Reference, ByKey>;
using Forks = std::pmr::set<Fork, ByKey>;
template <class Table>
typename Table::value_type* find(Table& table, const RefKey& key) {
  auto at = table.find(key);
  return at == table.end() ? nullptr : const_cast<typename Table::value_type*>(&*at);
}

inline constexpr std::size_t kMaxReferenceError = 400;

struct Booked {
  Reference* reference = nullptr;
  Fork* fork = nullptr;
};
Result<Booked> book_reference(World& world, Worker& maker, const shmbw_ref_create& wish);
// For that life of the user's; 0: whichever it is.
Result<Fork*> book_fork(World& world, Worker& maker, const RefKey& reference, std::uint32_t user, std::uint32_t life);
Result<Fork*> take_fork(Worker& user, const RefKey& fork, bool tell);
Result<void> release_fork(Worker& by, const RefKey& fork);
// What stands after it is in the reference.
Result<Reference*> settle_reference(Worker& by, const RefKey& reference, std::uint32_t state, std::string_view error);
Result<Reference*> find_reference(Worker& by, const RefKey& reference);

// A worker is gone: its forks, those in flight to it among them, and the value of what it owned. How many forks.
std::uint32_t drop_forks(Worker& user);
void orphan_references(Worker& owner);
std::uint64_t user_ranks(const Reference& reference);

}  // namespace shmb::daemon
