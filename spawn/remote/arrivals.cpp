// SPDX-License-Identifier: Apache-2.0
// See arrivals.hpp.
#include "spawn/remote/arrivals.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/rescue.hpp"
#include "base/sys_process.hpp"
#include "client/session/views.hpp"

namespace shmb::remote {
namespace {

using client::Deadline;
using client::RemoteEvent;

// A look at the broker, which tells of the dead. No wait needs it: it guards against mistakes in the waking.
constexpr std::int64_t kLook = 2'000'000'000;
constexpr unsigned kBusy = 64;  // where messages come without end, the broker's events are looked at so often

}  // namespace

// The messages and events that one thread takes in at once.
struct Arrivals::Batch {
  std::shared_ptr<Inbox> inbox;
  std::array<std::uint32_t, pool::kParticipants> lives{};  // of the workers, as they are known
  std::uint64_t wanted = 0, roomy = 0;
  bool spins = false;
  std::vector<Arrived> messages;
  std::vector<RemoteEvent> events;
  std::optional<Error> lost;

  bool is_new(const Arrived& one) const { return one.message.head.from_life > lives[one.message.head.from]; }
};

void Arrivals::put_off(const RemoteEvent& event) { put_off_.push_back(event); }

void Arrivals::lead(Lock& lock, Deadline until, bool serves) {
  until = earlier(until, Deadline::after(rescue_interval(kLook)));
  Monitor::Leading leading(monitor_, lock, until, serves);
  sender_.looked();
  Batch batch;
  batch.inbox = monitor_.inbox();
  batch.spins = server_.running() == 0;  // a function that runs here needs the processor
  batch.wanted = sender_.wanted();
  for (std::uint32_t rank = 0; rank < roster_.size(); ++rank) batch.lives[rank] = roster_[rank].life;
  lock.unlock();
  const bool quiet = receive(batch, until);
  bool read_all = name_writers(batch, 0);
  if (quiet || batch.lost || ++busy_ % kBusy == 0) read_all = hear_broker(batch) || read_all;
  if (read_all) read_on(batch);
  const std::size_t newcomers = put_newcomers_last(batch);
  take_references(batch);
  const bool came = !batch.messages.empty();
  leading.deliver();
  const std::uint64_t requests = server_.requests();
  deliver(batch, newcomers);
  if (came && requests == server_.requests()) leading.give_up_place();
  if (serves && server_.backlog() != 0 && callbacks_.may_run()) monitor_.wake_sleepers();
}

// True: nothing was there when it had to wait.
bool Arrivals::receive(Batch& batch, Deadline until) {
  auto taken = batch.inbox->take(until, batch.wanted, batch.spins);
  if (!taken) {
    batch.lost = taken.error();
    return false;
  }
  for (Incoming& message : taken->messages) batch.messages.push_back({std::move(message), {}});
  if (taken->told) put_off_.push_back(*taken->told);
  batch.roomy |= taken->roomy;
  return taken->quiet;
}

// True: one of them is of a life that is not known yet. A participant of the pool that is no worker has no business
// here: what it has written is of life 0.
bool Arrivals::name_writers(Batch& batch, std::size_t from) {
  bool any_new = false;
  for (std::size_t i = from; i < batch.messages.size(); ++i) {
    Incoming& message = batch.messages[i].message;
    if (!named(message)) {
      read_writers();
      if (!named(message)) {
        writers_[message.writer.participant % writers_.size()] = {message.writer.life, 0, 0};
        (void)named(message);
      }
    }
    any_new = any_new || batch.is_new(batch.messages[i]);
  }
  return any_new;
}

bool Arrivals::named(Incoming& message) const {
  const Writer& writer = writers_[message.writer.participant % writers_.size()];
  if (writer.participant_life != message.writer.life) return false;
  message.head.from = writer.rank;
  message.head.from_life = writer.life;
  return true;
}

void Arrivals::read_writers() {
  client::Selection selection;
  selection.region.id = place_.world;
  const auto list = client::list_workers(*place_.session, selection, broker_deadline());
  if (!list) return;
  for (const client::WorkerRow& row : list->rows)
    if (row.record.participant < writers_.size() && row.record.rank < roster_.size())
      writers_[row.record.participant] = {row.record.participant_life, row.record.rank, row.record.life};
}

// Reads the waiting events of the broker. True: there was one.
bool Arrivals::hear_broker(Batch& batch) {
  batch.events = std::exchange(put_off_, {});
  for (;;) {
    auto event = place_.session->next_remote_event(Deadline::now());
    if (!event) batch.lost = event.error();
    if (!event || !*event) return !batch.events.empty();
    batch.events.push_back(**event);
  }
}

// Called after the event of a worker's end, or after a message of its successor. All that the dead worker sent is here
// by now, and comes first. The same holds for events that come meanwhile.
void Arrivals::read_on(Batch& batch) {
  for (bool more = true; more && !batch.lost;) {
    const std::size_t before = batch.messages.size();
    while (!batch.lost && !receive(batch, Deadline::now())) {
    }
    (void)name_writers(batch, before);
    more = !put_off_.empty();
    std::ranges::move(put_off_, std::back_inserter(batch.events));
    put_off_.clear();
  }
}

// Where the newcomers begin.
std::size_t Arrivals::put_newcomers_last(Batch& batch) {
  std::vector<Arrived> newcomers;
  std::erase_if(batch.messages, [&](Arrived& one) {
    if (!batch.is_new(one)) return false;
    newcomers.push_back(std::move(one));
    return true;
  });
  const std::size_t known = batch.messages.size();
  std::ranges::move(newcomers, std::back_inserter(batch.messages));
  return known;
}

// A broker that does not answer is not asked again for each message.
void Arrivals::take_references(Batch& batch) {
  std::optional<Error> silent;
  std::vector<RefId> failed;
  for (Arrived& one : batch.messages) {
    if (one.message.references.empty() || one.message.head.to_life != place_.life) continue;
    if (silent) {
      one.message.broken = *silent;
      references_.give_back(one.message.references);
      continue;
    }
    auto taken = references_.take(one.message.references);
    failed.insert(failed.end(), taken.failed.begin(), taken.failed.end());
    if (!taken.error) {
      one.references = std::move(taken.references);
      continue;
    }
    one.message.broken = taken.error;
    if (taken.error->status == Status::deadline) silent = taken.error;
  }
  if (failed.empty()) return;
  const std::lock_guard lock(monitor_.mutex());
  for (const RefId id : failed) calls_.look_at_failed(id);
}

void Arrivals::deliver(Batch& batch, std::size_t newcomers) {
  sender_.has_room(batch.roomy);
  for (std::size_t i = 0; i < newcomers; ++i) take_in(batch.messages[i]);
  for (const RemoteEvent& event : batch.events) workers_.take_event(event);
  for (std::size_t i = newcomers; i < batch.messages.size(); ++i) {
    const Head& head = batch.messages[i].message.head;
    workers_.came(head.from, head.from_life);  // the event is on its way
    take_in(batch.messages[i]);
  }
  // The rest is destroyed without the lock: a reference releases itself, which takes the lock.
  std::erase_if(batch.messages, [](const Arrived& one) {
    return one.references.empty() && !one.message.bytes && !one.message.slot && one.message.regions.empty();
  });
  if (!batch.messages.empty())
    callbacks_.destroy_later(std::make_shared<std::vector<Arrived>>(std::move(batch.messages)));
  if (batch.lost) calls_.lose(*batch.lost);
}

bool Arrivals::stale(const Head& head) const {
  return head.from_life == 0 || head.from_life != roster_[head.from].life || head.to_life != place_.life;
}

void Arrivals::take_in(Arrived& arrived) {
  const Head& head = arrived.message.head;
  if (!stale(head)) {
    if (hooks_.loses(head.kind)) return server_.count_received();
    if (hooks_.holds_back(arrived)) return;
  }
  hand_on(arrived);
}

void Arrivals::take_held_back() {
  while (std::optional<Arrived> late = hooks_.due()) {
    hand_on(*late);
    callbacks_.destroy_later(std::make_shared<Arrived>(std::move(*late)));
  }
}

// The caller destroys the rest of `arrived` without the lock.
void Arrivals::hand_on(Arrived& arrived) {
  const Head& head = arrived.message.head;
  if (stale(head)) return;
  switch (head.kind) {
    case Kind::call:
    case Kind::create:
    case Kind::fetch:
    case Kind::type:
      return server_.received(arrived);
    case Kind::accepted:
      return references_.confirm(head.reference, head.from, head.from_life);
    case Kind::answer:
    case Kind::failure:
      return calls_.answered(arrived);
    case Kind::idle:
    case Kind::round:
    case Kind::over:
      return meeting_.take(head);
  }
}

}  // namespace shmb::remote
