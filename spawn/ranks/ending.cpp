// SPDX-License-Identifier: Apache-2.0
// See ending.hpp. The pauses between passes of SIGKILL grow, because processes that remain after some passes are stuck
// in the kernel and will end by themselves. A tree that forks faster than one pass loses to the next pass, because its
// orphans become children of this process.
#include "spawn/ranks/ending.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace shmb::spawn {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kFirstPause = kMillisecond;
constexpr std::int64_t kLongestPause = 500 * kMillisecond;

}  // namespace

std::int64_t from_now(std::int64_t duration) {
  const std::int64_t now = sys::now_monotonic();
  return duration > INT64_MAX - now ? INT64_MAX : now + duration;
}

int poll_time(std::int64_t due) {
  const std::int64_t left = std::max<std::int64_t>(due - sys::now_monotonic(), 0);
  return static_cast<int>(std::min<std::int64_t>(left / kMillisecond + (left % kMillisecond != 0), INT_MAX));
}

std::vector<pid_t> Tree::skip() const {
  std::vector<pid_t> pids = bystanders_ ? bystanders_() : std::vector<pid_t>{};
  for (const Process& one : spared_) {
    auto now = process(one.pid);
    if (now && now->start_time == one.start_time) pids.push_back(one.pid);
  }
  return pids;
}

bool Tree::reap(const std::function<void(const sys::ChildExit&)>& ended) {
  others_left_ = false;
  for (;;) {
    auto child = sys::wait_any(false);
    if (!child) return others_left({});  // ECHILD
    if (!*child) break;
    known_.erase((*child)->pid);
    ended(**child);
  }
  if (!known_.empty()) return true;
  const std::vector<pid_t> ignored = skip();
  if (ignored.empty()) return true;
  auto ours = children(::getpid(), ignored);
  if (!ours || !ours->empty()) return true;
  return others_left(ignored);
}

// Only somebody else can have put them there. They belong to the job then.
bool Tree::others_left(std::span<const pid_t> ignored) {
  cgroup_.spare(ignored);
  return others_left_ = cgroup_.populated();
}

std::vector<Process> Tree::left() const {
  auto below = descendants(::getpid(), skip());
  if (!below) return {};
  std::erase_if(*below, [](const Process& one) { return one.state == 'Z' || one.state == 'X'; });
  return std::move(*below);
}

void Tree::signal_all(std::span<const int> signals) const {
  if (signal_tree(::getpid(), skip(), signals)) return;
  // As long as it is a child of this process, ended or not, no other process has its pid.
  siginfo_t ended{};
  for (const int signal : signals)
    for (const pid_t child : known_)
      if (::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0)
        (void)::kill(child, signal);
}

void Tree::begin_ending(int signal, std::int64_t grace) {
  if (ending()) return;
  const int both[] = {signal, SIGCONT};  // a stopped process acts on the signal only after SIGCONT
  signal_ = signal;
  told_ = left();
  signal_all(both);
  next_pass_ = from_now(grace);
  look_again_ = from_now(kFirstPause);
  pause_ = look_pause_ = kFirstPause;
}

// A process that was forked while the signal went round has not got it, and would remain until the grace is over.
void Tree::tell_newcomers() {
  std::vector<Process> now = left();
  for (const Process& one : now) {
    const bool told = std::any_of(told_.begin(), told_.end(), [&](const Process& other) {
      return other.pid == one.pid && other.start_time == one.start_time;
    });
    if (told) continue;
    for (const int signal : {signal_, SIGCONT}) (void)signal_process(one, signal);
  }
  told_ = std::move(now);
}

void Tree::hurry() {
  if (ending()) next_pass_ = std::min(*next_pass_, sys::now_monotonic());
}

int Tree::step() {
  if (!ending()) return -1;
  const std::int64_t now = sys::now_monotonic();
  if (now >= *next_pass_) {
    const int kill[] = {SIGKILL};
    if (cgroup_) cgroup_.spare(skip());
    cgroup_.kill();
    signal_all(kill);
    next_pass_ = now + pause_;
    pause_ = std::min(pause_ * 2, kLongestPause);
    look_again_ = INT64_MAX;  // no further process gets the signal
  } else if (now >= look_again_) {
    tell_newcomers();
    look_again_ = now + look_pause_;
    look_pause_ = std::min(look_pause_ * 2, kLongestPause);
  }
  return poll_time(std::min(*next_pass_, look_again_));
}

}  // namespace shmb::spawn
