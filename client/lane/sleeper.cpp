// SPDX-License-Identifier: Apache-2.0
// The shared words of sleeping and waking. See sleeper.hpp.
#include "client/lane/sleeper.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>

#include "base/sys_futex.hpp"
#include "base/sys_socket.hpp"
#include "client/lane/participant.hpp"

namespace shmb::client {

LocalLock& Sleeper::lock() { return participant_.lock(); }

// After Z3, because this is also a look. Either a reader that is done sees this process asleep, or this look sees the
// cells that are done.
void Sleeper::prepare() {
  participant_.reclaim();
  participant_.flush_cache();
}

Deadline Sleeper::expiry() { return participant_.expiry(); }

void Sleeper::rouse_peers() {
  for (std::uint32_t index = 0; index < pool::kParticipants; ++index)
    if (index != participant_.index()) wake_participant(index);
}

// The threads of this process share its bit in a mask. The first that sleeps there sets it, and the last clears it.
void Sleeper::announce(Masks masks) {
  announced_.reserve(announced_.size() + masks.size());
  for (auto* mask : masks) {
    auto known = std::find_if(announced_.begin(), announced_.end(), [&](const Announced& a) { return a.mask == mask; });
    if (known != announced_.end()) {
      ++known->sleepers;
      continue;
    }
    announced_.push_back({mask, 1});
    SHMB_STEP(Z0);
    mask->fetch_or(participant_.bit(), std::memory_order_relaxed);
    SHMB_STEP(Z0_done);
  }
}

void Sleeper::withdraw(Masks masks) {
  for (auto* mask : masks) {
    auto known = std::find_if(announced_.begin(), announced_.end(), [&](const Announced& a) { return a.mask == mask; });
    if (known == announced_.end() || --known->sleepers > 0) continue;
    announced_.erase(known);
    SHMB_STEP(Z7);
    mask->fetch_and(~participant_.bit(), std::memory_order_relaxed);
    SHMB_STEP(Z7_done);
  }
}

// The life is part of the token, because a waker may be stopped between its wake and S8 for longer than a life lasts.
void Sleeper::flag() {
  constexpr unsigned kCountBits = 40;
  constexpr std::uint64_t kCount = (std::uint64_t{1} << kCountBits) - 1;
  token_ += pool::kSleepTokenStep;
  std::uint64_t token = (token_ & kCount) | std::uint64_t{participant_.life()} << kCountBits;
  if (threads_asleep_ > 0) token |= pool::kSleepFutex;
  if (armed_) token |= pool::kSleepDoorbell;
  SHMB_STEP(Z2);
  participant_.view().wait(participant_.index()).sleep.store(token, std::memory_order_relaxed);
  SHMB_STEP(Z2_done);
  SHMB_STEP(Z3);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  SHMB_STEP(Z3_done);
}

std::uint32_t Sleeper::go_to_sleep(Masks masks) {
  announce(masks);
  ++threads_asleep_;
  SHMB_STEP(Z1);
  const std::uint32_t event = participant_.view().wait(participant_.index()).event.load(std::memory_order_acquire);
  SHMB_STEP(Z1_done);
  flag();
  return event;
}

void Sleeper::wake_up(Masks masks) {
  --threads_asleep_;
  withdraw(masks);
  if (threads_asleep_ == 0 && !armed_) {
    SHMB_STEP(Z6);
    participant_.view().wait(participant_.index()).sleep.store(0, std::memory_order_relaxed);
    SHMB_STEP(Z6_done);
  }
  // A waker that still saw this thread asleep had published before, and the look that follows sees that.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Sleeper::disarm_doorbell() {
  if (!armed_) return;
  armed_ = false;
  withdraw(armed_masks_);
  armed_masks_.clear();
  if (threads_asleep_ == 0) {
    SHMB_STEP(Z6);
    participant_.view().wait(participant_.index()).sleep.store(0, std::memory_order_relaxed);
    SHMB_STEP(Z6_done);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// After a look the wait continues: a peer that publishes meanwhile wakes it. With rescues on, it also looks at its
// sources again.
Result<bool> Sleeper::block(std::uint32_t event, Deadline deadline, Deadline& look) {
  auto& word = participant_.view().wait(participant_.index()).event;
  for (;;) {
    const Deadline end = earlier(deadline, look);
    lock().unlock();
    SHMB_STEP(Z5);
    const auto slept = sys::futex_wait(word, event, end.time());
    SHMB_STEP(Z5_done);
    lock().lock();
    if (!slept && slept.error().value != EAGAIN && slept.error().value != ETIMEDOUT)
      return system_failure(slept.error(), "waiting for a peer of the pool with futex");
    const bool woken = slept || slept.error().value == EAGAIN;
    const bool looked = look.passed();
    if (looked) {
      look = next_look();
      SHMB_TRY_VOID(look_());
    }
    if (woken) return true;
    if (deadline.passed()) return false;
    if (looked && rescues()) return true;
  }
}

void Sleeper::learn(bool looked_in_vain, bool short_sleep) {
  if (looked_in_vain) {
    shared_processor_ = short_sleep;
    if (!short_sleep) spins_spared_ = spins_in_vain_ = std::min(spins_in_vain_, kMostSpared);
  } else if (short_sleep && !shared_processor_) {
    spins_spared_ = spins_in_vain_ = 0;
  }
}

void Sleeper::wake_own_threads() {
  if (threads_asleep_ == 0) return;
  auto& event = participant_.view().wait(participant_.index()).event;
  event.fetch_add(1, std::memory_order_acq_rel);
  (void)sys::futex_wake(event, INT_MAX);
}

void Sleeper::wake_another(pool::Waiters& waiters) {
  if (const std::uint64_t mask = announced(waiters) & ~participant_.bit()) wake_masked(mask, true);
}

void Sleeper::wake_masked(std::uint64_t mask, bool one) {
  if (!one) {
    for (; mask != 0; mask &= mask - 1) wake_participant(static_cast<std::uint32_t>(std::countr_zero(mask)));
    return;
  }
  for (mask = std::rotr(mask, static_cast<int>(rotation_)); mask != 0; mask &= mask - 1) {
    const std::uint32_t index = (static_cast<std::uint32_t>(std::countr_zero(mask)) + rotation_) % pool::kParticipants;
    if (!wake_participant(index)) continue;
    rotation_ = (index + 1) % pool::kParticipants;
    return;
  }
}

// False: the participant is awake, or has not looked for the last time yet and will see what was published.
bool Sleeper::wake_participant(std::uint32_t index) {
  const pool::View& view = participant_.view();
  pool::WaitEntry& entry = view.wait(index);
  SHMB_STEP(S5);
  std::uint64_t token = entry.sleep.load(std::memory_order_seq_cst);
  SHMB_STEP(S5_done);
  if (token == 0) return false;
  SHMB_STEP(S6);
  entry.event.fetch_add(1, std::memory_order_acq_rel);
  SHMB_STEP(S6_done);
  bool rung = true;
  SHMB_STEP(S7);
  if (token & pool::kSleepFutex) rung = sys::futex_wake(entry.event, INT_MAX).has_value();
  if (token & pool::kSleepDoorbell) rung = ring(index) && rung;
  SHMB_STEP(S7_done);
  if (!rung) return false;  // the flag stays for the next waker
  SHMB_STEP(S8);
  entry.sleep.compare_exchange_strong(token, 0, std::memory_order_relaxed);
  SHMB_STEP(S8_done);
  return true;
}

bool Sleeper::ring(std::uint32_t index) {
  const auto stamp = pool::Stamp::of(participant_.view().participant(index).stamp.load(std::memory_order_acquire));
  const int doorbell = find_doorbell_ ? find_doorbell_(index, stamp.serial, false) : -1;
  if (doorbell < 0) return false;
  constexpr std::byte one{1};
  const auto sent = sys::send(doorbell, {&one, 1}, {}, {}, false);
  if (sent || sent.error().value == EAGAIN) return true;  // EAGAIN: it holds unread rings already
  (void)find_doorbell_(index, stamp.serial, true);
  return false;
}

}  // namespace shmb::client
