// SPDX-License-Identifier: Apache-2.0
// How the workers of a world agree that nothing is under way any more.
//
// One of them leads: the living worker that joined first. So workers that know of the same lives name the same leader.
// A worker that is idle reports to it how many requests it has sent and received. The leader starts the next round when
// all have reported. The phase is over when two rounds say the same and as many requests have arrived as were sent.
// With dead workers the sums need not agree, only stand still. A worker that comes late gets the round and the phases
// that are over. There are three phases, see shutdown.hpp. The lock of the worker guards all of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "spawn/remote/monitor.hpp"
#include "spawn/remote/place.hpp"
#include "spawn/remote/roster.hpp"
#include "spawn/remote/sender.hpp"

namespace shmb::remote {

class Meeting {
 public:
  Meeting(const Place& place, Monitor& monitor, const Roster& roster, Sender& sender)
      : place_(place), monitor_(monitor), roster_(roster), sender_(sender) {}

  void begin(std::uint64_t phase);  // this worker has come to it
  bool over(std::uint64_t phase) const { return over_ >= phase || roster_.present() == 1; }
  bool report_due() const { return last_sent_ != round_; }
  void report(std::uint64_t sent, std::uint64_t received);  // of this worker, which is idle
  void take(const Head& head);                              // of another worker: idle, round or over
  void worker_came(std::uint32_t rank);
  void worker_gone();
  std::string missing() const;  // the workers that have not come yet; only the leader knows

 private:
  struct Report {
    std::uint64_t phase = 0, round = 0, sent = 0, received = 0, census = 0;
  };
  bool leads() const { return roster_.leader(place_.rank) == place_.rank; }
  void take_report(const Head& head);
  void tell_round(std::uint32_t rank);
  void count_round();

  const Place& place_;
  Monitor& monitor_;
  const Roster& roster_;
  Sender& sender_;
  bool there_ = false;  // this worker has begun to shut down
  std::uint64_t phase_ = 0, round_ = 0, over_ = 0;
  std::uint64_t totals_ = 0;  // 1 + the requests sent, as the last round said; 0: its reports did not agree
  std::map<std::uint32_t, Report> reports_;
  std::optional<std::uint64_t> last_sent_;  // the round of this worker's last report
  bool some_gone_ = false;                  // since this worker came
};

}  // namespace shmb::remote
