// SPDX-License-Identifier: Apache-2.0
// HELLO, the forked child's way to a session of its own, and what does not concern one region.
#include "client/session/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"
#include "client/session/call.hpp"
#include "client/session/connect.hpp"
#include "client/session/late_reply.hpp"
#include "client/session/version.hpp"
#include "proto/names.hpp"

namespace shmb::client {
namespace {

// The name of the process, as ps shows it.
std::string process_name() {
  auto name = sys::read_file("/proc/self/comm", 64);
  if (!name) return {};
  while (!name->empty() && name->back() == '\n') name->pop_back();
  return *name;
}

std::uint32_t all_events(shmbw_watch_kind kind) {
  switch (kind) {
    case SHMBW_WATCH_KIND_REGION:
      return SHMBW_WATCH_EVENT_READY | SHMBW_WATCH_EVENT_PUBLISHED | SHMBW_WATCH_EVENT_GONE | SHMBW_WATCH_EVENT_GPU;
    case SHMBW_WATCH_KIND_NAME:
      return SHMBW_WATCH_EVENT_APPEARED;
    case SHMBW_WATCH_KIND_GROUP:
      return SHMBW_WATCH_EVENT_ENDED;
    default:
      return SHMBW_WATCH_EVENT_RECLAIM;
  }
}

}  // namespace

std::unexpected<Error> needs_broker(const char* what) {
  return error(Status::local_only, std::string(what) + " need a broker; this session is local");
}

Result<std::shared_ptr<Session>> Session::greet(Fd socket, SessionFacts known, Greeting greeting, Deadline deadline) {
  std::shared_ptr<Session> session(new Session(false));
  auto mark = ForkMark::make();
  if (!mark) return system_failure(mark.error(), "a page to notice fork with");
  session->mark_ = std::move(*mark);
  session->facts_ = std::move(known);
  session->program_ = greeting.program;
  if (auto peer = sys::peer_credentials(socket.get())) session->facts_.broker_pid = static_cast<pid_t>(peer->pid);
  SHMB_TRY_VOID(session->channel_.open(std::move(socket)));
  SHMB_TRY_VOID(session->hello(greeting, deadline));
  enrol(*session);
  return session;
}

Result<std::shared_ptr<Session>> Session::local(std::string how) {
  std::shared_ptr<Session> session(new Session(true));
  session->facts_.uid = ::geteuid();
  session->facts_.broker_uid = session->facts_.uid;
  session->facts_.how = std::move(how);
  return session;
}

Session::~Session() {
  if (!local_) withdraw(*this);
}

void Session::lock_for_fork() {
  takeover_.lock();
  channel_.mutex().lock();
}

void Session::unlock_after_fork() {
  channel_.mutex().unlock();
  takeover_.unlock();
}

Result<void> Session::hello(const Greeting& greeting, Deadline deadline) {
  shmbw_hello hello{};
  hello.version_min = hello.version_max = SHMBW_PROTOCOL;
  // Doorbells of pools travel to the broker, and another broker may take the session over.
  hello.features = SHMBW_FEATURE_PASS_RIGHTS | SHMBW_FEATURE_RESUME;
  hello.pid = static_cast<std::uint32_t>(::getpid());
  hello.start_time = sys::process_start_time(0).value_or(0);
  hello.fork_session = greeting.fork_session;
  std::memcpy(hello.fork_secret, greeting.fork_secret.bytes.data(), sizeof hello.fork_secret);
  if (greeting.group_token)
    std::memcpy(hello.group_token, greeting.group_token->bytes.data(), sizeof hello.group_token);
  std::string library = greeting.program.empty() ? process_name() : greeting.program;
  library = library.substr(0, 64) + " (libshmbroker " SHMB_VERSION_TEXT ")";
  hello.library_len = static_cast<std::uint16_t>(library.size());
  hello.group_len = static_cast<std::uint16_t>(greeting.group_name.size());
  auto answer = client::call<SHMBW_OP_HELLO>(channel_, hello, {library, greeting.group_name}, deadline);
  if (!answer && answer.error().status == Status::session_lost) {  // there was no session yet to lose
    auto lost = error(Status::session_lost, channel_.lost_reason());
    if (channel_.hung_up()) lost.error().system_errno = ECONNRESET;
    return lost;
  }
  if (!answer) return std::unexpected(answer.error());
  const shmbw_hello_reply& told = answer->fixed;
  if (told.version != SHMBW_PROTOCOL)
    return error(Status::version, "the broker at " + facts_.socket + " speaks protocol " +
                                      std::to_string(told.version) + ", this library " +
                                      std::to_string(SHMBW_PROTOCOL));
  const auto broker = answer->texts().take(told.broker_len);
  Channel::Lock lock(channel_.mutex());
  facts_.mode = static_cast<shmbw_mode>(told.mode);
  facts_.protocol = told.version;
  facts_.epoch = told.epoch;
  facts_.session = told.session;
  channel_.groups = {told.group};
  facts_.features = told.features;
  facts_.uid = told.uid;
  facts_.broker_uid = told.broker_uid;
  facts_.broker = std::string(broker.value_or("unknown"));
  if (told.max_batch != 0) facts_.max_batch = std::min<std::size_t>(told.max_batch, SHMBW_MAX_BATCH);
  std::memcpy(facts_.fork_secret.bytes.data(), told.fork_secret, sizeof told.fork_secret);
  return {};
}

Result<void> Session::enter() {
  if (local_ || mark_.intact()) return {};
  std::lock_guard lock(takeover_);
  if (mark_.intact()) return {};
  const interrupt::Shield shield;  // a failure is for good
  auto taken = take_over(Deadline::after(0));
  if (!taken) channel_.set_lost_reason("the forked child could not open a session: " + taken.error().sentence);
  mark_.set();
  return {};
}

Result<void> Session::greet_again(const std::string& path, const Greeting& greeting, Deadline deadline) {
  SHMB_TRY(socket, connect_socket(path, deadline));
  if (auto peer = sys::peer_credentials(socket.get())) facts_.broker_pid = static_cast<pid_t>(peer->pid);
  SHMB_TRY_VOID(channel_.open(std::move(socket)));
  return hello(greeting, deadline);
}

// Order matters: the inherited socket keeps the leases of a parent that may be dead, so it is closed last.
Result<void> Session::take_over(Deadline deadline) {
  const std::vector<Fd> inherited = channel_.forget();
  const SessionFacts parent = facts_;
  Greeting greeting;
  greeting.program = program_;
  greeting.fork_session = parent.session;
  greeting.fork_secret = parent.fork_secret;
  for (GreetingTries tries;;) {
    auto greeted = greet_again(parent.socket, greeting, deadline);
    if (greeted) break;
    if (!tries.again(greeted.error(), deadline)) return greeted;
    (void)channel_.forget();
  }
  if (facts_.epoch != parent.epoch)
    return error(Status::session_lost, "the broker was restarted between the parent's start and the fork");
  return inherit(deadline);
}

Result<void> Session::inherit(Deadline deadline) {
  std::vector<HeldLease*> handles;
  {
    Channel::Lock lock(channel_.mutex());
    handles.assign(leases_.begin(), leases_.end());
  }
  for (std::size_t first = 0; first < handles.size(); first += facts_.max_batch) {
    const std::size_t count = std::min(facts_.max_batch, handles.size() - first);
    std::vector<shmbw_inherit> wanted(count);
    for (std::size_t i = 0; i < count; ++i) wanted[i] = {handles[first + i]->ref(), handles[first + i]->rights(), 1};
    SHMB_TRY(answers, call_batch<SHMBW_OP_INHERIT>(channel_, wanted, Texts{}, deadline));
    // A parent that was forked before it could report has not reported for us.
    std::vector<shmbw_ready> ready;
    for (std::size_t i = 0; i < count; ++i) {
      HeldLease& handle = *handles[first + i];
      const auto lease = answers.next();
      if (!lease || (lease->rights & handle.rights()) != handle.rights()) handle.not_inherited();
      else if ((handle.rights() & SHMBW_RIGHT_MAP_WRITE) != 0)
        ready.push_back(
            {handle.ref(), 0, SHMBW_PAGE_KIND_UNKNOWN, handle.is_mapped() ? 0U : std::uint32_t{SHMBW_READY_UNMAPPED}});
    }
    SHMB_TRY_VOID(client::post<SHMBW_OP_READY>(channel_, ready, deadline));
  }
  return {};
}

Result<void> check_answer_deadline(Deadline deadline) {
  if (!deadline.endless()) return {};
  return error(Status::invalid,
               "a call to the broker has a deadline, 5 s by default: only waiting for others takes SHMB_FOREVER");
}

Error asked_of(const std::string& socket, Error error) {
  if (error.status == Status::not_found && !error.sentence.empty())
    error.sentence += " (asked was the broker at " + socket + ")";
  return error;
}

Error of_older_broker(const SessionFacts& broker, Error error) {
  // A broker of this version knows each flag that there is: the caller's is wrong. The requests are the library's own.
  if (error.status == Status::unknown_flags && broker.broker.ends_with(" " SHMB_VERSION_TEXT)) return error;
  error.sentence += "; the broker at " + broker.socket + " (" + broker.broker +
                    ") is older than this library (libshmbroker " SHMB_VERSION_TEXT "): it lacks what was asked for";
  return error;
}

Result<Reply> Session::call(std::span<std::byte> packet, Deadline deadline, Channel::Subscription* subscription,
                            std::span<const int> descriptors) {
  if (local_) return needs_broker("this call");
  SHMB_TRY_VOID(check_answer_deadline(deadline));
  SHMB_TRY_VOID(enter());
  auto reply = channel_.call(packet, deadline, subscription, descriptors);
  if (reply) return reply;
  switch (reply.error().status) {
    case Status::too_new:
    case Status::unknown_op:
    case Status::unknown_flags:
      return std::unexpected(of_older_broker(facts(), std::move(reply.error())));
    default:
      return reply;
  }
}

Result<void> Session::post(std::span<std::byte> packet, Deadline deadline) {
  if (local_) return {};
  SHMB_TRY_VOID(enter());
  return channel_.post(packet, deadline);
}

SessionFacts Session::facts() {
  (void)enter();
  Channel::Lock lock(channel_.mutex());
  SessionFacts now = facts_;
  now.group = channel_.groups.member;
  return now;
}

bool Session::lost() { return !local_ && channel_.lost(); }

Result<void> Session::ping(Deadline deadline) {
  if (local_) return check_answer_deadline(deadline);
  SHMB_TRY_VOID(client::call<SHMBW_OP_STATUS>(*this, shmbw_status{}, {}, deadline));
  return {};
}

std::list<HeldLease*>::iterator Session::enrol_lease(HeldLease& lease) {
  Channel::Lock lock(channel_.mutex());
  return leases_.insert(leases_.end(), &lease);
}

bool Session::withdraw_lease(std::list<HeldLease*>::iterator place) {
  const std::lock_guard taken_over(takeover_);  // a thread that takes over has pointers to the handles
  Channel::Lock lock(channel_.mutex());
  leases_.erase(place);
  return !is_fresh_child();
}

void Session::note_pool(std::uint64_t id, const std::shared_ptr<Pool>& pool, bool whole) {
  Channel::Lock lock(channel_.mutex());
  channel_.pools.note(id, pool, whole);
}

std::shared_ptr<Pool> Session::pool(std::uint64_t id) {
  Channel::Lock lock(channel_.mutex());
  return channel_.pools.find(id);
}

bool Session::makes_pool(std::uint64_t id) {
  Channel::Lock lock(channel_.mutex());
  return channel_.pools.makes(id);
}

std::uint64_t Session::pool_moves() {
  Channel::Lock lock(channel_.mutex());
  return channel_.pools.moves;
}

void Session::pool_moved() {
  Channel::Lock lock(channel_.mutex());
  channel_.pools.moved();
}

void Session::await_pool_move(std::uint64_t seen, Deadline deadline) {
  Channel::Lock lock(channel_.mutex());
  while (channel_.pools.moves == seen && !deadline.passed()) channel_.pools.changed.wait(lock, deadline);
}

std::uint64_t Session::next_local_id() {
  Channel::Lock lock(channel_.mutex());
  return ++last_local_id_;
}

// Events

namespace {

Result<Answered<SHMBW_OP_WATCH>> ask_to_watch(Session& session, const WatchSpec& spec, Deadline deadline,
                                              const With& with = {}) {
  shmbw_watch request{};
  request.kind = spec.kind;
  request.events = spec.events != 0 ? spec.events : all_events(spec.kind);
  request.region = spec.region;
  std::ranges::copy(spec.ticket.bytes, request.ticket);
  request.group = spec.group;
  if (spec.pool) request.flags |= SHMBW_WATCH_POOL;
  names::Address address;
  if (!spec.address.empty()) {
    SHMB_TRY(parsed,
             spec.kind == SHMBW_WATCH_KIND_NAME ? names::parse_region(spec.address) : names::parse_group(spec.address));
    address = std::move(parsed);
  }
  if (address.owner_uid) {
    request.flags |= SHMBW_WATCH_OWNER_GIVEN;
    request.owner_uid = *address.owner_uid;
  }
  request.group_len = static_cast<std::uint16_t>(address.group.size());
  request.name_len = static_cast<std::uint16_t>(address.name.size());
  auto answer = call<SHMBW_OP_WATCH>(session, request, {address.group, address.name}, deadline, with);
  // Without a number no event would ever end a wait.
  if (answer && answer->fixed.watch == 0)
    return error(Status::protocol, "the broker's answer to WATCH names no subscription");
  return answer;
}

}  // namespace

Result<Watch> Session::watch(const WatchSpec& spec, Deadline deadline) {
  if (local_) return needs_broker("events");
  auto answer = ask_to_watch(*this, spec, deadline);
  if (!answer) return std::unexpected(of_broker(std::move(answer.error())));
  return Watch{answer->fixed.watch, answer->fixed.state};
}

void undo_watch(LateReply& late) {
  shmbw_watch cancel{};
  cancel.kind = SHMBW_WATCH_KIND_CANCEL;
  cancel.watch = late.fixed<shmbw_watch_reply>().watch;
  late.ask<SHMBW_OP_WATCH>(cancel);
}

Result<void> Session::unwatch(std::uint64_t watch, Deadline deadline) {
  shmbw_watch request{};
  request.kind = SHMBW_WATCH_KIND_CANCEL;
  request.watch = watch;
  SHMB_TRY_VOID(client::call<SHMBW_OP_WATCH>(*this, request, {}, deadline));
  return {};
}

Result<void> Session::OwnWatch::begin(const WatchSpec& spec, Deadline deadline) {
  SHMB_TRY_VOID(ask_to_watch(session_, spec, deadline, {.subscription = &subscription_}));
  return {};
}

Result<Event> Session::OwnWatch::await(Deadline deadline) { return session_.channel_.await(subscription_, deadline); }

Result<Event> Session::next_event(Deadline deadline) {
  if (local_) return needs_broker("events");
  SHMB_TRY_VOID(enter());
  return channel_.next_event(deadline);
}

Result<std::optional<RemoteEvent>> Session::next_remote_event(Deadline deadline) {
  if (local_) return needs_broker("remote references");
  SHMB_TRY_VOID(enter());
  return channel_.next_remote_event(deadline);
}

Result<int> Session::event_descriptor() {
  if (local_) return needs_broker("events");
  SHMB_TRY_VOID(enter());
  return channel_.event_descriptor();
}

}  // namespace shmb::client
