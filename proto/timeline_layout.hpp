// SPDX-License-Identifier: Apache-2.0
// The memory of a timeline, as broker, library and GPU see it: one line of 64 bytes for each word, from offset 0 on.
// The producer's streams write `counter`, everybody's streams and threads wait for it. When the producer is gone the
// broker writes `status` first, and then a counter that satisfies every waiter. So no stream hangs for a process that
// has died.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace shmb::timeline {

inline constexpr std::uint32_t kMaxWords = 1024;
// Counters only grow, and a wait is satisfied by the cyclic difference: this far ahead satisfies every wait for a value
// that was announced, or soon would have been.
inline constexpr std::uint64_t kRelease = std::uint64_t{1} << 62;

struct Word {
  std::atomic<std::uint64_t> counter;    // written by the producer's streams (cuStreamWriteValue64)
  std::atomic<std::uint64_t> announced;  // highest value whose signal is enqueued; written by the producer's host code
  std::atomic<std::uint32_t> status;     // shmbw_gpu_word_status; written by the broker only
  std::atomic<std::uint32_t> wakes;      // moved and woken as a futex to end waits from the host
  std::atomic<std::uint64_t> last;       // the counter as the producer left it; written by the broker before `status`
  std::uint64_t reserved[4];
};
static_assert(sizeof(Word) == 64 && offsetof(Word, counter) == 0 && offsetof(Word, announced) == 8 &&
              offsetof(Word, status) == 16 && offsetof(Word, wakes) == 20 && offsetof(Word, last) == 24);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

inline constexpr std::uint64_t bytes_of(std::uint32_t words) { return std::uint64_t{words} * sizeof(Word); }

// As the GPU compares: cyclic, so that it goes on past the largest number.
inline constexpr bool reached(std::uint64_t counter, std::uint64_t value) {
  return static_cast<std::int64_t>(counter - value) >= 0;
}

}  // namespace shmb::timeline
