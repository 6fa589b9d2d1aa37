// SPDX-License-Identifier: Apache-2.0
// A duration has one meaning in every call: 0 is the default, SHMB_FOREVER is no limit, SHMB_NO_WAIT is no wait.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>

#include "client/face/shmbroker_pool.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/support/face.hpp"

namespace durations {
namespace {

using namespace std::chrono_literals;
using shmbroker::Status;
using shmbroker::Timeout;
using support::status_of;

struct Place {
  harness::BrokerFixture broker;
  shmbroker::Session session = support::connect(broker.socket());
};

// What C++ programs write for "do not wait".
constexpr Timeout kNone[] = {Timeout::no_wait(), Timeout(0ms), Timeout(-5s)};

}  // namespace

TEST_CASE("a Timeout is the default when left out, and does not wait from zero on") {
  CHECK(Timeout().nanoseconds() == SHMB_DEFAULT_TIMEOUT);
  CHECK(Timeout::forever().nanoseconds() == SHMB_FOREVER);
  CHECK(Timeout(1ns).nanoseconds() == 1);
  for (const Timeout none : kNone) CHECK(none == Timeout::no_wait());
  CHECK(Timeout() != Timeout::no_wait());
  CHECK(Timeout() == Timeout{});
}

TEST_CASE("a name that does not exist is not found at once by default, and is waited for if the caller says so") {
  const Place place;
  const auto pool = shmbroker::Pool::create(place.session, {.name = "p"});
  const auto attach = [&](Timeout wait) { return status_of(place.session.try_attach("none", {.wait = wait})); };
  const auto open_pool = [&](Timeout wait) {
    return status_of(shmbroker::Pool::try_open(place.session, "none", {.wait = wait}));
  };
  const auto open_queue = [&](Timeout wait) {
    return status_of(pool.try_open_queue("none", shmbroker::Role::reader, {.open_only = true, .wait = wait}));
  };
  const auto open_alone = [&](Timeout wait) {
    return status_of(
        shmbroker::try_open_queue(place.session, "none", shmbroker::Role::reader, {.open_only = true, .wait = wait}));
  };
  const auto check = [&](const auto& call) {
    CHECK(call(Timeout()) == Status::not_found);
    for (const Timeout none : kNone) CHECK(call(none) == Status::not_found);
    CHECK(call(1ms) == Status::deadline);
  };
  check(attach);
  check(open_pool);
  check(open_queue);
  check(open_alone);
}

TEST_CASE("a name that is waited for without limit is found when it comes") {
  const Place place;
  const auto group = place.session.create_group();
  place.session.join(group.token);
  const auto peer = shmbroker::Session::connect({.socket = place.broker.socket(), .join_group = false});
  peer.join(group.token);
  const Timeout ever = Timeout::forever();
  Status attached{}, pool_opened{}, queue_opened{};
  std::thread reader([&] {
    attached = status_of(peer.try_attach("region", {.wait = ever}));
    const auto pool = shmbroker::Pool::try_open(peer, "pool", {.wait = ever});
    pool_opened = status_of(pool);
    if (!pool) return;
    queue_opened = status_of(pool->try_open_queue("q", shmbroker::Role::reader, {.open_only = true, .wait = ever}));
  });
  const auto region = place.session.create(4096, {.name = "region"});
  const auto pool = shmbroker::Pool::create(place.session, {.name = "pool"});
  const auto queue = pool.open_queue("q", shmbroker::Role::writer, {.kind = shmbroker::QueueKind::broadcast});
  reader.join();
  CHECK(attached == Status::ok);
  CHECK(pool_opened == Status::ok);
  CHECK(queue_opened == Status::ok);
}

TEST_CASE("a reader that names no kind waits for its queue unless it says not to") {
  const Place place;
  const auto pool = shmbroker::Pool::create(place.session, {.name = "p"});
  const auto open = [&](Timeout wait, Timeout timeout) {
    return status_of(pool.try_open_queue("none", shmbroker::Role::reader, {.wait = wait, .timeout = timeout}));
  };
  CHECK(open({}, 20ms) == Status::deadline);
  for (const Timeout none : kNone) CHECK(open(none, {}) == Status::not_found);
}

TEST_CASE(
    "a call on slots and messages that may not wait is full or empty, and one whose time is over has a deadline") {
  const Place place;
  const auto pool = shmbroker::Pool::create(place.session, {.classes = {{.slot_size = 64, .slots = 1}}});
  const auto queue = pool.open_queue("q", shmbroker::Role::both, {.kind = shmbroker::QueueKind::mpmc, .cells = 2});
  shmbroker::QueueSet set;
  set.add(const_cast<shmbroker::Queue&>(queue));
  const auto slot = pool.acquire(64);
  for (const Timeout none : kNone) {
    CHECK(status_of(pool.try_acquire(64, none)) == Status::full);
    CHECK(status_of(queue.try_receive(none)) == Status::empty);
    CHECK(status_of(set.try_wait(none)) == Status::empty);
  }
  CHECK(status_of(pool.try_acquire(64, 1ms)) == Status::deadline);
  CHECK(status_of(queue.try_receive(1ms)) == Status::deadline);
  CHECK(status_of(set.try_wait(1ms)) == Status::deadline);
  queue.send("one", Timeout::forever());
  queue.send("two");
  for (const Timeout none : kNone) {
    CHECK(status_of(queue.try_send("three", none)) == Status::full);
    CHECK(status_of(queue.try_drain(none)) == Status::full);
  }
  CHECK(status_of(queue.try_send("three", 1ms)) == Status::deadline);
  CHECK(status_of(queue.try_drain(1ms)) == Status::deadline);
  CHECK(queue.receive(Timeout::forever()).text() == "one");
  CHECK(queue.receive().text() == "two");
}

TEST_CASE("events and the ends of groups are waited for with the same durations") {
  const Place place;
  place.session.join(place.session.create_group().token);
  for (const Timeout none : kNone) {
    CHECK(status_of(place.session.try_next_event(none)) == Status::deadline);
    CHECK(status_of(place.session.try_wait_group({}, none)) == Status::deadline);
  }
  CHECK(status_of(place.session.try_next_event(1ms)) == Status::deadline);
  CHECK(status_of(place.session.try_wait_group({}, 1ms)) == Status::deadline);
}

TEST_CASE("a call to the broker has a limit, and may leave the answer to later") {
  const Place place;
  CHECK(place.session.try_ping());
  CHECK(status_of(place.session.try_ping(Timeout::forever())) == Status::invalid);
  CHECK(status_of(shmbroker::Session::try_connect({.socket = place.broker.socket(), .timeout = Timeout::forever()})) ==
        Status::invalid);
  for (const Timeout none : kNone) {
    const Status asked = status_of(place.session.try_ping(none));
    CHECK((asked == Status::deadline || asked == Status::ok));
    // The broker makes the group, and gets it back: its answer comes after the deadline.
    const Status made = status_of(place.session.try_create_group({.name = "late", .timeout = none}));
    CHECK((made == Status::deadline || made == Status::ok || made == Status::exists));
  }
  CHECK(place.session.try_ping());
  CHECK(status_of(shmbroker::Session::try_connect({.socket = place.broker.socket(), .timeout = 0ms})) !=
        Status::invalid);
}

TEST_CASE("a message lives for ever by default, and not for no time") {
  const Place place;
  const auto pool = shmbroker::Pool::create(place.session, {.name = "p"});
  const auto plain = pool.open_queue("plain", shmbroker::Role::both, {.kind = shmbroker::QueueKind::mpmc});
  const auto expiring =
      pool.open_queue("expiring", shmbroker::Role::both, {.kind = shmbroker::QueueKind::mpmc, .expiring = true});
  for (const auto* queue : {&plain, &expiring}) {
    CHECK(queue->try_send_parts({shmbroker::Part("x")}, {}));
    CHECK(queue->try_send_parts({shmbroker::Part("x")}, {.lifetime = Timeout::forever()}));
    for (const Timeout none : kNone)
      CHECK(status_of(queue->try_send_parts({shmbroker::Part("x")}, {.lifetime = none})) == Status::invalid);
    for (int i = 0; i < 2; ++i) CHECK(queue->receive(Timeout::no_wait()).text() == "x");
  }
  CHECK(status_of(plain.try_send_parts({shmbroker::Part("x")}, {.lifetime = 1s})) == Status::invalid);
  expiring.send_parts({shmbroker::Part("x")}, {.lifetime = 1ns});
  CHECK(status_of(expiring.try_receive(Timeout::no_wait())) == Status::empty);
}

TEST_CASE("a reader spins by default, for a time, or not at all, but not for ever") {
  const Place place;
  const auto pool = shmbroker::Pool::create(place.session, {.name = "p"});
  const auto open = [&](Timeout spin) {
    return status_of(
        pool.try_open_queue("q", shmbroker::Role::both, {.kind = shmbroker::QueueKind::mpmc, .spin = spin}));
  };
  CHECK(open({}) == Status::ok);
  CHECK(open(1us) == Status::ok);
  for (const Timeout none : kNone) CHECK(open(none) == Status::ok);
  CHECK(open(Timeout::forever()) == Status::invalid);
}

TEST_CASE("a ticket lives by default and for a time, but neither for ever nor for no time") {
  const Place place;
  const auto region = place.session.create(4096);
  for (const Timeout lifetime : {Timeout(), Timeout(60s)}) {
    const auto ticket = region.try_ticket(shmbroker::Rights::read, 1, lifetime);
    REQUIRE(ticket);
    place.session.revoke(*ticket);
  }
  CHECK(status_of(region.try_ticket(shmbroker::Rights::read, 1, Timeout::forever())) == Status::invalid);
  for (const Timeout none : kNone)
    CHECK(status_of(region.try_ticket(shmbroker::Rights::read, 1, none)) == Status::invalid);
}

}  // namespace durations
