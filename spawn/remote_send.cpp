// SPDX-License-Identifier: Apache-2.0
// Calls and references on their way out. Whatever can fail is undone before the error is returned: what was booked for
// a message that is not sent is released again.
#include <algorithm>
#include <cstring>

#include "base/sys_process.hpp"
#include "spawn/remote_agent.hpp"

namespace shmb::remote {
namespace {

using client::Deadline;

constexpr std::size_t kMostFunction = 4096;
constexpr std::int64_t kTicketLife = 10'000'000'000;
constexpr int kLooks = 4;  // for a successor, before a call to a dead worker is refused
// For a slot, before a region is made for the bytes: that takes as long as many messages. The end of a slot's use is
// told to threads that wait, not to one that looks, so it is tried again.
constexpr std::int64_t kWaitForSlot = 20'000'000, kTrySlotAgain = 500'000;

// How long the broker is waited for on behalf of a call: not beyond its deadline. 0 and less: that has passed.
std::int64_t patience(std::int64_t deadline) {
  return deadline == 0 ? client::kDefaultTimeout : std::min(deadline - sys::now_monotonic(), client::kDefaultTimeout);
}

}  // namespace

Result<client::Region::Handle> Agent::region(std::uint64_t length, std::int64_t timeout) {
  if (auto is_open = open(); !is_open) return std::unexpected(is_open.error());
  client::CreateItem item;
  item.length = length;
  item.group = group_;
  item.flags = SHMBW_CREATE_UNINITIALISED;
  return client::create_region(session_, item, timeout);
}

Result<client::Region::Handle> Agent::again(const client::Region& region) {
  client::AttachItem item;
  item.target = client::Target::with_id(region.ref());
  item.rights = SHMBW_RIGHT_MAP_READ | (region.rights() & (SHMBW_RIGHT_MAP_WRITE | SHMBW_RIGHT_SHARE));
  return client::attach_region(session_, item);
}

// With the rights of the handle. Where this worker's user may not address it, by a ticket that is used at once.
Result<client::Region::Handle> Agent::lease(client::Region& region) {
  if (region.session().is_local() || region.facts().epoch != session_->facts().epoch)
    return error(Status::invalid, "a region that is sent is of the world's broker: this one is " +
                                      std::string(region.session().is_local() ? "local" : "of another broker") +
                                      "; make it with the session of the worker, or of its broker");
  client::AttachItem item;
  item.target = client::Target::with_id(region.ref());
  item.rights = SHMBW_RIGHT_MAP_READ | (region.rights() & (SHMBW_RIGHT_MAP_WRITE | SHMBW_RIGHT_SHARE));
  item.flags = client::kAttachUnmapped;
  auto leased = client::attach_region(session_, item);
  if (leased) return leased;
  item.rights &= ~std::uint32_t{SHMBW_RIGHT_SHARE};
  auto ticket = region.make_ticket(item.rights, 1, kTicketLife, Deadline::after(0), SHMBW_TICKET_CREATE_WITH_SESSION);
  if (!ticket) return leased;
  item.target = client::Target::with_ticket(ticket->token);
  leased = client::attach_region(session_, item);
  if (!leased) (void)client::revoke_ticket(region.session(), ticket->token, Deadline::after(0));
  return leased;
}

Result<client::Region::Handle> Agent::in_region(std::string_view bytes, std::int64_t deadline) {
  const std::int64_t timeout = patience(deadline);
  if (timeout <= 0)
    return error(Status::deadline, "the broker gave no memory for " + std::to_string(bytes.size()) +
                                       " bytes before the deadline of the call");
  auto made = region(bytes.size(), timeout);
  if (made) std::memcpy((*made)->data(), bytes.data(), bytes.size());
  return made;
}

SlotBytes Agent::in_slot(std::string_view bytes, std::int64_t deadline) {
  const std::int64_t timeout = patience(deadline);
  if (timeout <= 0) return {};
  std::shared_ptr<Inbox> inbox;
  {
    const std::lock_guard lock(mutex_);
    inbox = inbox_;
  }
  SlotBytes room = inbox ? inbox->room_for(bytes.size(), timeout) : SlotBytes();
  if (room) std::memcpy(room.data(), bytes.data(), bytes.size());
  return room;
}

// All slots of that size are in use. They come back when those whose messages lie in them read on; meanwhile what comes
// here is taken in, which gives back those of others.
SlotBytes Agent::await_slot(std::string_view bytes, std::int64_t deadline) {
  for (const Deadline patience = Deadline::after(kWaitForSlot); !patience.passed();) {
    {
      Lock lock(mutex_);
      if (!open_locked()) return {};
      step(lock, Deadline::after(kTrySlotAgain), false);
    }
    if (SlotBytes slot = in_slot(bytes, deadline)) return slot;
  }
  return {};
}

// A payload as this worker keeps it: for a call to itself, and as a value, which stays.
Result<Content> Agent::keep(const Payload& payload, bool stays, std::int64_t deadline) {
  Content content;
  if (payload.data.size() > kInline) {
    if (!stays && payload.bytes == nullptr) content.slot = in_slot(payload.data, deadline);
    if (!content.slot) {
      auto bytes = payload.bytes != nullptr ? again(*payload.bytes) : in_region(payload.data, deadline);
      if (!bytes) return std::unexpected(bytes.error());
      content.bytes = std::move(*bytes);
    }
    content.bytes_length = payload.data.size();
  } else {
    content.data = payload.data;
  }
  for (client::Region* region : payload.regions) {
    auto same = again(*region);
    if (!same) return std::unexpected(same.error());
    content.regions.push_back(std::move(*same));
  }
  content.references = payload.references;
  return content;
}

// A worker that sends many calls before it waits takes their answers in meanwhile. Else they fill its queue, and the
// worker that answers sleeps. Requests stay in the queue while enough of them wait here: a full queue holds their
// callers back. Callbacks wait until this thread waits: the caller of a send may hold locks of its own.
void Agent::look_while_sending(Lock& lock, Inbox& inbox) {
  const std::uint32_t part = inbox.cells() / 4;
  if (++sent_since_look_ < part || leading_ || lost_ || closed_ || work_.size() >= part) return;
  sent_since_look_ = 0;
  if (inbox.something_there()) lead(lock, Deadline::now());
}

// Until it is in the queue of the other one. Who waits for room takes in what comes here, and hears what the broker
// tells: two workers that fill each other's queues both go on, and a worker's end ends the wait.
Result<void> Agent::send(std::uint32_t to, const Head& head, std::string_view function, const Payload& payload) {
  if (payload.regions.size() > kMostBeside || payload.references.size() > kMostBeside)
    return error(Status::invalid, "a call has at most " + std::to_string(kMostBeside) +
                                      " regions and as many references, and this one has " +
                                      std::to_string(payload.regions.size()) + " and " +
                                      std::to_string(payload.references.size()) + ": put them into several calls");
  Outgoing out;
  out.head = head;
  out.function = function;
  out.regions = payload.regions;
  client::Region::Handle bytes;
  SlotBytes slot;
  if (payload.data.size() > kCopied) {
    if (payload.bytes == nullptr) slot = in_slot(payload.data, head.deadline);
    if (payload.bytes == nullptr && !slot && payload.data.size() <= kInline)
      slot = await_slot(payload.data, head.deadline);
    if (payload.bytes == nullptr && !slot) {
      auto made = in_region(payload.data, head.deadline);
      if (!made) return std::unexpected(made.error());
      bytes = std::move(*made);
    }
    if (slot) out.slot = &slot;
    else out.bytes = payload.bytes != nullptr ? payload.bytes : bytes.get();
    out.bytes_length = payload.data.size();
  } else {
    out.data = payload.data;
  }
  auto references = fork_for(to, head.to_life, payload);
  if (!references) return std::unexpected(references.error());
  out.references = std::move(*references);
  std::string text;
  const std::vector<client::OutPart> parts = parts_of(out, text);

  Lock lock(mutex_);
  Result<void> outcome;
  const std::shared_ptr<Inbox> inbox = inbox_;
  const auto deadline = [&] {
    const std::int64_t left = head.deadline - sys::now_monotonic();
    return head.deadline == 0 ? Deadline::after(client::kForever) : left <= 0 ? Deadline::now() : Deadline::after(left);
  };
  if (inbox && open_locked()) look_while_sending(lock, *inbox);
  for (;;) {
    if (auto is_open = open_locked(); !is_open || !inbox) {
      outcome = is_open;
      if (is_open) outcome = error(Status::closed, "this worker has been shut down");
      break;
    }
    if (!workers_.there(to, head.to_life)) {
      outcome = std::unexpected(workers_.gone_error(to, head.to_life, Status::worker_gone));
      break;
    }
    lock.unlock();
    auto sent = inbox->send(to, parts);
    lock.lock();
    if (sent && *sent) return {};
    if (!sent) {
      outcome = std::unexpected(sent.error());
      break;
    }
    if (head.deadline != 0 && sys::now_monotonic() >= head.deadline) {
      outcome = error(Status::deadline,
                      "nothing was sent to " + workers_.where(to) + ": its queue had no room until the deadline");
      break;
    }
    want_room(to);
    while ((wanted_ >> to & 1) != 0 && workers_.there(to, head.to_life) && open_locked() && !deadline().passed())
      step(lock, deadline(), false);
  }
  lock.unlock();
  std::vector<RefId> forks;
  for (const WireReference& one : out.references) forks.push_back(one.fork);
  if (!forks.empty()) (void)client::release_forks(*session_, world_, forks, Deadline::after(0));
  return outcome;
}

Result<std::shared_ptr<Future>> Agent::begin(Kind kind, std::uint32_t to, std::uint32_t life, std::string_view function,
                                             std::int64_t timeout, RefId reference) {
  auto future = std::make_shared<Future>();
  future->agent = shared_from_this();
  future->kind = kind;
  future->to = to;
  future->function = function;
  future->reference = reference;
  future->began = sys::now_monotonic();
  const std::lock_guard lock(mutex_);
  if (auto is_open = open_locked(); !is_open) return std::unexpected(is_open.error());
  if (life == 0) life = workers_[to].life;
  if (life > workers_[to].life) worker_came(to, life);  // the broker has named it already
  if (!workers_.there(to, life))
    return std::unexpected(
        workers_.gone_error(to, life, kind == Kind::call ? Status::worker_gone : Status::owner_gone));
  future->to_life = life;
  if (timeout == 0) timeout = call_timeout_;
  future->call = ++last_call_;
  if (timeout != client::kForever) {
    future->deadline = timeout > INT64_MAX - future->began ? INT64_MAX : future->began + timeout;
    future->due = deadlines_.emplace(future->deadline, future->call);
    if (leading_ && future->due == deadlines_.begin()) wake();
  }
  calls_[future->call] = future;
  return future;
}

void Agent::give_up(const std::shared_ptr<Future>& future) {
  const std::lock_guard lock(mutex_);
  if (future->state == Future::State::pending) forget(future);
  wake();  // a shutdown waits for the last call
}

Result<void> Agent::send_request(const std::shared_ptr<Future>& future, std::uint8_t flags, const Payload& payload) {
  Head head;
  head.kind = future->kind;
  head.flags = flags;
  head.from = rank_;
  head.from_life = life_;
  head.to_life = future->to_life;
  head.call = future->call;
  head.deadline = future->deadline;
  head.reference = future->reference;
  if (future->to != rank_) {
    {
      const std::lock_guard lock(mutex_);
      ++sent_;
    }
    auto sent = send(future->to, head, future->function, payload);
    if (!sent) {
      const std::lock_guard lock(mutex_);
      --sent_;
    }
    return sent;
  }
  auto content = keep(payload, false, head.deadline);
  if (!content) return std::unexpected(content.error());
  auto request = std::make_unique<Request>();
  request->agent = shared_from_this();
  request->head = head;
  request->function = future->function;
  request->content = std::move(*content);
  const std::lock_guard lock(mutex_);
  if (auto is_open = open_locked(); !is_open) return is_open;
#ifdef SHMB_TEST_SEAM
  if (head.kind == trouble_.kind && trouble_.lose > 0) {
    --trouble_.lose;
    bury(std::shared_ptr<Request>(std::move(request)));
    return {};
  }
#endif
  admit(std::move(request));
  return {};
}

Result<void> Agent::may_call(std::uint32_t to, std::string_view function, const Payload& payload, bool on_object) {
  if (auto is_open = open(); !is_open) return is_open;
  if (function.size() > kMostFunction)
    return error(Status::invalid, "a function's name has at most 4096 bytes, and this one has " +
                                      std::to_string(function.size()) + ": register it by a shorter one");
  if (on_object && (payload.references.empty() || payload.references[0]->known->owner != to))
    return error(Status::invalid, "a call on an object begins with a reference that the called worker owns");
  for (const auto& reference : payload.references)
    if (auto fine = usable(*reference, "fork"); !fine) return fine;
  Lock lock(mutex_);
  // Without threads a worker takes in what the broker tells of a successor only while it waits or serves, and it may do
  // neither between its tries. Messages come first, up to a bound as while it sends; then it hears.
  for (int looks = 0; looks < kLooks && !workers_.there(to, workers_[to].life); ++looks) {
    if (leading_ || lost_ || closed_ || !inbox_ || work_.size() >= inbox_->cells() / 4) break;
    lead(lock, Deadline::now());
  }
  const Worker& worker = workers_[to];
  if (!workers_.there(to, worker.life))
    return std::unexpected(workers_.gone_error(to, worker.life, Status::worker_gone));
  return {};
}

// Another thread may have left the world meanwhile: then that is the reason, whatever the broker says of it.
Error Agent::closed_or(Error why) {
  auto is_open = open();
  return is_open ? std::move(why) : std::move(is_open.error());
}

Result<std::shared_ptr<Future>> Agent::call(std::uint32_t to, std::string_view function, const Payload& payload,
                                            bool on_object, std::int64_t timeout) {
  if (auto may = may_call(to, function, payload, on_object); !may) return std::unexpected(may.error());
  auto future = begin(Kind::call, to, on_object ? payload.references[0]->known->owner_life : 0, function, timeout, {});
  if (!future) return future;
  if (auto sent = send_request(*future, on_object ? kOnObject : std::uint8_t{0}, payload); !sent) {
    give_up(*future);
    return std::unexpected(closed_or(sent.error()));
  }
  return future;
}

Result<std::shared_ptr<Reference>> Agent::create(std::uint32_t to, std::string_view function, const Payload& payload,
                                                 bool on_object, std::int64_t timeout) {
  if (auto may = may_call(to, function, payload, on_object); !may) return std::unexpected(may.error());
  client::RefWish wish;
  wish.owner = to;
  wish.owner_life = on_object ? payload.references[0]->known->owner_life : worker(to).life;
  wish.tell = true;
  auto made = client::create_reference(*session_, world_, wish, Deadline::after(0));
  if (!made) return std::unexpected(closed_or(made.error()));
  auto reference = std::make_shared<Reference>();
  reference->agent = shared_from_this();
  reference->fork = made->fork;
  {
    const std::lock_guard lock(mutex_);
    reference->known = known(made->reference, to, wish.owner_life);
    forks_.insert(made->fork);
  }
  auto future = begin(Kind::create, to, wish.owner_life, function, timeout, made->reference);
  if (!future) return std::unexpected(future.error());
  reference->created = *future;
  if (auto sent = send_request(*future, on_object ? kOnObject : std::uint8_t{0}, payload); !sent) {
    give_up(*future);
    return std::unexpected(closed_or(sent.error()));
  }
  return reference;
}

// ---------------------------------------------------------------- by references

Result<std::shared_ptr<Future>> Agent::fetch(const std::shared_ptr<Reference>& reference, Kind kind,
                                             std::int64_t timeout) {
  if (auto fine = usable(*reference, "shmb_reference_fetch"); !fine) return std::unexpected(fine.error());
  RefId id;
  {
    const std::lock_guard lock(mutex_);
    id = reference->known->id;  // of an own value: while another thread passes it on for the first time it gets one
    const std::shared_ptr<Future>& asked = reference->known->type;  // its own deadline says nothing about the type
    if (kind == Kind::type && asked &&
        !(asked->state == Future::State::failed && asked->failure.status == Status::deadline))
      return asked;
  }
  auto future = begin(kind, reference->known->owner, reference->known->owner_life,
                      kind == Kind::type ? "type of a reference" : "to_here", timeout, id);
  if (!future) return future;
  Payload own;
  {
    const std::lock_guard lock(mutex_);
    if ((*future)->state == Future::State::pending) (*future)->subject = reference;  // else it is decided already
    if (kind == Kind::type) reference->known->type = *future;
    // An own value that is not in the books is named by the reference itself.
    if (reference->value && owned_here(*reference->known)) own.references.push_back(reference);
  }
  if (auto sent = send_request(*future, 0, own); !sent) {
    const Error why = closed_or(sent.error());
    const std::lock_guard lock(mutex_);
    // Another thread may wait for it already.
    if ((*future)->state == Future::State::pending) fail(*future, failure_of(why));
    if (reference->known->type == *future) reference->known->type.reset();
    wake();
    return std::unexpected(why);
  }
  return future;
}

}  // namespace shmb::remote
