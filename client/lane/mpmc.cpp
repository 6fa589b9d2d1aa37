// SPDX-License-Identifier: Apache-2.0
// Taking messages back, and finding one to claim. See mpmc.hpp.
#include "client/lane/mpmc.hpp"

#include "base/sys_process.hpp"

namespace shmb::client {

using pool::CellState;
using pool::CellWord;

LaneSender::Room MpmcSender::why_no_room(std::uint64_t word) {
  const CellWord cell = CellWord::of(word);
  const bool waits =
      cell.position == ((next_ - lane_.cells()) & pool::kPositionMask) && (cell.is(CellState::full) || cell.claimed());
  participant_.sleeper().expect_stream();
  return waits ? Room::full : Room::broken;
}

void MpmcSender::reclaim_cells() {
  if (earliest_ != INT64_MAX) expire(sys::now_monotonic());
  if (holding_ != 0) reclaim_done();
}

std::uint64_t MpmcSender::in_flight() {
  if (earliest_ != INT64_MAX) expire(sys::now_monotonic());
  return reclaim_done();
}

// Receivers take in order, so nothing is left before a message that was claimed.
std::uint64_t MpmcSender::unsend(std::uint64_t last) {
  std::uint64_t back = 0;
  while (back != last && take_back(back)) ++back;
  return back;
}

bool MpmcSender::cell_done(std::uint64_t position) const {
  SHMB_STEP(KR);
  const std::uint64_t word = lane_.cell(position).word.load(std::memory_order_acquire);
  SHMB_STEP(KR_done);
  return word == CellWord::empty(position + lane_.cells());
}

// Cells are done in any order. Returns how many are not done.
std::uint64_t MpmcSender::reclaim_done() {
  std::uint64_t open = 0;
  for (std::uint64_t k = done_; k != next_; ++k) {
    if (!cell_done(k)) {
      ++open;
      continue;
    }
    let_go(k);
    if (open == 0) done_ = k + 1;
  }
  return open;
}

bool MpmcSender::take_back(std::uint64_t n) {
  const std::uint64_t position = next_ - 1 - n;
  auto& cell = lane_.cell(position).word;
  std::uint64_t word = cell.load(std::memory_order_acquire);
  if ((word & kWithoutTag) != CellWord::full(position, 0)) return false;
  SHMB_STEP(KX);
  const bool ours = cell.compare_exchange_strong(word, CellWord::empty(position + lane_.cells()),
                                                 std::memory_order_acq_rel, std::memory_order_relaxed);
  SHMB_STEP(KX_done);
  if (ours) let_go(position);
  return ours;
}

// One compare-and-swap from full to done. There is no state in between that a death could leave behind.
bool MpmcSender::expire(std::int64_t now) {
  if (now < earliest_) return false;
  earliest_ = INT64_MAX;
  bool any = false;
  for (std::uint64_t k = done_; k != next_; ++k) {
    const std::int64_t deadline = deadlines_[place(k)];
    if (deadline == 0) continue;
    auto& cell = lane_.cell(k).word;
    std::uint64_t word = cell.load(std::memory_order_acquire);
    if (word == CellWord::empty(k + lane_.cells())) continue;
    // A claimed one may come back, so it is checked again the next time.
    if (now < deadline || (word & kWithoutTag) != CellWord::full(k, 0)) {
      earliest_ = std::min(earliest_, deadline);
      continue;
    }
    SHMB_STEP(KX);
    const bool ours = cell.compare_exchange_strong(word, CellWord::empty(k + lane_.cells()), std::memory_order_acq_rel,
                                                   std::memory_order_relaxed);
    SHMB_STEP(KX_done);
    if (!ours) {
      earliest_ = std::min(earliest_, deadline);
      continue;
    }
    let_go(k);
    ++expired_;
    any = true;
  }
  if (any) participant_.sleeper().wake_all(participant_.view().queue_waiters(queue_).writers);
  return any;
}

LaneReceiver::Look MpmcReceiver::look(Received& out) {
  Look found = find_claim(out);
  if (found != Look::empty) return found;
  SHMB_STEP(L1);
  const bool alive = sender_alive();
  SHMB_STEP(L1_done);
  if (alive) return Look::empty;
  SHMB_STEP(L2);
  found = find_claim(out);
  SHMB_STEP(L2_done);
  // Messages that others have claimed may come back.
  return found == Look::empty && !claimed_by_others_ ? Look::drained : found;
}

LaneReceiver::Look MpmcReceiver::find_claim(Received& out) {
  constexpr int kTries = 64;  // each failure means that another consumer made progress, or writes nonsense
  constexpr std::uint64_t kMostBehind = 8;
  const std::uint64_t cells = lane_.cells();
  int laps = 0;
  for (int tries = 0; tries < kTries; ++tries) {
    claimed_by_others_ = false;
    SHMB_STEP(C1);
    std::uint64_t head = lane_.head().load(std::memory_order_acquire);
    SHMB_STEP(C1_done);
    const std::uint64_t begin = std::max(head, done_);
    std::uint64_t done = begin;
    Look found = Look::empty;
    bool lost_a_claim = false, at_end = false;
    // A lap of cells behind those that are done; they may be a lap themselves, where the head was read long ago.
    for (std::uint64_t k = begin; k - done < cells && k - begin < 2 * cells && !at_end; ++k) {
      pool::Cell& cell = lane_.cell(k);
      SHMB_STEP(C3);
      std::uint64_t word = cell.word.load(std::memory_order_acquire);
      SHMB_STEP(C3_done);
      const CellWord w = CellWord::of(word);
      const std::int64_t ahead = pool::position_difference(w.position, k);
      if (ahead > 0) {  // k is done
        if (done == k) ++done;
        continue;
      }
      if (ahead < 0 || w.is(CellState::busy) || w.state >= pool::kClaimedBy + pool::kParticipants) return Look::broken;
      at_end = w.is(CellState::empty);
      if (w.claimed()) claimed_by_others_ = true;
      if (!w.is(CellState::full)) continue;
      const CellWord mine{w.position, static_cast<std::uint8_t>(pool::kClaimedBy + participant_.index()), w.tag};
      SHMB_STEP(C4);
      lost_a_claim =
          !cell.word.compare_exchange_strong(word, mine.word(), std::memory_order_acq_rel, std::memory_order_relaxed);
      SHMB_STEP(C4_done);
      if (!lost_a_claim) {
        SHMB_STEP(C5);
        const bool possible = copy_body(cell.body(), word, k, out);
        SHMB_STEP(C5_done);
        found = possible ? Look::message : refuse(k);
      }
      break;
    }
    const bool all_done = done - begin >= cells;
    bool moved = false;
    done_ = done;
    // Others begin their looks at the head, so it must not stay far behind.
    if (done - head > std::min(kMostBehind, cells / 4)) {
      SHMB_STEP(C2);
      moved = lane_.head().compare_exchange_strong(head, done, std::memory_order_acq_rel, std::memory_order_relaxed);
      SHMB_STEP(C2_done);
    }
    if (found != Look::empty) return found;
    if (lost_a_claim) continue;
    // A whole lap that is done: the head was read long ago, or holds a value that no consumer wrote.
    if (!all_done) return Look::empty;
    if (moved && ++laps == 8) return Look::broken;
  }
  claimed_by_others_ = true;  // other consumers were faster each time
  return Look::empty;
}

// The first message that is not done, as far as a lap shows. A look from there on sees each message that is not done.
std::uint64_t MpmcReceiver::first_open() const {
  std::uint64_t k = std::max(lane_.head().load(std::memory_order_acquire), done_);
  for (const std::uint64_t end = k + lane_.cells(); k != end; ++k) {
    const CellWord w = CellWord::of(lane_.cell(k).word.load(std::memory_order_acquire));
    if (pool::position_difference(w.position, k) <= 0) break;
  }
  return k;
}

// A look without a claim. The head moves only when a consumer takes a message, and that consumer then looks for the
// next one itself.
bool MpmcReceiver::unclaimed() const {
  const std::uint64_t begin = first_open();
  for (std::uint64_t k = begin; k - begin < lane_.cells(); ++k) {
    const CellWord w = CellWord::of(lane_.cell(k).word.load(std::memory_order_acquire));
    if (w.position != (k & pool::kPositionMask)) continue;
    if (w.is(CellState::full)) return true;
    if (w.is(CellState::empty)) return false;
  }
  return false;
}

// The head is a hint that lags behind, so the messages themselves are counted.
std::uint64_t MpmcReceiver::lag() const {
  std::uint64_t count = 0;
  const std::uint64_t begin = first_open();
  for (std::uint64_t k = begin; k - begin < lane_.cells(); ++k) {
    const CellWord w = CellWord::of(lane_.cell(k).word.load(std::memory_order_acquire));
    if (w.position != (k & pool::kPositionMask)) continue;
    if (w.is(CellState::full)) ++count;
    if (w.is(CellState::empty)) break;
  }
  return count;
}

bool MpmcReceiver::unfinished() const {
  const auto own = static_cast<std::uint8_t>(pool::kClaimedBy + participant_.index());
  const std::uint64_t begin = first_open();
  for (std::uint64_t k = begin; k - begin < lane_.cells(); ++k) {
    const CellWord w = CellWord::of(lane_.cell(k).word.load(std::memory_order_acquire));
    if (w.position != (k & pool::kPositionMask)) continue;
    if (w.is(CellState::full) || (w.claimed() && w.state != own)) return true;
    if (w.is(CellState::empty)) return false;
  }
  return false;
}

void MpmcReceiver::give_back(std::uint64_t position) {
  auto& word = lane_.cell(position).word;
  const std::uint8_t tag = CellWord::of(word.load(std::memory_order_relaxed)).tag;
  SHMB_STEP(C7);
  word.store(CellWord::full(position, tag), std::memory_order_release);
  SHMB_STEP(C7_done);
  participant_.sleeper().wake_one(readers_);
}

}  // namespace shmb::client
