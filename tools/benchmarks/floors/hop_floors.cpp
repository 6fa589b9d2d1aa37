// SPDX-License-Identifier: Apache-2.0
// The least cost of a hand-over between two processes: a number in a cache line of its own, one for each direction,
// and for a reader that sleeps a futex wake and a futex wait. Raw on purpose: no code is shared with what is measured.
// How far a line is from both cores depends on its address: one and the same pair of lines would make the floor a
// matter of luck, so each stretch has another pair, on pages of their own.
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <new>

#include "tools/benchmarks/floors/hop_ways.hpp"

namespace shmb::bench {
namespace {

struct alignas(4096) Lines {
  alignas(128) std::atomic<std::uint32_t> there;
  alignas(128) std::atomic<std::uint32_t> back;
};
constexpr std::uint32_t kPairs = 64, kInEach = 512;  // numbers that are sent on one pair before the next one's turn

Lines* shared_lines() {
  void* pages = mmap(nullptr, kPairs * sizeof(Lines), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) give_up("mmap");
  return new (pages) Lines[kPairs]{};
}

class LineEnds {
 public:
  LineEnds() : lines_(shared_lines()) {}
  LineEnds(LineEnds&&) = delete;
  ~LineEnds() { munmap(lines_, kPairs * sizeof(Lines)); }
  std::uint64_t enter(End end, std::uint64_t) {
    end_ = end;
    turn_to(lines_[0]);
    return 0;
  }
  void send(std::uint32_t number) { out_->store(number, std::memory_order_release); }
  std::uint32_t receive() {
    std::uint32_t number;
    while ((number = in_->load(std::memory_order_acquire)) != expected_) {
    }
    return got(number);
  }

 protected:
  // Numbers follow each other from 1. The server answers with the number it got, on the pair on which it came.
  std::uint32_t got(std::uint32_t number) {
    ++expected_;
    if (end_ == End::client && expected_ % kInEach == 0) turn_to(lines_[expected_ / kInEach % kPairs]);
    if (end_ == End::server && expected_ % kInEach == 0) in_ = &lines_[expected_ / kInEach % kPairs].there;
    if (end_ == End::server && number % kInEach == 0) out_ = &lines_[number / kInEach % kPairs].back;
    return number;
  }
  void turn_to(Lines& pair) {
    out_ = end_ == End::client ? &pair.there : &pair.back;
    in_ = end_ == End::client ? &pair.back : &pair.there;
  }
  Lines* lines_;
  End end_ = End::client;
  std::atomic<std::uint32_t>*out_ = nullptr, *in_ = nullptr;
  std::uint32_t expected_ = 1;
};

class FutexEnds : public LineEnds {
 public:
  void send(std::uint32_t number) {
    LineEnds::send(number);
    syscall(SYS_futex, out_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  std::uint32_t receive() {
    std::uint32_t number;
    while ((number = in_->load(std::memory_order_acquire)) != expected_)
      syscall(SYS_futex, in_, FUTEX_WAIT, number, nullptr, nullptr, 0);
    return got(number);
  }
};

}  // namespace

NamedWay bare_line() { return {"cache_line", std::make_unique<WayOf<LineEnds>>()}; }
NamedWay bare_futex() { return {"futex", std::make_unique<WayOf<FutexEnds>>()}; }

}  // namespace shmb::bench
