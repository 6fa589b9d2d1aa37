// SPDX-License-Identifier: Apache-2.0
// How a participant sleeps until a peer has something for it, and how it wakes peers. A sleeper announces itself,
// then looks once more; a waker publishes, then looks for sleepers: one of them sees the other, so no wake is lost, and
// a waker without sleepers makes no system call. A waker wakes first and clears the flag afterwards: killed or stopped
// in between it hides nothing from the next waker.
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
#include "client/deadline.hpp"
#include "client/steps.hpp"
#include "proto/pool_layout.hpp"

namespace shmb::client {

// Guards the private books between the threads of one process. Costs nothing in a process with one thread.
class LocalLock {
 public:
  void lock() {
    if (__libc_single_threaded) return;
    mutex_.lock();
    taken_ = true;
  }
  // The process may have become multi-threaded, or single-threaded again, only between two calls of the library.
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

// The line is going to be written by this processor. On x86-64 GCC's builtin asks for a copy to read only (without
// -mprfchw), which a line that the other end has read is in this cache already; processors without PREFETCHW pass over
// it.
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
  // A descriptor of a peer's doorbell; -1: it cannot be had. Asked each time, so the callback keeps what it fetched.
  // `dead`: the one that it has just given cannot be rung.
  using FindDoorbell = std::function<int(std::uint32_t participant, std::uint32_t life, bool dead)>;
  static constexpr std::int64_t kDefaultSpin = 20'000;

  explicit Sleeper(Participant& participant) : participant_(participant) {}
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  // How long to look before each sleep; 0: not at all. `always`: also where that has been for nothing. Else, after a
  // look for nothing the next sleeps begin after a microsecond or two: one, then 3, 7, at most 15 of them, until a look
  // finds something or a sleep was so short that a look would have.
  // A short sleep right behind a look for nothing says something else: what was waited for came as soon as this thread
  // left its processor, so the peer needs that one. Then short sleeps prove nothing, up to 1,023 sleeps follow before
  // the next look tries whether the peer runs elsewhere by now, and they begin at once.
  void set_spin(std::int64_t nanoseconds, bool always = true) {
    spin_ = nanoseconds;
    spin_always_ = always;
  }
  void on_doorbell(FindDoorbell find) { find_doorbell_ = std::move(find); }
  // Of what nobody tells a sleeper: asked under the participant's lock, again and again during a wait. Its error ends
  // the wait. `interval` gives the nanoseconds until the next time.
  using Look = std::function<Result<void>()>;
  using Interval = std::function<std::int64_t()>;
  void on_look(Look look, Interval interval) {
    look_ = std::move(look);
    look_interval_ = std::move(interval);
  }

  // Until `something_there()` (bool), which is called under the participant's lock, or the deadline: true or false. It
  // looks at all sources and at the directory's change word: the broker wakes whenever that moves. Other threads may
  // take the participant's lock meanwhile. `rouse`: peers that sleep are woken once, to let go of what they hold for
  // messages that were read while they slept.
  template <class F>
  Result<bool> wait(Masks masks, F&& something_there, Deadline deadline, bool rouse = false);

  // For event loops: from now on wakers ring this process' doorbell, once. False: there is something already, and
  // nothing is armed. After a ring, and before arming again, disarm.
  template <class F>
  bool arm_doorbell(Masks masks, F&& something_there);
  void disarm_doorbell();
  bool armed() const { return armed_; }

  // How the next wait begins. Who has sent something waits for an answer that may be on its way: it looks without a
  // pause. Who takes a stream, or has filled a lane, pauses first: a look at the very line that the peer is writing
  // costs both of them a transfer for each message.
  void expect_answer() { answer_expected_ = true; }
  void expect_stream() { answer_expected_ = false; }
  bool answer_expected() const { return answer_expected_; }
  // Is there any use in looking without a sleep?
  bool peer_runs_elsewhere() const { return spin_always_ || !shared_processor_ || spins_in_vain_ < kSharedForSure; }

  // S4..S8, after a message or room was published.
  void wake_all(pool::Waiters& waiters) {
    if (const std::uint64_t mask = announced(waiters)) wake_masked(mask, false);
  }
  void wake_one(pool::Waiters& waiters) {
    if (const std::uint64_t mask = announced(waiters)) wake_masked(mask, true);
  }
  void wake_another(pool::Waiters& waiters);  // as wake_one, but not this process
  // As wake_all, but who sleeps is woken only if `moved()`, which is asked behind S4.
  template <class F>
  void wake_all_if(pool::Waiters& waiters, F&& moved) {
    if (const std::uint64_t mask = announced(waiters); mask != 0 && moved()) wake_masked(mask, false);
  }
  // Only behind the fence of one of the above, or of Z3.
  void wake_if_asleep(std::uint32_t index) { wake_participant(index); }
  // Of this process: something that they wait for has changed under the lock, which is held.
  void wake_own_threads();
  // The same after a seq_cst read-modify-write of the word that sleepers look at, which saves the fence.
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
  std::uint32_t go_to_sleep(Masks masks);  // Z0..Z3; gives the event to wait for
  void wake_up(Masks masks);               // Z7, Z6
  void announce(Masks masks);
  void withdraw(Masks masks);
  void flag();  // Z2, Z3
  // Z5; false: the deadline. `look`: when the next one is due, which is moved on.
  Result<bool> block(std::uint32_t event, Deadline deadline, Deadline& look);
  void prepare();  // behind Z3: lets go of what must not be kept while asleep
  void spare(std::uint32_t most) { spins_spared_ = spins_in_vain_ = std::min(2 * spins_in_vain_ + 1, most); }
  void learn(bool looked_in_vain, bool short_sleep);  // from a sleep that ended with what was waited for
  Deadline next_look() const { return Deadline::after(look_ ? look_interval_() : kForever); }
  Deadline expiry();  // when there is more of that: a message that this process has sent is too old then
  void rouse_peers();
  LocalLock& lock();

  Participant& participant_;
  std::int64_t spin_ = kDefaultSpin;
  bool spin_always_ = false;
  static constexpr std::uint32_t kMostSpared = 15, kMostSparedShared = 1023, kSharedForSure = 7;
  std::uint32_t spins_spared_ = 0, spins_in_vain_ = 0;  // so many sleeps begin early yet; and after the next vain look
  bool shared_processor_ = false;                       // the last look for nothing was followed by a short sleep
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
  std::uint32_t rotation_ = 0;  // wake_one begins behind the last one it woke
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
  bool early = false, in_vain = false;  // it sleeps without a full look, or behind one
  if (something_there()) return true;
  if (spin_ > 0) {
    auto look = [&](int pauses) {
      lock().unlock();
      for (int i = 0; i < pauses; ++i) relax_processor();
      lock().lock();
      return something_there();
    };
    early = !spin_always_ && spins_spared_ > 0;
    if (!early || peer_runs_elsewhere()) {
      if (!std::exchange(answer_expected_, false) && look(kPauses)) return true;
      for (int i = 0; i < kBareLooks; ++i)
        if (look(0)) return true;
    }
    if (early) {
      --spins_spared_;
    } else {
      const Deadline until = earlier(deadline, Deadline::after(spin_));
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
      if (asleep_since != 0) learn(in_vain, sys::now_monotonic() - asleep_since < spin_);
      return true;
    }
    if (!woken) return woken;
    if (deadline.passed()) return false;  // a hostile peer may change the futex word without end: it never sleeps then
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
