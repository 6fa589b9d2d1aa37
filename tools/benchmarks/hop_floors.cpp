// SPDX-License-Identifier: Apache-2.0
// What a hand-over between two processes costs at least: a number in a cache line of its own, one for each direction,
// and for a reader that sleeps a futex wake and a futex wait. Raw on purpose: no code is shared with what is measured.
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <new>

#include "tools/benchmarks/hop_ways.hpp"

namespace shmb::bench {
namespace {

struct Lines {
  alignas(128) std::atomic<std::uint32_t> there;
  alignas(128) std::atomic<std::uint32_t> back;
};

Lines* shared_lines() {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) give_up("mmap");
  return new (page) Lines{};
}

class LineEnds {
 public:
  LineEnds() : lines_(shared_lines()) {}
  LineEnds(LineEnds&&) = delete;
  ~LineEnds() { munmap(lines_, 4096); }
  std::uint64_t enter(End end, std::uint64_t) {
    out_ = end == End::client ? &lines_->there : &lines_->back;
    in_ = end == End::client ? &lines_->back : &lines_->there;
    return 0;
  }
  void send(std::uint32_t number) { out_->store(number, std::memory_order_release); }
  std::uint32_t receive() {
    std::uint32_t number;
    while ((number = in_->load(std::memory_order_acquire)) == seen_) {
    }
    return seen_ = number;
  }

 protected:
  Lines* lines_;
  std::atomic<std::uint32_t>*out_ = nullptr, *in_ = nullptr;
  std::uint32_t seen_ = 0;
};

class FutexEnds : public LineEnds {
 public:
  void send(std::uint32_t number) {
    LineEnds::send(number);
    syscall(SYS_futex, out_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  std::uint32_t receive() {
    std::uint32_t number;
    while ((number = in_->load(std::memory_order_acquire)) == seen_)
      syscall(SYS_futex, in_, FUTEX_WAIT, seen_, nullptr, nullptr, 0);
    return seen_ = number;
  }
};

}  // namespace

NamedWay bare_line() { return {"cache_line", std::make_unique<WayOf<LineEnds>>()}; }
NamedWay bare_futex() { return {"futex", std::make_unique<WayOf<FutexEnds>>()}; }

}  // namespace shmb::bench
