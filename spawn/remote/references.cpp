// SPDX-License-Identifier: Apache-2.0
// See references.hpp.
#include "spawn/remote/references.hpp"

#include <utility>

#include "spawn/face/torch_words.hpp"

namespace shmb::remote {

namespace torch_words = shmbroker::torch_words;

using client::Deadline;

std::string text_of(RefId id) {
  return id.counter == 0 ? std::string("(not in the books)")
                         : "(" + std::to_string(id.creator) + ", " + std::to_string(id.counter) + ")";
}

Value::~Value() {
  if (is_object && object != nullptr && drop != nullptr) drop(context, object);
}

Reference::~Reference() {
  if (agent) home->let_go(*this);
}

// ---------------------------------------------------------------- handles

Result<std::shared_ptr<Reference>> References::own(void* object, std::string type) {
  SHMB_TRY_VOID(life_.open());
  auto reference = std::make_shared<Reference>();
  reference->value = new_value();
  reference->value->state = Value::State::ready;
  reference->value->is_object = true;
  reference->value->object = object;
  reference->value->type = std::move(type);
  reference->known = std::make_shared<Known>();
  reference->known->owner = place_.rank;
  reference->known->owner_life = place_.life;
  reference->known->state = Known::State::ready;
  reference->known->confirmed = true;
  reference->home = this;
  reference->agent = place_.agent.lock();
  return reference;
}

std::shared_ptr<Reference> References::created(const client::RefMade& made, std::uint32_t owner,
                                               std::uint32_t owner_life) {
  auto reference = std::make_shared<Reference>();
  reference->home = this;
  reference->agent = place_.agent.lock();
  reference->fork = made.fork;
  const std::lock_guard lock(monitor_.mutex());
  reference->known = known(made.reference, owner, owner_life);
  forks_.insert(made.fork);
  return reference;
}

Result<void> References::usable(const Reference& reference, const char* what) const {
  if (life_.forked()) return Life::forked_error();
  if (reference.home != this) {
    SHMB_TRY_VOID(reference.home->usable(reference, what));
    return error(Status::invalid, "reference " + text_of(reference.known->id) + " is of another world than the call");
  }
  const std::lock_guard lock(monitor_.mutex());
  if (life_.leaving())
    return error(Status::closed, torch_words::used_after_deletion(text_of(reference.known->id), what));
  if (life_.lost()) return std::unexpected(*life_.lost());
  if (reference.known->failure) return std::unexpected(error_of(*reference.known->failure));
  return {};
}

Result<void> References::usable_here(const Reference& reference) const {
  SHMB_TRY_VOID(usable(reference, "shmb_reference_local"));
  const Known& known = *reference.known;
  if (owned_here(known)) return {};
  const std::lock_guard lock(monitor_.mutex());
  return error(Status::invalid, torch_words::not_the_owner(text_of(known.id), text_of(reference.fork),
                                                           roster_.where(place_.rank), roster_.where(known.owner)));
}

void References::let_go(Reference& reference) {
  if (life_.forked()) return;
  bool booked = false;
  {
    const std::lock_guard lock(monitor_.mutex());
    booked = reference.fork.counter != 0 && forks_.erase(reference.fork) != 0 && !life_.lost();
    const RefId id = reference.known ? reference.known->id : RefId{};
    reference.known.reset();
    if (const auto found = known_.find(id); found != known_.end() && found->second.expired()) known_.erase(found);
  }
  if (booked)
    (void)client::release_forks(*place_.session, place_.world, std::span(&reference.fork, 1), Deadline::after(0));
}

bool References::let_go_of_all() {
  std::vector<RefId> forks;
  {
    const std::lock_guard lock(monitor_.mutex());
    if (!life_.lost()) forks.assign(forks_.begin(), forks_.end());
    forks_.clear();
  }
  if (forks.empty()) return true;
  (void)client::release_forks(*place_.session, place_.world, forks, Deadline::after(0));
  // answered behind it: from here on they are out of the table
  const auto answered = place_.session->ping(Deadline::after(0));
  return answered || answered.error().status != Status::deadline;
}

// ---------------------------------------------------------------- to others and from them

// Another thread holds `booking_`, or this one: a value is booked once.
Result<void> References::book(Reference& reference, std::uint32_t to, std::uint32_t life, WireReference& place) {
  client::RefRequest wish;
  wish.owner = place_.rank;
  wish.user = to;
  wish.user_life = life;
  wish.state = SHMBW_REF_STATE_READY;
  const RefId before = reference.known->id;
  if (before.counter != 0 && before.creator == place_.rank) wish.counter = before.counter;
  SHMB_TRY(made, client::create_reference(*place_.session, place_.world, wish, broker_deadline()));
  const std::lock_guard lock(monitor_.mutex());
  SHMB_TRY_VOID(life_.open_locked());  // later, no thread would empty `values_` again
  reference.value->id = reference.known->id = made.reference;
  reference.value->booked = true;
  values_[made.reference] = reference.value;
  known_[made.reference] = reference.known;
  place.id = made.reference;
  place.fork = made.fork;
  return {};
}

Result<std::vector<WireReference>> References::fork_for(std::uint32_t to, std::uint32_t life, const Payload& payload) {
  std::vector<WireReference> out(payload.references.size());
  if (out.empty()) return out;
  std::vector<client::ForkRequest> wishes;
  std::vector<std::size_t> places;
  const std::lock_guard one_by_one(booking_);
  const auto undo = [&](Error why) {
    std::vector<WireReference> made;
    for (const WireReference& one : out)
      if (one.fork.counter != 0) made.push_back(one);
    if (!made.empty()) give_back(made);
    return std::unexpected(std::move(why));
  };
  for (std::size_t i = 0; i < out.size(); ++i) {
    Reference& reference = *payload.references[i];
    if (auto fine = usable(reference, "fork"); !fine) return undo(fine.error());
    out[i].owner = reference.known->owner;
    bool booked = reference.fork.counter != 0;
    {
      const std::lock_guard lock(monitor_.mutex());
      booked = booked || (reference.value && reference.value->booked);
      out[i].id = reference.known->id;
    }
    if (!booked) {
      if (auto done = book(reference, to, life, out[i]); !done) return undo(done.error());
      continue;
    }
    wishes.push_back({out[i].id, to, life});
    places.push_back(i);
  }
  if (wishes.empty()) return out;
  auto forks = client::fork_references(*place_.session, place_.world, wishes, broker_deadline());
  if (forks) {
    for (std::size_t n = 0; n < places.size(); ++n) out[places[n]].fork = (*forks)[n];
    return out;
  }
  if (forks.error().status != Status::not_found) return undo(forks.error());
  // The table has forgotten a value of ours since its last user went: it is booked again, the others one by one.
  for (std::size_t n = 0; n < places.size(); ++n) {
    Reference& reference = *payload.references[places[n]];
    auto fork = client::fork_references(*place_.session, place_.world, std::span(&wishes[n], 1), broker_deadline());
    if (fork) {
      out[places[n]].fork = (*fork)[0];
      continue;
    }
    if (fork.error().status != Status::not_found || reference.fork.counter != 0 || !reference.value)
      return undo(fork.error());
    if (auto done = book(reference, to, life, out[places[n]]); !done) return undo(done.error());
  }
  return out;
}

void References::give_back(std::span<const WireReference> references) const {
  std::vector<RefId> forks;
  for (const WireReference& one : references) forks.push_back(one.fork);
  (void)client::release_forks(*place_.session, place_.world, forks, Deadline::after(0));
}

References::Taken References::take(std::span<const WireReference> references) {
  Taken out;
  std::vector<RefId> forks;
  for (const WireReference& one : references) forks.push_back(one.fork);
  auto taken = client::take_forks(*place_.session, place_.world, forks, true, broker_deadline());
  if (!taken) {
    // Taken or not: the release is read behind that request, so the values need not wait for this worker's end.
    give_back(references);
    out.error = taken.error();
    return out;
  }
  for (std::size_t i = 0; i < taken->size(); ++i) {
    if (!(*taken)[i]) {
      out.error = (*taken)[i].error();
      continue;
    }
    const client::RefTaken& facts = *(*taken)[i];
    auto reference = std::make_shared<Reference>();
    const std::lock_guard lock(monitor_.mutex());
    reference->home = this;
    reference->agent = place_.agent.lock();
    reference->known = known(facts.reference, facts.owner, facts.owner_life);
    reference->known->confirmed = true;
    if (facts.state == SHMBW_REF_STATE_READY && !reference->known->failure)
      reference->known->state = Known::State::ready;
    if (facts.state == SHMBW_REF_STATE_FAILED) {
      reference->known->state = Known::State::failed;
      if (!owned_here(*reference->known)) out.failed.push_back(facts.reference);
    }
    if (facts.state == SHMBW_REF_STATE_OWNER_GONE && facts.owner < roster_.size())
      reference->known->failure = failure_of(roster_.gone_error(facts.owner, facts.owner_life, Status::owner_gone));
    reference->fork = forks[i];
    forks_.insert(forks[i]);
    reference->value = value(facts.reference);
    out.references.push_back(std::move(reference));
  }
  return out;
}

// ---------------------------------------------------------------- what is known

std::shared_ptr<Known> References::find(RefId id) const {
  const auto found = known_.find(id);
  return found == known_.end() ? nullptr : found->second.lock();
}

std::shared_ptr<Known> References::known(RefId id, std::uint32_t owner, std::uint32_t owner_life) {
  auto& place = known_[id];
  if (auto there = place.lock()) return there;
  auto made = std::make_shared<Known>();
  made->id = id;
  made->owner = owner;
  made->owner_life = owner_life;
  place = made;
  return made;
}

void References::confirm(RefId id, std::uint32_t owner, std::uint32_t owner_life) {
  if (auto it = find(id); it && it->owner == owner && it->owner_life == owner_life) it->confirmed = true;
}

void References::ready(RefId id) {
  if (auto it = find(id)) it->state = Known::State::ready;
}

void References::failed(RefId id, const Failure& failure) {
  auto it = find(id);
  if (!it) return;
  it->state = Known::State::failed;
  it->failure = failure;
}

bool References::changed(RefId id, shmbw_ref_state state) {
  const auto it = find(id);
  if (!it || it->failure) return false;
  it->confirmed = true;
  if (state == SHMBW_REF_STATE_READY) it->state = Known::State::ready;
  if (state != SHMBW_REF_STATE_FAILED) return false;
  it->state = Known::State::failed;
  return !owned_here(*it);
}

void References::owner_gone(std::uint32_t rank, std::uint32_t life) {
  for (const auto& [id, weak] : known_)
    if (auto it = weak.lock(); it && it->owner == rank && it->owner_life <= life && !it->failure) {
      it->state = Known::State::failed;
      it->failure = failure_of(roster_.gone_error(rank, it->owner_life, Status::owner_gone));
      it->failure->text = "the owner of reference " + text_of(id) + ", " + it->failure->text;
    }
}

// ---------------------------------------------------------------- values

std::shared_ptr<Value> References::new_value() const {
  auto value = std::make_shared<Value>();
  value->drop = drop_.function;
  value->context = drop_.context;
  return value;
}

std::shared_ptr<Value> References::value(RefId id) const {
  const auto found = values_.find(id);
  return found == values_.end() ? nullptr : found->second;
}

void References::add(const std::shared_ptr<Value>& value) {
  value->booked = !hooks_.was_unused(value->id);
  if (value->booked) values_[value->id] = value;
}

bool References::decided(Reference& reference) const {
  if (!reference.value) reference.value = value(reference.known->id);
  return (reference.value && reference.value->state != Value::State::pending) || reference.known->failure;
}

// The broker says that no worker refers to the value `id`. This worker may have shared its value again since, so it
// asks the broker. If there is no value, its creation was never sent. For its creator holds a reference until the
// creation has arrived, and messages are read before events of the broker.
void References::unused(RefId id) {
  if (life_.leaving()) return;  // all values end with this worker
  const auto found = values_.find(id);
  if (found == values_.end()) return hooks_.unused(id);
  if (id.creator == place_.rank && found->second->state != Value::State::pending)
    return callbacks_.add([this, id] { look_at_unused(id); });
  found->second->booked = false;
  callbacks_.destroy_later(std::move(found->second));
  values_.erase(found);
}

void References::look_at_unused(RefId id) {
  const std::lock_guard one_by_one(booking_);
  auto facts = client::ask_reference(*place_.session, place_.world, id, false, Deadline::after(0));
  if (facts || facts.error().status != Status::not_found) return;
  const std::lock_guard lock(monitor_.mutex());
  const auto found = values_.find(id);
  if (found == values_.end()) return;
  found->second->booked = false;
  callbacks_.destroy_later(std::move(found->second));
  values_.erase(found);
}

void References::for_each_value(const std::function<void(Value&)>& look) const {
  for (const auto& [id, value] : values_) look(*value);
}

std::vector<RefId> References::value_ids() const {
  std::vector<RefId> out;
  for (const auto& [id, value] : values_) out.push_back(id);
  return out;
}

std::vector<RefId> References::value_ids_now() const {
  const std::lock_guard lock(monitor_.mutex());
  return value_ids();
}

std::vector<std::shared_ptr<Value>> References::take_values() {
  std::vector<std::shared_ptr<Value>> out;
  for (auto& [id, value] : std::exchange(values_, {})) out.push_back(value);
  return out;
}

std::shared_ptr<Value> References::take_object(Value& value) {
  auto object = std::make_shared<Value>();
  object->is_object = value.is_object;
  object->object = std::exchange(value.object, nullptr);
  object->drop = value.drop;
  object->context = value.context;
  return object;
}

// ---------------------------------------------------------------- what the broker knows

Result<std::uint64_t> References::count_users() const {
  std::uint64_t users = 0;
  for (const RefId id : value_ids_now()) {
    auto facts = client::ask_reference(*place_.session, place_.world, id, false, Deadline::after(0));
    if (facts) users += facts->users;
    else if (facts.error().status != Status::not_found) return std::unexpected(facts.error());
  }
  return users;
}

std::uint32_t References::count_leaks(Deadline deadline, bool& answers) const {
  std::uint32_t leaks = 0;
  for (const RefId id : value_ids_now()) {
    auto facts = client::ask_reference(*place_.session, place_.world, id, false, deadline);
    if (facts) {
      leaks += facts->users != 0;
    } else if (facts.error().status != Status::not_found) {
      answers = answers && facts.error().status != Status::deadline;
      break;
    }
  }
  return leaks;
}

}  // namespace shmb::remote
