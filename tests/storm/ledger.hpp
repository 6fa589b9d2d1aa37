// SPDX-License-Identifier: Apache-2.0
// The messages sent and received, in a page that the storm's processes share besides the pool: plain words, written
// by each life for itself right before and after each call, so that they are true whenever it is killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "tests/storm/content.hpp"

namespace storm {

inline constexpr std::uint32_t kWorkers = 8, kMostQueues = 8, kMostStreams = 1 << 17;
inline constexpr std::uint32_t kMostMessages = 1024;  // of one stream; then its writer leaves

// How often a message of an mpmc queue was taken, and how often it may have come again: one word, so that each is noted
// by one instruction. A note of two parts (a place in a list, then what stands there) is empty where its writer is
// killed in between, and an empty one reads as a message that nobody sent.
inline constexpr std::uint16_t kTaken = 1, kMayRepeat = 1 << 8, kMostTaken = 0xff;

// One writer's end in one life.
struct Stream {
  std::atomic<std::uint32_t> queue, worker;
  std::atomic<std::uint64_t> opened;                  // place in the order of all openings
  std::atomic<std::uint32_t> attempted, sent;         // before the call, and after it said OK
  std::atomic<std::uint32_t> ended;                   // the writer is dead or has left: `sent` is final
  std::atomic<std::uint16_t> takings[kMostMessages];  // mpmc queues: kTaken and kMayRepeat, by anybody
};

struct Worker {
  std::atomic<std::uint64_t> beats;  // of its loop
  std::atomic<std::uint32_t> lives;
  std::atomic<std::uint32_t> receiving;  // queue + 1: a message may be in its hands that nobody knows of
  std::atomic<std::uint64_t> in_hand;    // ident of a borrowed message that is noted already and not done
  std::atomic<std::uint32_t> idle;       // found nothing in any of its queues, since the last message
  std::atomic<std::uint32_t> doing;      // which call, for whom it hangs in
  std::atomic<std::uint32_t> stream[2];  // of its life, + 1
};

struct Ledger {
  std::atomic<std::uint32_t> stop_sending, leave, failed;
  std::atomic<std::uint32_t> streams;
  std::atomic<std::uint64_t> openings;
  Worker workers[kWorkers];
  std::uint32_t may_miss[kMostQueues], ends_of_readers[kMostQueues];      // by the parent
  std::atomic<std::uint32_t> late[kMostQueues], given_back[kMostQueues];  // late: behind a later one of its stream
  std::atomic<std::uint64_t> received[kMostQueues], sent[kMostQueues], lost[kMostQueues];
  std::atomic<std::uint64_t> forwarded, twice, lists, regions, refusals;
  char wrong[1024];
  Stream stream[kMostStreams];

  // By the parent, of what the dead had in hand, and by who gives a message back. A stream goes through one queue.
  void allow_repeat(Ident ident) { stream[ident.stream].takings[ident.sequence].fetch_add(kMayRepeat); }
  // The first fault counts.
  void fail(const std::string& what) {
    std::uint32_t none = 0;
    if (!failed.compare_exchange_strong(none, 1)) return;
    what.copy(wrong, sizeof wrong - 1);
    failed.store(2);
  }
  bool bad() const { return failed.load(std::memory_order_relaxed) != 0; }
};

}  // namespace storm
