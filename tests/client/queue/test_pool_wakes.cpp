// SPDX-License-Identifier: Apache-2.0
// Wakes that only one participant can give: a consumer that leaves messages to others, a participant that begins to
// wait for a slot, a reader whose sender sleeps elsewhere. The sleeper's words are written by hand, so that no look of
// its own hides a wake that does not come.
#include <thread>

#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;

namespace {

// A participant that looks asleep. Only the one that wakes it clears its token.
class Sleeping {
 public:
  explicit Sleeping(Pool& pool, std::atomic<std::uint64_t>* mask = nullptr)
      : words_(pool.view().wait(pool.me().index())), mask_(mask), bit_(pool.me().bit()) {
    words_.sleep = 1 << 20 | pool::kSleepFutex;
    if (mask_ != nullptr) mask_->fetch_or(bit_);
  }
  ~Sleeping() {
    words_.sleep = 0;
    if (mask_ != nullptr) mask_->fetch_and(~bit_);
  }
  Sleeping(const Sleeping&) = delete;
  Sleeping& operator=(const Sleeping&) = delete;
  bool woken() const { return words_.sleep == 0; }

 private:
  pool::WaitEntry& words_;
  std::atomic<std::uint64_t>* mask_;
  std::uint64_t bit_;
};

struct Three {
  Three() {
    ann = must(make_pool(session, slots_of("p", 64, 2)));
    bob = must(try_pool(beside(broker, ann), "p"));
    cid = must(try_pool(beside(broker, ann), "p"));
    for (const auto& pool : {ann, bob, cid}) pool->me().set_cache_limit(0);
  }
  harness::BrokerFixture broker;
  std::shared_ptr<Session> session = open(broker);
  std::shared_ptr<Pool> ann, bob, cid;
};

}  // namespace

TEST_CASE("a consumer that takes one message wakes another one for what it leaves") {
  Three three;
  auto out = writer(three.ann, "q", Kind::mpmc), other_out = writer(three.ann, "other", Kind::mpmc);
  auto in = reader(three.bob, "q", Kind::mpmc), other_in = reader(three.bob, "other", Kind::mpmc);
  auto theirs = reader(three.cid, "q", Kind::mpmc);
  Message message;
  must(out->send(bytes_of("one"), kNoWait));
  SUBCASE("but not where it has left nothing") {
    const Sleeping sleeping(*three.cid, &theirs->reader_mask());
    must(in->receive(message, true, kNoWait));
    CHECK_FALSE(sleeping.woken());
  }
  SUBCASE("by one receive") {
    must(out->send(bytes_of("two"), kNoWait));
    const Sleeping sleeping(*three.cid, &theirs->reader_mask());
    must(in->receive(message, true, kNoWait));
    CHECK(sleeping.woken());
  }
  SUBCASE("by one receive of many") {
    for (int i = 0; i < 2; ++i) must(out->send(bytes_of("more"), kNoWait));
    const Sleeping sleeping(*three.cid, &theirs->reader_mask());
    Message second;
    Message* const both[] = {&message, &second};
    CHECK(must(in->receive_many(both, kNoWait)) == 2);
    CHECK(sleeping.woken());
  }
  SUBCASE("by a wait on several queues, of which it takes from another one") {
    must(other_out->send(bytes_of("two"), kNoWait));
    QueueSet set;
    must(set.add(*other_in, nullptr));
    must(set.add(*in, nullptr));
    const Sleeping sleeping(*three.cid, &theirs->reader_mask());
    must(set.wait(kNoWait));
    CHECK(sleeping.woken());
  }
  SUBCASE("by a receive from another queue, where both ring one descriptor") {
    must(in->receive(message, true, kNoWait));
    QueueSet set;
    must(set.add(*other_in, nullptr));
    must(set.add(*in, nullptr));
    (void)must(set.descriptor());
    CHECK(status_of(set.wait(kNoWait)) == Status::empty);  // arms it
    for (int i = 0; i < 2; ++i) must(out->send(bytes_of("one"), kNoWait));
    must(other_out->send(bytes_of("two"), kNoWait));
    Message second;
    Message* const both[] = {&message, &second};
    SUBCASE("one message") {
      const Sleeping sleeping(*three.cid, &theirs->reader_mask());
      must(other_in->receive(message, true, kNoWait));
      CHECK(sleeping.woken());
    }
    SUBCASE("many") {
      must(other_out->send(bytes_of("three"), kNoWait));
      const Sleeping sleeping(*three.cid, &theirs->reader_mask());
      CHECK(must(other_in->receive_many(both, kNoWait)) == 2);
      CHECK(sleeping.woken());
    }
  }
}

TEST_CASE("a participant that begins to wait for a slot wakes all that sleep, to let go of what was read meanwhile") {
  Three three;
  const Slot one = must(three.ann->acquire(64, kNoWait)), two = must(three.ann->acquire(64, kNoWait));
  const Sleeping ann(*three.ann), cid(*three.cid);
  CHECK(status_of(three.bob->acquire(64, kNoWait)) == Status::full);
  CHECK_FALSE(ann.woken());
  std::thread waits([&] { must(three.bob->release(must(three.bob->acquire(64, 30'000'000'000)))); });
  CHECK(eventually([&] { return ann.woken() && cid.woken(); }));
  must(three.ann->release(one));
  must(three.ann->release(two));
  waits.join();
}

TEST_CASE("a reader that is done wakes the message's sender while a participant waits for a slot") {
  Three three;
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    auto in = reader(three.bob, "q", kind);
    auto out = writer(three.ann, "q", kind);
    (void)must(in->facts());
    Message message;
    for (const bool waited_for : {false, true}) {
      CAPTURE(waited_for);
      const Slot slot = must(three.ann->acquire(64, kNoWait));
      must(out->send(slot, kNoWait));
      must(three.ann->release(slot));
      const Sleeping sender(*three.ann);  // for want of something else
      std::atomic<std::uint64_t>& waiters = three.cid->view().control().slot_waiters.mask;
      if (waited_for) waiters.fetch_or(three.cid->me().bit());
      must(in->receive(message, false, kNoWait));
      must(message.done());
      waiters.fetch_and(~three.cid->me().bit());
      CHECK(sender.woken() == waited_for);
    }
    must(in->close(true, true));
    must(out->close(false, false));
  }
}

TEST_CASE("a drain waits with the spin of its own queue, not with that of the queue that was used last") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  QueueSpec spec = queue_spec("spins", Kind::mpmc, false, true, 2);
  spec.spin = 30'000'000'000;  // longer than the wait below
  spec.spin_always = true;
  auto spins = must(Queue::open(pool, spec));
  spec.name = "sleeps";
  spec.spin = 0;
  auto sleeps = must(Queue::open(pool, spec));
  must(sleeps->send(bytes_of("m"), kNoWait));
  for (int i = 0; i < 2; ++i) must(spins->send(bytes_of("m"), kNoWait));
  CHECK(status_of(spins->send(bytes_of("no room"), 1'000'000)) == Status::deadline);
  static std::atomic<int> sleeps_begun;
  sleeps_begun = 0;
  step_hook = [](Step step) { sleeps_begun += step == Step::Z5; };
  CHECK(status_of(sleeps->drain(300'000'000)) == Status::deadline);
  step_hook = nullptr;
  CHECK(sleeps_begun > 0);
}
