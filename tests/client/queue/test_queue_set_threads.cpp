// SPDX-License-Identifier: Apache-2.0
// Sets and descriptors where several threads meet: sets of one pool see each other's queues, because a process has one
// doorbell in it. The cases with rounds say little alone: the sanitizers do.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/client/lane/pool_memory.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

bool becomes_readable(int fd, int milliseconds) {
  pollfd waiting{fd, POLLIN, 0};
  return ::poll(&waiting, 1, milliseconds) == 1;
}
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }
int open_below_1024() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += is_open(fd) ? 1 : 0;
  return count;
}
void settle(Queue& in, int fd) {
  Message message;
  do CHECK(status_of(in.receive(message, true, kNoWait)) == Status::empty);
  while (becomes_readable(fd, 0));
}
void settle(QueueSet& set, int fd) {
  do CHECK(status_of(set.wait(kNoWait)) == Status::empty);
  while (becomes_readable(fd, 0));
}
std::string heard_by(Queue& in, int fd) {
  Message message;
  for (const Deadline patience = Deadline::after(60'000'000'000); !patience.passed();) {
    if (!becomes_readable(fd, 30'000)) return "nothing rang";
    if (in.receive(message, true, kNoWait)) return text_of(message);
  }
  return "nothing came";
}
// `out` has the doorbells of who reads from it, and rings without the broker.
void fetch_doorbells(Queue& out) {
  for (int i = 0; i < 2; ++i) {
    (void)must(out.facts());
    must(out.pool().session()->ping(Deadline::after(0)));
  }
}
int rounds(int as_a_rule) { return as_a_rule / harness::slowdown(); }

struct Armed {
  const harness::BrokerFixture broker;
  std::shared_ptr<Session> session = open(broker);
  std::shared_ptr<Pool> pool = must(make_pool(session, PoolSpec{.name = "p"}));
  std::shared_ptr<Pool> other = must(try_pool(beside(broker, pool), "p"));
};

}  // namespace

TEST_CASE("a set is disarmed before its queues change, and asks to be looked at again") {
  Armed both;
  auto one = reader(both.pool, "one", Kind::mpmc), two = reader(both.pool, "two", Kind::mpmc);
  auto out_one = writer(both.other, "one", Kind::mpmc), out_two = writer(both.other, "two", Kind::mpmc);
  QueueSet set;
  must(set.add(*one, nullptr));
  const int fd = must(set.descriptor());
  std::vector<std::size_t> seen;  // the queues that others see in it when it is disarmed
  const auto look = [&] {
    std::vector<std::atomic<std::uint64_t>*> masks;
    set.collect_masks(*both.pool, masks);
    seen.push_back(masks.size());
  };
  settle(set, fd);
  REQUIRE(both.pool->me().sleeper().armed());
  {
    const pool_tests::AtStep disarmed(Step::Z7, look);
    must(set.add(*two, nullptr));
  }
  CHECK(seen == std::vector<std::size_t>{1});
  CHECK_FALSE(both.pool->me().sleeper().armed());
  CHECK(becomes_readable(fd, 0));
  must(out_two->send(bytes_of("2"), kNoWait));
  CHECK(must(set.wait(kNoWait)).queue == two.get());
  Message message;
  must(two->receive(message, true, kNoWait));
  settle(set, fd);
  REQUIRE(both.pool->me().sleeper().armed());
  seen.clear();
  {
    const pool_tests::AtStep disarmed(Step::Z7, look);
    must(set.remove(*two));
  }
  CHECK(seen == std::vector<std::size_t>{2});
  CHECK(becomes_readable(fd, 0));
  settle(set, fd);
  must(out_one->send(bytes_of("1"), kNoWait));
  CHECK(becomes_readable(fd, 30'000));
}

TEST_CASE("a descriptor is closed only after its last signal") {
  Armed both;
  auto one = reader(both.pool, "one", Kind::mpmc), two = reader(both.pool, "two", Kind::mpmc);
  auto set = std::make_unique<QueueSet>();
  must(set->add(*one, nullptr));
  const int of_set = must(set->descriptor());
  settle(*set, of_set);
  bool open_then = false;
  {
    const pool_tests::AtStep disarmed(Step::Z7, [&] { open_then = is_open(of_set); });
    set.reset();
  }
  CHECK(open_then);
  CHECK_FALSE(is_open(of_set));
  const int of_queue = must(two->descriptor());
  settle(*two, of_queue);
  open_then = false;
  {
    const pool_tests::AtStep disarmed(Step::Z7, [&] { open_then = is_open(of_queue); });
    must(two->close(false, false));
  }
  CHECK(open_then);
  CHECK_FALSE(is_open(of_queue));
}

TEST_CASE("sets of one pool are changed and waited on by threads of their own") {
  Armed both;
  auto one = reader(both.pool, "one", Kind::mpmc), two = reader(both.pool, "two", Kind::mpmc);
  auto three = reader(both.pool, "three", Kind::mpmc);
  auto out = writer(both.other, "three", Kind::mpmc);
  std::atomic<bool> over = false;
  std::thread waits([&] {
    QueueSet set;
    must(set.add(*one, nullptr));
    (void)must(set.descriptor());
    while (!over) CHECK(status_of(set.wait(kNoWait)) == Status::empty);
  });
  std::thread opens([&] {  // descriptors that come and go
    while (!over) {
      auto four = reader(both.pool, "four", Kind::mpmc);
      (void)must(four->descriptor());
      Message message;
      CHECK(status_of(four->receive(message, true, kNoWait)) == Status::empty);
    }
  });
  Message message;
  QueueSet set;
  must(set.add(*two, nullptr));
  (void)must(set.descriptor());
  for (int i = 0; i < rounds(5000); ++i) {
    (void)set.wait(kNoWait);
    must(set.add(*three, nullptr));
    must(out->send(bytes_of("m"), kNoWait));
    REQUIRE(must(set.wait(kForever)).queue == three.get());
    must(three->receive(message, true, kNoWait));
    CHECK(status_of(set.wait(kNoWait)) == Status::empty);
    must(set.remove(*three));
  }
  over = true;
  waits.join();
  opens.join();
}

TEST_CASE("a queue that could not be added to a set is not in it") {
  Armed both;
  auto second_pool = must(make_pool(both.session, PoolSpec{.name = "s"}));
  auto one = reader(both.pool, "q", Kind::mpmc);
  auto two = must(Queue::open(second_pool, queue_spec("q", Kind::mpmc, true, true)));
  auto out = writer(both.other, "q", Kind::mpmc);
  QueueSet set;
  must(set.add(*one, nullptr));
  const int fd = must(set.descriptor());
  settle(set, fd);
  must(two->send(bytes_of("m"), kNoWait));
  {
    const harness::Injected none(fault::Call::epoll, ENOMEM);
    CHECK_FALSE(set.add(*two, nullptr).has_value());
  }
  CHECK(status_of(set.remove(*two)) == Status::not_found);
  settle(set, fd);
  SUBCASE("and may be added later") {
    must(set.add(*two, nullptr));
    CHECK(must(set.wait(kNoWait)).queue == two.get());
  }
  SUBCASE("and may be closed, with its pool") {
    must(two->close(false, false));
    two.reset();
    second_pool.reset();
  }
  must(out->send(bytes_of("1"), kNoWait));
  CHECK(becomes_readable(fd, 30'000));
  if (two) must(set.remove(*two));
  CHECK(must(set.wait(kForever)).queue == one.get());
}

TEST_CASE("a wait with a set sleeps on when another consumer takes what woke it") {
  Armed both;
  QueueSpec spec = queue_spec("q", Kind::mpmc, true, false);
  spec.spin = 0;
  auto in = must(Queue::open(both.pool, spec));
  auto faster = reader(both.other, "q", Kind::mpmc);
  auto out = writer(must(try_pool(beside(both.broker, both.pool), "p")), "q", Kind::mpmc);
  QueueSet set;
  must(set.add(*in, nullptr));
  static Queue *sends, *takes;
  static int looks, taken;
  sends = out.get(), takes = faster.get(), looks = 0, taken = 0;
  step_hook = [](Step now) {
    static thread_local bool inside = false;
    if (inside) return;
    inside = true;
    if (now == Step::Z4 && ++looks <= 2) must(sends->send(bytes_of(looks == 1 ? "not for it" : "m"), kNoWait));
    if (now == Step::Z4_done && looks == 1) {
      Message message;
      taken += takes->receive(message, true, kNoWait) ? 1 : 0;
    }
    inside = false;
  };
  const auto entry = set.wait(3'600'000'000'000);
  step_hook = nullptr;
  REQUIRE(taken == 1);
  CHECK(must(entry).queue == in.get());
  Message message;
  must(in->receive(message, true, kNoWait));
  CHECK(text_of(message) == "m");
}

TEST_CASE("threads that ask for a queue's descriptor at once get the same one") {
  Armed both;
  auto in = reader(both.pool, "q", Kind::mpmc);
  const int before = open_below_1024();
  std::atomic<int> fds[2] = {-1, -1};
  std::vector<std::thread> threads;
  {
    const harness::Stopped none(both.broker.pid());
    for (auto& fd : fds) threads.emplace_back([&] { fd = must(in->descriptor()); });
    // Both are on their way: one with its pair of sockets before the broker, the other one behind it.
    constexpr int kOfBoth = 6;
    for (const Deadline patience = Deadline::after(1'000'000'000); !patience.passed(); sys::rest(1'000'000))
      if (open_below_1024() >= before + kOfBoth) break;
  }
  for (auto& thread : threads) thread.join();
  CHECK(fds[0] == fds[1]);
  CHECK(is_open(fds[0]));
  CHECK(must(in->descriptor()) == fds[0]);
  auto out = writer(both.other, "q", Kind::mpmc);
  settle(*in, fds[0]);
  must(out->send(bytes_of("m"), kNoWait));
  CHECK(heard_by(*in, fds[0]) == "m");
}

TEST_CASE("a thread that finds nothing while another arms the descriptor leaves that to it") {
  Armed both;
  auto in = reader(both.pool, "q", Kind::mpmc);
  QueueSet set;
  must(set.add(*in, nullptr));
  const int fd = must(set.descriptor());
  std::atomic<bool> came_back = false;
  std::thread second;
  {
    const pool_tests::AtStep arming(Step::Z4, [&] {  // with the pool's lock held
      second = std::thread([&] {
        (void)set.rearm();
        came_back = true;
      });
      CHECK(eventually([&] { return came_back.load(); }));
    });
    (void)set.rearm();
  }
  REQUIRE(second.joinable());
  second.join();
  settle(set, fd);
  auto out = writer(both.other, "q", Kind::mpmc);
  settle(set, fd);
  must(out->send(bytes_of("m"), kNoWait));
  CHECK(becomes_readable(fd, 30'000));
}

TEST_CASE("several threads receive from a queue with a descriptor, also when the broker goes") {
  harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto in = reader(pool, "q", Kind::mpmc);
  auto out = writer(other, "q", Kind::mpmc);
  const int fd = must(in->descriptor()), count = rounds(30000);
  std::atomic<int> received = 0;
  std::atomic<bool> over = false;
  std::vector<std::thread> consumers;
  for (int i = 0; i < 3; ++i)
    consumers.emplace_back([&] {
      Message message;
      while (!over) {
        while (in->receive(message, true, kNoWait)) ++received;
        (void)becomes_readable(fd, 20);
      }
    });
  for (int i = 0; i < count; ++i) must(out->send(bytes_of("m"), kForever));
  CHECK(eventually([&] { return received == count; }));
  broker.kill();
  must(out->send(bytes_of("last"), kNoWait));
  CHECK(eventually([&] { return received == count + 1; }));
  over = true;
  for (auto& consumer : consumers) consumer.join();
}

TEST_CASE("a doorbell that reached the broker after the deadline stays the same one, and rings") {
  Armed both;
  auto in = reader(both.pool, "q", Kind::mpmc);
  auto out = writer(both.other, "q", Kind::mpmc);
  {
    const harness::Stopped late(both.broker.pid());
    CHECK(status_of(in->descriptor()) == Status::deadline);
  }
  const auto bit = std::uint64_t{1} << both.pool->me().index();
  REQUIRE(eventually([&] { return (both.pool->view().header().doorbells.load() & bit) != 0; }));
  fetch_doorbells(*out);
  const int fd = must(in->descriptor());
  must(both.session->ping(Deadline::after(0)));
  settle(*in, fd);
  const harness::Stopped nobody_helps(both.broker.pid());
  must(out->send(bytes_of("m"), kNoWait));
  CHECK(heard_by(*in, fd) == "m");
}

TEST_CASE("a sender that cannot ring a doorbell any more asks the broker to ring") {
  Armed both;
  auto in = reader(both.pool, "q", Kind::mpmc);
  auto out = writer(both.other, "q", Kind::mpmc);
  const int fd = must(in->descriptor());
  fetch_doorbells(*out);
  settle(*in, fd);
  REQUIRE(::shutdown(both.pool->doorbell().descriptor(), SHUT_RDWR) == 0);
  for (const char* const text : {"first", "second"}) {
    settle(*in, fd);
    must(out->send(bytes_of(text), kNoWait));
    CHECK(heard_by(*in, fd) == text);
  }
}
