// SPDX-License-Identifier: Apache-2.0
// Reclaim: freeing what a session leaves. Each reclaim makes one log line and one event: the dead party, how much it
// left, how it died and what was freed. Bytes are given back only after close(2) has returned.
//
// A helper thread closes large regions: from 64 MiB on, in one region or in all that are closed in one turn. The last
// close of 1 GiB of 4 KiB pages takes 173 ms (measured), and no peer may wait for that. Of the regions that one end
// frees, the thread also closes all but the first four. They are most of the work when a thousand sessions end at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/sys_process.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/timers.hpp"

namespace shmb::daemon {

struct Accounts;
struct Regions;
struct Sessions;
class Session;
struct Region;

inline constexpr std::uint64_t kCloseElsewhereFrom = std::uint64_t{64} << 20;
// regions that one end of a session or group closes on the main thread
inline constexpr std::uint32_t kCloseHereAtMost = 4;

// Control memory of a pool that the helper thread closes. It is charged until the close has returned.
struct ClosingPool {
  Charge bytes, regions;  // of the user; the group may be gone before
  std::uint32_t uid = 0, descriptors = 0;
};
inline constexpr std::uint64_t kClosePoolElsewhereFrom = std::uint64_t{2} << 20;

struct Tally {
  std::uint32_t leases = 0, regions = 0;
  std::uint64_t bytes = 0;
  std::uint64_t gpu_bytes = 0;  // of them on GPUs
};

// A report that waits for the exit status. The pidfd may give it 100 ms after the end of the socket, or later.
struct ReclaimReport final : Timer {
  explicit ReclaimReport(Sessions& owner) : sessions(owner) {}
  void on_timer(std::int64_t now) override;

  Sessions& sessions;
  std::uint64_t session = 0, group = 0;
  std::uint32_t uid = 0, pid = 0;
  bool lazy = false;
  std::string group_text, library;
  Tally tally;
};

std::string death_text(bool lazy, const sys::ExitInfo* how);
// Prints the report at once if it is known how the process ended, or if that will never be known. Otherwise the report
// waits for report_exit() or the timer.
void report_reclaim(Sessions& sessions, const Session& session, const Tally& tally, std::uint64_t group,
                    const std::string& group_text);
// Adds what was found after the session's end. It goes into the session's report if that still waits, else into a
// report of its own.
void add_to_reclaim(Sessions& sessions, const Session& session, const Tally& tally, std::uint64_t group,
                    const std::string& group_text);
void report_exit(Sessions& sessions, std::uint64_t session, const sys::ExitInfo* how);
void report_lives(Sessions& sessions, std::uint64_t session);  // the process did not end: it only closed its connection

// Closes descriptors that a client of this user made, on the user's thread. False: so many wait that no more of them
// should be taken.
bool close_elsewhere(Accounts& accounts, std::uint32_t uid, std::vector<Fd> fds);
bool close_elsewhere(Accounts& accounts, std::uint32_t uid, Fd fd);
// Frees a region that nothing holds.
void free_region(Regions& regions, Region& region, bool at_once = false);
// Frees (or, with `recycle`, shelves) the region if nothing holds it any more. True: it is gone.
bool release_region(Regions& regions, Region& region, bool recycle = false);
void closed_regions(Regions& regions);  // called after the helper thread has signalled

}  // namespace shmb::daemon
