// SPDX-License-Identifier: Apache-2.0
// Sleeping until a peer has something for this process, and waking peers, without a lost wake-up.
//
// Each participant has two shared words. Its threads wait on `event` by futex. `sleep` holds a sleep token while one of
// them sleeps, and 0 otherwise. Each source (readers or writers of a queue, free slots) has a mask with one bit for
// each participant that waits for it. The names Z0 to Z7 and S4 to S8 are those of docs/memory-order.md and
// client/lane/steps.hpp.
//
// The sleeper spins for a while. Then it sets its bits in the masks (Z0), reads `event` (Z1), stores a new token (Z2),
// and passes a fence (Z3). It looks at its sources once more (Z4) and waits on `event` (Z5). Awake, it clears its bits
// and the token (Z7, Z6).
//
// The waker publishes, passes a fence, and reads the mask (S4). For each bit it reads the token (S5). If that is not 0,
// it increments `event` (S6), wakes by futex or doorbell (S7), and clears the token by one compare-and-swap (S8).
//
// Invariants, with peers that are killed, stopped or hostile at any point:
//
// - Of the two fences one is later. So the sleeper sees the publication, or the waker sees the token. A waker without
//   sleepers makes no system call.
// - The waker wakes first and clears the token afterwards. If it stops in between, the next waker wakes again.
// - A token never repeats, so a waker that was stopped before S8 cannot clear the token of a later sleep.
// - `event` changes before the wake, so a sleeper that has not reached the futex does not sleep.
// - Each wait has a deadline, and looks at facts that no peer reports (on_look). A hostile peer can only waste time.
//
// Waits are called with the participant's lock held. It is released while they spin or sleep.
#pragma once

#include <sys/single_threaded.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/rescue.hpp"
#include "base/result.hpp"
#include "base/sys_process.hpp"
#include "client/lane/steps.hpp"
#include "client/session/deadline.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::client {

// Guards the private state of a participant between the threads of one process. It costs nothing in a process with one
// thread.
class LocalLock {
 public:
  void lock() {
    if (__libc_single_threaded) return;
    mutex_.lock();
    taken_ = true;
  }
  // The process may become multi-threaded, or single-threaded again, only between two calls of the library.
  void unlock() {
    if (!taken_) return;
    taken_ = false;
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
  bool taken_ = false;
};

class Participant;

inline void relax_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// This processor will write the line. On x86-64 GCC's builtin asks only for a copy to read (without -mprfchw). A line
// that the other end has read is in this cache already. Processors without PREFETCHW ignore the instruction.
inline void prefetch_to_write(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

class Sleeper {
 public:
  using Masks = std::span<std::atomic<std::uint64_t>* const>;  // &Waiters::mask of every source that is waited for
  // Finds the descriptor of a peer's doorbell; -1: none is available. It is called for each ring, so the callback keeps
  // what it fetched. `dead`: the descriptor of the last call cannot be rung.
  using FindDoorbell = std::function<int(std::uint32_t participant, std::uint32_t life, bool dead)>;
  static constexpr std::int64_t kDefaultSpin = 20'000;

  explicit Sleeper(Participant& participant) : participant_(participant) {}
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  // How long to spin before each sleep; 0: never. With `always` it spins also where that was useless before.
  //
  // Otherwise a spin that finds nothing makes the next sleeps begin after a microsecond or two: one sleep, then 3, 7,
  // at most 15. A spin that succeeds ends that, and so does a sleep so short that a spin would have succeeded.
  //
  // A short sleep right after a useless spin means that the peer needed this thread's processor. Then short sleeps
  // prove nothing. Up to 1,023 sleeps begin at once before the next spin tries whether the peer runs elsewhere by now.
  void set_spin(std::int64_t nanoseconds, bool always = true) {
    spin_ = nanoseconds;
    spin_always_ = always;
  }
  void on_doorbell(FindDoorbell find) { find_doorbell_ = std::move(find); }
  // A look at facts that no peer reports to a sleeper. It is called under the participant's lock, repeatedly during a
  // wait. Its error ends the wait. `interval` returns the nanoseconds until the next call.
  using Look = std::function<Result<void>()>;
  using Interval = std::function<std::int64_t()>;
  void on_look(Look look, Interval interval) {
    look_ = std::move(look);
    look_interval_ = std::move(interval);
  }

  // Waits until `something_there()` (bool, called under the participant's lock) or the deadline, and returns true or
  // false. Sources are the masks and the directory's change word: the broker wakes whenever that moves. Other threads
  // may take the participant's lock meanwhile. `rouse`: sleeping peers are woken once, so that they drop references for
  // messages that were read while they slept.
  template <class F>
  Result<bool> wait(Masks masks, F&& something_there, Deadline deadline, bool rouse = false);

  // For event loops: from now on wakers ring this process' doorbell, once. False: something is there already, and
  // nothing is armed. Disarm after a ring, and before arming again.
  template <class F>
  bool arm_doorbell(Masks masks, F&& something_there);
  void disarm_doorbell();
  bool armed() const { return armed_; }

  // How the next wait begins. A thread that has sent something expects an answer soon, so it looks at once. A thread
  // that takes a stream, or has filled a lane, pauses first. A look at the line that the peer is writing costs both of
  // them a transfer for each message.
  void expect_answer() { answer_expected_ = true; }
  void expect_stream() { answer_expected_ = false; }
  bool answer_expected() const { return answer_expected_; }
  // Whether spinning may help.
  bool peer_runs_elsewhere() const { return spin_always_ || !shared_processor_ || spins_in_vain_ < kSharedForSure; }

  // S4 to S8, after a message or room was published.
  void wake_all(pool::Waiters& waiters) {
    if (const std::uint64_t mask = announced(waiters)) wake_masked(mask, false);
  }
  void wake_one(pool::Waiters& waiters) {
    if (const std::uint64_t mask = announced(waiters)) wake_masked(mask, true);
  }
  void wake_another(pool::Waiters& waiters);  // as wake_one, but not this process
  // As wake_all, but wakes sleepers only if `moved()`, which is called after S4.
  template <class F>
  void wake_all_if(pool::Waiters& waiters, F&& moved) {
    if (const std::uint64_t mask = announced(waiters); mask != 0 && moved()) wake_masked(mask, false);
  }
  // Only after the fence of one of the above, or of Z3.
  void wake_if_asleep(std::uint32_t index) { wake_participant(index); }
  // Wakes threads of this process: something that they wait for has changed under the lock, which the caller holds.
  void wake_own_threads();
  // As wake_all, but only after a seq_cst read-modify-write of the word that sleepers look at. That saves the fence.
  void wake_all_after_exchange(pool::Waiters& waiters) {
    if (const std::uint64_t mask = waiters.mask.load(std::memory_order_seq_cst)) wake_masked(mask, false);
  }

 private:
  static std::uint64_t announced(pool::Waiters& waiters) {
    SHMB_STEP(S4);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    SHMB_STEP(S4_done);
    return waiters.mask.load(std::memory_order_relaxed);
  }
  void wake_masked(std::uint64_t mask, bool one);
  bool wake_participant(std::uint32_t index);
  bool ring(std::uint32_t index);

  struct Asleep;                           // wakes up at its end, also if a look throws
  std::uint32_t go_to_sleep(Masks masks);  // Z0 to Z3; returns the value of `event` to wait for
  void wake_up(Masks masks);               // Z7, Z6
  void announce(Masks masks);
  void withdraw(Masks masks);
  void flag();  // Z2, Z3
  // Z5. False: the deadline. `look`: the time of the next look; a look moves it on.
  Result<bool> block(std::uint32_t event, Deadline deadline, Deadline& look);
  void prepare();  // after Z3: drops what must not be kept while asleep
  void spare(std::uint32_t most) { spins_spared_ = spins_in_vain_ = std::min(2 * spins_in_vain_ + 1, most); }
  void learn(bool looked_in_vain, bool short_sleep);  // from a sleep that ended with something there
  Deadline next_look() const { return Deadline::after(look_ ? look_interval_() : kForever); }
  Deadline expiry();  // the time at which the next message of this process expires
  void rouse_peers();
  LocalLock& lock();

  Participant& participant_;
  std::int64_t spin_ = kDefaultSpin;
  bool spin_always_ = false;
  static constexpr std::uint32_t kMostSpared = 15, kMostSparedShared = 1023, kSharedForSure = 7;
  // the number of coming sleeps without a spin; and its value after the next useless spin
  std::uint32_t spins_spared_ = 0, spins_in_vain_ = 0;
  bool shared_processor_ = false;  // a short sleep followed the last useless spin
  FindDoorbell find_doorbell_;
  Look look_;
  Interval look_interval_;
  struct Announced {
    std::atomic<std::uint64_t>* mask;
    std::uint32_t sleepers;  // threads of this process, and the doorbell
  };
  std::vector<Announced> announced_;
  std::vector<std::atomic<std::uint64_t>*> armed_masks_;
  std::uint64_t token_ = 0;
  std::uint32_t threads_asleep_ = 0;
  std::uint32_t rotation_ = 0;  // wake_one begins after the participant that it woke last
  bool armed_ = false;
  bool answer_expected_ = false;
};

struct Sleeper::Asleep {
  Sleeper& sleeper;
  Masks masks;
  const std::uint32_t event = sleeper.go_to_sleep(masks);
  ~Asleep() { sleeper.wake_up(masks); }
};

template <class F>
Result<bool> Sleeper::wait(Masks masks, F&& something_there, Deadline deadline, bool rouse) {
  constexpr int kBareLooks = 200, kPauses = 16, kLooksPerClock = 4;
  bool early = false, in_vain = false;  // this sleep begins without a full spin; it begins after one that found nothing
  // The values of this wait: while the lock is released, another thread may set those of its own wait.
  const std::int64_t spin = spin_;
  const bool spin_always = spin_always_;
  if (something_there()) return true;
  if (spin > 0) {
    auto look = [&](int pauses) {
      lock().unlock();
      for (int i = 0; i < pauses; ++i) relax_processor();
      lock().lock();
      return something_there();
    };
    early = !spin_always && spins_spared_ > 0;
    if (!early || peer_runs_elsewhere()) {
      if (!std::exchange(answer_expected_, false) && look(kPauses)) return true;
      for (int i = 0; i < kBareLooks; ++i)
        if (look(0)) return true;
    }
    if (early) {
      --spins_spared_;
    } else {
      const Deadline until = earlier(deadline, Deadline::after(spin));
      while (!until.passed())
        for (int i = 0; i < kLooksPerClock; ++i)
          if (look(kPauses)) {
            spins_in_vain_ = 0;
            shared_processor_ = false;
            return true;
          }
      in_vain = !deadline.passed();
      if (in_vain) spare(shared_processor_ ? kMostSparedShared : kMostSpared);
    }
  }
  const std::int64_t asleep_since = early || in_vain ? sys::now_monotonic() : 0;
  if (deadline.passed()) return false;
  for (Deadline look = next_look();;) {
    Result<bool> woken = true;
    {
      const Asleep asleep{*this, masks};
      SHMB_STEP(Z4);
      const bool there = something_there();
      SHMB_STEP(Z4_done);
      if (there) return true;
      prepare();
      if (std::exchange(rouse, false)) rouse_peers();
      woken = block(asleep.event, earlier(deadline, expiry()), look);
    }
    if (woken && !*woken && deadline.passed() && !rescues()) return false;
    if (something_there()) {
      if (asleep_since != 0) learn(in_vain, sys::now_monotonic() - asleep_since < spin);
      return true;
    }
    if (!woken) return woken;
    // Looked at here too: a hostile peer may change the futex word without end, so that the thread never sleeps.
    if (deadline.passed()) return false;
  }
}

template <class F>
bool Sleeper::arm_doorbell(Masks masks, F&& something_there) {
  disarm_doorbell();
  armed_masks_.assign(masks.begin(), masks.end());
  announce(masks);
  armed_ = true;
  flag();
  bool there = true;
  try {
    SHMB_STEP(Z4);
    there = something_there();
    SHMB_STEP(Z4_done);
  } catch (...) {
    disarm_doorbell();
    throw;
  }
  if (there) disarm_doorbell();
  else prepare();
  return !there;
}

}  // namespace shmb::client
