// SPDX-License-Identifier: Apache-2.0
// Waiting on several queues, and descriptors for event loops.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "tests/client/lane/pool_memory.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

bool readable(int fd, int milliseconds) {
  pollfd waiting{fd, POLLIN, 0};
  return ::poll(&waiting, 1, milliseconds) == 1;
}

// Until nothing of before is left that would make it readable.
void arm(Queue& in, int fd) {
  for (int i = 0; i < 2; ++i) {
    must(in.pool().session()->ping(Deadline::after(0)));
    Message message;
    do CHECK(status_of(in.receive(message, true, kNoWait)) == Status::empty);
    while (readable(fd, 0));
  }
}

// As an event loop does it: it looks only when the descriptor says so.
std::string heard(Queue& in, int fd) {
  Message message;
  for (const Deadline patience = Deadline::after(60'000'000'000); !patience.passed();) {
    if (!readable(fd, 30'000)) return "nothing rang";
    if (in.receive(message, true, kNoWait)) return text_of(message);
  }
  return "nothing came";
}

}  // namespace

TEST_CASE("a set says which queue of one pool has something, each in its turn") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{}));
  auto one = must(Queue::open(pool, queue_spec("one", Kind::mpmc, true, true)));
  auto two = must(Queue::open(pool, queue_spec("two", Kind::spsc, true, true)));
  QueueSet set;
  CHECK(status_of(set.wait(kNoWait)) == Status::invalid);
  int tags[2];
  must(set.add(*one, &tags[0]));
  must(set.add(*two, &tags[1]));
  CHECK(status_of(set.add(*two, nullptr)) == Status::exists);
  CHECK(status_of(set.wait(kNoWait)) == Status::empty);
  CHECK(status_of(set.wait(1'000'000)) == Status::deadline);
  must(one->send(bytes_of("1"), kNoWait));
  must(two->send(bytes_of("2"), kNoWait));
  Message message;
  int seen = 0;
  for (int i = 0; i < 2; ++i) {
    const auto entry = must(set.wait(kForever));
    seen += entry.tag == &tags[0] ? 1 : 2;
    must(entry.queue->receive(message, true, kNoWait));
  }
  CHECK(seen == 3);
  std::thread later([&] { must(one->send(bytes_of("late"), 0)); });
  CHECK(must(set.wait(kForever)).queue == one.get());
  later.join();
  must(set.remove(*one));
  CHECK(status_of(set.remove(*one)) == Status::not_found);
  CHECK(status_of(set.wait(kNoWait)) == Status::empty);
  must(set.remove(*two));
}

TEST_CASE("a set whose descriptor the program closed says so instead of waiting") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto first = must(make_pool(session, slots_of("a", 64, 1))), second = must(make_pool(session, slots_of("b", 64, 1)));
  auto one = reader(first, "q", Kind::mpmc), two = reader(second, "q", Kind::mpmc);
  QueueSet set;
  must(set.add(*one, nullptr));
  must(set.add(*two, nullptr));
  const shmb::Fd kept = shmb::Fd::adopt(::dup(must(set.descriptor())));
  ::close(must(set.descriptor()));
  const auto waited = set.wait(60'000'000'000);
  REQUIRE_FALSE(waited.has_value());
  CHECK(waited.error().sentence.find("closed a descriptor of the library") != std::string::npos);
  REQUIRE(::dup2(kept.get(), must(set.descriptor())) >= 0);  // the set closes that number
}

TEST_CASE("a set waits on queues of two pools, and hears of the dead") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto first = must(make_pool(session, slots_of("a", 64, 1))), second = must(make_pool(session, slots_of("b", 64, 1)));
  auto one = reader(first, "q", Kind::mpmc), two = reader(second, "q", Kind::mpmc);
  const std::string group = "#" + std::to_string(first->group());
  QueueSet set;
  must(set.add(*one, nullptr));
  must(set.add(*two, nullptr));
  CHECK(status_of(set.wait(kNoWait)) == Status::empty);
  const harness::Gate go;
  auto child = harness::Child::run([&] {
    auto mine = try_open(broker.socket());
    STEP(1, mine && (*mine)->join_group(group, 0, Deadline::after(0)));
    auto a = try_pool(*mine, "a"), b = try_pool(*mine, "b");
    STEP(2, a && b);
    auto out_a = Queue::open(*a, queue_spec("q", Kind::mpmc, false, true));
    auto out_b = Queue::open(*b, queue_spec("q", Kind::mpmc, false, true));
    STEP(3, out_a && out_b);
    STEP(4, go.wait());
    STEP(5, (*out_b)->send(bytes_of("to b"), 0));
    ::pause();
    return 0;
  });
  go.open();
  auto entry = must(set.wait(kForever));
  REQUIRE(entry.queue == two.get());
  Message message;
  must(two->receive(message, true, kNoWait));
  CHECK(text_of(message) == "to b");
  CHECK(status_of(set.wait(kNoWait)) == Status::empty);
  child.kill();
  for (int i = 0; i < 2; ++i) {
    entry = must(set.wait(kForever));
    CHECK(status_of(entry.queue->receive(message, true, kNoWait)) == Status::peer_gone);
  }
  CHECK(status_of(set.wait(kNoWait)) == Status::empty);
}

TEST_CASE("a queue's descriptor is readable when a message is there, and quiet after EMPTY") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 4)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto one = reader(pool, "one", Kind::spsc), two = reader(pool, "two", Kind::spsc);
  auto out_one = writer(other, "one", Kind::spsc), out_two = writer(other, "two", Kind::spsc);
  CHECK(status_of(out_one->descriptor()) == Status::denied);
  const int fd_one = must(one->descriptor()), fd_two = must(two->descriptor());
  Message message;
  CHECK(readable(fd_one, 0));  // until somebody has looked
  CHECK(status_of(one->receive(message, true, kNoWait)) == Status::empty);
  CHECK(status_of(two->receive(message, true, kNoWait)) == Status::empty);
  while (readable(fd_one, 0)) CHECK(status_of(one->receive(message, true, kNoWait)) == Status::empty);
  while (readable(fd_two, 0)) CHECK(status_of(two->receive(message, true, kNoWait)) == Status::empty);
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    must(out_one->send(bytes_of("1"), kNoWait));
    CHECK(readable(fd_one, 30'000));
    // The other one's look takes the ring in; the first must hear of it all the same.
    CHECK(status_of(two->receive(message, true, kNoWait)) == Status::empty);
    CHECK(readable(fd_one, 30'000));
    must(one->receive(message, true, kNoWait));
    CHECK(status_of(one->receive(message, true, kNoWait)) == Status::empty);
    while (readable(fd_one, 0)) CHECK(status_of(one->receive(message, true, kNoWait)) == Status::empty);
  }
  must(out_two->send(bytes_of("2"), kNoWait));
  CHECK(readable(fd_two, 30'000));
  must(two->receive(message, true, kNoWait));
  CHECK(status_of(two->receive(message, true, kNoWait)) == Status::empty);
  must(out_two->close(false, false));  // the broker tells
  CHECK(readable(fd_two, 30'000));
  auto told = two->receive(message, true, kNoWait);
  while (status_of(told) == Status::empty && readable(fd_two, 30'000)) told = two->receive(message, true, kNoWait);
  CHECK(status_of(told) == Status::peer_gone);
}

namespace {

// Two writers wake the consumer `first`, each for a message of its own: the second one before the first one clears the
// flag by which it saw the sleeper. `first` takes one message and goes no further; the other consumer sleeps.
void other_consumer_wakes(bool two_queues, bool descriptor) {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto other_pool = must(try_pool(beside(broker, pool), "p"));
  const std::string second_name = two_queues ? "b" : "a";
  auto first = reader(pool, "a", Kind::mpmc), first_b = reader(pool, "b", Kind::mpmc);
  auto other = reader(other_pool, second_name, Kind::mpmc);
  auto writing = must(try_pool(beside(broker, pool), "p")), writing_b = must(try_pool(beside(broker, pool), "p"));
  auto out = writer(writing, "a", Kind::mpmc), out_b = writer(writing_b, second_name, Kind::mpmc);

  std::atomic<bool> woken = false;
  std::thread consumer([&] {
    Message message;
    must(other->receive(message, true, kForever));
    woken = true;
  });
  QueueSet set;
  must(set.add(*first, nullptr));
  if (two_queues) must(set.add(*first_b, nullptr));
  std::thread sleeper;
  std::atomic<bool> go_on = false, took = false;
  auto take = [&] {
    if (two_queues || descriptor) CHECK(must(set.wait(kForever)).queue == first.get());
    Message message;
    must(first->receive(message, true, descriptor ? kNoWait : kForever));
    took = true;
    while (!go_on) ::usleep(1000);  // busy with it
  };
  if (descriptor) {
    must(set.descriptor());
    for (Queue* one : {out.get(), out_b.get()}) {  // have its doorbell: they ring themselves
      (void)must(one->facts());
      must(one->pool().session()->ping(Deadline::after(0)));
    }
    CHECK(status_of(set.wait(kNoWait)) == Status::empty);
  } else {
    sleeper = std::thread(take);
  }
  CHECK(eventually([&] { return is_asleep(*pool) && is_asleep(*other_pool); }));
  {
    const pool_tests::AtStep in_between(Step::S8, [&] { must(out_b->send(bytes_of("2"), kNoWait)); });
    must(out->send(bytes_of("1"), kNoWait));
  }
  if (descriptor) sleeper = std::thread(take);
  CHECK(eventually([&] { return woken.load(); }));
  if (!woken) must(out_b->send(bytes_of("3"), kNoWait));
  go_on = true;
  sleeper.join();
  consumer.join();
  CHECK(took);
}

}  // namespace

TEST_CASE("a consumer that two writers have woken wakes another one for the message that it does not take") {
  SUBCASE("asleep on the queue") { other_consumer_wakes(false, false); }
  SUBCASE("with a descriptor") { other_consumer_wakes(false, true); }
}

TEST_CASE("a consumer that was woken for two queues wakes another one for the queue from which it does not take") {
  SUBCASE("asleep on both") { other_consumer_wakes(true, false); }
  SUBCASE("with a descriptor for both") { other_consumer_wakes(true, true); }
}

TEST_CASE("a set sees what is behind a borrowed message, and hears of its writer's end") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 300, 8)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  Kind kind = Kind::spsc;
  SUBCASE("line") { kind = Kind::spsc; }
  SUBCASE("claim") { kind = Kind::mpmc; }
  SUBCASE("broadcast") { kind = Kind::broadcast; }
  auto in = reader(pool, "q", kind);
  auto out = writer(other, "q", kind);
  QueueSet set;
  must(set.add(*in, nullptr));
  for (int i = 0; i < 3; ++i) must(out->send(bytes_of(std::string(200, static_cast<char>('0' + i))), kNoWait));
  Message message;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(set.wait(kNoWait));
    must(in->receive(message, false, kNoWait));
    CHECK(text_of(message)[0] == '0' + i);
  }
  CHECK(status_of(set.wait(kNoWait)) == Status::empty);
  must(out->close(false, false));
  REQUIRE(set.wait(kForever));
  CHECK(status_of(in->receive(message, false, kNoWait)) == Status::peer_gone);
  CHECK(status_of(set.wait(kNoWait)) == Status::empty);
  must(set.remove(*in));
}

TEST_CASE("a set that reports a message in an mpmc queue leaves it to the first receiver") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto in = reader(pool, "q", Kind::mpmc), second = reader(other, "q", Kind::mpmc);
  auto out = writer(other, "q", Kind::mpmc);
  QueueSet set;
  must(set.add(*in, nullptr));
  must(out->send(bytes_of("m"), kNoWait));
  REQUIRE(set.wait(kNoWait));
  Message message;
  must(second->receive(message, true, kNoWait));
  CHECK(status_of(in->receive(message, true, kNoWait)) == Status::empty);
  CHECK(status_of(set.wait(kNoWait)) == Status::empty);
  must(set.remove(*in));
}

TEST_CASE("an event of the broker wakes the event loop, whichever call of the process reads it") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto in = reader(pool, "q", Kind::mpmc);
  auto out = writer(other, "q", Kind::mpmc);
  const int fd = must(in->descriptor());
  Message message;
  do CHECK(status_of(in->receive(message, true, kNoWait)) == Status::empty);
  while (readable(fd, 0));
  must(out->shutdown(false));
  must(session->ping(Deadline::after(0)));  // behind it in the socket
  CHECK(readable(fd, 0));
  CHECK(status_of(in->receive(message, true, kNoWait)) == Status::closed);
}

TEST_CASE("a set's descriptor stays the same when queues are added and removed") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"})), second = must(make_pool(session, PoolSpec{.name = "s"}));
  auto one = reader(pool, "q", Kind::mpmc), two = reader(second, "q", Kind::mpmc);
  auto out = writer(must(try_pool(beside(broker, second), "s")), "q", Kind::mpmc);
  QueueSet set;
  must(set.add(*one, nullptr));
  const int fd = must(set.descriptor());
  CHECK(status_of(set.wait(kNoWait)) == Status::empty);
  must(set.add(*two, nullptr));
  do CHECK(status_of(set.wait(kNoWait)) == Status::empty);
  while (readable(fd, 0));
  pollfd open_still{fd, POLLIN, 0};
  CHECK(::poll(&open_still, 1, 0) == 0);
  must(out->send(bytes_of("m"), kNoWait));
  CHECK(readable(fd, 30'000));
  must(set.remove(*one));
  CHECK(must(set.wait(kNoWait)).queue == two.get());
  Message message;
  must(two->receive(message, true, kNoWait));
  must(set.remove(*two));
  CHECK(must(set.descriptor()) == fd);
}

TEST_CASE("a doorbell that was shut down does not keep an event loop awake") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto in = reader(pool, "q", Kind::mpmc);
  const int fd = must(in->descriptor());
  Message message;
  do CHECK(status_of(in->receive(message, true, kNoWait)) == Status::empty);
  while (readable(fd, 0));
  REQUIRE(::shutdown(pool->doorbell().descriptor(), SHUT_RDWR) == 0);
  CHECK(readable(fd, 0));
  for (int i = 0; i < 3; ++i) CHECK(status_of(in->receive(message, true, kNoWait)) == Status::empty);
  CHECK(!readable(fd, 0));
}

TEST_CASE("an endless wait for a message ends when the broker is gone") {
  harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto in = must(Queue::open(pool, queue_spec("q", Kind::mpmc, true, true)));
  broker.kill();
  Message message;
  must(in->send(bytes_of("m"), kNoWait));
  must(in->receive(message, true, kForever));  // messages go on
  CHECK(status_of(in->receive(message, true, kForever)) == Status::session_lost);
  QueueSet set;
  must(set.add(*in, nullptr));
  CHECK(status_of(set.wait(60'000'000'000)) == Status::session_lost);
  CHECK(status_of(set.wait(kForever)) == Status::session_lost);
}

TEST_CASE("a wait for room, for a reader, for a slot, for a drain or for a name ends when the broker is gone") {
  harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 4096, 1)));
  auto full = must(Queue::open(pool, queue_spec("full", Kind::spsc, true, true, 2)));
  for (int i = 0; i < 2; ++i) must(full->send(bytes_of("m"), kNoWait));
  auto nobody = writer(pool, "nobody", Kind::spsc);
  const Slot slot = must(pool->acquire(4096, kNoWait));
  auto other = must(make_pool(session, PoolSpec{.name = "o"}));
  auto elsewhere = reader(other, "q", Kind::mpmc);
  auto set_in = reader(pool, "set", Kind::mpmc);
  QueueSet set;
  must(set.add(*elsewhere, nullptr));
  must(set.add(*set_in, nullptr));
  broker.kill();
  CHECK(status_of(full->send(bytes_of("m"), kForever)) == Status::session_lost);
  CHECK(status_of(full->drain(kForever)) == Status::session_lost);
  CHECK(status_of(nobody->send(bytes_of("m"), kForever)) == Status::session_lost);
  CHECK(status_of(pool->acquire(4096, kForever)) == Status::session_lost);
  CHECK(status_of(set.wait(kForever)) == Status::session_lost);
  QueueSpec late = queue_spec("late", Kind::mpmc, true, false);
  late.open_only = true;
  late.wait = kForever;
  CHECK(status_of(Queue::open(pool, late)) == Status::session_lost);
  Pool::Opening opening;
  opening.address = "late";
  opening.wait = kForever;
  CHECK(status_of(Pool::open(session, opening)) == Status::session_lost);
  must(pool->release(slot));
  Message message;
  must(full->receive(message, true, kForever));  // messages go on
  must(full->send(bytes_of("m"), kForever));
}

TEST_CASE("a descriptor wakes its poll when the broker is gone, and the look at the queue says so") {
  harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto in = must(Queue::open(pool, queue_spec("q", Kind::mpmc, true, true)));
  QueueSet set;
  must(set.add(*in, nullptr));
  const int fd = must(in->descriptor()), of_set = must(set.descriptor());
  Message message;
  while (status_of(in->receive(message, true, kNoWait)) == Status::empty && readable(fd, 0)) {
  }
  while (status_of(set.wait(kNoWait)) == Status::empty && readable(of_set, 0)) {
  }
  broker.kill();
  CHECK(readable(fd, 20'000));
  CHECK(readable(of_set, 20'000));
  must(in->send(bytes_of("m"), kNoWait));
  must(in->receive(message, true, kNoWait));  // messages go on
  CHECK(status_of(in->receive(message, true, kNoWait)) == Status::session_lost);
  CHECK(status_of(set.wait(kNoWait)) == Status::session_lost);
}

TEST_CASE("a broker that dies while a queue's name is waited for ends the wait") {
  harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  QueueSpec late = queue_spec("late", Kind::mpmc, true, false);
  late.open_only = true;
  late.wait = kForever;
  std::thread ends([&] {
    sys::rest(20'000'000);
    broker.kill();
  });
  CHECK(status_of(Queue::open(pool, late)) == Status::session_lost);
  ends.join();
}

TEST_CASE("a wait for a queue's name sleeps until the queue is made") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  std::thread makes([&] {
    sys::rest(20'000'000);
    auto made = reader(pool, "late", Kind::mpmc);
    Message message;
    must(made->receive(message, true, kForever));
    CHECK(text_of(message) == "m");
  });
  QueueSpec late = queue_spec("late", Kind::none, false, true);
  late.open_only = true;
  late.wait = kForever;
  auto out = must(Queue::open(pool, late));
  must(out->send(bytes_of("m"), kForever));
  makes.join();
}

TEST_CASE("an event loop hears of the first message to it while the broker is stopped") {
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast})
    for (const bool sender_was_there : {true, false}) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(sender_was_there);
      const harness::BrokerFixture broker;
      auto session = open(broker);
      auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
      auto writing = must(try_pool(beside(broker, pool), "p"));
      auto in = reader(pool, "q", kind);
      std::unique_ptr<Queue> out;
      if (sender_was_there) out = writer(writing, "q", kind);
      const int fd = must(in->descriptor());
      if (!sender_was_there) out = writer(writing, "q", kind);
      else (void)must(out->facts());  // it hears that there is a doorbell
      must(writing->session()->ping(Deadline::after(0)));
      arm(*in, fd);
      const harness::Stopped stopped(broker.pid());
      must(out->send(bytes_of("first"), kNoWait));
      CHECK(heard(*in, fd) == "first");
    }
}

TEST_CASE("a writer that opens its end has the doorbells of all readers, and rings each while the broker is stopped") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto second = must(try_pool(beside(broker, pool), "p")), writing = must(try_pool(beside(broker, pool), "p"));
  auto a = reader(pool, "q", Kind::broadcast), b = reader(second, "q", Kind::broadcast);
  const int fd_a = must(a->descriptor()), fd_b = must(b->descriptor());
  auto out = writer(writing, "q", Kind::broadcast);
  arm(*a, fd_a);
  arm(*b, fd_b);
  const harness::Stopped stopped(broker.pid());
  must(out->send(bytes_of("to both"), kNoWait));
  CHECK(heard(*a, fd_a) == "to both");
  CHECK(heard(*b, fd_b) == "to both");
}

TEST_CASE(
    "event loops whose doorbell no peer has fetched wake when the broker goes on, though the sender does not call") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto second = must(try_pool(beside(broker, pool), "p")), writing = must(try_pool(beside(broker, pool), "p"));
  auto out_a = writer(writing, "a", Kind::spsc), out_b = writer(writing, "b", Kind::spsc);
  auto a = reader(pool, "a", Kind::spsc), b = reader(second, "b", Kind::spsc);
  (void)must(out_a->facts());
  (void)must(out_b->facts());
  const int fd_a = must(a->descriptor()), fd_b = must(b->descriptor());
  arm(*a, fd_a);
  arm(*b, fd_b);
  {
    const harness::Stopped stopped(broker.pid());
    must(out_a->send(bytes_of("to a"), kNoWait));
    must(out_b->send(bytes_of("to b"), kNoWait));
  }
  CHECK(heard(*a, fd_a) == "to a");
  CHECK(heard(*b, fd_b) == "to b");
  // From now on they are rung without the broker.
  (void)must(out_a->facts());
  must(writing->session()->ping(Deadline::after(0)));
  (void)must(out_b->facts());
  arm(*a, fd_a);
  const harness::Stopped stopped(broker.pid());
  must(out_a->send(bytes_of("again"), kNoWait));
  CHECK(heard(*a, fd_a) == "again");
}

TEST_CASE("an event loop is rung for although the sender's socket to the broker was full") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto writing = must(try_pool(beside(broker, pool), "p"));
  auto out = writer(writing, "q", Kind::spsc);
  auto in = reader(pool, "q", Kind::spsc), own = reader(writing, "own", Kind::spsc);
  (void)must(out->facts());
  bool in_set = false, only_sends = false;
  SUBCASE("whose sender then sleeps for something else") {}
  SUBCASE("whose sender then waits in an event loop") { in_set = true; }
  SUBCASE("whose sender then only sends, and waits for nothing") { only_sends = true; }
  const int fd = must(in->descriptor()), own_fd = in_set ? must(own->descriptor()) : -1;
  arm(*in, fd);
  if (in_set) arm(*own, own_fd);
  {
    const harness::Stopped stopped(broker.pid());
    for (int i = 0; i < 100'000 && !writing->session()->wants_room(); ++i) {
      std::array<std::byte, 128> buffer;
      wire::Writer request(buffer);
      request.begin_batch<shmbw_release>(SHMBW_OP_RELEASE, 0, 1, SHMBW_HEADER_NO_REPLY);
      request.element(0, shmbw_release{{1, 1, 0}, 1, 0});
      must(writing->session()->post(std::span(buffer).first(request.finish(0).size()), Deadline::now()));
    }
    REQUIRE(writing->session()->wants_room());
    must(out->send(bytes_of("first"), kNoWait));
  }
  std::atomic<bool> over = false;
  std::thread sender([&] {
    Message message;
    for (; only_sends && !over; std::this_thread::sleep_for(std::chrono::milliseconds(10)))
      (void)out->send(bytes_of("more"), kNoWait);
    if (only_sends) return;
    if (!in_set) CHECK(status_of(own->receive(message, true, 60'000'000'000)) == Status::ok);
    while (in_set && !over && readable(own_fd, 60'000)) (void)own->receive(message, true, kNoWait);
  });
  CHECK(heard(*in, fd) == "first");
  over = true;
  auto ends = writer(pool, "own", Kind::spsc);
  must(ends->send(bytes_of("over"), kNoWait));
  sender.join();
}
