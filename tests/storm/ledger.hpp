// SPDX-License-Identifier: Apache-2.0
// What was sent and what arrived, in a page that the storm's processes share besides the pool: plain words, written
// by each life for itself right before and after each call, so that they are true whenever it is killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace storm {

inline constexpr std::uint32_t kWorkers = 8, kMostQueues = 8, kMostStreams = 1 << 17;
inline constexpr std::uint32_t kMostMessages = 4096;  // of one stream; then its writer leaves
inline constexpr std::uint32_t kMostNotes = 1 << 16;

// One writer's end in one life.
struct Stream {
  std::atomic<std::uint32_t> queue, worker;
  std::atomic<std::uint64_t> opened;                         // place in the order of all openings
  std::atomic<std::uint32_t> attempted, sent;                // before the call, and after it said OK
  std::atomic<std::uint32_t> ended;                          // the writer is dead or has left: `sent` is final
  std::atomic<std::uint64_t> delivered[kMostMessages / 64];  // claim queues: by anybody
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

struct Note {
  std::uint32_t queue;
  std::uint64_t ident;
};

struct Ledger {
  std::atomic<std::uint32_t> stop_sending, leave, failed;
  std::atomic<std::uint32_t> streams;
  std::atomic<std::uint64_t> openings;
  Worker workers[kWorkers];
  // By the parent, from what the dead had in hand; by those who give a message back.
  std::uint32_t may_miss[kMostQueues], ends_of_readers[kMostQueues];
  std::atomic<std::uint32_t> may_repeat_count;
  std::atomic<std::uint32_t> late[kMostQueues], given_back[kMostQueues];  // late: behind a later one of its stream
  std::atomic<std::uint64_t> received[kMostQueues], sent[kMostQueues], lost[kMostQueues];
  std::atomic<std::uint64_t> forwarded, twice, lists, regions, refusals;
  std::atomic<std::uint32_t> repeats;
  Note may_repeat[kMostNotes];
  Note repeated[kMostNotes];
  char wrong[1024];
  Stream stream[kMostStreams];

  void allow_repeat(std::uint32_t queue, std::uint64_t ident) {
    const std::uint32_t at = may_repeat_count.fetch_add(1);
    if (at < kMostNotes) may_repeat[at] = {queue, ident};
  }
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
