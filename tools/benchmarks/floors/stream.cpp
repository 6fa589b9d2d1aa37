// SPDX-License-Identifier: Apache-2.0
// See stream.hpp. A reader that gets all messages counts them alone. Readers that share them count together, because no
// message is the last one, and a reader that waits in vain looks at the count.
#include "tools/benchmarks/floors/stream.hpp"

#include <sys/mman.h>

#include <atomic>
#include <new>

namespace shmb::bench {

struct Stream::Shared {
  alignas(128) std::atomic<std::uint64_t> taken;
  alignas(128) std::atomic<std::uint64_t> total;
  std::atomic<double> begun;
  alignas(128) std::atomic<double> ended;  // the last reader's
};

Stream::Stream(unsigned writers, unsigned readers, bool each_reader_gets_all, const Enter& enter)
    : writers_(writers), counts_alone_(each_reader_gets_all || readers == 1) {
  void* page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) give_up("mmap");
  shared_ = new (page) Shared{};
  for (unsigned i = 0; i < writers + readers; ++i)
    crew_.add(i < writers ? Core::client : Core::server, [&](int socket) { serve(i < writers, enter, socket); });
  std::uint64_t token = 0;
  for (std::size_t i = 0; i < crew_.size(); ++i) {
    crew_.tell(i, token);
    token = crew_.hear<std::uint64_t>(i);
  }
}

Stream::~Stream() { munmap(shared_, sizeof(Shared)); }

void Stream::serve(bool writer, const Enter& enter, int socket) {
  auto token = hear<std::uint64_t>(socket);
  const auto end = enter(writer, token);
  tell(socket, token);
  for (;;) {
    const auto count = hear<std::uint64_t>(socket);
    if (writer) {
      end->send(count);
    } else {
      const std::uint64_t total = shared_->total;
      if (counts_alone_) {
        std::uint64_t own = 0;
        while (own < total) end->receive([&] { return ++own == total; });
        const double now = now_us();
        double last = shared_->ended;
        while (last < now && !shared_->ended.compare_exchange_weak(last, now)) {
        }
      } else {
        while (shared_->taken < total)
          end->receive([&] {
            const std::uint64_t now = shared_->taken.fetch_add(1, std::memory_order_relaxed) + 1;
            if (now == total) shared_->ended = now_us();
            return now >= total;
          });
      }
    }
    tell(socket, count);
  }
}

double Stream::per_second(std::uint64_t count) {
  const std::uint64_t each = count / writers_;
  shared_->taken = 0;
  shared_->total = each * writers_;
  shared_->ended = 0;
  for (std::size_t i = writers_; i < crew_.size(); ++i) crew_.tell(i, each);
  shared_->begun = now_us();
  for (std::size_t i = 0; i < writers_; ++i) crew_.tell(i, each);
  for (std::size_t i = 0; i < crew_.size(); ++i) crew_.hear<std::uint64_t>(i);
  return static_cast<double>(each * writers_) / (shared_->ended - shared_->begun) * 1e3;
}

}  // namespace shmb::bench
