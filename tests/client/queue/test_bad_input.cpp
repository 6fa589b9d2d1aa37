// SPDX-License-Identifier: Apache-2.0
// The mistakes of a user of pools and queues, one case for each way: a clear error every time, and nothing is
// changed by it. Writes of a hostile peer are in test_message.cpp and in tests/storm.
#include <utility>

#include "client/face/shmbroker.hpp"
#include "client/face/shmbroker_pool.hpp"
#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

constexpr std::int64_t kPassed = -3;  // a deadline that has passed
constexpr std::int64_t kPatient = 60'000'000'000;

template <class T>
bool says(const Result<T>& result, std::string_view what) {
  if (result) return false;
  CAPTURE(result.error().sentence);
  const bool found = result.error().sentence.find(what) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace

TEST_CASE("a capacity that cannot be is refused, and the sentence says which can") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{}));
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast})
    for (const std::uint32_t cells : {1U, 3U, 100U, 65537U, 131072U, UINT32_MAX}) {
      auto opened = Queue::open(pool, queue_spec("q", kind, true, true, cells));
      CHECK(status_of(opened) == Status::invalid);
      says(opened, "power of two from 2 to 65536");
    }
  // One that can be, in a pool that has no room for it, is a limit with its numbers.
  auto opened = Queue::open(pool, queue_spec("q", Kind::mpmc, true, true, 65536));
  CHECK(status_of(opened) == Status::limit);
  CHECK(opened.error().shortage.asked >= 65536 * 64);
  CHECK(pool->facts()->queues == 0);
}

TEST_CASE("a message larger than every slot is refused, and the sentence says how it can travel") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 100, 1)));
  auto out = writer(pool, "q", Kind::mpmc);
  auto sent = out->send(bytes_of(std::string(101, 'x')), kNoWait);
  CHECK(status_of(sent) == Status::invalid);
  says(sent, "shmb_create");
  Slot slot = must(pool->acquire(100, kNoWait));
  slot.length = 101;
  sent = out->send(slot, kNoWait);
  CHECK(status_of(sent) == Status::invalid);
  says(sent, "101");
  OutPart part = slot_part(slot);
  part.length = 50;
  part.offset = 51;
  CHECK(status_of(out->send(std::span(&part, 1), 0, 0, kNoWait)) == Status::invalid);
  must(pool->release(slot));
  CHECK(must(out->facts()).sent == 0);
}

TEST_CASE("a slot of an earlier use is refused by every call, and the later use is not disturbed") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 1)));
  auto out = writer(pool, "q", Kind::mpmc);
  const Slot before = must(pool->acquire(1, kNoWait));
  must(pool->release(before));
  CHECK(status_of(pool->release(before)) == Status::stale);  // nobody holds it
  const Slot now = must(pool->acquire(1, kNoWait));
  REQUIRE(now.index == before.index);
  CHECK(now.generation != before.generation);
  OutPart part = slot_part(before);
  const OutPart list[] = {bytes_part("head"), part};
  says(out->send(before, kNoWait), "generation");
  CHECK(out->send_now(before) == Now::ask);
  CHECK(status_of(out->send(std::span(&part, 1), 0, 0, kNoWait)) == Status::stale);
  CHECK(status_of(out->send(list, 0, 0, kNoWait)) == Status::stale);
  CHECK(status_of(pool->retain(before)) == Status::stale);
  CHECK(status_of(pool->release(before)) == Status::stale);
  CHECK(pool->release_now(before) == Now::ask);
  must(out->send(now, kNoWait));
  must(pool->release(now));
  CHECK(must(out->facts()).sent == 1);
}

TEST_CASE("a slot of another pool, or of another process in the same pool, is refused by every call") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 1))), other = must(make_pool(session, slots_of("o", 64, 1)));
  auto neighbour = must(try_pool(beside(broker, pool), "p"));
  const Slot mine = must(pool->acquire(1, kNoWait));
  for (const auto& [where, expected] : {std::pair{other, Status::invalid}, {neighbour, Status::stale}}) {
    CAPTURE(where->id());
    auto out = writer(where, "q", Kind::mpmc);
    OutPart part = slot_part(mine);
    CHECK(status_of(out->send(mine, kNoWait)) == expected);
    CHECK(out->send_now(mine) == Now::ask);
    CHECK(status_of(out->send(std::span(&part, 1), 0, 0, kNoWait)) == expected);
    CHECK(status_of(where->retain(mine)) == expected);
    CHECK(status_of(where->release(mine)) == expected);
    CHECK(where->release_now(mine) == Now::ask);
  }
  says(other->release(mine), "another pool");
  Slot none = mine;
  none.index = UINT32_MAX;
  CHECK(status_of(pool->release(none)) == Status::invalid);
  must(pool->release(mine));
}

TEST_CASE("a second writer of an spsc or a broadcast queue, and a second reader of an spsc queue, are refused") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"})), other = must(try_pool(beside(broker, pool), "p"));
  for (const Kind kind : {Kind::spsc, Kind::broadcast}) {
    const std::string name = kind == Kind::spsc ? "line" : "ring";
    auto out = writer(pool, name, kind);
    auto second = Queue::open(other, queue_spec(name, kind, false, true));
    CHECK(status_of(second) == Status::busy);
    says(second, name);
    out.reset();
    auto next = writer(other, name, kind);  // its place is free again
  }
  auto in = reader(pool, "line", Kind::spsc);
  CHECK(status_of(Queue::open(other, queue_spec("line", Kind::spsc, true, false))) == Status::busy);
}

TEST_CASE("a read-only participant may not write, take, give, close for others, or ask for what writers have") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 2)));
  auto looking = must(try_pool(beside(broker, pool), "p", true));
  auto out = writer(pool, "q", Kind::mpmc);
  CHECK(status_of(looking->acquire(1, kNoWait)) == Status::denied);
  CHECK(status_of(looking->acquire(1, kPatient)) == Status::denied);  // at once
  CHECK(status_of(Queue::open(looking, queue_spec("q", Kind::mpmc, true, true))) == Status::denied);
  auto in = reader(looking, "q", Kind::mpmc);
  CHECK(status_of(in->send(bytes_of("x"), kNoWait)) == Status::denied);
  CHECK(status_of(in->drain(kNoWait)) == Status::denied);
  CHECK(status_of(in->shutdown(false)) == Status::denied);
  CHECK(status_of(in->close(true, false)) == Status::denied);
  Message message;
  CHECK(status_of(out->receive(message, false, kNoWait)) == Status::denied);  // and the other way round
  CHECK(status_of(out->descriptor()) == Status::denied);
  must(out->send(bytes_of("on"), kNoWait));
}

TEST_CASE("a closed queue refuses senders and openings, and its readers get CLOSED once it is empty") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 2)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    const std::string name = "q" + std::to_string(static_cast<int>(kind));
    CAPTURE(name);
    auto in = reader(other, name, kind);
    auto out = writer(pool, name, kind);
    must(out->send(bytes_of("left"), kNoWait));
    must(out->shutdown(false));
    const Slot slot = must(pool->acquire(1, kNoWait));
    const OutPart list[] = {bytes_part("a"), slot_part(slot)};
    says(out->send(bytes_of("x"), kPatient), name);
    CHECK(status_of(out->send(slot, kNoWait)) == Status::closed);
    CHECK(status_of(out->send(list, 0, 0, kNoWait)) == Status::closed);
    CHECK(out->send_now(bytes_of("x")) == Now::ask);
    // An mpmc queue's new reader may have what is left.
    const Status late = kind == Kind::mpmc ? Status::ok : Status::closed;
    CHECK(status_of(Queue::open(pool, queue_spec(name, kind, true, false))) == late);
    CHECK(status_of(Queue::open(pool, queue_spec(name, kind, true, true))) == Status::closed);
    must(pool->release(slot));
    Message message;
    must(in->receive(message, true, kPatient));
    CHECK(text_of(message) == "left");
    Message more;
    Message* const many[] = {&message, &more};
    CHECK(status_of(in->receive(message, true, kPatient)) == Status::closed);
    CHECK(status_of(in->receive_many(many, kNoWait)) == Status::closed);
    CHECK(status_of(in->receive(message, true, kPassed)) == Status::closed);
  }
}

TEST_CASE("after its deadline a call looks once: it takes what is there, or returns DEADLINE at once") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 1)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  for (const std::int64_t passed : {kPassed, std::int64_t{1}, INT64_MIN}) {
    CAPTURE(passed);
    auto in = reader(other, "q", Kind::spsc, 2);
    auto out = writer(pool, "q", Kind::spsc, 2);
    Message message;
    CHECK(status_of(in->receive(message, true, passed)) == Status::deadline);
    must(out->send(bytes_of("1"), passed));
    must(out->send(bytes_of("2"), passed));
    CHECK(status_of(out->send(bytes_of("3"), passed)) == Status::deadline);
    CHECK(status_of(out->drain(passed)) == Status::deadline);
    QueueSet set;
    must(set.add(*in, nullptr));
    CHECK(must(set.wait(passed)).queue == in.get());
    must(in->receive(message, true, passed));
    must(in->receive(message, true, passed));
    CHECK(text_of(message) == "2");
    CHECK(status_of(set.wait(passed)) == Status::deadline);
    must(out->drain(passed));
    const Slot slot = must(pool->acquire(1, passed));
    CHECK(status_of(pool->acquire(1, passed)) == Status::deadline);
    must(pool->release(slot));
  }
  auto spec = queue_spec("r", Kind::mpmc, true, true);
  spec.flags = pool::kQueueExpiring;
  auto queue = must(Queue::open(pool, spec));
  const OutPart part = bytes_part("x");
  CHECK(status_of(queue->send(std::span(&part, 1), 0, -5, kNoWait)) ==
        Status::invalid);                                 // a lifetime of less than none
  must(queue->send(std::span(&part, 1), 0, 1, kNoWait));  // and one that is over at once
  Message message;
  CHECK(status_of(queue->receive(message, true, kNoWait)) == Status::empty);
}

TEST_CASE(
    "a pool of size classes gives a slot up to its largest class, a region above it, and no memory that cannot be") {
  const harness::BrokerFixture broker;
  shmbroker::ConnectOptions connect;
  connect.socket = broker.socket();
  connect.join_group = false;
  auto session = shmbroker::Session::connect(connect);
  shmbroker::PoolOptions make;
  make.name = "p";
  make.classes = {{64, 1, 1}, {4096, 2, 2}};
  const shmbroker::SizeClassPool any(session, shmbroker::Pool::create(session, make));
  const auto none = shmbroker::Timeout::no_wait();
  {
    const auto empty = any.acquire(0, none), large = any.acquire(4096, none), small = any.acquire(65, none);
    CHECK_FALSE(empty.is_region());
    CHECK_FALSE(large.is_region());
    CHECK(large.bytes().size() == 4096);
    CHECK(small.bytes().size() == 65);
    // A class that is used up is told of; a slot of a larger one is not taken for it.
    CHECK(any.try_acquire(100, none).error().status() == shmbroker::Status::full);
    CHECK(any.try_acquire(64, none).error().status() == shmbroker::Status::full);
    CHECK(any.try_acquire(100, std::chrono::nanoseconds(-1)).error().status() == shmbroker::Status::full);
    const auto above = any.acquire(4097, none);
    CHECK(above.is_region());
    CHECK(above.bytes().size() == 4097);
  }
  CHECK_FALSE(any.acquire(4096, none).is_region());  // all of them are back
  for (const std::uint64_t length : {UINT64_MAX, UINT64_MAX / 2, std::uint64_t{1} << 60}) {
    const auto refused = any.try_acquire(length, none);
    REQUIRE_FALSE(refused.has_value());
    CHECK(std::string_view(refused.error().what()).size() > 20);
  }
}
