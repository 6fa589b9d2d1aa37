// SPDX-License-Identifier: Apache-2.0
// Freeing regions and reporting it.
#include "daemon/ledger/reclaim.hpp"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <system_error>

#include "base/text.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/sessions.hpp"
#include "daemon/ledger/tickets.hpp"
#include "daemon/ledger/watch.hpp"
#include "daemon/ledger/watches.hpp"

namespace shmb::daemon {

bool close_elsewhere(Accounts& accounts, std::uint32_t uid, std::vector<Fd> fds) {
  if (!accounts.client_files.close(uid, fds)) {
    accounts.host.log(4, "no helper thread could be started: closing a client's descriptors while others wait");
    fds.clear();
  }
  return !accounts.closes_too_many(uid);
}

bool close_elsewhere(Accounts& accounts, std::uint32_t uid, Fd fd) {
  if (!fd) return true;
  std::vector<Fd> one;
  one.push_back(std::move(fd));
  return close_elsewhere(accounts, uid, std::move(one));
}

static void erase_region(Regions& regions, Region& region) {
  Group& group = *region.group;
  Books& books = regions.host.books;
  books.end<books::RegionRecord>(books.regions, region);
  books.store.erase<books::NameRecord>(region.name_place);
  if (region.gpu) end_records(books, *region.gpu);
  group.regions.remove(region);
  regions.accounts.open_descriptors -= region.gpu ? region.gpu->descriptors : 1;
  regions.all.erase(region.id);
  regions.host.descriptor_freed();
  if (!group.in_service) settle_group(regions.groups, group);
}

void free_region(Regions& regions, Region& region, bool at_once) {
  tell_region(regions.watches, region, SHMBW_WATCH_EVENT_GONE);
  if (regions.tally && region.live()) {
    ++regions.tally->regions;
    regions.tally->bytes += region.bytes;
    if (on_gpu(region)) regions.tally->gpu_bytes += region.bytes;
  }
  if (region.live()) --regions.count;
  region.state = SHMBW_REGION_STATE_FREEING;
  changed(region);
  if (region.gpu) end_records(regions.host.books, *region.gpu);
  if (on_gpu(region)) {
    if (!close_gpu(regions, region)) erase_region(regions, region);
    return;
  }
  const bool many = regions.tally && regions.tally->regions > kCloseHereAtMost;
  if (!at_once && (many || regions.closed_here + region.bytes >= kCloseElsewhereFrom)) {
    if (regions.closer.close(region.fd, region.id)) {
      if (auto uid = regions.accounts.uids.find(region.group->uid); uid != regions.accounts.uids.end())
        uid->second.bytes_freeing += region.bytes;
      return;
    }
    regions.host.log(4,
                     "no helper thread could be started: closing " + format_size(region.bytes) + " while others wait");
  }
  regions.closed_here += region.bytes;
  regions.closer.close_here(std::move(region.fd));
  erase_region(regions, region);
}

bool release_region(Regions& regions, Region& region, bool recycle) {
  if (region.name_with_holders && region.name && region.leases.empty() && region.tickets == 0 && region.pool_holds == 0)
    region.group->names.remove(region);
  if (region.held()) {
    if (!region.needed()) {
      if (region.pool_holds != 0) regions.on_idle_hold();
      else if (region.tickets == 0 && (region.name == nullptr || region.name_with_holders)) ask_for_kept(region);
    }
    return region.gpu && settle_gpu(regions, region);
  }
  Group& group = *region.group;
  if (recycle && !group.closed && group.ended_at == 0 && Shelf::may_recycle(region) && group.shelf.put(region))
    return true;
  free_region(regions, region);
  return true;
}

void closed_regions(Regions& regions) {
  for (std::uint64_t id : regions.closer.finished()) {
    if (auto pool = regions.closing_pools.find(id); pool != regions.closing_pools.end()) {
      const std::uint32_t uid = pool->second.uid;
      regions.accounts.open_descriptors -= pool->second.descriptors;
      regions.closing_pools.erase(pool);
      regions.accounts.drop_uid(uid);
      regions.host.descriptor_freed();
      continue;
    }
    auto at = regions.all.find(id);
    if (at == regions.all.end()) continue;
    Region& region = at->second;
    if (auto uid = regions.accounts.uids.find(region.group->uid); uid != regions.accounts.uids.end())
      uid->second.bytes_freeing -= region.bytes;
    erase_region(regions, region);
  }
}

std::string death_text(bool lazy, const sys::ExitInfo* how) {
  std::string text = lazy ? "disconnected for not reading; " : "";
  if (!how) return text + "exit unknown";
  if (!how->killed) return text + "exited with status " + std::to_string(how->code);
  const char* name = sigabbrev_np(how->code);
  text += "killed by " + (name ? "SIG" + std::string(name) : "signal " + std::to_string(how->code));
  return how->core ? text + " (core dumped)" : text;
}

void tell_reclaim(Watches& watches, const ReclaimReport& report, shmbw_death how, std::int32_t code,
                  std::string_view text);

static void print(Sessions& sessions, const ReclaimReport& report, const sys::ExitInfo* how, bool lives = false) {
  std::string left =
      report.tally.regions == 0
          ? std::to_string(report.tally.leases) + (report.tally.leases == 1 ? " lease" : " leases") +
                " given back, nothing freed (others hold it)"
          : std::to_string(report.tally.regions) + (report.tally.regions == 1 ? " region, " : " regions, ") +
                format_size(report.tally.bytes) + " freed" +
                (report.tally.gpu_bytes == 0 ? std::string()
                                             : ", " + format_size(report.tally.gpu_bytes) + " of it on GPUs");
  const std::string ending = lives ? "it still runs, and has only closed its connection" : death_text(report.lazy, how);
  std::string text = "reclaim: uid " + std::to_string(report.uid) + " pid " +
                     (report.pid ? std::to_string(report.pid) : std::string("unknown")) +
                     (report.group_text.empty() ? std::string() : " group " + report.group_text) + ": " + left + "; " +
                     ending;
  ++sessions.reclaims;
  sessions.bytes_reclaimed += report.tally.bytes;
  sessions.host.log(6, text);
  shmbw_death death = how ? (how->killed ? SHMBW_DEATH_KILLED : SHMBW_DEATH_EXITED)
                          : (report.lazy ? SHMBW_DEATH_DISCONNECTED : SHMBW_DEATH_UNKNOWN);
  const std::int32_t code = how ? how->code : 0;
  sessions.told.add({report.session, report.group, sessions.host.now(), report.uid, report.pid, report.tally, death,
                     code, report.group_text, report.library, ending});
  tell_reclaim(sessions.watches, report, death, code, text);
}

void report_reclaim(Sessions& sessions, const Session& session, const Tally& tally, std::uint64_t group,
                    const std::string& group_text) {
  ReclaimReport& report = sessions.reports.try_emplace(session.id, sessions).first->second;
  report.session = session.id;
  report.group = group;
  report.uid = session.uid;
  report.pid = session.pid;
  report.lazy = session.lazy;
  report.group_text = group_text;
  report.library = session.library;
  report.tally = tally;
  if (!session.process_gone && session.has_pidfd) sessions.host.timers.set(report, sessions.host.now() + kExitWait);
  else report_exit(sessions, session.id, session.exit ? &*session.exit : nullptr);
}

void add_to_reclaim(Sessions& sessions, const Session& session, const Tally& tally, std::uint64_t group,
                    const std::string& group_text) {
  if (tally.leases == 0 && tally.regions == 0) return;
  auto at = sessions.reports.find(session.id);
  if (at == sessions.reports.end()) return report_reclaim(sessions, session, tally, group, group_text);
  at->second.tally.leases += tally.leases;
  at->second.tally.regions += tally.regions;
  at->second.tally.bytes += tally.bytes;
  at->second.tally.gpu_bytes += tally.gpu_bytes;
}

void report_exit(Sessions& sessions, std::uint64_t session, const sys::ExitInfo* how) {
  auto at = sessions.reports.find(session);
  if (at == sessions.reports.end()) return;
  print(sessions, at->second, how);
  sessions.reports.erase(at);
}

void report_lives(Sessions& sessions, std::uint64_t session) {
  auto at = sessions.reports.find(session);
  if (at == sessions.reports.end()) return;
  print(sessions, at->second, nullptr, true);
  sessions.reports.erase(at);
}

void ReclaimReport::on_timer(std::int64_t) { report_exit(sessions, session, nullptr); }

}  // namespace shmb::daemon
