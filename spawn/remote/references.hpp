// SPDX-License-Identifier: Apache-2.0
// References and the values behind them: those held here, those that this worker owns, and the requests about them to
// the broker's table.
//
// A reference is in the broker's table before a message that carries it leaves. Its outcome is decided there, for all
// workers. A handle has a fork: one entry of the table, released with the handle. The knowledge of this worker about a
// reference (Known) is shared by its handles. A value of its own gets an entry only when it is first passed on. It goes
// when the table says that no worker refers to it. There are two locks. `booking_` orders the booking of this worker's
// values, and is taken first. The worker's lock guards the rest, and is released during requests to the broker.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "spawn/remote/callbacks.hpp"
#include "spawn/remote/life.hpp"
#include "spawn/remote/monitor.hpp"
#include "spawn/remote/place.hpp"
#include "spawn/remote/roster.hpp"
#include "spawn/remote/state.hpp"
#include "spawn/remote/test_hooks.hpp"

namespace shmb::remote {

std::string text_of(RefId id);

class References {
 public:
  // How the user destroys an object of his that is a value here.
  struct Drop {
    void (*function)(void* context, void* object) = nullptr;
    void* context = nullptr;
  };
  References(const Place& place, Monitor& monitor, const Life& life, Callbacks& callbacks, const Roster& roster,
             TestHooks& hooks, Drop drop)
      : place_(place),
        monitor_(monitor),
        life_(life),
        callbacks_(callbacks),
        roster_(roster),
        hooks_(hooks),
        drop_(drop) {}

  // Handles, without the lock.
  Result<std::shared_ptr<Reference>> own(void* object, std::string type);
  std::shared_ptr<Reference> created(const client::RefMade& made, std::uint32_t owner, std::uint32_t owner_life);
  // `what`: what is to be done with it, for the sentence that refuses.
  Result<void> usable(const Reference& reference, const char* what) const;
  Result<void> usable_here(const Reference& reference) const;  // and its value is this worker's own
  void let_go(Reference& reference);
  bool let_go_of_all();  // false: the broker does not answer
  bool owned_here(const Known& known) const { return known.owner == place_.rank && known.owner_life == place_.life; }

  // On their way to others and from them, without the lock. Forks that are booked for a message that does not leave are
  // given back.
  Result<std::vector<WireReference>> fork_for(std::uint32_t to, std::uint32_t life, const Payload& payload);
  void give_back(std::span<const WireReference> references) const;
  struct Taken {
    std::vector<std::shared_ptr<Reference>> references;
    std::vector<RefId> failed;   // of other owners: the broker may know more
    std::optional<Error> error;  // not all were there
  };
  Taken take(std::span<const WireReference> references);

  // The entry of a reference, or null. Called with the lock.
  std::shared_ptr<Known> find(RefId id) const;
  void confirm(RefId id, std::uint32_t owner, std::uint32_t owner_life);
  void ready(RefId id);
  void failed(RefId id, const Failure& failure);
  bool changed(RefId id, shmbw_ref_state state);  // true: it has failed at another owner, the broker may know more
  void owner_gone(std::uint32_t rank, std::uint32_t life);

  // Values of this worker, with the lock.
  std::shared_ptr<Value> new_value() const;
  std::shared_ptr<Value> value(RefId id) const;  // nothing: there is none
  bool owns(RefId id) const { return values_.contains(id); }
  // The broker has an entry for the value. (In tests it may be unused already: was_unused().)
  void add(const std::shared_ptr<Value>& value);
  bool decided(Reference& reference) const;  // its value is there, or has failed
  void unused(RefId id);                     // no worker refers to it any more
  void for_each_value(const std::function<void(Value&)>& look) const;
  std::vector<RefId> value_ids() const;
  std::vector<std::shared_ptr<Value>> take_values();
  std::size_t values() const { return values_.size(); }
  std::size_t forks() const { return forks_.size(); }
  void forget_forks() { forks_.clear(); }
  // The object of a value, to be destroyed without the lock.
  static std::shared_ptr<Value> take_object(Value& value);

  // Asks the broker about each value. Without the lock.
  Result<std::uint64_t> count_users() const;
  // Ends early when the broker leaves a question unanswered. Then `answers` is false.
  std::uint32_t count_leaks(client::Deadline deadline, bool& answers) const;

 private:
  std::shared_ptr<Known> known(RefId id, std::uint32_t owner, std::uint32_t owner_life);
  void look_at_unused(RefId id);
  Result<void> book(Reference& reference, std::uint32_t to, std::uint32_t life, WireReference& place);
  std::vector<RefId> value_ids_now() const;

  const Place& place_;
  Monitor& monitor_;
  const Life& life_;
  Callbacks& callbacks_;
  const Roster& roster_;
  TestHooks& hooks_;
  const Drop drop_;
  std::mutex booking_;
  std::map<RefId, std::shared_ptr<Value>> values_;
  std::map<RefId, std::weak_ptr<Known>> known_;
  std::set<RefId> forks_;  // held here
};

}  // namespace shmb::remote
