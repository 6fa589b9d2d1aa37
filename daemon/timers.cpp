// SPDX-License-Identifier: Apache-2.0
// A binary heap with back-pointers; see timers.hpp.
#include "daemon/timers.hpp"

namespace shmb::daemon {

void Timer::cancel() {
  if (timers_ != nullptr) timers_->remove(*this);
}

Timers::~Timers() {
  for (Timer* timer : heap_) timer->timers_ = nullptr;
}

void Timers::set(Timer& timer, std::int64_t at) {
  if (timer.timers_ == nullptr) {
    heap_.push_back(&timer);
    timer.index_ = heap_.size() - 1;
    timer.timers_ = this;
  }
  timer.at_ = at;
  up(timer.index_);
  down(timer.index_);
}

void Timers::run(std::int64_t now) {
  // A timer set anew for a moment that has passed already must not keep the loop here: no more turns than timers.
  for (std::size_t turns = heap_.size(); turns > 0 && next() <= now; --turns) {
    Timer& due = *heap_.front();
    remove(due);
    due.on_timer(now);
  }
}

void Timers::remove(Timer& timer) {
  std::size_t index = timer.index_;
  Timer* last = heap_.back();
  heap_.pop_back();
  timer.timers_ = nullptr;
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
