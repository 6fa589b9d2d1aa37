// SPDX-License-Identifier: Apache-2.0
// See sealer.hpp. A thread is started when all existing ones are busy. So a seal that hangs delays only what is behind
// it in the queue of its own uid.
#include "daemon/sealer.hpp"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <system_error>
#include <utility>

#include "base/compat.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "daemon/grant.hpp"
#include "daemon/refuse.hpp"
#include "daemon/world.hpp"

namespace shmb::daemon {
namespace {

constexpr std::chrono::seconds kLastWait{1};

}  // namespace

Sealer::Sealer() : shared_(std::make_shared<Shared>()) {}

Sealer::~Sealer() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->ready.notify_all();
  const bool all = shared_->gone.wait_for(lock, kLastWait, [this] { return shared_->threads == 0; });
  lock.unlock();
  for (std::thread& thread : threads_)
    if (all) thread.join();
    else thread.detach();
}

bool Sealer::seal(Job job, int wake_fd) {
  std::lock_guard lock(shared_->mutex);
  shared_->wake = wake_fd;
  std::size_t startable = 1;
  for (const auto& [uid, load] : shared_->loads) startable += std::min(load.waiting, kSealsOfUid - load.running);
  if (shared_->threads - shared_->busy < startable && shared_->threads < kSealThreads) {
    try {
      threads_.emplace_back([shared = shared_] { run(shared); });
      ++shared_->threads;
    } catch (const std::system_error&) {
      if (shared_->threads == 0) return false;
    }
  }
  ++shared_->loads[job.uid].waiting;
  shared_->waiting.try_emplace({job.uid, ++shared_->last}, std::move(job));
  shared_->ready.notify_one();
  return true;
}

void Sealer::finished(std::vector<Job>& out) {
  out.clear();
  std::lock_guard lock(shared_->mutex);
  out.swap(shared_->finished);
}

bool Sealer::take(Shared& shared, Job& job) {
  for (auto& [uid, load] : shared.loads) {
    if (load.waiting == 0 || load.running >= kSealsOfUid) continue;
    auto oldest = shared.waiting.lower_bound({uid, 0});
    job = std::move(oldest->second);
    shared.waiting.erase(oldest);
    --load.waiting;
    ++load.running;
    return true;
  }
  return false;
}

void Sealer::run(const std::shared_ptr<Shared>& shared) {
  // Signals belong to the main thread.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(shared->mutex);
  for (Job job; !shared->stop;) {
    if (!take(*shared, job)) {
      shared->ready.wait(lock);
      continue;
    }
    ++shared->busy;
    lock.unlock();
    auto sealed = sys::add_seals(job.fd.get(), job.seals);
    job.code = sealed ? 0 : sealed.error().value;
    job.fd.reset();
    lock.lock();
    auto load = shared->loads.find(job.uid);
    if (--load->second.running == 0 && load->second.waiting == 0) shared->loads.erase(load);
    --shared->busy;
    if (shared->stop) break;  // the broker has ended, and the number may name another file
    shared->finished.push_back(std::move(job));
    sys::event_signal(shared->wake);
  }
  if (--shared->threads == 0) shared->gone.notify_all();
}

int seals_under_way(const World& world, const Region& region) {
  if (world.sealings.empty()) return 0;
  auto at = world.sealings.find(region.id);
  return at == world.sealings.end() ? 0 : at->second.seals;
}

AwaitedSeals* awaited_seals(Session& session, const Region& region, int seals) {
  for (AwaitedSeals& one : session.awaited)
    if (one.region == region.id && one.seals == seals) return &one;
  return nullptr;
}

static Result<void> begin_seals(World& world, const Session& session, Region& region, int seals) {
  auto copy = region.fd.dup();
  if (!copy) return system_failure(copy.error(), "a copy of the region's descriptor");
  Sealer::Job job{region.id, region.group->uid, seals, std::move(*copy), 0};
  if (!world.sealer.seal(std::move(job), world.closer.wake_fd()))
    return error(Status::no_memory, "no helper thread could be started to seal the region: ask again");
  world.sealings.try_emplace(region.id, seals, session.uid, world.pool);
  region.no_recycle = true;
  // The job may outlive its session and its region.
  world.hold_uid(session.uid);
  world.count_waiting(session.uid, 1);
  return {};
}

Result<void> await_seals(World& world, Session& session, Region& region, int seals, Fd reader, Charge charge) {
  const bool begins = seals_under_way(world, region) == 0;
  // A client can make seals that take as long as it likes, and disconnect meanwhile.
  if (const std::uint64_t wanted = (begins ? 1 : 0) + (reader ? 1 : 0); wanted != 0)
    if (const auto shortage = world.descriptor_shortage(session.uid, wanted, session.admin))
      return std::unexpected(refuse_descriptors(world, *shortage));
  if (begins)
    if (auto begun = begin_seals(world, session, region, seals); !begun) return begun;
  Sealing& sealing = world.sealings.at(region.id);
  AwaitedSeals* one = awaited_seals(session, region, sealing.seals);
  if (one && !one->done) return {};
  sealing.waiters.push_back(session.id);
  if (!one) one = &session.awaited.emplace_back();
  if (one->counted) world.count_waiting(session.uid, -1);
  *one = {region.id, sealing.seals, false, 0, {}, {}, false, {}};
  if (sealing.seals != seals) return {};
  one->counted = static_cast<bool>(reader);
  if (reader) world.count_waiting(session.uid, 1);
  one->reader = std::move(reader);
  one->charge = std::move(charge);
  return {};
}

void forget_awaited(World& world, Session& session) {
  for (const AwaitedSeals& one : session.awaited)
    if (one.counted) world.count_waiting(session.uid, -1);
  session.awaited.clear();
}

// The request is served again once the last seals that it waits for are on or refused.
static void tell_waiter(World& world, std::uint64_t id, const Sealer::Job& job) {
  Session* session = world.find_session(id);
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

void seals_done(World& world) {
  world.sealer.finished(world.sealed);
  for (const Sealer::Job& job : world.sealed) {
    auto sealing = world.sealings.extract(job.region);
    world.count_waiting(sealing.mapped().uid, -1);
    world.drop_uid(sealing.mapped().uid);
    if (Region* region = world.find_region(job.region); region && job.code == 0) sealed(world, *region, job.seals);
    for (const std::uint64_t waiter : sealing.mapped().waiters) tell_waiter(world, waiter, job);
    if (world.facts.descriptor_freed) world.facts.descriptor_freed();
  }
}

}  // namespace shmb::daemon
