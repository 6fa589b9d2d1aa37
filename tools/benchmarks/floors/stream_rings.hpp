// SPDX-License-Identifier: Apache-2.0
// The most that the machine carries: bare rings in shared memory, with no books, no sleepers and no deaths. Both ends
// keep a copy of the other's index, and read it again only when the copy says full or empty.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <new>

#include "tools/benchmarks/floors/stream.hpp"

namespace shmb::bench {

inline constexpr std::uint64_t kRingCells = 256;

struct RingCell {
  alignas(64) char bytes[kStreamBytes];
};

// One writer and one reader.
struct Ring {
  alignas(128) std::atomic<std::uint64_t> head;
  alignas(128) std::atomic<std::uint64_t> tail;
  alignas(128) RingCell cells[kRingCells];
};

// One writer, and readers that each get all.
struct BroadcastRing {
  static constexpr unsigned kReaders = 64;
  struct alignas(128) Position {
    std::atomic<std::uint64_t> at;
  };
  std::atomic<unsigned> readers;
  alignas(128) std::atomic<std::uint64_t> tail;
  Position positions[kReaders];
  alignas(128) RingCell cells[kRingCells];
};

// Memory that the processes of a stream share.
template <class T>
class Shared {
 public:
  Shared() {
    void* page = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) give_up("mmap");
    it_ = new (page) T{};
  }
  Shared(Shared&&) = delete;
  ~Shared() { munmap(it_, sizeof(T)); }
  T& operator*() const { return *it_; }

 private:
  T* it_;
};

// `at_a_time`: messages for one store of an index.
std::unique_ptr<StreamEnd> ring_end(Ring& ring, std::uint64_t at_a_time);
std::unique_ptr<StreamEnd> broadcast_ring_end(BroadcastRing& ring, bool writer);

#ifdef SHMB_HAVE_MOODYCAMEL
// moodycamel::ConcurrentQueue between threads of one process: messages in thousands per second.
double moodycamel_per_second(unsigned writers, unsigned readers, std::uint64_t count);
#endif

}  // namespace shmb::bench
