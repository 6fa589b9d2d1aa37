// SPDX-License-Identifier: Apache-2.0
// The conclusion from the evidence about an object: held, orphan, stale, idle or unseen (object.hpp). A file without
// holders is not necessarily lost: POSIX names persist by design. So a verdict needs more than an absent holder, and
// each one carries the sentences that led to it.
//
// held     a holder was seen, or the kernel refuses a write lease
// orphan   no holder; its name or the kernel names its creator; no such process lives, or the one with its pid
//          started after the object's last change
// stale    no holder; a known program leaves such names behind; its last change is `stale_after` ago
// unseen   no holder was seen, but not all processes could be read, and the kernel could not be asked
// idle     all else
#pragma once

#include <functional>

#include "base/sys_process.hpp"
#include "tools/host/patterns.hpp"
#include "tools/host/scan.hpp"

namespace shmb::host {

struct JudgeOptions {
  std::int64_t stale_after = 3600;  // seconds
  // Requests a write lease where the scan did not see everything, and for each file that would be called lost. That
  // delays an open(2) of the file by microseconds.
  bool ask_kernel = true;
  // Another tool that asks in the same way has the file open for microseconds, or longer if it is preempted. It is no
  // holder. So where the kernel reports a holder that was not seen, the question is repeated up to four times, each
  // time after a longer rest for all files. Repeats while another tool is seen to ask do not count, up to 30 of them.
  std::function<void(std::int64_t)> rest = [](std::int64_t ns) { sys::rest(ns); };
};

void judge(Inventory& inventory, const Patterns& patterns, const JudgeOptions& options);

// Whether the kernel knows any open file description of `object`; nullopt: it could not be asked, with the reason.
std::optional<bool> kernel_says_held(const Inventory& inventory, const Object& object, std::string& reason);

}  // namespace shmb::host
