// SPDX-License-Identifier: Apache-2.0
// Deadlines: a heap of pointers to timers that live in the objects they serve. Once the heap has grown, setting, moving
// and cancelling allocate nothing. A timer removes itself when it is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace shmb::daemon {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

class Timers;

class Timer {
 public:
  Timer() = default;
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  bool armed() const { return timers_ != nullptr; }
  void cancel();
  virtual void on_timer(std::int64_t now) = 0;

 protected:
  ~Timer() { cancel(); }

 private:
  friend class Timers;
  Timers* timers_ = nullptr;
  std::int64_t at_ = kNever;
  std::size_t index_ = 0;
  bool aside_ = false;  // in Timers::aside_, not in the heap
};

class Timers {
 public:
  Timers() = default;
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;
  ~Timers();
  void set(Timer& timer, std::int64_t at);  // CLOCK_BOOTTIME ns; moves one that is set
  std::int64_t next() const { return heap_.empty() ? kNever : heap_.front()->at_; }
  // Runs each due timer once. A timer that is set again for a time that is due waits for the next run. After `longest`
  // (ns) the others wait for the next run too.
  void run(std::int64_t now, std::int64_t longest = kNever);

 private:
  friend class Timer;
  void remove(Timer& timer);
  void up(std::size_t index);
  void down(std::size_t index);
  void place(std::size_t index, Timer* timer) {
    heap_[index] = timer;
    timer->index_ = index;
  }

  static constexpr std::int64_t kNotRunning = std::numeric_limits<std::int64_t>::min();

  std::vector<Timer*> heap_;
  std::vector<Timer*> aside_;  // set in this run and due already: the next run takes them, after all others
  std::int64_t running_ = kNotRunning;
};

}  // namespace shmb::daemon
