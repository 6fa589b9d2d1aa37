// SPDX-License-Identifier: Apache-2.0
// What the evidence says about an object: held, orphan, stale, idle or unseen (object.hpp). A file that nobody holds is
// not lost for that: POSIX names persist by design. So a verdict needs more than an absent holder, and each one carries
// the sentences that led to it.
//
// held     a holder was seen, or the kernel refuses a write lease
// orphan   nobody holds it; its name or the kernel names its creator; no such process lives, or the one with its number
//          started after the object's last change
// stale    nobody holds it; a known program leaves such names behind; its last change is `stale_after` ago
// unseen   no holder was seen, but not all processes could be looked at, and the kernel could not be asked
// idle     all else
#pragma once

#include <functional>

#include "base/sys_process.hpp"
#include "tools/host/patterns.hpp"
#include "tools/host/scan.hpp"

namespace shmb::host {

struct JudgeOptions {
  std::int64_t stale_after = 3600;  // seconds
  // Asks for a write lease where the scan did not see everything, and of each file that would be called lost. It holds
  // up an open(2) of the file for microseconds.
  bool ask_kernel = true;
  // Another tool that asks in the same way has the file open for microseconds, or for longer where it loses its core,
  // and is no holder. So what the kernel says is held by nobody seen is asked for again, up to four times, each time
  // after a longer rest for all of them. Times at which another tool is seen to ask do not count, up to 30 of them.
  std::function<void(std::int64_t)> rest = [](std::int64_t ns) { sys::rest(ns); };
};

void judge(Inventory& inventory, const Patterns& patterns, const JudgeOptions& options);

// Whether the kernel knows any open file description of `object`; nullopt: it could not be asked, with the reason.
std::optional<bool> kernel_says_held(const Inventory& inventory, const Object& object, std::string& reason);

}  // namespace shmb::host
