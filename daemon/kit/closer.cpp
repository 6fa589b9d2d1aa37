// SPDX-License-Identifier: Apache-2.0
// See closer.hpp. A thread closes all its jobs before it ends, because no other thread would.
#include "daemon/kit/closer.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/result.hpp"
#include "base/sys_process.hpp"

namespace shmb::daemon {

Sys<void> Closer::prepare(Closer& closer) {
  SHMB_TRY(fd, sys::event_fd());
  closer.wake_ = std::move(fd);
  closer.threads_->wake = closer.wake_.get();
  return {};
}

std::size_t Closer::waiting() const {
  std::lock_guard lock(threads_->mutex);
  return threads_->waiting;
}

bool Closer::close(Fd& fd, std::uint64_t region) {
  std::vector<Fd> one;
  one.push_back(std::move(fd));
  if (close(one, region)) return true;
  fd = std::move(one.front());
  return false;
}

bool Closer::close(std::vector<Fd>& fds, std::uint64_t region) {
  std::vector<Mapping> none;
  return close(fds, none, region);
}

bool Closer::close(std::vector<Fd>& fds, std::vector<Mapping>& maps, std::uint64_t region) {
  std::lock_guard lock(threads_->mutex);
  if (threads_->threads == 0 && !threads_.start()) return false;
  threads_->waiting += fds.size();
  held_.push_back({std::exchange(fds, {}), std::exchange(maps, {}), region});
  return true;
}

void Closer::close_held() {
  constexpr std::size_t kKept = 1024;
  here_.clear();
  if (here_.capacity() > kKept) here_ = std::vector<Fd>();
  if (held_.empty()) return;
  std::lock_guard lock(threads_->mutex);
  threads_->jobs.insert(threads_->jobs.end(), std::make_move_iterator(held_.begin()),
                        std::make_move_iterator(held_.end()));
  held_.clear();
  threads_->ready.notify_one();
}

void Closer::State::run(std::unique_lock<std::mutex>& lock) {
  std::vector<Job> batch;
  for (;;) {
    ready.wait(lock, [&] { return stop || !jobs.empty(); });
    if (jobs.empty()) return;
    batch.swap(jobs);
    lock.unlock();
    std::size_t closed = 0;
    for (Job& job : batch) {
      closed += job.fds.size();
      job.maps.clear();
      job.fds.clear();
    }
    lock.lock();
    waiting -= closed;
    const bool heard = wake >= 0 && !stop;  // after that the number may name another file
    if (heard)
      for (const Job& job : batch) finished.push_back(job.region);
    batch.clear();
    if (heard) sys::event_signal(wake);
  }
}

std::vector<std::uint64_t> Closer::finished() {
  sys::event_drain(wake_.get());
  std::lock_guard lock(threads_->mutex);
  return std::exchange(threads_->finished, {});
}

PerUidCloser::~PerUidCloser() {
  const auto until = std::chrono::steady_clock::now() + kLastWait;
  for (auto& [uid, closer] : of_)
    closer.end(std::max(until - std::chrono::steady_clock::now(), std::chrono::nanoseconds{}));
}

bool PerUidCloser::close(std::uint32_t uid, std::vector<Fd>& fds) {
  constexpr std::size_t kKept = 16;  // idle threads of users that are kept
  if (of_.size() >= kKept && !of_.contains(uid))
    for (auto at = of_.begin(); at != of_.end();) {
      if (at->second.waiting() != 0) {
        ++at;
        continue;
      }
      at->second.end({});
      at = of_.erase(at);
    }
  Closer& closer = of_[uid];
  if (!closer.close(fds)) return false;
  closer.go();
  return true;
}

std::size_t PerUidCloser::waiting(std::uint32_t uid) const {
  const auto at = of_.find(uid);
  return at == of_.end() ? 0 : at->second.waiting();
}

std::size_t PerUidCloser::waiting() const {
  std::size_t sum = 0;
  for (const auto& [uid, closer] : of_) sum += closer.waiting();
  return sum;
}

}  // namespace shmb::daemon
