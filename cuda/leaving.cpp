// SPDX-License-Identifier: Apache-2.0
// The end of a region calls the driver and reports to the broker, so none ends with the lock held. Nothing may be
// unmapped too early, and a region that has ended has no caller who could be told of a lack of memory. So a region that
// leaves needs none: each has the link to the next one, and the list is made without an allocation.
#include "cuda/leaving.hpp"

#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

#include "base/sys_process.hpp"
#include "client/c_api/c_api.hpp"
#include "cuda/region.hpp"

namespace shmb::cuda {
namespace {

struct AllLeaving {
  std::mutex mutex;
  Leaving::Line line;
  std::atomic<std::size_t> count = 0;
};

// Never destroyed: a thread of the program may still release while its static objects go.
AllLeaving& all_leaving() {
  alignas(AllLeaving) static std::byte place[sizeof(AllLeaving)];
  static AllLeaving* const all = new (place) AllLeaving;
  return *all;
}

// A program that closes its session and calls nothing more would keep what it has let go. An idle device is done within
// so many looks, which take 20 ms. Looks are counted and not time: on a busy host this thread may get no processor for
// longer. The question spoils captures, and no call of the driver tells whether any stream is captured. So a program
// keeps its session until a capture is over (docs/gpu.md).
void before_disconnect(client::Session& session) noexcept {
  constexpr int kLooks = 100;
  constexpr std::int64_t kRest = 200'000;
  try {
    for (int looks = 0; looks < kLooks && Leaving::run(&session).waiting != 0; ++looks) sys::rest(kRest);
  } catch (...) {  // they end with the process
  }
}

}  // namespace

Leaving::Line::Line() noexcept = default;
Leaving::Line::Line(Line&& other) noexcept
    : first_(std::move(other.first_)),
      last_(std::exchange(other.last_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}
Leaving::Line::~Line() = default;

void Leaving::Line::add(std::unique_ptr<Region> region) noexcept {
  Region* const last = region.get();
  (last_ == nullptr ? first_ : last_->after_) = std::move(region);
  last_ = last;
  ++size_;
}

void Leaving::Line::add(Line&& others) noexcept {
  while (auto one = others.take()) add(std::move(one));
}

std::unique_ptr<Region> Leaving::Line::take() noexcept {
  std::unique_ptr<Region> one = std::move(first_);
  if (one == nullptr) return one;
  first_ = std::move(one->after_);
  if (first_ == nullptr) last_ = nullptr;
  --size_;
  return one;
}

bool Leaving::Line::any_on(const Uuid& device) const noexcept {
  for (const Region* one = first_.get(); one != nullptr; one = one->after_.get())
    if (one->memory().uuid == device) return true;
  return false;
}

void Leaving::add(std::unique_ptr<Region> region) noexcept {
  AllLeaving& all = all_leaving();
  client::c_api::at_disconnect.store(before_disconnect, std::memory_order_release);
  std::lock_guard lock(all.mutex);
  all.line.add(std::move(region));
  all.count.fetch_add(1, std::memory_order_release);
}

bool Leaving::any() noexcept { return all_leaving().count.load(std::memory_order_acquire) != 0; }

bool Leaving::any_on(const Uuid& device) {
  if (!any()) return false;
  AllLeaving& all = all_leaving();
  std::lock_guard lock(all.mutex);
  // Regions that another thread is checking right now are not in the line.
  return all.count.load(std::memory_order_acquire) != all.line.size() || all.line.any_on(device);
}

bool Leaving::is_over(Region& region) noexcept {
  try {
    if (!region.left_with_ || region.left_with_->blind()) region.left_with_.emplace(region.backlog());
    if (!region.left_with_->over()) return false;
  } catch (const std::bad_alloc&) {  // no memory for a sentence: not known, then
    return false;
  }
  region.left_with_.reset();
  return true;
}

Leaving::Counts Leaving::run(const client::Session* session) {
  Counts counts;
  if (!any() || Driver::loaded() == nullptr) return counts;  // a forked child: the regions are the parent's
  AllLeaving& all = all_leaving();
  Line looked_at, waiting;
  {
    std::lock_guard lock(all.mutex);
    Line line = std::move(all.line);
    while (auto one = line.take()) {
      const bool chosen = session == nullptr || one->of(session) || one->of(nullptr);
      (chosen ? looked_at : all.line).add(std::move(one));
    }
  }
  while (auto one = looked_at.take()) {
    if (!is_over(*one)) {
      waiting.add(std::move(one));
      continue;
    }
    one.reset();
    all.count.fetch_sub(1, std::memory_order_release);
    ++counts.ended;
  }
  counts.waiting = waiting.size();
  std::lock_guard lock(all.mutex);
  all.line.add(std::move(waiting));
  return counts;
}

}  // namespace shmb::cuda
