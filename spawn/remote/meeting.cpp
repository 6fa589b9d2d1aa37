// SPDX-License-Identifier: Apache-2.0
// See meeting.hpp.
#include "spawn/remote/meeting.hpp"

#include <algorithm>

namespace shmb::remote {

void Meeting::begin(std::uint64_t phase) {
  there_ = true;
  phase_ = phase;
  totals_ = 0;
  last_sent_.reset();
}

void Meeting::report(std::uint64_t sent, std::uint64_t received) {
  last_sent_ = round_;
  Head head;
  head.kind = Kind::idle;
  head.phase = phase_;
  head.round = round_;
  head.sent = sent;
  head.received = received;
  head.census = roster_.census();
  const std::uint32_t leader = roster_.leader(place_.rank);
  if (leader != place_.rank) return sender_.post(leader, roster_[leader].life, head);
  reports_[place_.rank] = {head.phase, head.round, head.sent, head.received, head.census};
  count_round();
}

// Sends the leader's phase and round to a worker that is behind.
void Meeting::tell_round(std::uint32_t rank) {
  Head head;
  head.kind = Kind::over;
  head.phase = phase_ - 1;
  head.round = round_;
  sender_.post(rank, roster_[rank].life, head);
}

void Meeting::take(const Head& head) {
  switch (head.kind) {
    case Kind::idle:
      take_report(head);
      break;
    case Kind::round:
      round_ = std::max(round_, head.round);
      break;
    default:
      over_ = std::max(over_, head.phase);
      round_ = std::max(round_, head.round);
  }
  monitor_.wake();
}

void Meeting::take_report(const Head& head) {
  reports_[head.from] = {head.phase, head.round, head.sent, head.received, head.census};
  if (head.phase > 1) over_ = std::max(over_, head.phase - 1);  // said by a leader that has died since
  if (head.round > round_) {
    round_ = head.round;
    last_sent_.reset();
    for (std::uint32_t rank = 0; rank < roster_.size() && there_; ++rank)
      if (rank != place_.rank && rank != head.from && roster_[rank].present()) tell_round(rank);
  } else if (there_ && (head.round < round_ || head.phase < phase_)) {
    tell_round(head.from);
  }
  count_round();
}

// At the leader: have all reported, and was the round like the one before?
void Meeting::count_round() {
  if (!there_ || !leads()) return;
  std::uint64_t sent = 0, received = 0;
  bool agreed = true;
  for (std::uint32_t rank = 0; rank < roster_.size(); ++rank) {
    if (!roster_[rank].present()) continue;
    const auto report = reports_.find(rank);
    if (report == reports_.end() || report->second.round < round_ || report->second.phase < phase_) return;
    sent += report->second.sent;
    received += report->second.received;
    agreed = agreed && report->second.census == roster_.census();  // else a worker does not know of a death yet
  }
  // The dead have sent and received what the living did not: then the sums need not agree, only stand still.
  const bool quiet = agreed && (sent == received || some_gone_) && totals_ == sent + 1;
  totals_ = agreed ? sent + 1 : 0;
  ++round_;  // what was reported up to here does not count for the next one
  if (quiet) over_ = phase_;
  Head head;
  head.kind = quiet ? Kind::over : Kind::round;
  head.phase = phase_;
  head.round = round_;
  for (std::uint32_t rank = 0; rank < roster_.size(); ++rank)
    if (rank != place_.rank && roster_[rank].present()) sender_.post(rank, roster_[rank].life, head);
}

void Meeting::worker_came(std::uint32_t rank) {
  reports_.erase(rank);
  last_sent_.reset();
}

void Meeting::worker_gone() {
  some_gone_ = true;
  last_sent_.reset();
  count_round();
}

std::string Meeting::missing() const {
  if (!leads()) return {};
  std::string out;
  for (std::uint32_t rank = 0; rank < roster_.size(); ++rank)
    if (rank != place_.rank && roster_[rank].present() && !reports_.contains(rank))
      out += (out.empty() ? "" : "; ") + roster_.where(rank) + " has not shut down or is busy";
  return out;
}

}  // namespace shmb::remote
