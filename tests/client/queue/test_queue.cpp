// SPDX-License-Identifier: Apache-2.0
// Queues through the library against a real broker: the three kinds, their ends, and what goes wrong.
#include <signal.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

TEST_CASE("an spsc queue carries messages in order, refuses when full, and says empty when there is none") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 1000, 4)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto out = writer(pool, "q", Kind::spsc, 4);
  CHECK(status_of(out->send(bytes_of("x"), kNoWait)) == Status::full);  // no reader yet
  auto in = reader(other, "q", Kind::spsc, 4);
  Message message;
  CHECK(status_of(in->receive(message, false, kNoWait)) == Status::empty);
  CHECK(status_of(in->receive(message, false, 1'000'000)) == Status::deadline);
  CHECK(status_of(in->receive(message, false, -5)) == Status::deadline);
  for (int i = 0; i < 4; ++i) must(out->send(bytes_of("m" + std::to_string(i)), kNoWait));
  CHECK(status_of(out->send(bytes_of("x"), kNoWait)) == Status::full);
  CHECK(status_of(out->send(bytes_of("x"), 1'000'000)) == Status::deadline);
  CHECK(must(out->facts()).depth == 4);
  for (int i = 0; i < 4; ++i) {
    must(in->receive(message, false, kNoWait));
    CHECK(text_of(message) == "m" + std::to_string(i));
  }
  must(out->drain(0));
  CHECK(status_of(out->receive(message, false, kNoWait)) == Status::denied);
  CHECK(status_of(in->send(bytes_of("x"), kNoWait)) == Status::denied);
  CHECK(status_of(Queue::open(pool, queue_spec("q", Kind::spsc, false, true, 4))) == Status::busy);
  CHECK(status_of(Queue::open(must(try_pool(beside(broker, pool), "p")),
                              queue_spec("q", Kind::spsc, false, true, 4))) == Status::busy);
}

TEST_CASE("a queue with other settings is not opened, and the sentence names the one that differs") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{}));
  auto out = writer(pool, "q", Kind::mpmc, 8);
  auto refused = Queue::open(pool, queue_spec("q", Kind::mpmc, true, false, 16));
  CHECK(status_of(refused) == Status::exists);
  CHECK(refused.error().sentence.find("8 cells, not 16") != std::string::npos);
  refused = Queue::open(pool, queue_spec("q", Kind::spsc, true, false, 8));
  CHECK(refused.error().sentence.find("kind is mpmc") != std::string::npos);
  auto flagged = queue_spec("q", Kind::mpmc, true, false, 8);
  flagged.flags = pool::kQueueExpiring;
  CHECK(Queue::open(pool, flagged).error().sentence.find("EXPIRING") != std::string::npos);
  for (std::uint32_t cells : {1U, 3U, 131072U}) {
    CAPTURE(cells);
    CHECK(status_of(Queue::open(pool, queue_spec("z", Kind::spsc, true, false, cells))) == Status::invalid);
  }
  CHECK(status_of(Queue::open(pool, queue_spec("z", Kind::spsc, false, false))) == Status::invalid);
  CHECK(status_of(Queue::open(pool, queue_spec("z", Kind::none, true, true))) == Status::invalid);
  CHECK(status_of(Queue::open(pool, queue_spec("", Kind::spsc, true, false))) == Status::invalid);
  auto only = queue_spec("absent", Kind::none, true, false);
  only.open_only = true;
  CHECK(status_of(Queue::open(pool, only)) == Status::not_found);
  only.wait = 1'000'000;
  CHECK(status_of(Queue::open(pool, only)) == Status::deadline);
  only.name = "q";
  auto as_is = must(Queue::open(pool, only));
  CHECK(must(as_is->facts()).cells == 8);
}

TEST_CASE("each message of an mpmc queue goes to one consumer") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{}));
  Pool::Opening by_id;
  by_id.id = pool->id();
  auto out = writer(pool, "q", Kind::mpmc), in = reader(pool, "q", Kind::mpmc);
  auto second_pool = must(Pool::open(beside(broker, pool), by_id));
  auto second = reader(second_pool, "q", Kind::mpmc);
  auto second_out = writer(second_pool, "q", Kind::mpmc);
  std::vector<std::string> got;
  for (int i = 0; i < 10; ++i) must((i % 2 == 0 ? out : second_out)->send(bytes_of("m" + std::to_string(i)), kNoWait));
  Message message;
  for (int i = 0; i < 10; ++i) {
    must((i % 3 == 0 ? in : second)->receive(message, true, kNoWait));
    got.push_back(text_of(message));
  }
  CHECK(status_of(in->receive(message, true, kNoWait)) == Status::empty);
  std::ranges::sort(got);
  for (int i = 0; i < 10; ++i) CHECK(got[static_cast<std::size_t>(i)] == "m" + std::to_string(i));
}

TEST_CASE("each reader of a broadcast sees each message from its opening on") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 500, 8)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto out = writer(pool, "q", Kind::broadcast, 4);
  must(out->send(bytes_of("early"), kNoWait));
  auto one = reader(pool, "q", Kind::broadcast, 4), two = reader(other, "q", Kind::broadcast, 4);
  Message message;
  CHECK(status_of(one->receive(message, false, kNoWait)) == Status::empty);
  for (int i = 0; i < 4; ++i) must(out->send(bytes_of("m" + std::to_string(i)), kNoWait));
  CHECK(status_of(out->send(bytes_of("m4"), kNoWait)) == Status::full);
  for (auto* in : {&one, &two})
    for (int i = 0; i < 4; ++i) {
      must((*in)->receive(message, i % 2 == 0, kNoWait));
      CHECK(text_of(message) == "m" + std::to_string(i));
      must(message.done());
    }
  must(out->send(bytes_of("m4"), kNoWait));
  // The next writer's ring follows.
  must(out->close(false, false));
  auto successor = writer(pool, "q", Kind::broadcast, 4);
  must(one->receive(message, false, kNoWait));
  CHECK(text_of(message) == "m4");
  must(two->receive(message, false, kNoWait));
  must(successor->send(bytes_of("new"), kNoWait));
  auto received = one->receive(message, false, 0);
  if (!received && received.error().status == Status::peer_gone) received = one->receive(message, false, 0);
  must(std::move(received));
  CHECK(text_of(message) == "new");
}

TEST_CASE("a reader that was there before the writer has all of it, whenever it looks, and writers in their order") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 300, 4)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto in = reader(other, "q", Kind::broadcast, 4);
  Message message;
  auto next = [&](const std::string& text) {
    auto got = in->receive(message, false, kNoWait);
    if (!got && got.error().status == Status::peer_gone) got = in->receive(message, false, kNoWait);
    REQUIRE(got);
    CHECK(text_of(message) == text);
  };
  auto out = writer(pool, "q", Kind::broadcast, 4);
  for (int i = 0; i < 4; ++i) must(out->send(bytes_of("m" + std::to_string(i)), kNoWait));
  CHECK(status_of(out->send(bytes_of("x"), kNoWait)) == Status::full);  // it waits for a reader that has not looked yet
  SUBCASE("while the writer is there") {}
  SUBCASE("when it is gone") { must(out->close(false, false)); }
  SUBCASE("when its successor is there, or gone too") {
    must(out->close(false, false));
    out = writer(pool, "q", Kind::broadcast, 4);
    must(out->send(bytes_of("later"), kNoWait));
    SUBCASE("there") {}
    SUBCASE("gone") { must(out->close(false, false)); }
    for (int i = 0; i < 4; ++i) next("m" + std::to_string(i));
    return next("later");
  }
  for (int i = 0; i < 4; ++i) next("m" + std::to_string(i));
}

TEST_CASE(
    "a broadcast reader that never looks and closes its end delays no writer, and starts afresh when it is back") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 300, 4)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto in = reader(other, "q", Kind::broadcast, 4);
  auto out = writer(pool, "q", Kind::broadcast, 4);
  for (int i = 0; i < 4; ++i) must(out->send(bytes_of("m"), kNoWait));
  CHECK(status_of(out->send(bytes_of("x"), kNoWait)) == Status::full);
  must(in->close(false, false));
  CHECK(status_of(out->send(bytes_of("x"), kNoWait)) == Status::peer_gone);
  for (int i = 0; i < 9; ++i) must(out->send(bytes_of("m"), kNoWait));
  in = reader(other, "q", Kind::broadcast, 4);
  must(out->send(bytes_of("new"), kNoWait));
  Message message;
  must(in->receive(message, false, kNoWait));
  CHECK(text_of(message) == "new");
}

TEST_CASE("a broadcast that drops its oldest never waits, and a slow reader counts what it missed") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 500, 16)));
  auto spec = queue_spec("q", Kind::broadcast, false, true, 4);
  spec.flags = pool::kQueueDropOldest;
  auto out = must(Queue::open(pool, spec));
  spec.writer = false, spec.reader = true;
  auto in = must(Queue::open(must(try_pool(beside(broker, pool), "p")), spec));
  for (int i = 0; i < 20; ++i) {
    const Slot slot = must(pool->acquire(8, kNoWait));
    std::memcpy(slot.data, &i, sizeof i);
    Slot sent = slot;
    sent.length = sizeof i;
    must(out->send(sent, kNoWait));
    must(pool->release(slot));
  }
  Message message;
  int count = 0, last = -1;
  while (in->receive(message, false, kNoWait)) {
    int value = 0;
    REQUIRE(message.part(0).length == sizeof value);
    std::memcpy(&value, message.part(0).data, sizeof value);
    CHECK(value > last);
    last = value;
    ++count;
  }
  CHECK(last == 19);
  CHECK(count <= 4);
  CHECK(must(in->facts()).lost + static_cast<unsigned>(count) == 20);
}

TEST_CASE("a message arrives though its sender exits right after it, and the death is reported after the message") {
  const harness::BrokerFixture broker;
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    auto session = open(broker);
    auto pool = must(make_pool(session, slots_of("p", 4096, 4)));
    auto in = reader(pool, "q", kind);
    auto child = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
      auto out = Queue::open(joined, queue_spec("q", kind, false, true));
      STEP(3, out);
      // The reader of an spsc queue and a broadcast's must have seen the lane: room is made for the late ones by the
      // queue.
      STEP(4, (*out)->send(bytes_of("small"), 0));
      auto slot = joined->acquire(4096, 0);
      STEP(5, slot);
      std::memset(slot->data, 'x', 4096);
      STEP(6, (*out)->send(*slot, 0));
      ::kill(::getpid(), SIGKILL);
      return 0;
    });
    Message message;
    auto first = in->receive(message, true, kForever);
    if (kind == Kind::broadcast && first && text_of(message) != "small") {
      CHECK(text_of(message) == std::string(4096, 'x'));  // it attached between the two
    } else if (first) {
      CHECK(text_of(message) == "small");
      must(in->receive(message, true, kForever));
      CHECK(text_of(message) == std::string(4096, 'x'));
      CHECK(message.part(0).kind == PartKind::slot);
    } else {
      CHECK(kind == Kind::broadcast);
      CHECK(first.error().status == Status::peer_gone);
      continue;
    }
    CHECK(child.wait() == 128 + SIGKILL);
    CHECK(status_of(in->receive(message, false, kForever)) == Status::peer_gone);
    CHECK(status_of(in->receive(message, false, kNoWait)) == Status::empty);
    must(message.done());
    auto out = writer(pool, "r", kind);  // the pool goes on
    in.reset();
  }
}

TEST_CASE("the writer of an spsc queue hears once of its killed reader, and goes on with the next one") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 4)));
  auto out = writer(pool, "q", Kind::spsc, 2);
  const harness::Gate opened;
  auto child = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
    auto in = Queue::open(joined, queue_spec("q", Kind::spsc, true, false, 2));
    STEP(3, in);
    opened.open();
    ::pause();
    return 0;
  });
  REQUIRE(opened.wait());
  must(out->send(bytes_of("1"), 0));
  must(out->send(bytes_of("2"), 0));
  CHECK(status_of(out->send(bytes_of("3"), kNoWait)) == Status::full);
  child.kill();
  CHECK(status_of(out->send(bytes_of("3"), kForever)) == Status::peer_gone);
  CHECK(status_of(out->send(bytes_of("3"), kNoWait)) == Status::full);  // nobody there
  auto in = reader(must(try_pool(beside(broker, pool), "p")), "q", Kind::spsc, 2);
  must(out->send(bytes_of("3"), kForever));
  Message message;
  must(in->receive(message, false, kForever));
  CHECK(text_of(message) == "3");
}

TEST_CASE("messages that are too old make room and give back their slots while their sender waits for that") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 1)));
  auto spec = queue_spec("q", Kind::mpmc, false, true, 2);
  spec.flags = pool::kQueueExpiring;
  auto out = must(Queue::open(pool, spec));
  constexpr std::int64_t kLifetime = 50'000'000, kLong = 20'000'000'000;
  const OutPart text = bytes_part("old");
  auto send = [&](const OutPart& part, std::int64_t wait) {
    return out->send(std::span(&part, 1), 0, kLifetime, wait);
  };
  must(send(text, kNoWait));
  must(send(text, kNoWait));
  CHECK(status_of(send(text, kLong)) == Status::ok);
  CHECK(status_of(out->drain(kLong)) == Status::ok);
  const Slot slot = must(pool->acquire(1, kNoWait));
  must(send(slot_part(slot), kNoWait));
  must(pool->release(slot));
  const auto again = pool->acquire(1, kLong);
  REQUIRE(again.has_value());
  // The same for another process that waits, while the sender sleeps.
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto in = reader(pool, "end", Kind::spsc);
  auto end = writer(other, "end", Kind::spsc);
  must(send(slot_part(*again), kNoWait));
  must(pool->release(*again));
  std::thread sleeper([&] {
    Message message;
    must(in->receive(message, true, kForever));
  });
  const auto others = other->acquire(1, kLong);
  must(end->send(bytes_of("end"), kForever));
  sleeper.join();
  REQUIRE(others.has_value());
  must(other->release(*others));
}

TEST_CASE("a message sent while the queue closes is read, or its sender gets CLOSED") {
  for (const Kind kind : {Kind::spsc, Kind::mpmc}) {
    for (int round = 0; round < 5; ++round) {
      const harness::BrokerFixture broker;
      auto session = open(broker);
      auto pool = must(make_pool(session, slots_of("p", 64, 1)));
      auto other = must(try_pool(beside(broker, pool), "p"));
      auto in = reader(other, "q", kind, 8);
      auto out = writer(pool, "q", kind, 8);
      int sent = 0, received = 0;
      std::thread sender([&] {
        while (out->send(bytes_of("x"), kForever)) ++sent;
      });
      std::thread closer([&] {
        ::usleep(1000);
        must(in->shutdown(false));
      });
      Message message;
      while (in->receive(message, true, kForever)) ++received;
      sender.join();
      closer.join();
      CHECK(received >= sent);
      if (kind == Kind::mpmc) CHECK(received == sent);
    }
  }
}

TEST_CASE("a message that comes after its reader got CLOSED does not count as sent") {
  for (const Kind kind : {Kind::spsc, Kind::mpmc}) {
    const harness::BrokerFixture broker;
    auto session = open(broker);
    auto pool = must(make_pool(session, slots_of("p", 64, 1)));
    auto other = must(try_pool(beside(broker, pool), "p"));
    auto in = reader(other, "q", kind);
    auto out = writer(pool, "q", kind);
    static Queue* closing = nullptr;
    static Status told = Status::ok;
    closing = in.get();
    step_hook = [](Step now) {  // the sender has found room and the queue open
      if (now != Step::S1 && now != Step::K2) return;
      step_hook = nullptr;
      must(closing->shutdown(false));
      Message message;
      told = status_of(closing->receive(message, true, kForever));
    };
    CHECK(status_of(out->send(bytes_of("late"), kNoWait)) == Status::closed);
    step_hook = nullptr;
    CHECK(told == Status::closed);
  }
}

TEST_CASE("a closed queue refuses senders at once and is drained by its readers") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{}));
  auto out = writer(pool, "q", Kind::mpmc), in = reader(pool, "q", Kind::mpmc);
  must(out->send(bytes_of("last"), kNoWait));
  must(out->shutdown(true));
  CHECK(status_of(out->send(bytes_of("x"), kForever)) == Status::closed);
  Message message;
  must(in->receive(message, false, kForever));
  CHECK(text_of(message) == "last");
  CHECK(status_of(in->receive(message, false, kForever)) == Status::closed);
  CHECK(status_of(in->receive(message, false, kNoWait)) == Status::closed);
  must(in->close(false, false));
  must(out->close(false, false));
  auto fresh = writer(pool, "q", Kind::spsc);  // the name is free
}

TEST_CASE("a writer that leaves in good order is reported once, after its last message") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 300, 2)));
  auto in = reader(pool, "q", Kind::spsc);
  {
    auto other = must(try_pool(beside(broker, pool), "p"));
    auto out = writer(other, "q", Kind::spsc);
    must(out->send(bytes_of(std::string(300, 'y')), kForever));
  }
  Message message;
  must(in->receive(message, false, kForever));
  CHECK(text_of(message) == std::string(300, 'y'));
  CHECK(status_of(in->receive(message, false, kForever)) == Status::peer_gone);
  CHECK(status_of(in->receive(message, false, kNoWait)) == Status::empty);
}

TEST_CASE("an at-least-once message that its reader gives back, or dies with, is delivered again") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 300, 4)));
  auto spec = queue_spec("q", Kind::mpmc, true, true);
  spec.flags = pool::kQueueAtLeastOnce;
  auto queue = must(Queue::open(pool, spec));
  must(queue->send(bytes_of("job"), kNoWait));
  Message message, second;
  must(queue->receive(message, false, kNoWait));
  CHECK(status_of(queue->receive(second, false, kNoWait)) == Status::busy);
  must(message.give_back());
  const harness::Gate taken;
  auto child = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
    auto theirs = spec;
    theirs.writer = false;
    auto in = Queue::open(joined, theirs);
    STEP(3, in);
    Message got;
    STEP(4, (*in)->receive(got, false, 0));
    taken.open();
    ::pause();
    return 0;
  });
  REQUIRE(taken.wait());
  CHECK(status_of(queue->receive(message, false, kNoWait)) == Status::empty);
  child.kill();
  must(queue->receive(message, false, kForever));
  CHECK(text_of(message) == "job");
  must(message.done());
  CHECK(status_of(message.give_back()) == Status::invalid);
}

TEST_CASE("a departed writer's message that another reader claimed is waited for, and comes if that reader dies") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 300, 4)));
  auto spec = queue_spec("q", Kind::mpmc, true, false);
  spec.flags = pool::kQueueAtLeastOnce;
  auto in = must(Queue::open(pool, spec));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto writing = spec;
  writing.reader = false;
  writing.writer = true;
  auto out = must(Queue::open(other, writing));
  const harness::Gate ready, sent, taken;
  auto child = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
    auto theirs = Queue::open(joined, spec);
    STEP(3, theirs);
    ready.open();
    STEP(4, sent.wait());
    Message got;
    STEP(5, (*theirs)->receive(got, false, 0));
    taken.open();
    ::pause();
    return 0;
  });
  REQUIRE(ready.wait());
  must(out->send(bytes_of("job"), kNoWait));
  sent.open();
  REQUIRE(taken.wait());
  must(out->close(false, false));
  Message message;
  while (status_of(in->receive(message, false, kNoWait)) == Status::peer_gone) {
  }
  CHECK(status_of(in->receive(message, false, kNoWait)) == Status::empty);
  child.kill();
  for (;;) {
    auto got = in->receive(message, false, 0);
    if (got || got.error().status != Status::peer_gone) {
      must(std::move(got));
      break;
    }
  }
  CHECK(text_of(message) == "job");
  must(message.done());
}

TEST_CASE("a sender of slot after slot through an spsc queue gets back done slots before it takes another") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 16384, 16)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto in = reader(other, "q", Kind::spsc), out = writer(pool, "q", Kind::spsc);
  const Slot again = must(pool->acquire(1, kNoWait));
  const auto hand_over = [&](const Slot& slot) {
    const bool at_once = out->send_now(slot) == Now::done;
    if (!at_once) must(out->send(slot, kNoWait));
    return at_once;
  };
  std::vector<Slot> first;
  for (int i = 0; i < 4; ++i) {
    first.push_back(must(pool->acquire(1, kNoWait)));
    hand_over(first.back());
    must(pool->release(first.back()));
  }
  for (const Slot& slot : first) CHECK(pool->me().holds(slot.index));  // for its reader
  Message message;
  int at_once = 0;
  for (int i = 0; i < 20; ++i) {
    must(in->receive(message, false, kNoWait));
    must(message.done());
    at_once += hand_over(again);
  }
  CHECK(at_once == 20);
  for (const Slot& slot : first) CHECK_FALSE(pool->me().holds(slot.index));
  must(pool->release(again));
}

TEST_CASE("a closed mpmc queue is not at its end while another reader has a message that may come back") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 300, 4)));
  constexpr std::int64_t kLong = 60'000'000'000;
  for (const bool dies : {true, false}) {
    CAPTURE(dies);
    auto reading = queue_spec("q", Kind::mpmc, true, false), writing = queue_spec("q", Kind::mpmc, false, true);
    reading.flags = writing.flags = pool::kQueueAtLeastOnce;
    auto in = must(Queue::open(pool, reading));
    auto other = must(try_pool(beside(broker, pool), "p"));
    auto out = must(Queue::open(other, writing));
    const harness::Gate ready, sent, taken, go_on;
    auto child = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
      auto theirs = Queue::open(joined, reading);
      STEP(3, theirs);
      ready.open();
      STEP(4, sent.wait());
      const Slot slot = joined->acquire(300, kNoWait).value_or(Slot{});
      STEP(5, joined->release(slot));
      Message got;
      STEP(6, (*theirs)->receive(got, false, 0));
      taken.open();
      STEP(7, go_on.wait());
      STEP(8, got.done());
      STEP(9, status_of((*theirs)->receive(got, false, kLong)) == Status::closed);
      return 0;
    });
    REQUIRE(ready.wait());
    const Slot slot = must(other->acquire(300, kNoWait));
    must(out->send(slot, kNoWait));
    must(other->release(slot));
    sent.open();
    REQUIRE(taken.wait());
    must(out->close(true, true));  // and leaves
    Message message;
    Status told = Status::peer_gone;  // first that the only writer has left, or died
    while (told == Status::peer_gone) told = status_of(in->receive(message, false, kNoWait));
    CHECK(told == Status::empty);
    QueueSet set;
    must(set.add(*in, nullptr));
    CHECK(status_of(set.wait(kNoWait)) == Status::empty);
    if (dies) child.kill();
    else go_on.open();
    told = Status::peer_gone;
    while (told == Status::peer_gone) told = status_of(in->receive(message, false, kLong));
    CHECK(told == (dies ? Status::ok : Status::closed));
    must(message.done());
    CHECK(status_of(in->receive(message, false, kNoWait)) == Status::closed);
    CHECK(child.wait() == (dies ? 128 + SIGKILL : 0));
    must(in->close(false, false));
  }
}

TEST_CASE("threads share the ends of an mpmc queue: each message is taken once, and a shutdown ends their waits") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 32)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto in = reader(other, "q", Kind::mpmc, 8);
  auto out = writer(pool, "q", Kind::mpmc, 8);
  constexpr int kEach = 500, kSenders = 2, kReceivers = 3;
  std::atomic<int> wrong = 0, received = 0;
  std::atomic<std::uint64_t> sum = 0;
  std::vector<std::thread> receivers, senders;
  for (int t = 0; t < kReceivers; ++t)
    receivers.emplace_back([&] {
      Message message;
      for (;;) {
        auto got = in->receive(message, true, kForever);
        if (!got) {
          wrong += got.error().status != Status::closed;
          return;
        }
        int number = 0;
        std::memcpy(&number, message.part(0).data, sizeof number);
        sum += static_cast<std::uint64_t>(number);
        ++received;
        if (!message.done()) ++wrong;
      }
    });
  for (int t = 0; t < kSenders; ++t)
    senders.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const int number = t * kEach + i;
        if (i % 2 == 0) {
          wrong += !out->send(std::as_bytes(std::span(&number, 1)), kForever);
          continue;
        }
        auto slot = pool->acquire(sizeof number, kForever);
        if (!slot) {
          ++wrong;
          continue;
        }
        std::memcpy(slot->data, &number, sizeof number);
        wrong += !out->send(*slot, kForever) || !pool->release(*slot);
      }
    });
  for (auto& thread : senders) thread.join();
  must(out->shutdown(false));
  for (auto& thread : receivers) thread.join();
  CHECK(wrong == 0);
  CHECK(received == kSenders * kEach);
  CHECK(sum == std::uint64_t{kSenders * kEach} * (kSenders * kEach - 1) / 2);
}

TEST_CASE("a queue alone is made by the first process that comes, and says what its messages may be") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto in = must(Queue::open_alone(session, "mail", queue_spec("", Kind::mpmc, true, false)));
  auto other = open(broker);
  must(other->join_group("#" + std::to_string(in->pool().group()), 0, Deadline::after(0)));
  auto out = must(Queue::open_alone(other, "mail", queue_spec("", Kind::mpmc, false, true)));
  must(out->send(bytes_of("hello"), kNoWait));
  Message message;
  must(in->receive(message, false, kForever));
  CHECK(text_of(message) == "hello");
  auto refused = out->send(bytes_of(std::string(57, 'x')), kNoWait);
  CHECK(status_of(refused) == Status::invalid);
  CHECK(refused.error().sentence.find("no slots") != std::string::npos);
  auto local = must(Session::local("for a test"));
  CHECK(status_of(Queue::open_alone(local, "mail", queue_spec("", Kind::mpmc, true, false))) == Status::local_only);
}

TEST_CASE("a sleeping reader is woken by a message, by a close and by the end of its writer") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 4)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto spec = queue_spec("q", Kind::mpmc, true, false);
  spec.spin = 0;
  auto in = must(Queue::open(pool, spec));
  auto out = writer(other, "q", Kind::mpmc);
  std::vector<Status> told;
  std::atomic<int> heard = 0;
  std::string text;
  std::thread sleeper([&] {
    Message message;
    for (int i = 0; i < 3; ++i) {
      auto received = in->receive(message, true, kForever);
      told.push_back(status_of(received));
      if (received) text = text_of(message);
      heard = i + 1;
    }
  });
  auto rest = [&](int news) {  // until it has heard so much, and sleeps again
    CHECK(eventually([&] { return heard >= news && is_asleep(*pool); }));
  };
  rest(0);
  must(out->send(bytes_of("wake"), kNoWait));
  rest(1);
  must(out->close(false, false));
  rest(2);
  auto again = writer(other, "q", Kind::mpmc);
  must(again->shutdown(false));
  sleeper.join();
  CHECK(text == "wake");
  CHECK(told == std::vector<Status>{Status::ok, Status::peer_gone, Status::closed});
}

TEST_CASE("a wait for a message that another reader has claimed reports the writer's end once that reader is done") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 300, 4)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto reading = queue_spec("q", Kind::mpmc, true, false), writing = queue_spec("q", Kind::mpmc, false, true);
  reading.flags = writing.flags = pool::kQueueAtLeastOnce;
  auto out = must(Queue::open(must(try_pool(beside(broker, pool), "p")), writing));
  auto first = must(Queue::open(pool, reading)), second = must(Queue::open(other, reading));
  must(out->send(bytes_of(std::string(200, 'm')), kNoWait));
  Message message;
  must(first->receive(message, false, kNoWait));
  std::atomic<bool> told = false;
  std::thread waiting([&] {
    Message none;
    CHECK(status_of(second->receive(none, false, 60'000'000'000)) == Status::peer_gone);
    told = true;
  });
  auto asleep = [&] { return is_asleep(*other); };
  CHECK(eventually(asleep));
  must(out->close(false, false));
  ::usleep(50'000);  // it has looked, and sleeps again
  CHECK(eventually(asleep));
  CHECK(!told);
  must(message.done());  // `first` has not looked around since
  CHECK(eventually([&] { return told.load(); }));
  if (!told) must(second->shutdown(false));
  waiting.join();
}

TEST_CASE("a pool whose group has ended says so") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 300, 4)));
  auto out = writer(pool, "q", Kind::mpmc), in = reader(pool, "q", Kind::mpmc);
  must(session->end_group(pool->group(), "", 0, Deadline::after(0)));
  Message message;
  CHECK(status_of(in->receive(message, false, kNoWait)) == Status::group_ended);
  CHECK(status_of(out->send(bytes_of("m"), kNoWait)) == Status::group_ended);
  CHECK(status_of(pool->acquire(10, kNoWait)) == Status::group_ended);
}

TEST_CASE("lanes of writers that are gone are given back although the newest lane always has a message") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto in = reader(pool, "q", Kind::mpmc);
  Message message;
  for (int i = 0; i < 200; ++i) {
    CAPTURE(i);
    auto out = Queue::open(other, queue_spec("q", Kind::mpmc, false, true));
    REQUIRE(out);
    must((*out)->send(bytes_of("m"), kNoWait));
    must(in->receive(message, true, kNoWait));
  }
}

TEST_CASE("an impossible message is reported once, and later messages of its writer are read") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 512, 2)));
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    auto both = must(Queue::open(pool, queue_spec("q" + std::to_string(static_cast<int>(kind)), kind, true, true)));
    must(both->send(bytes_of("forged"), kNoWait));
    must(both->send(bytes_of("good"), kNoWait));
    for (std::uint32_t i = 0; i < pool->view().lanes(); ++i) {
      const pool::LaneEntry& lane = pool->view().lane(i);
      if (pool::Stamp::of(lane.stamp.load()).state == 0 ||
          pool->view().queue(lane.queue).kind != std::to_underlying(kind))
        continue;
      auto* const words = pool->view().lane_memory(lane.offset);
      pool::LaneView(words, kind, lane.cells, lane.cell_size).cell(0).word = pool::CellWord::full(0, 0xf0);
    }
    Message message;
    CHECK(status_of(both->receive(message, false, kForever)) == Status::broken);
    must(both->receive(message, false, kForever));
    CHECK(text_of(message) == "good");
    must(message.done());
    CHECK(status_of(both->receive(message, false, kNoWait)) == Status::empty);
  }
}

TEST_CASE("of writers that are gone the one that died is said to have died, and the one that left is not") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto in = reader(pool, "q", Kind::mpmc);
  auto leaves_pool = must(try_pool(beside(broker, pool), "p"));
  auto leaves = writer(leaves_pool, "q", Kind::mpmc);
  const harness::Gate opened;
  auto dies = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
    auto out = Queue::open(joined, queue_spec("q", Kind::mpmc, false, true));
    STEP(3, out);
    opened.open();
    ::pause();
    return 0;
  });
  REQUIRE(opened.wait());
  Message message;
  CHECK(status_of(in->receive(message, false, kNoWait)) == Status::empty);  // it knows both
  leaves.reset();
  leaves_pool.reset();
  dies.kill();
  int died = 0;
  const auto hear = [&] {
    auto told = in->receive(message, false, 20'000'000);
    died += !told && told.error().sentence.find("died") != std::string::npos;
    return !told;
  };
  CHECK(eventually([&] { return !hear() || died != 0; }));
  for (int calls = 0; calls < 4; ++calls) CHECK(hear());
  CHECK(died == 1);
}
