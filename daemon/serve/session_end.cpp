// SPDX-License-Identifier: Apache-2.0
// The ends that a session can come to. An end touches all registries: what the session has in each is given back.
#include "daemon/serve/session_end.hpp"

#include <utility>

#include "daemon/serve/answer.hpp"
#include "daemon/serve/stored_answer.hpp"

namespace shmb::daemon {

void take_over(Ledger& ledger, Session& heir, Session& from) {
  while (!from.leases.empty()) {
    auto node = from.leases.extract(from.leases.begin());
    Lease& lease = node.mapped();
    lease.session = &heir;
    changed(lease);
    if (GpuMemory* gpu = lease.region->gpu.get(); gpu && gpu->exporter == from.id) {
      gpu->exporter = heir.id;
      changed(*gpu);
    }
    lease.charge.move_to(heir.account);
    heir.leases.insert(std::move(node));
  }
  heir.line = from.line;
  changed(heir);
  move_tickets(from, heir);
  move_ticket_charges(from, heir);
  if (Group* group = from.group) join_group(ledger.groups, heir, *group);
  heir.ended_group = from.ended_group;
  if (Group* group = from.supervises) supervise_group(ledger.groups, heir, *group);
  while (Group* group = from.sponsored.first()) sponsor_group(heir, *group);
  move_participations(ledger.pools, from, heir);
  move_worker(from, heir);
  drop_devices(heir);
  heir.gpu_devices = std::exchange(from.gpu_devices, {});
  end_session(ledger, from);
}

// The last step of a session's end. It comes later where the process still has places in pools.
static void give_back_session(Ledger& ledger, Session& session) {
  session.charge.give_back();
  changed(session);
  ledger.accounts.drop_uid(session.uid);
}

void end_session(Ledger& ledger, Session& session) {
  if (session.phase == Phase::ended) return;
  forget_lanes_in_making(ledger.pools, session);
  session.batch.reset();
  ledger.books_copy.end(session);
  // A process that only closed its socket still maps its pools. Its places there end with the process.
  if (!session.has_pidfd || session.process_gone) end_participations(ledger.pools, session);
  Tally tally;
  Tally* outer = std::exchange(ledger.regions.tally, &tally);
  leave_world(ledger.worlds, session, true);
  std::uint64_t group = session.group ? session.group->id : 0;
  std::string group_text = session.group ? session.group->text() : std::string();
  while (!session.watches.empty()) destroy_watch(ledger.watches, session.watches.begin()->second);
  forget_awaited(ledger.accounts, session);
  destroy_tickets_of(ledger.tickets, session);
  leave_ticket_charges(ledger.tickets, session);
  gpu_session_over(ledger.regions, session);
  for (auto at = session.leases.begin(); at != session.leases.end();)
    if (Lease& lease = (at++)->second; !gpu_lease_stays(session, lease)) drop_lease(ledger.regions, lease);
  drop_devices(session);
  stop_supervising(ledger.groups, session);
  leave_group(ledger.groups, session);
  stop_sponsoring(ledger.groups, session);
  leave_pools_over(ledger.pools, session);
  ledger.regions.tally = outer;
  session.phase = Phase::ended;
  changed(session);
  session.lose_link();
  if (session.refusal) std::erase(ledger.accounts.uids.at(session.uid).refused, session.id);
  --ledger.accounts.live_sessions;
  if (tally.leases != 0 || tally.regions != 0) report_reclaim(ledger.sessions, session, tally, group, group_text);
  // Only now does their session count as ended.
  for (auto at = session.leases.begin(); at != session.leases.end();)
    settle_gpu(ledger.regions, *(at++)->second.region);
  if (!session.awaits_end()) give_back_session(ledger, session);
}

void session_process_ended(Ledger& ledger, Session& session) {
  if (!session.awaits_end()) return;
  end_participations(ledger.pools, session);
  if (session.phase != Phase::ended) return;
  drop_leases_of_dead(ledger.sessions, session);
  give_back_session(ledger, session);
}

void session_process_died(Ledger& ledger, Session& session, const sys::ExitInfo* how) {
  session_process_ended(ledger, session);
  if (session.phase == Phase::ended) return report_exit(ledger.sessions, session.id, how);
  session.process_gone = true;
  changed(session);
  if (how) session.exit = *how;
  gpu_session_over(ledger.regions, session);  // a forked child that holds the socket has no GPU memory
  // Roles, and things bound to the session's end, belong to the process, not to the socket that a child may hold.
  stop_supervising(ledger.groups, session);
  leave_world(ledger.worlds, session, true);
  destroy_tickets_of(ledger.tickets, session);
  if (session.lazy) end_session(ledger, session);
  else drop_leases_of_dead(ledger.sessions, session);
}

void forget_session(Ledger& ledger, Session& session) {
  end_session(ledger, session);
  session_process_ended(ledger, session);  // no later report will come
  end_numbers(ledger.host.books, session.numbers);
  ledger.host.books.end<books::SessionRecord>(ledger.host.books.sessions, session);
  ledger.sessions.all.erase(session.id);
}

void session_disconnected(Ledger& ledger, Session& session) {
  session.lose_link();
  changed(session);
  if (session.phase == Phase::ended) return;
  session.lazy = true;
  forget_lanes_in_making(ledger.pools, session);
  session.batch.reset();
  while (!session.watches.empty()) destroy_watch(ledger.watches, session.watches.begin()->second);
  if (session.process_gone || !session.has_pidfd || !session.greeted()) end_session(ledger, session);
}

}  // namespace shmb::daemon
