// SPDX-License-Identifier: Apache-2.0
// From the supervisor to a rank: fork, the rank's environment, exec. A failure before exec comes back over one pipe. So
// all ranks start at once, and none has to be waited for.
#pragma once

#include <signal.h>

#include <functional>
#include <string>
#include <vector>

#include "base/sys_process.hpp"
#include "spawn/ranks/job_cgroup.hpp"
#include "spawn/ranks/link.hpp"
#include "spawn/ranks/plan.hpp"
#include "spawn/ranks/verdict.hpp"

namespace shmb::spawn {

// One rank as its supervisor knows it.
struct Rank {
  std::int32_t local = 0;
  pid_t pid = 0;
  Fd pidfd, out, err;  // out, err: its output, to be relayed
  Link link;
  bool hello = false, finished = false, raised = false;
  std::int64_t fell = 0;               // when it threw an exception that its function does not catch; 0: not yet
  std::int64_t heard = 0;              // when it last got a report, before it fell, that another rank is gone
  bool reaped = false, ended = false;  // reaped: the kernel gave its status; ended: that was processed
  bool told_to_end = false;            // it was signalled before it died
  sys::ChildExit how;
  std::int64_t time = 0;   // of its death
  std::int64_t alive = 0;  // the last time before its death at which it was seen alive
  Failure words;           // of `throwing` and `raised`
  std::string result;
};

// A failure that a child cannot report by itself, sent over the pipe.
struct StartFailure {
  std::int32_t local = 0;
  int errno_value = 0;
  enum Step : std::int32_t { exec, directory, output } step = exec;
};
std::string sentence_of(const StartFailure& failure, const Plan& plan);

// The rank's ends of its connections with its supervisor.
struct RankEnds {
  Fd control, out, err;
};
// The parts of the supervisor's state that a rank gets.
struct RankSetting {
  sigset_t mask{};
  int failures = -1;  // write end of the pipe
  Role role = Role::rank;
  std::vector<RankEnds>* zygote_gives = nullptr;  // role zygote: the ends of all ranks
  sys::FdLimit descriptors;                       // to be restored; 0: as it is
  std::uint16_t master_port = 0;
  const JobCgroup* cgroup = nullptr;  // of the job; perhaps empty
  std::function<void()> forget;       // closes the supervisor's own descriptors (method fork)
};

// Makes the channel and the pipes of a rank. Returns the rank's ends.
Sys<RankEnds> prepare_rank(const Plan& plan, Rank& rank, Role role);
// The message with a rank's number and what to run.
std::string begin_payload(const Plan& plan, std::int32_t local);
// The new process takes the ends.
Sys<pid_t> start_rank(const Plan& plan, const Rank& rank, RankEnds& ends, const RankSetting& setting);
// Sets the variables of one rank, also for processes that are born without exec.
void set_rank_variables(const Plan& plan, std::int32_t local, std::uint16_t master_port);
Sys<std::uint16_t> free_port();

}  // namespace shmb::spawn
