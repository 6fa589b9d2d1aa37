// SPDX-License-Identifier: Apache-2.0
// Pools through the library against a real broker: slots, growth, classes, coming late, leaving, fork.
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "tests/harness/injected.hpp"
#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

TEST_CASE("a slot is acquired, filled, kept by two references, released and used again with a new generation") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 1000, 2)));
  const Slot slot = must(pool->acquire(1000, kNoWait));
  std::memset(slot.data, 7, 1000);
  CHECK(slot.size == 1000);
  CHECK(must(pool->facts()).slots_used == 1);
  must(pool->retain(slot));
  must(pool->release(slot));
  CHECK(slot.data[999] == std::byte{7});
  must(pool->release(slot));
  CHECK(status_of(pool->release(slot)) == Status::stale);
  const Slot again = must(pool->acquire(1, kNoWait)), other = must(pool->acquire(1, kNoWait));
  CHECK(again.index != other.index);
  const Slot& same = again.index == slot.index ? again : other;
  CHECK(same.generation > slot.generation);
  CHECK(status_of(pool->release(slot)) == Status::stale);
  CHECK(status_of(pool->acquire(1, kNoWait)) == Status::full);
  CHECK(status_of(pool->acquire(1, 1'000'000)) == Status::deadline);
  CHECK(status_of(pool->acquire(1, -1'000'000)) == Status::deadline);  // a deadline that has passed
  CHECK(status_of(pool->acquire(1001, kNoWait)) == Status::invalid);
  must(pool->release(again));
  must(pool->release(other));
}

TEST_CASE("a wait for a slot gets the one that another process releases") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 1)));
  auto other_session = beside(broker, pool);
  auto other = must(try_pool(other_session, "p"));
  const Slot slot = must(other->acquire(1, kNoWait));
  CHECK(status_of(pool->acquire(1, kNoWait)) == Status::full);
  std::thread later([&] { must(other->release(slot)); });
  const Slot got = must(pool->acquire(1, kForever));
  later.join();
  must(pool->release(got));
  // A handle of another pool, and one of another participant.
  CHECK(status_of(other->release(got)) == Status::stale);
  auto elsewhere = must(make_pool(session, slots_of("q", 64, 1)));
  CHECK(status_of(elsewhere->release(got)) == Status::invalid);
}

TEST_CASE("a wait for a slot gets the one of a message of its own that is read meanwhile") {
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    const harness::BrokerFixture broker;
    auto session = open(broker);
    auto pool = must(make_pool(session, slots_of("p", 64, 1)));
    auto other_session = beside(broker, pool);
    auto other = must(try_pool(other_session, "p"));
    auto out = writer(pool, "q", kind);
    auto in = reader(other, "q", kind);
    const Slot slot = must(pool->acquire(1, kNoWait));
    must(out->send(slot, kForever));
    must(pool->release(slot));
    CHECK(status_of(pool->acquire(1, kNoWait)) == Status::full);
    std::thread later([&] {
      ::usleep(50'000);  // the other one sleeps by now, or the case shows nothing
      Message message;
      must(in->receive(message, false, kForever));
      must(message.done());
    });
    const auto got = pool->acquire(1, 10'000'000'000);
    later.join();
    CAPTURE(static_cast<int>(kind));
    REQUIRE(got.has_value());
    must(pool->release(*got));
  }
}

TEST_CASE("a sender that sleeps elsewhere drops slots of read messages for a participant that waits for one") {
  for (const bool read_first : {true, false}) {
    const harness::BrokerFixture broker;
    auto session = open(broker);
    auto pool = must(make_pool(session, slots_of("p", 64, 1)));
    auto reading = must(try_pool(beside(broker, pool), "p")), waiting = must(try_pool(beside(broker, pool), "p"));
    auto out = writer(pool, "q", Kind::spsc), end = writer(waiting, "end", Kind::spsc);
    auto in = reader(reading, "q", Kind::spsc), asleep_in = reader(pool, "end", Kind::spsc);
    const Slot slot = must(pool->acquire(1, kNoWait));
    must(out->send(slot, kForever));
    must(pool->release(slot));
    std::thread sender([&] {
      Message message;
      must(asleep_in->receive(message, true, kForever));
    });
    auto read = [&] {
      ::usleep(50'000);  // those who should sleep do, or the case shows nothing
      Message message;
      must(in->receive(message, false, kForever));
      must(message.done());
    };
    std::thread other;
    if (read_first) read();
    else other = std::thread(read);
    const auto got = waiting->acquire(1, 10'000'000'000);
    if (other.joinable()) other.join();
    must(end->send(bytes_of("end"), kForever));
    sender.join();
    CAPTURE(read_first);
    REQUIRE(got.has_value());
    must(waiting->release(*got));
  }
}

TEST_CASE("an open of a pool whose maker still adds memory waits for the slots instead of being refused") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto beginning = must(make_pool(session, slots_of("first", 64, 1)));  // a group to join
  auto other = beside(broker, beginning);
  PoolSpec spec = slots_of("p", 64, 4);
  spec.classes.push_back({8 << 20, 8, 8});
  std::shared_ptr<Pool> made;
  std::thread maker([&] { made = must(make_pool(session, spec)); });
  Pool::Opening opening;
  opening.address = "p";
  opening.wait = kForever;
  auto pool = must(Pool::open(other, opening));
  const auto large = pool->acquire(8 << 20, kForever);
  maker.join();
  CHECK(large.has_value());
  CHECK(status_of(pool->acquire((8 << 20) + 1, kForever)) == Status::invalid);
  if (large) must(pool->release(*large));
}

TEST_CASE("a pool grows by further segments up to its limit, and others see them") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 5000, 1, 6)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  std::vector<Slot> slots;
  for (int i = 0; i < 3; ++i) slots.push_back(must(pool->acquire(5000, kNoWait)));
  for (int i = 0; i < 3; ++i) {
    const Slot slot = must(other->acquire(5000, kNoWait));
    std::memset(slot.data, i, 5000);
    must(other->release(slot));
    slots.push_back(must(pool->acquire(5000, kNoWait)));
  }
  CHECK(status_of(pool->acquire(1, kNoWait)) == Status::full);
  const auto facts = must(pool->facts());
  CHECK(facts.slots == 6);
  CHECK(facts.slots_used == 6);
  CHECK(facts.segments > 1);
  for (const Slot& slot : slots) {
    std::memset(slot.data, 1, 5000);
    must(pool->release(slot));
  }
}

TEST_CASE("a slot stays in place for one thread while another adds the memory that holds it") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  unsigned met = 0;  // the second thread had a slot of the new memory before the first one could take it over
  for (int round = 0; round < 60; ++round) {
    auto pool = must(make_pool(session, slots_of("p", 4096, 1, 64)));
    std::atomic<bool> all_taken = false;
    std::vector<Slot> grower;
    std::thread adds([&] {
      while (must(pool->facts()).slots_used != 64)
        if (auto slot = pool->acquire(4096, kNoWait)) grower.push_back(*slot);  // or the other one is adding memory
      all_taken = true;
    });
    std::vector<Slot> others;
    while (!all_taken) {
      auto slot = pool->acquire(4096, kNoWait);
      if (!slot) continue;
      std::memset(slot->data, round, 4096);
      others.push_back(*slot);
    }
    adds.join();
    met += others.empty() ? 0U : 1U;
    Pool::Lock lock(pool->me().lock());
    for (const Slot& slot : others) {
      REQUIRE(pool->data(slot.index) == slot.data);
      CHECK(slot.data[4095] == static_cast<std::byte>(round));
    }
    lock.unlock();
    for (const auto* slots : {&grower, &others})
      for (const Slot& slot : *slots) must(pool->release(slot));
    must(pool->remove());
  }
  CHECK(met > 0);
}

TEST_CASE("each class grows to its own limit, whichever process adds the memory") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  PoolSpec spec;
  spec.name = "p";
  spec.classes = {{64, 1, 3}, {4096, 1, 8}};
  auto pool = must(make_pool(session, spec));
  auto other = must(try_pool(beside(broker, pool), "p"));
  std::vector<Slot> small, large;
  for (int i = 0; i < 3; ++i) small.push_back(must(other->acquire(64, kNoWait)));
  CHECK(status_of(other->acquire(64, kNoWait)) == Status::full);
  CHECK(status_of(pool->acquire(64, kNoWait)) == Status::full);
  for (int i = 0; i < 8; ++i) large.push_back(must(other->acquire(4096, kNoWait)));
  CHECK(status_of(other->acquire(4096, kNoWait)) == Status::full);
  for (const auto& slots : {small, large})
    for (const Slot& slot : slots) must(other->release(slot));
}

TEST_CASE("a pool that is removed has no name any more, and goes with its last participant") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 1)));
  auto elsewhere = beside(broker, pool);
  auto reading = must(try_pool(elsewhere, "p", true));
  CHECK(status_of(reading->remove()) == Status::denied);
  must(pool->remove());
  must(pool->remove());
  CHECK(status_of(try_pool(session, "p")) == Status::not_found);
  auto next = must(make_pool(session, slots_of("p", 4096, 1)));
  CHECK(must(try_pool(session, "p"))->id() == next->id());
  const Slot slot = must(pool->acquire(64, kNoWait));
  must(pool->release(slot));
  Pool::Opening by_id;
  by_id.id = pool->id();
  pool.reset();
  auto third = beside(broker, next);
  must(Pool::open(third, by_id));
  reading.reset();
  CHECK(status_of(Pool::open(third, by_id)) == Status::not_found);
}

TEST_CASE("a pool whose memory was refused leaves no name behind") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  for (int first : {1, 2}) {  // the page that notices fork, the pages of the slots
    const harness::Injected fault(fault::Call::madvise, ENOMEM, first, -1);
    CHECK(!make_pool(session, slots_of("p", 4 << 20, 1)));
  }
  CHECK(status_of(try_pool(session, "p")) == Status::not_found);
}

TEST_CASE("a request gets a slot of the smallest class that fits, and the error for a larger one names the way out") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  PoolSpec spec;
  spec.classes = {{4096, 1, 0}, {64, 2, 0}};
  auto pool = must(make_pool(session, spec));
  const Slot small = must(pool->acquire(64, kNoWait)), large = must(pool->acquire(65, kNoWait));
  CHECK(small.size == 64);
  CHECK(large.size == 4096);
  CHECK(status_of(pool->acquire(100, kNoWait)) == Status::full);
  auto refused = pool->acquire(5000, kNoWait);
  CHECK(status_of(refused) == Status::invalid);
  CHECK(refused.error().sentence.find("shmb_create") != std::string::npos);
  must(pool->release(small));
  must(pool->release(large));
}

TEST_CASE("sizes that cannot be are refused with a sentence") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  CHECK(status_of(make_pool(session, slots_of("", 0, 1))) == Status::invalid);
  CHECK(status_of(make_pool(session, slots_of("", 64, 0))) == Status::invalid);
  CHECK(status_of(make_pool(session, slots_of("", 64, 2, 1))) == Status::invalid);
  CHECK(status_of(make_pool(session, slots_of("", UINT64_MAX / 2, 2))) == Status::invalid);
  CHECK(status_of(make_pool(session, slots_of("", kMaxLength, 2))) == Status::invalid);
  CHECK(status_of(make_pool(session, slots_of("", 64, 1 << 20))) == Status::invalid);
  CHECK(status_of(make_pool(session, slots_of(".x", 64, 1))) == Status::invalid);
  CHECK(status_of(try_pool(session, "none")) == Status::not_found);
  auto pool = must(make_pool(session, slots_of("p", 64, 1)));
  CHECK(status_of(make_pool(session, slots_of("p", 64, 1))) == Status::exists);
  auto queues_only = must(make_pool(session, PoolSpec{}));
  CHECK(status_of(queues_only->acquire(1, kNoWait)) == Status::invalid);
  auto local = must(Session::local("for a test"));
  CHECK(status_of(make_pool(local, slots_of("p", 64, 1))) == Status::local_only);
  CHECK(status_of(try_pool(local, "p")) == Status::local_only);
}

TEST_CASE("a read-only participant maps the slots and takes none") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 1)));
  auto other = must(try_pool(beside(broker, pool), "p", true));
  CHECK(status_of(other->acquire(1, kNoWait)) == Status::denied);
  CHECK(status_of(Queue::open(other, queue_spec("q", Kind::spsc, false, true))) == Status::denied);
  auto out = writer(pool, "q", Kind::spsc);
  auto in = must(Queue::open(other, queue_spec("q", Kind::spsc, true, false)));
  const Slot slot = must(pool->acquire(5, kNoWait));
  std::memcpy(slot.data, "hello", 5);
  must(out->send(slot, 0));
  Message message;
  must(in->receive(message, true, 0));
  CHECK(text_of(message) == "hello");
  must(message.done());
  must(pool->release(slot));
}

TEST_CASE("a session joins a pool once, and its handles share what is there") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 1)));
  CHECK(must(try_pool(session, "p")).get() == pool.get());
  Pool::Opening by_id;
  by_id.id = pool->id();
  CHECK(must(Pool::open(session, by_id)).get() == pool.get());
  auto by_name = beside(broker, pool);
  auto joined = must(Pool::open(by_name, by_id));
  CHECK(must(try_pool(by_name, "p")).get() == joined.get());
  CHECK(must(try_pool(session, "p", true)).get() == pool.get());
  auto read_only = beside(broker, pool);
  auto looking = must(try_pool(read_only, "p", true));
  CHECK(must(try_pool(read_only, "p", true)).get() == looking.get());
  CHECK(status_of(try_pool(read_only, "p")) == Status::busy);
}

TEST_CASE("a name means what it means to the broker now, whatever was opened by it before") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto here = must(make_pool(session, slots_of("p", 64, 1)));
  auto other = open(broker);
  auto there = must(make_pool(other, slots_of("p", 64, 1)));
  auto stays = beside(broker, here);  // so that neither group ends
  CHECK(must(try_pool(session, "p")).get() == here.get());
  SUBCASE("after the session has joined another group") {
    must(session->join_group("#" + std::to_string(there->group()), 0, Deadline::after(0)));
    CHECK(must(try_pool(session, "p"))->id() == there->id());
    must(session->join_group("#" + std::to_string(here->group()), 0, Deadline::after(0)));
    CHECK(must(try_pool(session, "p")).get() == here.get());
  }
  SUBCASE("where the session itself made the pool, in a group that it is not in") {
    PoolSpec spec = slots_of("elsewhere", 64, 1);
    spec.group = must(session->create_group({}, Deadline::after(0))).id;
    auto made = must(make_pool(session, spec));
    CHECK(status_of(try_pool(session, "elsewhere")) == Status::not_found);
    Pool::Opening by_id;
    by_id.id = made->id();
    CHECK(must(Pool::open(session, by_id)).get() == made.get());
  }
  SUBCASE("after another session has removed the pool, and made another one") {
    must(must(try_pool(stays, "p"))->remove());
    CHECK(status_of(try_pool(session, "p")) == Status::not_found);
    auto next = must(make_pool(stays, slots_of("p", 64, 1)));
    CHECK(must(try_pool(session, "p"))->id() == next->id());
  }
}

TEST_CASE("a wait for slots that the maker still adds ends when the broker is gone") {
  harness::BrokerFixture broker;
  auto maker = open(broker);
  shmbw_pool_create request{};
  request.slots = 4;
  request.lanes = 4;
  request.queues = 2;
  request.segments = 1;
  request.name_len = 1;
  std::array<std::byte, 256> buffer;
  wire::Writer writer(buffer);
  writer.begin(SHMBW_OP_POOL_CREATE, 0, Status::ok, request);
  writer.text("p");
  const auto packet = writer.finish(0);
  const auto made = must(maker->call(std::span(buffer).first(packet.size()), Deadline::after(0)));
  const auto place = *fixed_of<shmbw_pool_create_reply>(made);
  auto session = open(broker);
  must(session->join_group("#" + std::to_string(place.group), 0, Deadline::after(0)));
  Pool::Opening by_id;  // an open by name waits itself
  by_id.id = place.pool;
  auto pool = must(Pool::open(session, by_id));
  CHECK(status_of(pool->acquire(64, kNoWait)) == Status::full);
  CHECK(status_of(pool->acquire(64, 20'000'000)) == Status::deadline);
  Status told{};
  std::thread waits([&] { told = status_of(pool->acquire(64, 60'000'000'000)); });
  CHECK(eventually([&] { return is_asleep(*pool); }));
  broker.kill();
  waits.join();
  CHECK(told == Status::session_lost);
}

TEST_CASE("an open of a pool that another thread of the process is making waits for it until its deadline") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 1)));
  session->note_pool(pool->id(), pool, false);  // as if it were not whole yet
  Pool::Opening opening;
  opening.address = "p";
  opening.timeout = 2'000'000'000;  // of each answer of the broker: what making takes is another matter
  CHECK(status_of(Pool::open(session, opening)) == Status::deadline);
  opening.wait = 60'000'000'000;
  std::thread maker([&] {
    ::usleep(3'000'000);
    session->note_pool(pool->id(), pool, true);
  });
  const auto opened = Pool::open(session, opening);
  maker.join();
  CHECK(must(opened).get() == pool.get());
}

TEST_CASE("threads that open a pool and close it again never meet a refusal") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 1)));
  auto other = beside(broker, pool);
  std::atomic<int> refused = 0;
  auto open_often = [&] {
    for (int i = 0; i < 50; ++i)
      if (!try_pool(other, "p")) ++refused;
  };
  std::thread first(open_often), second(open_often);
  first.join();
  second.join();
  CHECK(refused == 0);
}

TEST_CASE("slots of a killed process are free again, and a process that comes back finds the pool unchanged") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 2)));
  for (int round = 0; round < 3; ++round) {
    const harness::Gate taken;
    auto child = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
      STEP(3, joined->acquire(1, kNoWait) && joined->acquire(1, kNoWait));
      taken.open();
      ::pause();
      return 0;
    });
    REQUIRE(taken.wait());
    CHECK(status_of(pool->acquire(1, kNoWait)) == Status::full);
    child.kill();
    const Slot first = must(pool->acquire(1, kForever)), second = must(pool->acquire(1, kForever));
    CHECK(child.wait() == 128 + SIGKILL);
    must(pool->release(first));
    must(pool->release(second));
  }
}

TEST_CASE("a forked child joins at its first call, and the parent's slots are not its own") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 4)));
  auto out = writer(pool, "q", Kind::mpmc);
  auto in = reader(pool, "q", Kind::mpmc);
  const Slot slot = must(pool->acquire(1, kNoWait));
  must(out->send(bytes_of("parent"), 0));
  auto child = harness::Child::run([&] {
    STEP(1, status_of(pool->release(slot)) == Status::forked);
    auto own = pool->acquire(3, 0);
    STEP(2, own);
    std::memcpy(own->data, "own", 3);
    STEP(3, out->send(*own, 0));
    STEP(4, pool->release(*own));
    Message message;
    STEP(5, in->receive(message, true, 0));
    return 0;
  });
  CHECK(child.wait() == 0);
  Message message;
  auto received = in->receive(message, true, 0);
  if (!received && received.error().status == Status::peer_gone) received = in->receive(message, true, 0);
  must(std::move(received));
  CHECK((text_of(message) == "own" || text_of(message) == "parent"));
  must(pool->release(slot));
}
