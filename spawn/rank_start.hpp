// SPDX-License-Identifier: Apache-2.0
// From the supervisor to a rank: fork, the rank's own surroundings, exec. Whatever goes wrong before exec comes back
// over one pipe, so that all ranks start at once and none is waited for by itself.
#pragma once

#include <signal.h>

#include <functional>
#include <string>
#include <vector>

#include "base/sys_process.hpp"
#include "spawn/link.hpp"
#include "spawn/plan.hpp"
#include "spawn/verdict.hpp"

namespace shmb::spawn {

// One rank as its supervisor knows it.
struct Rank {
  std::int32_t local = 0;
  pid_t pid = 0;
  Fd pidfd, out, err;  // the last two: what it prints, to be relayed
  Link link;
  bool hello = false, finished = false, raised = false;
  std::int64_t fell = 0;               // when it threw what nothing in its function catches; 0: not yet
  std::int64_t heard = 0;              // when it had last been told, before it fell, that somebody else is gone
  bool reaped = false, ended = false;  // the kernel told how; it was taken account of
  bool told_to_end = false;            // when it died
  sys::ChildExit how;
  std::int64_t time = 0;  // of its death
  Failure words;          // of `throwing` and `raised`
  std::string result;
};

// What a child cannot say by itself, sent over the pipe.
struct StartFailure {
  std::int32_t local = 0;
  int errno_value = 0;
  enum Step : std::int32_t { exec, directory, output } step = exec;
};
std::string sentence_of(const StartFailure& failure, const Plan& plan);

// The rank's ends of what connects it with its supervisor.
struct RankEnds {
  Fd control, out, err;
};
// What a rank gets of its supervisor's surroundings.
struct RankSetting {
  pid_t job_group = 0;
  sigset_t mask{};
  int failures = -1;  // write end of the pipe
  Role role = Role::rank;
  std::vector<RankEnds>* zygote_gives = nullptr;  // role zygote: the ends of all ranks
  sys::FdLimit descriptors;                       // to be restored; 0: as it is
  std::uint16_t master_port = 0;
  std::function<void()> forget;  // closes what is the supervisor's alone (method fork)
};

// Makes the channel and the pipes of a rank; gives the rank's ends.
Sys<RankEnds> prepare_rank(const Plan& plan, Rank& rank, Role role);
// The message that tells a rank who it is and what to run.
std::string begin_payload(const Plan& plan, std::int32_t local);
// The ends are used up in the new process.
Sys<pid_t> start_rank(const Plan& plan, const Rank& rank, RankEnds& ends, const RankSetting& setting);
// The variables of one rank, for processes that are born without exec as well.
void set_rank_variables(const Plan& plan, std::int32_t local, std::uint16_t master_port);
Sys<std::uint16_t> free_port();

}  // namespace shmb::spawn
