// SPDX-License-Identifier: Apache-2.0
// What became of a set of ranks: computed once, by the supervisor (or by the guard when that one was killed), and from
// then on only carried around. The first failure is the cause, and one that only echoes another never comes before it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace shmb::spawn {

// What an exception was thrown from.
struct Cause {
  std::string type, text;
};

struct Failure {
  enum Kind : std::uint32_t {
    raised = 1,      // the function threw; type, text and trace say what
    exited,          // exit code other than 0
    signalled,       // died of a signal
    unfinished,      // exit code 0, but the function was not through
    never_started,   // did not reach spawn_child in time
    supervisor_lost  // supervisor or guard was killed; no rank's fault
  };
  Kind kind = exited;
  std::int32_t rank = -1;
  pid_t pid = 0;
  std::int32_t exit_code = 0;  // of a signal: its number, negative
  std::int32_t signal = 0;
  bool core = false;
  bool ended_by_us = false;  // by the signal that the first failure led to: no cause
  bool cut = false;          // the texts were longer than what is carried
  std::int64_t user_ns = 0, system_ns = 0;
  std::uint64_t max_rss = 0;
  std::int64_t time = 0;   // CLOCK_MONOTONIC of the throw, or of the death where nothing was thrown
  std::int64_t heard = 0;  // when the rank had last been told that somebody else is gone; 0: never
  std::string type, text, trace;
  std::vector<Cause> causes;
  std::string message;  // the sentence
};

struct Verdict {
  bool started = false;  // false: nothing ran, `why` says why not
  Error why;
  std::vector<Failure> failures;     // empty: all ended well
  std::vector<std::string> results;  // by local rank
  bool lent = false;                 // what they name may end with the parent's session

  std::string encode() const;
  static Result<Verdict> decode(std::string_view bytes);
};

// For so long after such news a failure may echo the end of a rank that has still to be seen.
inline constexpr std::int64_t kEcho = 1'000'000'000;
// Whether the rank had just been told that somebody else is gone.
bool may_echo(const Failure& failure);
// Causes first, each after what it may echo, and what was ended because of them last.
void put_in_order(std::vector<Failure>& failures);

std::string signal_name(int signal);  // "SIGABRT", "SIGRTMIN+3"
std::string message_of(const Failure& failure);
// The same to the letter as torch.multiprocessing says it, for programs that look for its words.
std::string torch_message_of(const Failure& failure);

}  // namespace shmb::spawn
