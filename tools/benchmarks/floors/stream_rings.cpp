// SPDX-License-Identifier: Apache-2.0
// See stream_rings.hpp.
#include "tools/benchmarks/floors/stream_rings.hpp"

#include <sched.h>
#include <string.h>

#include <algorithm>

namespace shmb::bench {
namespace {

// Processes that share a core must let each other run.
class Pause {
 public:
  void operator()() {
    if (++pauses_ % 64 == 0) sched_yield();
    for (int i = 0; i < 16; ++i) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("isb" ::: "memory");
#endif
    }
  }

 private:
  unsigned pauses_ = 0;
};

void take(const RingCell& cell) {
  char bytes[kStreamBytes];
  memcpy(bytes, cell.bytes, sizeof bytes);
  asm volatile("" : : "r"(bytes) : "memory");
}

class RingEnd final : public StreamEnd {
 public:
  RingEnd(Ring& ring, std::uint64_t at_a_time) : ring_(ring), at_a_time_(at_a_time) {}
  void send(std::uint64_t count) override {
    char bytes[kStreamBytes] = {};
    for (std::uint64_t i = 0; i < count; ++i) {
      memcpy(bytes, &i, sizeof i);
      for (Pause pause; at_ - seen_ == kRingCells;) {
        ring_.tail.store(at_, std::memory_order_release);
        if ((seen_ = ring_.head.load(std::memory_order_acquire)) + kRingCells == at_) pause();
      }
      memcpy(ring_.cells[at_++ % kRingCells].bytes, bytes, sizeof bytes);
      if (at_ % at_a_time_ == 0 || i + 1 == count) ring_.tail.store(at_, std::memory_order_release);
    }
  }
  void receive(const std::function<bool()>& taken) override {
    for (;;) {
      for (Pause pause; at_ == seen_;) {
        ring_.head.store(at_, std::memory_order_release);
        if ((seen_ = ring_.tail.load(std::memory_order_acquire)) == at_) pause();
      }
      take(ring_.cells[at_++ % kRingCells]);
      const bool last = taken();
      if (at_ % at_a_time_ == 0 || last) ring_.head.store(at_, std::memory_order_release);
      if (last) return;
    }
  }

 private:
  Ring& ring_;
  const std::uint64_t at_a_time_;
  std::uint64_t at_ = 0, seen_ = 0;
};

class BroadcastRingEnd final : public StreamEnd {
 public:
  BroadcastRingEnd(BroadcastRing& ring, bool writer) : ring_(ring), own_(writer ? 0 : ring.readers++) {}
  void send(std::uint64_t count) override {
    char bytes[kStreamBytes] = {};
    for (std::uint64_t i = 0; i < count; ++i) {
      memcpy(bytes, &i, sizeof i);
      for (Pause pause; at_ - seen_ == kRingCells;) {
        seen_ = at_;
        for (unsigned r = 0; r < ring_.readers; ++r)
          seen_ = std::min(seen_, ring_.positions[r].at.load(std::memory_order_acquire));
        if (at_ - seen_ == kRingCells) pause();
      }
      memcpy(ring_.cells[at_ % kRingCells].bytes, bytes, sizeof bytes);
      ring_.tail.store(++at_, std::memory_order_release);
    }
  }
  void receive(const std::function<bool()>& taken) override {
    for (;;) {
      for (Pause pause; at_ == seen_;)
        if ((seen_ = ring_.tail.load(std::memory_order_acquire)) == at_) pause();
      take(ring_.cells[at_ % kRingCells]);
      ring_.positions[own_].at.store(++at_, std::memory_order_release);
      if (taken()) return;
    }
  }

 private:
  BroadcastRing& ring_;
  const unsigned own_;
  std::uint64_t at_ = 0, seen_ = 0;
};

}  // namespace

std::unique_ptr<StreamEnd> ring_end(Ring& ring, std::uint64_t at_a_time) {
  return std::make_unique<RingEnd>(ring, at_a_time);
}

std::unique_ptr<StreamEnd> broadcast_ring_end(BroadcastRing& ring, bool writer) {
  return std::make_unique<BroadcastRingEnd>(ring, writer);
}

}  // namespace shmb::bench
