// SPDX-License-Identifier: Apache-2.0
// Publishing, reading what may be overwritten, joining and leaving. See broadcast.hpp.
#include "client/lane/broadcast.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace shmb::client {

using pool::CellState;
using pool::CellWord;

namespace {

constexpr std::size_t kMostWords = pool::kTagMaxInline / 8;

std::atomic<std::uint64_t>* words_of(pool::Cell& cell) {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(cell.body());
}

}  // namespace

// W1: the lowest position that a live reader may still read. The fence pairs with J3: a reader that this look misses
// begins after everything published so far.
std::uint64_t BroadcastSender::slowest_reader() {
  const pool::View& view = participant_.view();
  SHMB_STEP(W1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::uint64_t slowest = next_;
  for (std::uint64_t readers = view.queue(queue_).readers.load(std::memory_order_acquire); readers != 0;
       readers &= readers - 1) {
    const auto index = static_cast<std::size_t>(std::countr_zero(readers));
    const auto stamp = pool::Stamp::of(view.participant(index).stamp.load(std::memory_order_acquire));
    SHMB_STEP(W1_half);
    if (stamp.state != static_cast<std::uint8_t>(pool::ParticipantState::live)) continue;
    const std::uint64_t position = lane_.reader(index).position.load(std::memory_order_acquire);
    if (position != 0) slowest = std::min(slowest, position - 1);
  }
  SHMB_STEP(W1_done);
  return slowest;
}

std::uint64_t BroadcastSender::reclaim_read() {
  const std::uint64_t slowest = slowest_reader();
  limit_ = slowest + lane_.cells();
  if (slowest > done_) done_until(slowest);
  return std::min<std::uint64_t>(next_ - slowest, lane_.cells());
}

LaneSender::Room BroadcastSender::look_for_room() {
  reclaim_read();
  if (next_ < limit_) return Room::yes;
  participant_.sleeper().expect_stream();
  return Room::full;
}

void BroadcastSender::put(std::uint8_t tag, std::span<const std::byte> body, Held held, std::int64_t deadline) {
  std::array<std::uint64_t, kMostWords> words;
  const std::size_t bytes = body.size() + (expiring_ ? sizeof(deadline) : 0), count = (bytes + 7) / 8;
  if (count > 0) words[count - 1] = 0;
  if (expiring_) words[0] = static_cast<std::uint64_t>(deadline);
  if (body.size() == 56) std::memcpy(words.data() + (expiring_ ? 1 : 0), body.data(), 56);
  else if (!body.empty()) std::memcpy(words.data() + (expiring_ ? 1 : 0), body.data(), body.size());
  pool::Cell& cell = lane_.cell(next_);
  SHMB_STEP(W2);
  // Release: a reader that sees the mark also sees the tail of the message before. The fence keeps the body after the
  // mark.
  cell.word.store(CellWord::busy(next_), std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_release);
  SHMB_STEP(W2_done);
  if (next_ - done_ == lane_.cells()) let_go(done_++, true);
  keep_held(std::move(held));
  SHMB_STEP(W3);
  auto* to = words_of(cell);
  for (std::size_t i = 0; i < count; ++i) {
    to[i].store(words[i], std::memory_order_relaxed);
    if (i == count / 2) SHMB_STEP(W3_half);
  }
  SHMB_STEP(W3_done);
  SHMB_STEP(W4);
  cell.word.store(CellWord::full(next_, tag), std::memory_order_release);
  SHMB_STEP(W4_done);
  ++next_;
  SHMB_STEP(W5);
  lane_.tail().store(next_, std::memory_order_release);
  SHMB_STEP(W5_done);
}

LaneReceiver::Look BroadcastReceiver::look(Received& out) {
  Look seen = read(out);
  if (seen != Look::empty) return seen;
  SHMB_STEP(L1);
  const bool alive = sender_alive();
  SHMB_STEP(L1_done);
  if (alive) return Look::empty;
  SHMB_STEP(L2);
  seen = read(out);
  SHMB_STEP(L2_done);
  return seen == Look::empty ? Look::drained : seen;
}

LaneReceiver::Look BroadcastReceiver::read(Received& out) {
  constexpr int kTries = 1000;  // a writer that overruns this reader so often is faster than it can read at all
  for (int tries = 0; tries < kTries; ++tries) {
    pool::Cell& cell = lane_.cell(next_);
    SHMB_STEP(Q1);
    const std::uint64_t word = cell.word.load(std::memory_order_acquire);
    SHMB_STEP(Q1_done);
    if (word == 0) return Look::empty;
    const CellWord w = CellWord::of(word);
    if (!w.is(CellState::full) && !w.is(CellState::busy)) return Look::broken;
    const std::int64_t ahead = pool::position_difference(w.position, next_);
    if (ahead < 0 || (ahead == 0 && w.is(CellState::busy))) return Look::empty;
    if (ahead > 0) {
      const std::uint64_t position = next_ + static_cast<std::uint64_t>(ahead);
      const std::uint64_t tail = lane_.tail().load(std::memory_order_acquire);
      if (!drop_oldest_ || static_cast<std::int64_t>(tail - position) < 0) return Look::broken;
      skip_to(std::max(next_ + 1, position - lane_.cells() + 1));
      continue;
    }
    std::array<std::uint64_t, kMostWords> words;
    const std::size_t count = lane_.body_bytes() / 8;
    SHMB_STEP(Q2);
    const auto* from = words_of(cell);
    for (std::size_t i = 0; i < count; ++i) words[i] = from[i].load(std::memory_order_relaxed);
    SHMB_STEP(Q2_done);
    SHMB_STEP(Q4);
    std::atomic_thread_fence(std::memory_order_acquire);
    const std::uint64_t again = cell.word.load(std::memory_order_relaxed);
    SHMB_STEP(Q4_done);
    if (again != word) {
      if (!drop_oldest_) return Look::broken;
      continue;
    }
    word_ = word;
    const bool possible = copy_body(reinterpret_cast<const std::byte*>(words.data()), word, next_, out);
    return possible ? Look::message : refuse(next_);
  }
  return Look::empty;
}

// A writer gets room or slots only when the slowest reader moves. Several readers may be the slowest. Each stores its
// position before S4 and looks at the others' positions after it, so the last of them sees that.
void BroadcastReceiver::wake_writer_that_waits() {
  participant_.sleeper().wake_all_if(writers_, [this] { return was_slowest(); });
  shown_ = next_;
}

bool BroadcastReceiver::was_slowest() const {
  const pool::View& view = participant_.view();
  for (std::uint64_t readers = view.queue(queue_).readers.load(std::memory_order_acquire) & ~participant_.bit();
       readers != 0; readers &= readers - 1) {
    const auto index = static_cast<std::size_t>(std::countr_zero(readers));
    const std::uint64_t position = lane_.reader(index).position.load(std::memory_order_acquire);
    if (position == 0 || position - 1 > shown_) continue;
    const auto stamp = pool::Stamp::of(view.participant(index).stamp.load(std::memory_order_acquire));
    if (stamp.state == static_cast<std::uint8_t>(pool::ParticipantState::live)) return false;
  }
  return true;
}

void BroadcastReceiver::skip_to(std::uint64_t position) {
  lost_ += position - next_;
  next_ = position;
  own_line().lost.store(lost_, std::memory_order_relaxed);
  SHMB_STEP(Q5);
  own_line().position.store(next_ + 1, std::memory_order_release);
  SHMB_STEP(Q5_done);
}

bool BroadcastReceiver::confirm() {
  if (!drop_oldest_) return true;
  SHMB_STEP(Q4);
  const std::uint64_t word = lane_.cell(position_).word.load(std::memory_order_acquire);
  SHMB_STEP(Q4_done);
  if (word == word_) return true;
  if (next_ == position_) skip_to(position_ + 1);
  return false;
}

bool BroadcastReceiver::attach() {
  SHMB_STEP(J1);
  // The broker has attached readers that were there before the ring, even if its writer has come and gone since.
  if (const std::uint64_t position = own_line().position.load(std::memory_order_relaxed); position != 0) {
    next_ = shown_ = position - 1;
    SHMB_STEP(J1_done);
    return true;
  }
  bool alive = sender_alive();
  SHMB_STEP(J1_done);
  if (!alive) return false;
  SHMB_STEP(J2);
  own_line().position.store(1, std::memory_order_relaxed);  // position 0: from now on nothing is overwritten or dropped
  SHMB_STEP(J2_done);
  SHMB_STEP(J3);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  SHMB_STEP(J3_done);
  SHMB_STEP(J4);
  alive = sender_alive();
  SHMB_STEP(J4_done);
  if (!alive) {
    SHMB_STEP(J5);
    own_line().position.store(0, std::memory_order_release);
    SHMB_STEP(J5_done);
    participant_.sleeper().wake_all(writers_);
    return false;
  }
  SHMB_STEP(J6);
  next_ = lane_.tail().load(std::memory_order_acquire);
  SHMB_STEP(J6_done);
  lost_ = 0;
  own_line().lost.store(0, std::memory_order_relaxed);
  SHMB_STEP(J7);
  own_line().position.store(next_ + 1, std::memory_order_release);
  SHMB_STEP(J7_done);
  shown_ = next_;
  // Since J2 this reader held the writer up as if it had read nothing, and other readers passed their wakes on to it.
  participant_.sleeper().wake_all(writers_);
  return true;
}

void BroadcastReceiver::detach() {
  SHMB_STEP(L4);
  own_line().position.store(0, std::memory_order_release);
  SHMB_STEP(L4_done);
  participant_.sleeper().wake_all(writers_);
}

}  // namespace shmb::client
