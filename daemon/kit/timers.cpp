// SPDX-License-Identifier: Apache-2.0
// A binary heap with back-pointers; see timers.hpp.
#include "daemon/kit/timers.hpp"

#include "base/sys_process.hpp"

namespace shmb::daemon {

void Timer::cancel() {
  if (timers_ != nullptr) timers_->remove(*this);
}

Timers::~Timers() {
  for (const auto* all : {&heap_, &aside_})
    for (Timer* timer : *all) timer->timers_ = nullptr;
}

void Timers::set(Timer& timer, std::int64_t at) {
  const bool put_aside = at <= running_ && (timer.timers_ == nullptr || timer.aside_);
  if (timer.timers_ != nullptr && timer.aside_ != put_aside) remove(timer);
  if (timer.timers_ == nullptr) {
    auto& all = put_aside ? aside_ : heap_;
    all.push_back(&timer);
    timer.index_ = all.size() - 1;
    timer.timers_ = this;
    timer.aside_ = put_aside;
  }
  timer.at_ = at;
  if (put_aside) return;
  up(timer.index_);
  down(timer.index_);
}

void Timers::run(std::int64_t now, std::int64_t longest) {
  running_ = now;
  const std::int64_t until = longest == kNever ? kNever : sys::now_monotonic() + longest;
  while (!heap_.empty() && heap_.front()->at_ <= now) {
    Timer& due = *heap_.front();
    remove(due);
    due.on_timer(now);
    if (until != kNever && sys::now_monotonic() >= until) break;
  }
  running_ = kNotRunning;
  for (Timer* timer : aside_) {
    timer->aside_ = false;
    heap_.push_back(timer);
    timer->index_ = heap_.size() - 1;
    up(timer->index_);
  }
  aside_.clear();
}

void Timers::remove(Timer& timer) {
  const std::size_t index = timer.index_;
  auto& all = timer.aside_ ? aside_ : heap_;
  Timer* last = all.back();
  all.pop_back();
  timer.timers_ = nullptr;
  if (timer.aside_) {
    timer.aside_ = false;
    if (last == &timer) return;
    all[index] = last;
    last->index_ = index;
    return;
  }
  if (last == &timer) return;
  place(index, last);
  up(index);
  down(last->index_);
}

void Timers::up(std::size_t index) {
  Timer* timer = heap_[index];
  while (index > 0) {
    std::size_t parent = (index - 1) / 2;
    if (heap_[parent]->at_ <= timer->at_) break;
    place(index, heap_[parent]);
    index = parent;
  }
  place(index, timer);
}

void Timers::down(std::size_t index) {
  Timer* timer = heap_[index];
  for (;;) {
    std::size_t child = 2 * index + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1]->at_ < heap_[child]->at_) ++child;
    if (timer->at_ <= heap_[child]->at_) break;
    place(index, heap_[child]);
    index = child;
  }
  place(index, timer);
}

}  // namespace shmb::daemon
