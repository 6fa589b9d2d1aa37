// SPDX-License-Identifier: Apache-2.0
// How a tree is ended: one signal, a grace, then SIGKILL repeatedly until no child is left. It is a state machine
// without a loop of its own, because guard and supervisor do other work meanwhile.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/sys_process.hpp"
#include "spawn/ranks/job_cgroup.hpp"
#include "spawn/ranks/tree.hpp"

namespace shmb::spawn {

// CLOCK_MONOTONIC `duration` from now. "For ever" is the end of time, without overflow.
std::int64_t from_now(std::int64_t duration);
// The time until then for poll(2): in milliseconds, rounded up.
int poll_time(std::int64_t due);

// The children of this process, without bystanders.
class Tree {
 public:
  // `cgroup`: that of the job, where it has one. It outlives this.
  Tree(std::function<std::vector<pid_t>()> bystanders, const JobCgroup& cgroup)
      : bystanders_(std::move(bystanders)), cgroup_(cgroup) {}
  // Adds bystanders, for as long as each pid is still the same process.
  void spare(std::vector<Process> processes) { spared_ = std::move(processes); }
  // Children that are known without /proc. While one of them lives, /proc is not searched. Where there is no /proc,
  // they are the processes that can be signalled; their own children are then only waited for.
  void know(pid_t child) { known_.insert(child); }
  // Reaps processes that have ended. False: this process has no child left, and nothing is in the job's cgroup.
  bool reap(const std::function<void(const sys::ChildExit&)>& ended);
  std::vector<Process> left() const;  // without zombies
  void begin_ending(int signal, std::int64_t grace);
  void hurry();  // SIGKILL from now on
  bool ending() const { return next_pass_.has_value(); }
  // To be polled for POLLPRI: processes that are no children are left in the job's cgroup. -1: there are none.
  int others() const { return others_left_ ? cgroup_.events() : -1; }
  // Does what is due. Returns how long poll(2) may sleep, in ms, -1 for ever.
  int step();
  // CLOCK_MONOTONIC of the next step, -1 for none.
  std::int64_t step_due() const { return next_pass_ ? std::min(*next_pass_, look_again_) : -1; }

 private:
  std::vector<pid_t> skip() const;
  void signal_all(std::span<const int> signals) const;
  void tell_newcomers();
  bool others_left(std::span<const pid_t> ignored);

  std::function<std::vector<pid_t>()> bystanders_;
  const JobCgroup& cgroup_;
  bool others_left_ = false;
  std::vector<Process> spared_;
  std::set<pid_t> known_;                  // not reaped yet
  std::optional<std::int64_t> next_pass_;  // CLOCK_MONOTONIC
  std::int64_t pause_ = 0;
  int signal_ = 0;
  std::vector<Process> told_;  // processes that have the signal
  std::int64_t look_again_ = 0, look_pause_ = 0;
};

}  // namespace shmb::spawn
