// SPDX-License-Identifier: Apache-2.0
// References and the values behind them: what is held here, what this worker owns, and what the broker's table has to
// be told. A reference is in the books before a message that has it leaves, and a value goes when the table says that
// nobody refers to it.
#include <algorithm>

#include "spawn/remote_agent.hpp"

namespace shmb::remote {

using client::Deadline;

std::string text_of(RefId id) {
  return id.counter == 0 ? std::string("(not in the books)")
                         : "(" + std::to_string(id.creator) + ", " + std::to_string(id.counter) + ")";
}

Value::~Value() {
  if (is_object && object != nullptr && drop != nullptr) drop(context, object);
}

Reference::~Reference() {
  if (agent) agent->let_go(*this);
}

std::shared_ptr<Known> Agent::find_known(RefId id) const {
  const auto found = known_.find(id);
  return found == known_.end() ? nullptr : found->second.lock();
}

std::shared_ptr<Known> Agent::known(RefId id, std::uint32_t owner, std::uint32_t owner_life) {
  auto& place = known_[id];
  if (auto there = place.lock()) return there;
  auto made = std::make_shared<Known>();
  made->id = id;
  made->owner = owner;
  made->owner_life = owner_life;
  place = made;
  return made;
}

Result<std::shared_ptr<Reference>> Agent::own(void* object, std::string type) {
  if (auto is_open = open(); !is_open) return std::unexpected(is_open.error());
  auto reference = std::make_shared<Reference>();
  reference->value = std::make_shared<Value>();
  reference->value->state = Value::State::ready;
  reference->value->is_object = true;
  reference->value->object = object;
  reference->value->type = std::move(type);
  reference->value->drop = wish_.drop;
  reference->value->context = wish_.context;
  reference->known = std::make_shared<Known>();
  reference->known->owner = rank_;
  reference->known->owner_life = life_;
  reference->known->state = Known::State::ready;
  reference->known->confirmed = true;
  reference->agent = shared_from_this();
  return reference;
}

Result<void> Agent::usable(const Reference& reference, const char* what) {
  if (forked()) return open();
  if (reference.agent.get() != this) {
    if (auto fine = reference.agent->usable(reference, what); !fine) return fine;
    return error(Status::invalid, "reference " + text_of(reference.known->id) + " is of another world than the call");
  }
  const std::lock_guard lock(mutex_);
  if (closed_ || leaving_)
    return error(Status::closed, torch_words::used_after_deletion(text_of(reference.known->id), what));
  if (lost_) return std::unexpected(*lost_);
  if (reference.known->failure) return std::unexpected(error_of(*reference.known->failure));
  return {};
}

Result<std::shared_ptr<Value>> Agent::local(Reference& reference, std::int64_t wait) {
  if (auto fine = usable(reference, "shmb_reference_local"); !fine) return std::unexpected(fine.error());
  const Known& known = *reference.known;
  if (!owned_here(known)) {
    const std::lock_guard lock(mutex_);
    return error(Status::invalid, torch_words::not_the_owner(text_of(known.id), text_of(reference.fork),
                                                             workers_.where(rank_), workers_.where(known.owner)));
  }
  const auto there = [&] {
    if (!reference.value)
      if (const auto found = values_.find(known.id); found != values_.end()) reference.value = found->second;
    return (reference.value && reference.value->state != Value::State::pending) || known.failure;
  };
  const std::int64_t limit = wait == 0 ? timeout() : wait;
  if (auto waited = wait_for(there, Deadline::after(limit, client::kForever), "the value of the reference"); !waited)
    return std::unexpected(waited.error());
  const std::lock_guard lock(mutex_);
  if (known.failure) return std::unexpected(error_of(*known.failure));
  if (reference.value->state == Value::State::failed) return std::unexpected(error_of(reference.value->failure));
  return reference.value;
}

Result<std::vector<WireReference>> Agent::fork_for(std::uint32_t to, std::uint32_t life, const Payload& payload) {
  std::vector<WireReference> out(payload.references.size());
  if (out.empty()) return out;
  std::vector<client::ForkWish> wishes;
  std::vector<std::size_t> places;
  const std::lock_guard one_by_one(booking_);
  const auto give_back = [&](Error why) {
    std::vector<RefId> made;
    for (const WireReference& one : out)
      if (one.fork.counter != 0) made.push_back(one.fork);
    if (!made.empty()) (void)client::release_forks(*session_, world_, made, Deadline::after(0));
    return std::unexpected(std::move(why));
  };
  const auto book = [&](Reference& reference, WireReference& place) -> Result<void> {
    client::RefWish wish;
    wish.owner = rank_;
    wish.user = to;
    wish.user_life = life;
    wish.state = SHMBW_REF_STATE_READY;
    const RefId before = reference.known->id;
    if (before.counter != 0 && before.creator == rank_) wish.counter = before.counter;
    auto made = client::create_reference(*session_, world_, wish, Deadline::after(0));
    if (!made) return std::unexpected(made.error());
    const std::lock_guard lock(mutex_);
    if (auto is_open = open_locked(); !is_open) return is_open;  // else nobody would empty `values_` again
    reference.value->id = reference.known->id = made->reference;
    reference.value->booked = true;
    values_[made->reference] = reference.value;
    known_[made->reference] = reference.known;
    place.id = made->reference;
    place.fork = made->fork;
    return {};
  };
  for (std::size_t i = 0; i < out.size(); ++i) {
    Reference& reference = *payload.references[i];
    if (auto fine = usable(reference, "fork"); !fine) return give_back(fine.error());
    out[i].owner = reference.known->owner;
    bool booked = reference.fork.counter != 0;
    {
      const std::lock_guard lock(mutex_);
      booked = booked || (reference.value && reference.value->booked);
      out[i].id = reference.known->id;
    }
    if (!booked) {
      if (auto done = book(reference, out[i]); !done) return give_back(done.error());
      continue;
    }
    wishes.push_back({out[i].id, to, life});
    places.push_back(i);
  }
  if (wishes.empty()) return out;
  auto forks = client::fork_references(*session_, world_, wishes, Deadline::after(0));
  if (forks) {
    for (std::size_t n = 0; n < places.size(); ++n) out[places[n]].fork = (*forks)[n];
    return out;
  }
  if (forks.error().status != Status::not_found) return give_back(forks.error());
  // The table has forgotten a value of ours since its last user went: it is booked anew, the others one by one.
  for (std::size_t n = 0; n < places.size(); ++n) {
    Reference& reference = *payload.references[places[n]];
    auto fork = client::fork_references(*session_, world_, std::span(&wishes[n], 1), Deadline::after(0));
    if (fork) {
      out[places[n]].fork = (*fork)[0];
      continue;
    }
    if (fork.error().status != Status::not_found || reference.fork.counter != 0 || !reference.value)
      return give_back(fork.error());
    if (auto done = book(reference, out[places[n]]); !done) return give_back(done.error());
  }
  return out;
}

void Agent::give_back(std::span<const WireReference> references) {
  std::vector<RefId> forks;
  for (const WireReference& one : references) forks.push_back(one.fork);
  (void)client::release_forks(*session_, world_, forks, Deadline::after(0));
}

Result<std::vector<std::shared_ptr<Reference>>> Agent::take(std::span<const WireReference> references) {
  std::vector<RefId> forks;
  for (const WireReference& one : references) forks.push_back(one.fork);
  auto taken = client::take_forks(*session_, world_, forks, true, Deadline::after(0));
  if (!taken) {
    // Taken or not: behind that request this one finds them, and the values need not wait for this worker's end.
    give_back(references);
    return std::unexpected(taken.error());
  }
  std::vector<std::shared_ptr<Reference>> out;
  std::optional<Error> failure;
  for (std::size_t i = 0; i < taken->size(); ++i) {
    if (!(*taken)[i]) {
      failure = (*taken)[i].error();
      continue;
    }
    const client::RefTaken& facts = *(*taken)[i];
    auto reference = std::make_shared<Reference>();
    const std::lock_guard lock(mutex_);
    reference->agent = shared_from_this();
    reference->known = known(facts.reference, facts.owner, facts.owner_life);
    reference->known->confirmed = true;
    if (facts.state == SHMBW_REF_STATE_READY && !reference->known->failure)
      reference->known->state = Known::State::ready;
    if (facts.state == SHMBW_REF_STATE_FAILED) {
      reference->known->state = Known::State::failed;
      if (!owned_here(*reference->known)) after_.emplace_back([this, id = facts.reference] { look_at_failed(id); });
    }
    if (facts.state == SHMBW_REF_STATE_OWNER_GONE && facts.owner < size())
      reference->known->failure = failure_of(workers_.gone_error(facts.owner, facts.owner_life, Status::owner_gone));
    reference->fork = forks[i];
    forks_.insert(forks[i]);
    if (const auto value = values_.find(facts.reference); value != values_.end()) reference->value = value->second;
    out.push_back(std::move(reference));
  }
  if (failure) return std::unexpected(*failure);
  return out;
}

void Agent::let_go(Reference& reference) {
  if (forked()) return;
  bool booked = false;
  {
    const std::lock_guard lock(mutex_);
    booked = reference.fork.counter != 0 && forks_.erase(reference.fork) != 0 && !lost_;
    const RefId id = reference.known ? reference.known->id : RefId{};
    reference.known.reset();
    if (const auto found = known_.find(id); found != known_.end() && found->second.expired()) known_.erase(found);
  }
  if (booked) (void)client::release_forks(*session_, world_, std::span(&reference.fork, 1), Deadline::after(0));
}

// No reference to a value of ours is left in the books. One of its own a worker may have shared again since. Where
// there is no value its creation was never sent: while it is, its creator has a reference, and what is sent is read
// before what the broker tells.
void Agent::unused(RefId id) {
  if (leaving_) return;  // all values end with this worker
  const auto found = values_.find(id);
  if (found == values_.end()) {
#ifdef SHMB_TEST_SEAM
    if (std::ranges::any_of(held_back_, [id](const auto& one) { return one.second.message.head.reference == id; }))
      early_.insert(id);
#endif
    return;
  }
  if (id.creator == rank_ && found->second->state != Value::State::pending) {
    after_.emplace_back([this, id] {
      const std::lock_guard one_by_one(booking_);
      auto facts = client::ask_reference(*session_, world_, id, false, Deadline::after(0));
      if (facts || facts.error().status != Status::not_found) return;
      const std::lock_guard lock(mutex_);
      const auto again = values_.find(id);
      if (again == values_.end()) return;
      again->second->booked = false;
      bury(std::move(again->second));
      values_.erase(again);
    });
    return;
  }
  found->second->booked = false;
  bury(std::move(found->second));
  values_.erase(found);
}

void Agent::release_references() {
  std::vector<RefId> forks;
  {
    const std::lock_guard lock(mutex_);
    if (!lost_) forks.assign(forks_.begin(), forks_.end());
    forks_.clear();
  }
  if (forks.empty()) return;
  (void)client::release_forks(*session_, world_, forks, Deadline::after(0));
  (void)session_->ping(Deadline::after(0));  // behind it: from here on they are out of the books
}

// A broker that does not answer is asked no further: the end has a deadline.
std::uint32_t Agent::count_leaks(Deadline deadline) {
  std::vector<RefId> mine;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, value] : values_) mine.push_back(id);
  }
  std::uint32_t leaks = 0;
  for (const RefId id : mine) {
    auto facts = client::ask_reference(*session_, world_, id, false, deadline);
    if (facts) leaks += facts->users != 0;
    else if (facts.error().status != Status::not_found) break;
  }
  return leaks;
}

}  // namespace shmb::remote
