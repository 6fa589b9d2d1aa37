// SPDX-License-Identifier: Apache-2.0
// For a process that watches over another one and shares its descriptor table: a fork that copies no descriptor,
// a word in shared memory that outlives its owner, and a look at a process' state. Nothing here allocates.
#pragma once

#include <linux/futex.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/result.hpp"

namespace shmb::sys {

// As fork(2), for a process of one thread: 0 in the child. Both have one descriptor table, so the end of either closes
// nothing. `noted` gets the child's pid before the child runs, also if the parent ends in that moment.
Sys<pid_t> fork_sharing_descriptors(std::atomic<pid_t>& noted);

// Zeros without a name. A child of fork has the same memory. nullptr: the kernel has none.
void* memory_shared_with_children(std::size_t bytes);

// A word in shared memory that reports the end of a thread, also to processes that are not its parent, and without a
// descriptor. The thread stores its tid in the word. When the thread has ended, in whatever way, the kernel adds
// `kOwnerDied` and wakes the word's waiters. This is the robust list of futex(2).
struct LastWord {
  void* next = nullptr;
  std::atomic<std::uint32_t> word{0};
};
inline constexpr std::uint32_t kOwnerDied = FUTEX_OWNER_DIED;
// Registers the word for the calling thread, once. The thread may hold no robust mutex of libc.
Sys<void> leave_last_word(LastWord& last);

// Waits while `word` has this value, at most `timeout` ns. A signal handler may leave it with siglongjmp(3).
void wait_while(std::atomic<std::uint32_t>& word, std::uint32_t value, std::int64_t timeout);

// The letter of /proc/PID/stat: R, S, D, T (stopped), t (traced), Z. 0 where it cannot be read.
char process_state(pid_t pid);

// As ps(1) shows it; 15 bytes.
struct ProcessName {
  char text[16] = {};
};
ProcessName process_name();
void set_process_name(const ProcessName& name);

}  // namespace shmb::sys
