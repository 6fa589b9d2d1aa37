// SPDX-License-Identifier: Apache-2.0
// HELLO, and the ends a session can come to.
#include "daemon/ledger/session.hpp"

#include <algorithm>

#include "base/result.hpp"
#include "daemon/ledger/ledger.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/pools/pool.hpp"
#include "daemon/serve/answer.hpp"

namespace shmb::daemon {

Session::Session(Ledger& owner, std::uint64_t number, Link& connection, Account& uid_account)
    : ledger(owner),
      id(number),
      line(number),
      link(&connection),
      uid(connection.peer().uid),
      pid(connection.peer().pid),
      admin(connection.peer().admin),
      has_pidfd(connection.peer().has_pidfd),
      account(SHMBW_SCOPE_SESSION, number, &uid_account, &owner.own_bug),
      leases(&owner.pool),
      watches(&owner.pool),
      pools(&owner.pool),
      awaited(&owner.pool),
      connected(owner.now()) {
  account.set_limit(Resource::leases, owner.config.limits.session_leases);
  account.set_limit(Resource::watches, owner.config.limits.session_watches);
  account.set_limit(Resource::tickets, ticket_share(owner, uid_account));
}

Session::~Session() = default;

std::uint32_t Session::wire_state() const {
  if (phase == Phase::ended) return SHMBW_SESSION_STATE_LEAVING;
  if (lazy) return SHMBW_SESSION_STATE_DISCONNECTED;
  if (process_gone) return SHMBW_SESSION_STATE_HEIR;
  if (supervises && !group) return SHMBW_SESSION_STATE_SUPERVISOR;
  return SHMBW_SESSION_STATE_MEMBER;
}

// The transport counts the two descriptors of the session that asks already. Its user's share does not count them yet.
std::optional<Shortage> session_shortage(const Ledger& ledger, std::uint32_t uid, bool admin) {
  auto full = ledger.descriptor_shortage(uid, 0, admin);
  // Its own two are open already.
  if (full) full->used -= full->asked = 2;
  if (full || admin) return full;
  return ledger.share_shortage(uid, 2);
}

namespace {

constexpr std::size_t kLibraryShown = 64;

// A peer's name for itself is shown in tables on terminals.
std::string printable(std::string_view text) {
  std::string out(text.substr(0, kLibraryShown));
  std::ranges::replace_if(out, [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return out;
}

// A process whose connection the broker closed (law 8) is back: its objects continue under the new session.
void take_over(Ledger& ledger, Session& heir, Session& from) {
  while (!from.leases.empty()) {
    auto node = from.leases.extract(from.leases.begin());
    Lease& lease = node.mapped();
    lease.session = &heir;
    if (GpuMemory* gpu = lease.region->gpu.get(); gpu && gpu->exporter == &from) gpu->exporter = &heir;
    lease.charge.move_to(heir.account);
    heir.leases.insert(std::move(node));
  }
  heir.line = from.line;
  move_tickets(from, heir);
  move_ticket_charges(from, heir);
  if (Group* group = from.group) join_group(ledger, heir, *group);
  heir.ended_group = from.ended_group;
  if (Group* group = from.supervises) supervise_group(ledger, heir, *group);
  while (Group* group = from.sponsored.first()) sponsor_group(heir, *group);
  move_participations(from, heir);
  move_worker(from, heir);
  heir.gpu_devices = std::move(from.gpu_devices);
  end_session(ledger, from);
}

// A forked child, or a second connection, joins the group of its parent. The group is made now if the parent has none
// yet.
Result<void> follow(Ledger& ledger, Session& session, Session& source) {
  session.fork_source = source.id;
  if (source.lazy && source.uid == session.uid && source.pid == session.pid && session.pid != 0) {
    take_over(ledger, session, source);
    return {};
  }
  if (source.ended_group) {
    session.ended_group = source.ended_group;
    return {};
  }
  // A forked child of a supervisor is part of the job.
  if (!source.group && source.supervises) {
    join_group(ledger, session, *source.supervises);
    return {};
  }
  SHMB_TRY_VOID(own_group(ledger, source));
  join_group(ledger, session, *source.group);
  return {};
}

Result<void> admit(Ledger& ledger, Session& session, const shmbw_hello& hello) {
  if (session.refusal) {  // the limit may have room by now
    Uid& uid = ledger.uids.at(session.uid);
    session.refusal_told = true;
    const bool root = session.uid == 0 && !ledger.private_mode();
    if (const auto full = session_shortage(ledger, session.uid, session.admin || root))
      return std::unexpected(refuse_descriptors(ledger, *full));
    auto charge = uid.account.charge(Resource::sessions, 1);
    if (!charge) return std::unexpected(refuse_limit(ledger, session, charge.error()));
    session.charge = std::move(*charge);
    session.refusal.reset();
    std::erase(uid.refused, session.id);
  }
  if (hello.fork_session) {
    Session* source = ledger.find_session(hello.fork_session);
    const Secret shown = Secret::from(hello.fork_secret);
    if (!source || !source->greeted() || !source->fork_secret.same(shown))
      return error(Status::not_found,
                   "the session to follow is gone or the fork secret is not its own; say HELLO without it");
    return follow(ledger, session, *source);
  }
  const Secret token = Secret::from(hello.group_token);
  if (token.zero()) return {};
  Group* group = find_group(ledger, token);
  if (!group)
    return error(Status::not_found,
                 "the token of SHMBROKER_GROUP admits to no group here: the group has ended, "
                 "or belongs to another broker");
  if (group->closed) return error(Status::group_ended, "the group of SHMBROKER_GROUP has ended");
  join_group(ledger, session, *group);
  return {};
}

}  // namespace

void serve_hello(const Request& request) {
  auto& [ledger, session, packet] = request;
  auto hello = request.read<shmbw_hello>();
  if (!hello) return;
  wire::TextReader texts(packet.rest);
  auto library = texts.take(hello->library_len);
  auto group = texts.take(hello->group_len);
  if (!library || !group || !texts.done()) return request.refuse_struct(Status::invalid);
  if (hello->version_min > hello->version_max || hello->version_min > SHMBW_PROTOCOL ||
      hello->version_max < SHMBW_PROTOCOL) {
    session.phase = Phase::refused;
    return request.fail(Status::version, "the client speaks protocol " + std::to_string(hello->version_min) + " to " +
                                             std::to_string(hello->version_max) + ", this broker (" +
                                             ledger.facts.version + ") " + std::to_string(SHMBW_PROTOCOL) +
                                             ": install matching versions");
  }
  // Without a start time (a client without /proc) an uncertain pidfd is useless, and is never watched.
  if (session.has_pidfd && !session.link->confirm_start_time(hello->start_time)) session.has_pidfd = false;
  auto secret = Secret::draw();
  if (!secret) return request.fail(system_failure(secret.error(), "drawing a fork secret").error());
  session.fork_secret = *secret;
  if (auto admitted = admit(ledger, session, *hello); !admitted) return request.fail(admitted.error());
  session.library = printable(*library);
  session.start_ticks = hello->start_time;
  session.takes_descriptors =
      (hello->features & SHMBW_FEATURE_PASS_RIGHTS) != 0 && !ledger.closes_too_many(session.uid);
  if (session.takes_descriptors) session.link->take_descriptors(false);
  session.phase = Phase::greeted;

  shmbw_hello_reply reply{};
  reply.version = SHMBW_PROTOCOL;
  reply.mode = ledger.private_mode() ? SHMBW_MODE_PRIVATE : SHMBW_MODE_SYSTEM;
  reply.broker_uid = ledger.facts.uid;
  reply.uid = session.uid;
  reply.max_message = SHMBW_MAX_MESSAGE;
  reply.features = ledger.facts.features;
  reply.epoch = ledger.facts.epoch;
  reply.session = session.id;
  reply.group = session.group ? session.group->id : 0;
  session.fork_secret.to(reply.fork_secret);
  reply.max_batch = SHMBW_MAX_BATCH;
  reply.broker_len = static_cast<std::uint16_t>(ledger.facts.version.size());
  request.answer(reply, {ledger.facts.version});
}

// The last step of a session's end. It comes later where the process still has places in pools.
static void give_back_session(Ledger& ledger, Session& session) {
  session.charge.give_back();
  ledger.drop_uid(session.uid);
}

void end_session(Ledger& ledger, Session& session) {
  if (session.phase == Phase::ended) return;
  forget_lanes_in_making(ledger, session);
  session.batch.reset();
  // A process that only closed its socket still maps its pools. Its places there end with the process.
  if (!session.has_pidfd || session.process_gone) end_participations(ledger, session);
  Tally tally;
  Tally* outer = std::exchange(ledger.tally, &tally);
  leave_world(ledger, session, true);
  std::uint64_t group = session.group ? session.group->id : 0;
  std::string group_text = session.group ? session.group->text() : std::string();
  while (!session.watches.empty()) destroy_watch(ledger, session.watches.begin()->second);
  forget_awaited(ledger, session);
  destroy_tickets_of(ledger, session);
  leave_ticket_charges(session);
  gpu_session_over(ledger, session);
  for (auto at = session.leases.begin(); at != session.leases.end();)
    if (Lease& lease = (at++)->second; !gpu_lease_stays(session, lease)) drop_lease(ledger, lease);
  session.gpu_devices.clear();
  stop_supervising(ledger, session);
  leave_group(ledger, session);
  stop_sponsoring(ledger, session);
  leave_pools_over(ledger, session);
  ledger.tally = outer;
  session.phase = Phase::ended;
  session.link = nullptr;
  if (session.refusal) std::erase(ledger.uids.at(session.uid).refused, session.id);
  --ledger.live_sessions;
  if (tally.leases != 0 || tally.regions != 0) report_reclaim(ledger, session, tally, group, group_text);
  // Only now does their session count as ended.
  for (auto at = session.leases.begin(); at != session.leases.end();) settle_gpu(ledger, *(at++)->second.region);
  if (!session.awaits_end()) give_back_session(ledger, session);
}

void session_process_ended(Ledger& ledger, Session& session) {
  if (!session.awaits_end()) return;
  end_participations(ledger, session);
  if (session.phase != Phase::ended) return;
  drop_leases_of_dead(ledger, session);
  give_back_session(ledger, session);
}

void session_process_died(Ledger& ledger, Session& session, const sys::ExitInfo* how) {
  session_process_ended(ledger, session);
  if (session.phase == Phase::ended) return report_exit(ledger, session.id, how);
  session.process_gone = true;
  if (how) session.exit = *how;
  gpu_session_over(ledger, session);  // a forked child that holds the socket has no GPU memory
  // Roles, and things bound to the session's end, belong to the process, not to the socket that a child may hold.
  stop_supervising(ledger, session);
  leave_world(ledger, session, true);
  destroy_tickets_of(ledger, session);
  if (session.lazy) end_session(ledger, session);
  else drop_leases_of_dead(ledger, session);
}

void session_disconnected(Ledger& ledger, Session& session) {
  session.link = nullptr;
  if (session.phase == Phase::ended) return;
  session.lazy = true;
  forget_lanes_in_making(ledger, session);
  session.batch.reset();
  while (!session.watches.empty()) destroy_watch(ledger, session.watches.begin()->second);
  if (session.process_gone || !session.has_pidfd || !session.greeted()) end_session(ledger, session);
}

}  // namespace shmb::daemon
