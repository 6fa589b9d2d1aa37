// SPDX-License-Identifier: Apache-2.0
// Reclaim: freeing what a session leaves. Each reclaim makes one log line and one event: the dead party, how much it
// left, how it died and what was freed. Bytes are given back only after close(2) has returned.
//
// A helper thread closes regions from 64 MiB on, in one region or in all that one event frees. The last close of 1 GiB
// of 4 KiB pages takes 173 ms (measured), and no peer may wait for that. The thread also closes the regions beyond the
// first few that one end frees, because those are most of the work when a thousand sessions end at once.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.hpp"
#include "base/mapping.hpp"
#include "base/sys_process.hpp"
#include "daemon/books.hpp"
#include "daemon/timers.hpp"

namespace shmb::daemon {

class World;
class Session;
struct Region;

inline constexpr std::uint64_t kCloseElsewhereFrom = std::uint64_t{64} << 20;
inline constexpr std::size_t kStrangersAtMost = 4096;  // of a user: sixteen messages with as many as one carries
inline constexpr std::size_t kStrangersAlways = 16;    // of a user, though its share of the table has no room
inline constexpr std::chrono::seconds kLastCloses{1};
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

// The helper thread, started when there is first something to close. A close that never returns, because the maker of
// the descriptor delays it, blocks only this thread. The broker's end waits a second for it, and the end of the process
// ends the close.
class Closer {
 public:
  Closer() : shared_(std::make_shared<Shared>()) {}
  static Sys<void> prepare(Closer& closer);  // makes its eventfd; without it no close can be reported
  ~Closer() { end(kLastCloses); }
  // Waits at most `patience` for closes in progress. Returns at once if there are none.
  void end(std::chrono::nanoseconds patience);
  // False: no thread could be started, and the caller closes.
  bool close(std::vector<Fd>& fds, std::uint64_t region = 0);
  bool close(std::vector<Fd>& fds, std::vector<Mapping>& maps, std::uint64_t region = 0);
  bool close(Fd& fd, std::uint64_t region = 0);
  std::size_t waiting() const;  // descriptors whose close has not returned
  int wake_fd() const { return wake_.get(); }
  std::vector<std::uint64_t> finished();  // regions whose close has returned

 private:
  struct Job {
    std::vector<Fd> fds;
    std::vector<Mapping> maps;
    std::uint64_t region = 0;
  };
  struct Shared {
    std::mutex mutex;
    std::condition_variable ready, gone;
    std::vector<Job> jobs;
    std::vector<std::uint64_t> finished;
    std::size_t waiting = 0;
    int wake = -1;
    bool stop = false, ended = false;
  };
  static void run(const std::shared_ptr<Shared>& shared);
  Fd wake_;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

// Closes descriptors that clients made. The client decides what they stand for, and may make the close wait for ever.
// So each user has a thread. At the broker's end all of them together are waited for a second.
class Strangers {
 public:
  ~Strangers();
  bool close(std::uint32_t uid, std::vector<Fd>& fds);  // false: as Closer::close()
  std::size_t waiting(std::uint32_t uid) const;         // descriptors whose close has not returned
  std::size_t waiting() const;                          // of all users

 private:
  std::map<std::uint32_t, Closer> of_;
};

// Waits for the exit status, which the pidfd gives up to 100 ms and more after the socket's end.
struct ReclaimReport final : Timer {
  explicit ReclaimReport(World& owner) : world(owner) {}
  void on_timer(std::int64_t now) override;

  World& world;
  std::uint64_t session = 0, group = 0;
  std::uint32_t uid = 0, pid = 0;
  bool lazy = false;
  std::string group_text;
  Tally tally;
};
inline constexpr std::int64_t kExitWait = 1'000'000'000;

std::string death_text(bool lazy, const sys::ExitInfo* how);
// `exit_known`: prints the report now. Otherwise it waits for `report_exit` or the timer.
void report_reclaim(World& world, const Session& session, const Tally& tally, std::uint64_t group,
                    const std::string& group_text);
// Adds what was found after the session's end. It goes into the session's report if that still waits, else into a
// report of its own.
void add_to_reclaim(World& world, const Session& session, const Tally& tally, std::uint64_t group,
                    const std::string& group_text);
void report_exit(World& world, std::uint64_t session, const sys::ExitInfo* how);
void report_lives(World& world, std::uint64_t session);  // the process did not end: it only closed its connection

// Closes descriptors that a client of this user made, on the user's thread. False: so many wait that no more of them
// should be taken.
bool close_elsewhere(World& world, std::uint32_t uid, std::vector<Fd> fds);
bool close_elsewhere(World& world, std::uint32_t uid, Fd fd);
// Frees a region that nothing holds.
void free_region(World& world, Region& region, bool at_once = false);
// Frees (or, with `recycle`, shelves) the region if nothing holds it any more. True: it is gone.
bool release_region(World& world, Region& region, bool recycle = false);
void closed_regions(World& world);  // called after the helper thread has signalled

}  // namespace shmb::daemon
