// SPDX-License-Identifier: Apache-2.0
// The outcome of a set of ranks. It is computed once, by the supervisor (or by the guard when that one was killed), and
// only passed on afterwards. The first failure is the cause. A failure that only echoes another never comes before it.
//
// A rank often fails because another one has gone: its call reports peer_gone, and the function does not catch it. Such
// a rank had a report of an end just before its own (`heard`). If another failure can be the reason, that one comes
// first. Ranks that the supervisor has ended itself come last, because they are no cause of anything.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace shmb::spawn {

// A cause of an exception.
struct Cause {
  std::string type, text;
};

struct Failure {
  enum Kind : std::uint32_t {
    raised = 1,      // the function threw; type, text and trace are set
    exited,          // exit code other than 0
    signalled,       // died of a signal
    unfinished,      // exit code 0, but the function had not finished
    never_started,   // did not reach spawn_child in time
    supervisor_lost  // supervisor or guard was killed; no rank's fault
  };
  Kind kind = exited;
  std::int32_t rank = -1;
  pid_t pid = 0;
  std::int32_t exit_code = 0;  // for a signal: its number, negative
  std::int32_t signal = 0;
  bool core = false;
  bool ended_by_us = false;  // by the signal that followed the first failure: no cause
  bool cut = false;          // the texts were too long and were cut
  std::int64_t user_ns = 0, system_ns = 0;
  std::uint64_t max_rss = 0;
  std::int64_t time = 0;   // CLOCK_MONOTONIC of the throw, or of the death where nothing was thrown
  std::int64_t heard = 0;  // when the rank last got a report that another rank is gone; 0: never
  std::string type, text, trace;
  std::vector<Cause> causes;
  std::string message;  // the sentence
};

struct Verdict {
  bool started = false;  // false: nothing ran, and `why` gives the reason
  Error why;
  std::vector<Failure> failures;     // empty: all ended well
  std::vector<std::string> results;  // by local rank
  bool lent = false;                 // regions that they name may end with the parent's session

  std::string encode() const;
  static Result<Verdict> decode(std::string_view bytes);
};

// For this time after such a report a failure may echo the end of a rank that has not been seen yet.
inline constexpr std::int64_t kEcho = 1'000'000'000;
// Whether the rank had just got a report that another rank is gone.
bool may_echo(const Failure& failure);
// Sorts: causes first, each failure after what it may echo, and last the ranks that were ended because of them.
void put_in_order(std::vector<Failure>& failures);

std::string signal_name(int signal);  // "SIGABRT", "SIGRTMIN+3"
std::string message_of(const Failure& failure);
// The same text, to the letter, as torch.multiprocessing gives, for programs that search for its words.
std::string torch_message_of(const Failure& failure);

}  // namespace shmb::spawn
