// SPDX-License-Identifier: Apache-2.0
// Freeing regions and reporting it.
#include "daemon/ledger/reclaim.hpp"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <system_error>

#include "base/text.hpp"
#include "daemon/ledger/ledger.hpp"
#include "daemon/ledger/watch.hpp"

namespace shmb::daemon {

bool close_elsewhere(Ledger& ledger, std::uint32_t uid, std::vector<Fd> fds) {
  if (!ledger.client_files.close(uid, fds)) {
    ledger.log(4, "no helper thread could be started: closing a client's descriptors while others wait");
    fds.clear();
  }
  return !ledger.closes_too_many(uid);
}

bool close_elsewhere(Ledger& ledger, std::uint32_t uid, Fd fd) {
  if (!fd) return true;
  std::vector<Fd> one;
  one.push_back(std::move(fd));
  return close_elsewhere(ledger, uid, std::move(one));
}

static void erase_region(Ledger& ledger, Region& region) {
  Group& group = *region.group;
  group.regions.remove(region);
  ledger.open_descriptors -= region.gpu ? region.gpu->descriptors : 1;
  ledger.regions.erase(region.id);
  if (ledger.facts.descriptor_freed) ledger.facts.descriptor_freed();
  if (!group.in_service) settle_group(ledger, group);
}

void free_region(Ledger& ledger, Region& region, bool at_once) {
  tell_region(ledger, region, SHMBW_WATCH_EVENT_GONE);
  if (ledger.tally && region.live()) {
    ++ledger.tally->regions;
    ledger.tally->bytes += region.bytes;
    if (on_gpu(region)) ledger.tally->gpu_bytes += region.bytes;
  }
  if (region.live()) --ledger.region_count;
  region.state = SHMBW_REGION_STATE_FREEING;
  if (on_gpu(region)) {
    if (!close_gpu(ledger, region)) erase_region(ledger, region);
    return;
  }
  const bool many = ledger.tally && ledger.tally->regions > kCloseHereAtMost;
  if (!at_once && (many || ledger.closed_here + region.bytes >= kCloseElsewhereFrom)) {
    if (ledger.closer.close(region.fd, region.id)) {
      if (auto uid = ledger.uids.find(region.group->uid); uid != ledger.uids.end())
        uid->second.bytes_freeing += region.bytes;
      return;
    }
    ledger.log(4, "no helper thread could be started: closing " + format_size(region.bytes) + " while others wait");
  }
  ledger.closed_here += region.bytes;
  region.fd.reset();
  erase_region(ledger, region);
}

bool release_region(Ledger& ledger, Region& region, bool recycle) {
  if (region.held()) {
    if (!region.needed()) {
      if (region.pool_holds != 0) ledger.idle_holds.noticed();
      else if (region.tickets == 0 && region.name == nullptr) ask_for_kept(region);
    }
    return region.gpu && settle_gpu(ledger, region);
  }
  Group& group = *region.group;
  if (recycle && !group.closed && group.ended_at == 0 && Shelf::may_recycle(region) && group.shelf.put(region))
    return true;
  free_region(ledger, region);
  return true;
}

void closed_regions(Ledger& ledger) {
  for (std::uint64_t id : ledger.closer.finished()) {
    if (auto pool = ledger.closing_pools.find(id); pool != ledger.closing_pools.end()) {
      const std::uint32_t uid = pool->second.uid;
      ledger.open_descriptors -= pool->second.descriptors;
      ledger.closing_pools.erase(pool);
      ledger.drop_uid(uid);
      if (ledger.facts.descriptor_freed) ledger.facts.descriptor_freed();
      continue;
    }
    auto at = ledger.regions.find(id);
    if (at == ledger.regions.end()) continue;
    Region& region = at->second;
    if (auto uid = ledger.uids.find(region.group->uid); uid != ledger.uids.end())
      uid->second.bytes_freeing -= region.bytes;
    erase_region(ledger, region);
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

void tell_reclaim(Ledger& ledger, const ReclaimReport& report, shmbw_death how, std::int32_t code,
                  std::string_view text);

static void print(Ledger& ledger, const ReclaimReport& report, const sys::ExitInfo* how, bool lives = false) {
  std::string left =
      report.tally.regions == 0
          ? std::to_string(report.tally.leases) + (report.tally.leases == 1 ? " lease" : " leases") +
                " given back, nothing freed (others hold it)"
          : std::to_string(report.tally.regions) + (report.tally.regions == 1 ? " region, " : " regions, ") +
                format_size(report.tally.bytes) + " freed" +
                (report.tally.gpu_bytes == 0 ? std::string()
                                             : ", " + format_size(report.tally.gpu_bytes) + " of it on GPUs");
  std::string text = "reclaim: uid " + std::to_string(report.uid) + " pid " +
                     (report.pid ? std::to_string(report.pid) : std::string("unknown")) +
                     (report.group_text.empty() ? std::string() : " group " + report.group_text) + ": " + left + "; " +
                     (lives ? "it still runs, and has only closed its connection" : death_text(report.lazy, how));
  ++ledger.reclaims;
  ledger.bytes_reclaimed += report.tally.bytes;
  ledger.log(6, text);
  shmbw_death death = how ? (how->killed ? SHMBW_DEATH_KILLED : SHMBW_DEATH_EXITED)
                          : (report.lazy ? SHMBW_DEATH_DISCONNECTED : SHMBW_DEATH_UNKNOWN);
  tell_reclaim(ledger, report, death, how ? how->code : 0, text);
}

void report_reclaim(Ledger& ledger, const Session& session, const Tally& tally, std::uint64_t group,
                    const std::string& group_text) {
  ReclaimReport& report = ledger.reports.try_emplace(session.id, ledger).first->second;
  report.session = session.id;
  report.group = group;
  report.uid = session.uid;
  report.pid = session.pid;
  report.lazy = session.lazy;
  report.group_text = group_text;
  report.tally = tally;
  if (!session.process_gone && session.has_pidfd) ledger.timers.set(report, ledger.now() + kExitWait);
  else report_exit(ledger, session.id, session.exit ? &*session.exit : nullptr);
}

void add_to_reclaim(Ledger& ledger, const Session& session, const Tally& tally, std::uint64_t group,
                    const std::string& group_text) {
  if (tally.leases == 0 && tally.regions == 0) return;
  auto at = ledger.reports.find(session.id);
  if (at == ledger.reports.end()) return report_reclaim(ledger, session, tally, group, group_text);
  at->second.tally.leases += tally.leases;
  at->second.tally.regions += tally.regions;
  at->second.tally.bytes += tally.bytes;
  at->second.tally.gpu_bytes += tally.gpu_bytes;
}

void report_exit(Ledger& ledger, std::uint64_t session, const sys::ExitInfo* how) {
  auto at = ledger.reports.find(session);
  if (at == ledger.reports.end()) return;
  print(ledger, at->second, how);
  ledger.reports.erase(at);
}

void report_lives(Ledger& ledger, std::uint64_t session) {
  auto at = ledger.reports.find(session);
  if (at == ledger.reports.end()) return;
  print(ledger, at->second, nullptr, true);
  ledger.reports.erase(at);
}

void ReclaimReport::on_timer(std::int64_t) { report_exit(ledger, session, nullptr); }

}  // namespace shmb::daemon
