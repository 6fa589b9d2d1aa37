// SPDX-License-Identifier: Apache-2.0
// Removes lost objects and never one that is in use. A scan of /proc is no proof: it misses other PID namespaces,
// hidden processes, and each process that opens the file a microsecond later. The kernel is the witness instead.
//
// For a file:
//   1. Open it without following links. Compare device, inode, owner and size with the plan.
//   2. Take a write lease. The kernel grants it only while no other open file description of the file exists in any
//      process of any namespace; a mapping holds one. From here on each open(2) of the file waits for us.
//   3. Rename the file aside, into a folder of our own beside it. No later open(2) finds its name.
//   4. Ask whether the lease holds. If an open waits, it found the name before step 3: rename the file back, give the
//      lease up, and the open goes on. Nothing was lost.
//   5. All files of the plan have come this far together. Wait a moment for an open(2) that had found a name but was
//      not scheduled since, and ask again for each. Then unlink.
//
// A tool that asks the kernel about the same file has it open for a moment. So a file without a holder that the scan
// saw, or whose holders have ended, is asked for again before it is refused at step 1 or 2: four times, each time after
// a longer rest.
//
// A death between 3 and 5 leaves the file in the folder. The folder is locked (flock(2)) while its maker lives, so the
// next gc knows that it was left behind and renames its files back (recover()).
//
// Not covered: an open(2) that found a name before step 3 and is not scheduled for the whole wait of step 5. It gets
// the file, intact and without a name. O_PATH descriptors do not count as holders, for the kernel neither.
//
// A SysV segment is removed only while nobody is attached; the kernel frees it at the last detach if a process attaches
// in between.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "base/sys_process.hpp"
#include "tools/host/scan.hpp"

namespace shmb::host {

enum class Outcome : std::uint8_t {
  removed,
  held,     // in use after all: left as it was
  changed,  // not the object of the plan any more: left alone
  refused,  // the kernel or the caller's rights do not allow it: left alone
};

struct Removal {
  Outcome outcome = Outcome::refused;
  std::string reason;       // a sentence; empty when removed
  std::uint64_t freed = 0;  // bytes of memory
};

struct RemovalOptions {
  // Where the kernel gives no lease: a second scan of /proc has to be enough. Objects may then be removed in use.
  bool without_lease = false;
  std::int64_t settle = 100'000'000;  // ns of step 5
  std::function<void(std::int64_t)> rest = [](std::int64_t ns) { sys::rest(ns); };
};

// One removal for each of `objects` (indices into inventory.objects), in their order. SIGIO must be ignored: its
// default action ends a process whose lease is wanted. Not for two threads at once.
std::vector<Removal> remove(const Inventory& inventory, const std::vector<std::size_t>& objects,
                            const RemovalOptions& options);

struct Recovered {
  std::string path;    // where the file is now
  std::string reason;  // empty: it has its name back; else why not
};
// Gives the files that a killed gc had set aside on `mounts` their names back.
std::vector<Recovered> recover(const Inventory& inventory);

// Whether fs.leases-enable is 0: then the kernel gives nobody a lease.
bool leases_are_off();
// Whether a folder's name is one of ours: ".shmbroker-gc-...".
bool is_aside_folder(std::string_view name);
// Whether a path below a mount leads through such a folder.
bool is_set_aside(std::string_view path);

}  // namespace shmb::host
