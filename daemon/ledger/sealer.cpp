// SPDX-License-Identifier: Apache-2.0
// See sealer.hpp. A thread is started when all existing ones are busy. So a seal that hangs delays only what is behind
// it in the queue of its own uid.
#include "daemon/ledger/sealer.hpp"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "base/compat.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/grant.hpp"
#include "daemon/ledger/group.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/sessions.hpp"

namespace shmb::daemon {

bool Sealer::seal(Job job, int wake_fd) {
  std::lock_guard lock(threads_->mutex);
  threads_->wake = wake_fd;
  std::size_t startable = 1;
  for (const auto& [uid, load] : threads_->loads) startable += std::min(load.waiting, kSealsOfUid - load.running);
  if (threads_->threads - threads_->busy < startable && threads_->threads < kSealThreads && !threads_.start() &&
      threads_->threads == 0)
    return false;
  ++threads_->loads[job.uid].waiting;
  threads_->waiting.try_emplace({job.uid, ++threads_->last}, std::move(job));
  threads_->ready.notify_one();
  return true;
}

void Sealer::finished(std::vector<Job>& out) {
  out.clear();
  std::lock_guard lock(threads_->mutex);
  out.swap(threads_->finished);
}

bool Sealer::State::take(Job& job) {
  for (auto& [uid, load] : loads) {
    if (load.waiting == 0 || load.running >= kSealsOfUid) continue;
    auto oldest = waiting.lower_bound({uid, 0});
    job = std::move(oldest->second);
    waiting.erase(oldest);
    --load.waiting;
    ++load.running;
    return true;
  }
  return false;
}

void Sealer::State::run(std::unique_lock<std::mutex>& lock) {
  for (Job job; !stop;) {
    if (!take(job)) {
      ready.wait(lock);
      continue;
    }
    ++busy;
    lock.unlock();
    auto sealed = sys::add_seals(job.fd.get(), job.seals);
    job.code = sealed ? 0 : sealed.error().value;
    job.fd.reset();
    lock.lock();
    auto load = loads.find(job.uid);
    if (--load->second.running == 0 && load->second.waiting == 0) loads.erase(load);
    --busy;
    if (stop) return;  // the broker has ended, and the number may name another file
    finished.push_back(std::move(job));
    sys::event_signal(wake);
  }
}

int seals_under_way(const Regions& regions, const Region& region) {
  if (regions.sealings.empty()) return 0;
  auto at = regions.sealings.find(region.id);
  return at == regions.sealings.end() ? 0 : at->second.seals;
}

AwaitedSeals* awaited_seals(Session& session, const Region& region, int seals) {
  for (AwaitedSeals& one : session.awaited)
    if (one.region == region.id && one.seals == seals) return &one;
  return nullptr;
}

static Result<void> begin_seals(Regions& regions, const Session& session, Region& region, int seals) {
  auto copy = region.fd.dup();
  if (!copy) return system_failure(copy.error(), "a copy of the region's descriptor");
  Sealer::Job job{region.id, region.group->uid, seals, std::move(*copy), 0};
  if (!regions.sealer.seal(std::move(job), regions.closer.wake_fd()))
    return error(Status::no_memory, "no helper thread could be started to seal the region: ask again");
  regions.sealings.try_emplace(region.id, seals, session.uid, regions.host.nodes);
  region.no_recycle = true;
  changed(region);
  // The job may outlive its session and its region.
  regions.accounts.hold_uid(session.uid);
  regions.accounts.count_waiting(session.uid, 1);
  return {};
}

Result<void> await_seals(Sessions& sessions, Session& session, Region& region, int seals, Fd reader, Charge charge) {
  const bool begins = seals_under_way(sessions.regions, region) == 0;
  // A client can make seals that take as long as it likes, and disconnect meanwhile.
  if (const std::uint64_t wanted = (begins ? 1 : 0) + (reader ? 1 : 0); wanted != 0)
    if (const auto shortage = sessions.accounts.descriptor_shortage(session.uid, wanted, session.admin))
      return std::unexpected(refuse_descriptors(sessions.host, *shortage));
  if (begins)
    if (auto begun = begin_seals(sessions.regions, session, region, seals); !begun) return begun;
  Sealing& sealing = sessions.regions.sealings.at(region.id);
  AwaitedSeals* one = awaited_seals(session, region, sealing.seals);
  if (one && !one->done) return {};
  sealing.waiters.push_back(session.id);
  if (!one) one = &session.awaited.emplace_back();
  if (one->counted) sessions.accounts.count_waiting(session.uid, -1);
  *one = {region.id, sealing.seals, false, 0, {}, {}, false, {}};
  if (sealing.seals != seals) return {};
  one->counted = static_cast<bool>(reader);
  if (reader) sessions.accounts.count_waiting(session.uid, 1);
  one->reader = std::move(reader);
  one->charge = std::move(charge);
  return {};
}

void forget_awaited(Accounts& accounts, Session& session) {
  for (const AwaitedSeals& one : session.awaited)
    if (one.counted) accounts.count_waiting(session.uid, -1);
  session.awaited.clear();
}

// The request is served again once the last seals that it waits for are on or refused.
static void tell_waiter(Sessions& sessions, std::uint64_t id, const Sealer::Job& job) {
  Session* session = sessions.find(id);
  if (!session) return;
  bool waits = false, known = false;
  for (AwaitedSeals& one : session->awaited) {
    if (one.region == job.region && one.seals == job.seals && !one.done) {
      known = one.done = true;
      one.code = job.code;
    }
    waits = waits || !one.done;
  }
  if (known && !waits && session->link) session->link->serve_again();
}

void seals_done(Sessions& sessions) {
  sessions.regions.sealer.finished(sessions.regions.sealed);
  for (const Sealer::Job& job : sessions.regions.sealed) {
    auto sealing = sessions.regions.sealings.extract(job.region);
    sessions.accounts.count_waiting(sealing.mapped().uid, -1);
    sessions.accounts.drop_uid(sealing.mapped().uid);
    if (Region* region = sessions.regions.find(job.region); region && job.code == 0)
      sealed(sessions.regions, *region, job.seals);
    for (const std::uint64_t waiter : sealing.mapped().waiters) tell_waiter(sessions, waiter, job);
    sessions.host.descriptor_freed();
  }
}

}  // namespace shmb::daemon
