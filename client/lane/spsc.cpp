// SPDX-License-Identifier: Apache-2.0
// The slow ways of an spsc lane, when it is full or empty. See spsc.hpp.
#include "client/lane/spsc.hpp"

namespace shmb::client {

using pool::CellWord;

LaneSender::Room SpscSender::advance() {
  SHMB_STEP(S0);
  const std::uint64_t head = lane_.head().load(std::memory_order_acquire);
  SHMB_STEP(S0_done);
  if (head - done_ > next_ - done_) return Room::broken;
  done_until(head);
  if (next_ - done_ < lane_.cells()) return Room::yes;
  participant_.sleeper().expect_stream();
  return Room::full;
}

// A cell without the next message: it holds that of the lap before, or nothing yet. A sender that is gone may have
// published between the first look and its end. So its end is followed by another look.
LaneReceiver::Look SpscReceiver::look_again(std::uint64_t word, Received& out) {
  const std::uint64_t before = CellWord::full(next_ - lane_.cells(), 0);
  auto impossible = [&] { return word != 0 && (word & kWithoutTag) != before; };
  if (impossible()) return Look::broken;
  SHMB_STEP(L1);
  const bool alive = sender_alive();
  SHMB_STEP(L1_done);
  if (alive) return Look::empty;
  pool::Cell& cell = lane_.cell(next_);
  SHMB_STEP(L2);
  word = cell.word.load(std::memory_order_acquire);
  SHMB_STEP(L2_done);
  if ((word & kWithoutTag) != CellWord::full(next_, 0)) return impossible() ? Look::broken : Look::drained;
  return copy_body(cell.body(), word, next_, out) ? Look::message : refuse(next_);
}

}  // namespace shmb::client
