// SPDX-License-Identifier: Apache-2.0
// The end of a region calls the driver and reports to the broker, so none ends with the lock held. Nothing may be
// unmapped too early. So regions are kept in a list whose parts move without an allocation, which could fail.
#include "cuda/leaving.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <list>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "base/sys_process.hpp"
#include "client/c_api/c_api.hpp"
#include "cuda/region.hpp"

namespace shmb::cuda {
namespace {

struct LeavingRegion {
  std::unique_ptr<Region> region;
  std::optional<Backlog> backlog;  // from the first question on
};

struct AllLeaving {
  std::mutex mutex;
  std::list<LeavingRegion> regions;
  std::atomic<std::size_t> count = 0;
};

// Never destroyed: a thread of the program may still release while its static objects go.
AllLeaving& all_leaving() {
  static AllLeaving* const all = new AllLeaving;
  return *all;
}

// A program that closes its session and calls nothing more would keep what it has let go. An idle device is done in
// this time. The question spoils captures, and no call of the driver tells whether any stream is captured. So a program
// keeps its session until a capture is over (docs/gpu.md).
void before_disconnect(client::Session& session) noexcept {
  constexpr std::int64_t kIdle = 20'000'000, kRest = 200'000;
  try {
    const auto until = client::Deadline::after(kIdle);
    while (Leaving::run(&session).waiting != 0 && !until.passed()) sys::rest(kRest);
  } catch (...) {  // they end with the process
  }
}

}  // namespace

void Leaving::add(std::unique_ptr<Region>& region) {
  std::list<LeavingRegion> one(1);
  one.front().region = std::move(region);
  AllLeaving& all = all_leaving();
  client::c_api::at_disconnect.store(before_disconnect, std::memory_order_release);
  std::lock_guard lock(all.mutex);
  all.regions.splice(all.regions.end(), one);
  all.count.fetch_add(1, std::memory_order_release);
}

bool Leaving::any() noexcept { return all_leaving().count.load(std::memory_order_acquire) != 0; }

bool Leaving::any_on(const Uuid& device) {
  if (!any()) return false;
  AllLeaving& all = all_leaving();
  std::lock_guard lock(all.mutex);
  // Regions that another thread is checking right now are not in the list.
  if (all.count.load(std::memory_order_acquire) != all.regions.size()) return true;
  return std::ranges::any_of(all.regions, [&](const auto& one) { return one.region->memory().uuid == device; });
}

Leaving::Counts Leaving::run(const client::Session* session) {
  Counts counts;
  if (!any() || Driver::loaded() == nullptr) return counts;  // a forked child: the regions are the parent's
  AllLeaving& all = all_leaving();
  std::list<LeavingRegion> looked_at;
  {
    std::lock_guard lock(all.mutex);
    for (auto next = all.regions.begin(); next != all.regions.end();) {
      const auto one = next++;
      if (session == nullptr || one->region->of(session) || one->region->of(nullptr))
        looked_at.splice(looked_at.end(), all.regions, one);
    }
  }
  for (auto next = looked_at.begin(); next != looked_at.end();) {
    const auto one = next++;
    try {
      if (!one->backlog || one->backlog->blind()) one->backlog.emplace(one->region->backlog());
      if (!one->backlog->over()) continue;
    } catch (const std::bad_alloc&) {  // no memory for a sentence: not known, then
      continue;
    }
    one->backlog.reset();
    looked_at.erase(one);
    all.count.fetch_sub(1, std::memory_order_release);
    ++counts.ended;
  }
  counts.waiting = looked_at.size();
  std::lock_guard lock(all.mutex);
  all.regions.splice(all.regions.end(), looked_at);
  return counts;
}

}  // namespace shmb::cuda
