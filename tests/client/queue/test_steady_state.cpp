// SPDX-License-Identifier: Apache-2.0
// In the steady state neither taking nor handing over a slot touches memory that is not mapped yet: the kernel counts
// no page fault. Other causes of one (a huge page that is put together below a mapping) are rare: of several rounds
// one must have none, while a fault for each hand-over would show in all of them.
#include <sys/resource.h>

#include <array>
#include <thread>

#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"
#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

constexpr int kRounds = 20, kHandOvers = 10'000;
constexpr std::int64_t kPatience = 60'000'000'000;

long faults_of_this_thread() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

// The least that any round has taken, of those after the first; a round that fails is -1.
template <class Round>
long least_faults(Round&& round) {
  long least = INT64_MAX;
  for (int i = 0; i < kRounds && least != 0; ++i) {
    const long before = faults_of_this_thread();
    if (!round()) return -1;
    if (i > 0) least = std::min(least, faults_of_this_thread() - before);
  }
  return least;
}

}  // namespace

TEST_CASE("10,000 slots taken, written and given back cost no page fault") {
  if (harness::kThreadSanitizer || harness::kAddressSanitizer) SKIP_CASE("the sanitizer's own memory faults");
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 16384, 16)));
  CHECK(least_faults([&] {
          std::array<Slot, 4> held;
          for (int i = 0; i < kHandOvers; ++i) {
            Slot& slot = held[static_cast<std::size_t>(i) % held.size()];
            if (slot.data != nullptr && !pool->release(slot)) return false;
            auto taken = pool->acquire(16384, kPatience);
            if (!taken) return false;
            slot = *taken;
            std::memset(slot.data, i, slot.size);
          }
          for (const Slot& slot : held)
            if (!pool->release(slot)) return false;
          return true;
        }) == 0);
}

TEST_CASE("10,000 slots handed over to another process and read cost neither of the two a page fault") {
  if (harness::kThreadSanitizer || harness::kAddressSanitizer) SKIP_CASE("the sanitizer's own memory faults");
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 16384, 16)));
  auto out = writer(pool, "q", Kind::spsc);
  auto child = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
    auto in = Queue::open(joined, queue_spec("q", Kind::spsc, true, false));
    STEP(3, in);
    auto answers = Queue::open(joined, queue_spec("done", Kind::spsc, false, true));
    STEP(4, answers);
    Message message;
    unsigned sum = 0;
    const long least = least_faults([&] {
      for (int i = 0; i < kHandOvers; ++i) {
        if (!(*in)->receive(message, i % 2 == 0, kPatience)) return false;
        for (std::size_t at = 0; at < 16384; at += 4096) sum += static_cast<unsigned>(message.part(0).data[at]);
      }
      return message.done().has_value();
    });
    STEP(5, least >= 0);
    const std::uint64_t told[] = {static_cast<std::uint64_t>(least), sum};
    STEP(6, (*answers)->send(std::as_bytes(std::span(told)), kPatience));
    // Reads the rest of the sender's messages, so that it can end.
    for (;;) {
      auto more = (*in)->receive(message, true, kPatience);
      if (!more) return more.error().status == Status::closed || more.error().status == Status::peer_gone ? 0 : 7;
    }
  });
  auto done = reader(pool, "done", Kind::spsc);
  Message answer;
  bool told = false;
  CHECK(least_faults([&] {
          for (int i = 0; i < kHandOvers; ++i) {
            auto slot = pool->acquire(16384, kPatience);
            if (!slot) return false;
            std::memset(slot->data, i, slot->size);
            if (!out->send(*slot, kPatience) || !pool->release(*slot)) return false;
          }
          return true;
        }) == 0);
  // The reader may need more rounds than the writer.
  for (int i = 0; i < kRounds * kHandOvers && !told; ++i) {
    auto slot = pool->acquire(16384, kPatience);
    if (!slot || !out->send(*slot, kPatience) || !pool->release(*slot)) break;
    const auto got = done->receive(answer, true, kNoWait);
    told = got.has_value();
    if (!got && got.error().status != Status::empty) break;
  }
  REQUIRE(told);
  std::uint64_t least = 1;
  std::memcpy(&least, answer.part(0).data, sizeof least);
  CHECK(least == 0);
  must(out->shutdown(false));
  out.reset();
  CHECK(child.wait() == 0);
}
