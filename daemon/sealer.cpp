// SPDX-License-Identifier: Apache-2.0
// See sealer.hpp. A thread is started when all there are have something to do, so that a stuck seal delays only what is
// behind it in the queue of its own uid.
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
  // Signals are the main thread's.
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
    auto sealed = sys::add_seals(job.fd.get(), F_SEAL_WRITE | F_SEAL_SEAL);
    job.code = sealed ? 0 : sealed.error().value;
    job.fd.reset();
    lock.lock();
    auto load = shared->loads.find(job.uid);
    if (--load->second.running == 0 && load->second.waiting == 0) shared->loads.erase(load);
    --shared->busy;
    if (shared->stop) break;  // nobody listens, and the number may be another file's
    shared->finished.push_back(std::move(job));
    sys::event_signal(shared->wake);
  }
  if (--shared->threads == 0) shared->gone.notify_all();
}

Fd Publication::take_reader(std::uint64_t session) {
  for (Waiter& waiter : waiters)
    if (waiter.session == session && waiter.reader) return std::move(waiter.reader);
  return {};
}

Publication* publication_of(World& world, const Region& region) {
  auto at = world.publications.find(region.id);
  return at == world.publications.end() ? nullptr : &at->second;
}

bool is_being_published(World& world, const Region& region) {
  if (world.publications.empty()) return false;
  const Publication* publication = publication_of(world, region);
  return publication && !publication->done;
}

Result<void> await_publication(World& world, const Session& session, Region& region, Fd reader) {
  if (!is_being_published(world, region)) {
    auto copy = region.fd.dup();
    if (!copy) return system_failure(copy.error(), "a copy of the region's descriptor");
    Sealer::Job job{region.id, region.group->uid, std::move(*copy), 0};
    if (!world.sealer.seal(std::move(job), world.closer.wake_fd()))
      return error(Status::no_memory, "no helper thread could be started to publish the region: ask again");
    world.publications.try_emplace(region.id, world.pool);
    region.no_recycle = true;
    ++world.open_descriptors;
  }
  Publication& publication = world.publications.at(region.id);
  if (reader) {
    ++publication.descriptors;
    ++world.open_descriptors;
  }
  publication.waiters.push_back({session.id, std::move(reader)});
  return {};
}

void publications_done(World& world) {
  world.sealer.finished(world.sealed);
  for (const Sealer::Job& job : world.sealed) {
    Publication& publication = world.publications.at(job.region);
    publication.done = true;
    publication.code = job.code;
    if (Region* region = world.find_region(job.region); region && job.code == 0) published(world, *region);
    for (std::size_t i = 0; i < publication.waiters.size(); ++i)
      if (Session* session = world.find_session(publication.waiters[i].session); session && session->link)
        session->link->serve_again();
    world.open_descriptors -= publication.descriptors;
    world.publications.erase(job.region);
    if (world.facts.descriptor_freed) world.facts.descriptor_freed();
  }
}

}  // namespace shmb::daemon
