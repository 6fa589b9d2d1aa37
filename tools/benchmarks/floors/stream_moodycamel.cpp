// SPDX-License-Identifier: Apache-2.0
// moodycamel::ConcurrentQueue as a peer of messages.mpmc: between threads of one process, in memory that nobody else
// can see, and with no order between producers. Each thread has a token, as its documentation advises.
#include <concurrentqueue/concurrentqueue.h>
#include <string.h>

#include <atomic>
#include <thread>

#include "tools/benchmarks/floors/stream_rings.hpp"

namespace shmb::bench {

double moodycamel_per_second(unsigned writers, unsigned readers, std::uint64_t count) {
  struct Message {
    char bytes[kStreamBytes];
  };
  const std::uint64_t each = count / writers, total = each * writers;
  moodycamel::ConcurrentQueue<Message> queue(256);
  std::atomic<std::uint64_t> taken{0};
  std::atomic<unsigned> ready{0};
  std::atomic<bool> begin{false};
  double ended = 0;
  auto come_in = [&](Core core) {
    pin(core);
    favour();
    ++ready;
    while (!begin) std::this_thread::yield();
  };
  std::vector<std::thread> threads;
  for (unsigned w = 0; w < writers; ++w)
    threads.emplace_back([&] {
      moodycamel::ProducerToken token(queue);
      Message message{};
      come_in(Core::client);
      for (std::uint64_t i = 0; i < each; ++i) {
        memcpy(message.bytes, &i, sizeof i);
        if (!queue.enqueue(token, message)) give_up("moodycamel: enqueue");
      }
    });
  for (unsigned r = 0; r < readers; ++r)
    threads.emplace_back([&] {
      moodycamel::ConsumerToken token(queue);
      Message message;
      come_in(Core::server);
      while (taken.load(std::memory_order_relaxed) < total) {
        if (!queue.try_dequeue(token, message)) {
          std::this_thread::yield();
          continue;
        }
        if (taken.fetch_add(1, std::memory_order_relaxed) + 1 == total) ended = now_us();
      }
    });
  while (ready != writers + readers) std::this_thread::yield();
  const double begun = now_us();
  begin = true;
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(total) / (ended - begun) * 1e3;
}

}  // namespace shmb::bench
