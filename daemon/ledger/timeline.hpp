// SPDX-License-Identifier: Apache-2.0
// A timeline: words on which GPU streams of several processes meet. It is control memory that the broker has laid out
// and mapped (law 3). The broker trusts nothing in it (law 4): it writes a status and a number, and reads one number to
// which it only adds. When the producer is gone, every waiter is released. That is repeated for some seconds, because a
// write that the dead producer's stream had begun may land later and undo it. The work is done in portions, so others
// are served meanwhile however many timelines end at once (law 8). A timeline that no other process can reach is not
// touched.
#pragma once

#include <cstdint>

#include "base/mapping.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/list.hpp"
#include "daemon/kit/timers.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

class TimelineReleaser;
struct Host;
struct Region;
struct Regions;

struct OfReleaser;
struct Timeline final : Hook<Timeline, OfReleaser> {
  Timeline(TimelineReleaser& owner, Charge paid) : releaser(owner), charge(std::move(paid)) {}
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  ~Timeline();
  // Releases the waiters of at most `most` words, from `next` on. Returns how many words it visited.
  std::uint32_t release(std::uint32_t most);

  TimelineReleaser& releaser;
  Charge charge;
  Mapping map;
  std::uint32_t words = 0;
  shmbw_gpu_word_status status = SHMBW_GPU_WORD_STATUS_OK;
  // the list of the releaser that it is on
  enum class Stage : std::uint8_t { served, first, again } stage = Stage::served;
  std::uint32_t next = 0;           // the next word of the current pass
  std::int64_t due = 0, until = 0;  // the time of the next pass; the end of all passes
};

// All timelines whose producers are gone, on one timer.
class TimelineReleaser final : public Timer {
 public:
  explicit TimelineReleaser(Host& host) : host_(host) {}
  void begin_turn() { left_ = kWordsPerTurn; }
  // `now`: as many words as this turn has left are released at once. All others are released in later turns.
  void begin(Timeline& line, bool now);
  void forget(Timeline& line);
  void on_timer(std::int64_t now) override;

  static constexpr std::uint32_t kWordsPerTurn = 1024;  // the largest timeline at once; 1 ms where no page is there yet

 private:
  List<Timeline, OfReleaser>& list_of(const Timeline& line) {
    return line.stage == Timeline::Stage::first ? first_ : again_;
  }
  void work(Timeline& line, std::int64_t now);
  void rearm(std::int64_t now);

  Host& host_;
  List<Timeline, OfReleaser> first_, again_;  // those whose first pass is not over; the others, by `due`
  std::uint32_t left_ = kWordsPerTurn;
};

void end_timeline(Regions& regions, Region& region, shmbw_gpu_word_status status, std::uint32_t pid);

}  // namespace shmb::daemon
