// SPDX-License-Identifier: Apache-2.0
// Threads of one process on one pool, one end of a queue, one session: slots are written, sent, kept, taken and checked
// while memory is added, queues are opened and closed, and a forked child joins with all its threads at once.
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/sys_socket.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

constexpr int kWriters = 3, kReaders = 3;

// The contents of memory say what they must be: the first bytes are the seed of the others.
void write_pattern(std::byte* data, std::size_t size, std::uint32_t seed) {
  std::memcpy(data, &seed, std::min(size, sizeof seed));
  for (std::size_t i = sizeof seed; i < size; ++i) data[i] = static_cast<std::byte>(seed + i * 7);
}
bool is_pattern(const std::byte* data, std::size_t size) {
  std::uint32_t seed = 0;
  if (data == nullptr || size < sizeof seed) return false;
  std::memcpy(&seed, data, sizeof seed);
  for (std::size_t i = sizeof seed; i < size; ++i)
    if (data[i] != static_cast<std::byte>(seed + i * 7)) return false;
  return true;
}

// The first thing that a thread finds wrong: assertions of doctest are not for many threads.
class Findings {
 public:
  bool expect(bool fine, const char* what) {
    if (!fine) {
      const char* none = nullptr;
      first_.compare_exchange_strong(none, what);
    }
    return fine;
  }
  template <class T>
  bool expect(const Result<T>& result, const char* what) {
    return expect(result.has_value(), what);
  }
  bool none() const { return first_ == nullptr; }
  std::string text() const { return none() ? "" : first_.load(); }

 private:
  std::atomic<const char*> first_ = nullptr;
};

PoolSpec growing(const std::string& name) {
  PoolSpec spec;
  spec.name = name;
  spec.classes = {{256, 1, 64}, {4096, 1, 32}, {65536, 1, 8}};
  return spec;
}

struct Crowd {
  explicit Crowd(const harness::BrokerFixture& broker, Kind kind)
      : session(open(broker)),
        pool(must(make_pool(session, growing("p")))),
        other(beside(broker, pool)),
        joined(must(try_pool(other, "p"))),
        in(reader(joined, "q", kind, 32)),
        out(writer(pool, "q", kind, 32)) {}

  // As many messages as `count` says, of all kinds.
  void write(int number, int count) {
    std::mt19937 random(static_cast<std::uint32_t>(number) * 977 + 1);
    CreateItem item;
    item.length = 5000;
    item.group = pool->group();
    auto region = create_region(session, item);
    if (!findings.expect(region, "no region")) return;
    write_pattern((*region)->data(), 5000, random());
    for (int i = 0; i < count && findings.none(); ++i) {
      const std::uint32_t seed = random();
      std::array<std::byte, 900> bytes;
      const std::size_t length = 8 + seed % (bytes.size() - 8);
      write_pattern(bytes.data(), length, seed);
      if (seed % 4 == 0) {
        findings.expect(out->send(std::span(bytes).first(length), kForever), "bytes were not sent");
        continue;
      }
      const std::size_t size = seed % 4 == 1 ? 200 : seed % 4 == 2 ? 4000 : 60000;
      auto slot = pool->acquire(size, kForever);
      if (!findings.expect(slot, "no slot")) return;
      write_pattern(slot->data, size, seed);
      if (seed % 8 < 4) {
        findings.expect(out->send(*slot, kForever), "a slot was not sent");
      } else {
        std::vector<OutPart> parts(2);
        parts[0].data = bytes.data();
        parts[0].length = length;
        parts[1] = slot_part(*slot);
        if (i % 16 == 0) parts.push_back(region_part(**region));
        findings.expect(out->send(parts, seed, 0, kForever), "a list was not sent");
      }
      findings.expect(is_pattern(slot->data, size), "a slot that was sent has changed");
      findings.expect(pool->release(*slot), "a slot could not be released");
    }
    regions[static_cast<std::size_t>(number)] = std::move(*region);
  }

  void check(const Message& message) {
    for (std::size_t i = 0; i < message.count(); ++i)
      findings.expect(is_pattern(message.part(i).data, message.part(i).length), "a part is not what was sent");
  }
  void read(int number, int all) {
    std::array<Message, 4> messages;
    std::vector<Slot> taken;
    for (unsigned turn = 0; received < all && findings.none(); ++turn) {
      if (turn == 3) findings.expect(in->descriptor(), "no descriptor");
      const std::int64_t wait = turn % 5 == 0 ? kNoWait : 20'000'000;
      const auto nothing = [](Status why) { return why == Status::deadline || why == Status::empty; };
      std::size_t count = 0;
      if ((turn + static_cast<unsigned>(number)) % 3 == 0) {
        Message* places[] = {&messages[0], &messages[1], &messages[2], &messages[3]};
        if (auto got = in->receive_many(places, wait)) count = *got;
        else if (!findings.expect(nothing(got.error().status), "receive_many failed")) return;
      } else if (in->receive_now(messages[0], true, kNoWait) != Now::done) {
        if (auto got = in->receive(messages[0], true, wait)) count = 1;
        else if (!findings.expect(nothing(got.error().status), "receive failed")) return;
      } else {
        count = 1;
      }
      for (std::size_t i = 0; i < count; ++i) {
        Message& message = messages[i];
        check(message);
        for (std::size_t part = 0; part < message.count(); ++part) {
          if (message.part(part).kind != PartKind::slot || turn % 2 != 0) continue;
          if (auto slot = message.take_slot(part); findings.expect(slot, "a slot could not be taken"))
            taken.push_back(*slot);
        }
        findings.expect(message.done(), "a message was not done");
        ++received;
      }
      if (taken.size() < 3 && received < all) continue;
      for (const Slot& slot : taken) {
        findings.expect(is_pattern(slot.data, slot.length), "a slot that was taken has changed");
        findings.expect(joined->release(slot), "a slot that was taken could not be released");
      }
      taken.clear();
    }
    for (const Slot& slot : taken) findings.expect(joined->release(slot), "a last slot could not be released");
  }

  // Beside the messages: slots of this process' own, facts, and ends that come and go.
  void disturb(const std::shared_ptr<Pool>& of) {
    for (int turn = 0; !over && findings.none(); ++turn) {
      if (auto slot = of->acquire(turn % 2 == 0 ? 100 : 3000, kNoWait)) {
        write_pattern(slot->data, 100, static_cast<std::uint32_t>(turn));
        std::this_thread::yield();
        findings.expect(is_pattern(slot->data, 100), "a slot of this thread has changed");
        findings.expect(of->release(*slot), "a slot of this thread could not be released");
      }
      findings.expect(of->facts(), "no facts");
      QueueSpec spec = queue_spec("aside-" + std::to_string(of->me().index()), Kind::mpmc, true, true, 8);
      if (turn % 8 != 0) continue;
      auto aside = Queue::open(of, spec);
      if (!findings.expect(aside, "no queue")) return;
      std::array<std::byte, 500> bytes;
      write_pattern(bytes.data(), bytes.size(), static_cast<std::uint32_t>(turn));
      Message message;
      findings.expect((*aside)->send(bytes, kForever), "nothing sent aside");
      if (findings.expect((*aside)->receive(message, turn % 16 == 0, kForever), "nothing received aside"))
        check(message);
    }
  }

  std::shared_ptr<Session> session;
  std::shared_ptr<Pool> pool;
  std::shared_ptr<Session> other;
  std::shared_ptr<Pool> joined;
  std::unique_ptr<Queue> in, out;
  std::array<Region::Handle, kWriters> regions;
  std::atomic<int> received = 0;
  std::atomic<bool> over = false;
  Findings findings;
};

}  // namespace

TEST_CASE("threads send and take through one end of a queue each, while the pool grows, and all is as it was sent") {
  const harness::BrokerFixture broker;
  constexpr int kEach = 150;
  for (int round = 0; round < 6; ++round) {
    CAPTURE(round);
    Crowd crowd(broker, Kind::mpmc);
    std::vector<std::thread> threads;
    for (int i = 0; i < kWriters; ++i) threads.emplace_back([&, i] { crowd.write(i, kEach); });
    for (int i = 0; i < kReaders; ++i) threads.emplace_back([&, i] { crowd.read(i, kWriters * kEach); });
    std::thread disturbs([&] { crowd.disturb(crowd.pool); });
    std::thread disturbs_too([&] { crowd.disturb(crowd.joined); });
    for (std::thread& thread : threads) thread.join();
    crowd.over = true;
    disturbs.join();
    disturbs_too.join();
    CHECK(crowd.findings.text() == "");
    CHECK(crowd.received == kWriters * kEach);
    must(crowd.pool->remove());
  }
}

TEST_CASE(
    "a kept message is read, taken from and done by one thread while another closes the queue that it came through") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 512, 8)));
  for (int round = 0; round < 300; ++round) {
    auto both = must(Queue::open(pool, queue_spec("q", Kind::mpmc, true, true, 8)));
    const Slot slot = must(pool->acquire(100, kForever));
    write_pattern(slot.data, 100, static_cast<std::uint32_t>(round));
    must(both->send(slot, kForever));
    Message message;
    must(both->receive(message, true, kForever));
    std::atomic<bool> go = false;
    std::thread closes([&] {
      while (!go) std::this_thread::yield();
      both.reset();
    });
    go = true;
    if (round % 3 == 0) must(message.keep());
    if (round % 3 != 2) {
      const Slot taken = must(message.take_slot(0));
      CHECK(is_pattern(taken.data, 100));
      must(pool->release(taken));
    }
    if (round % 2 == 0) must(message.done());
    closes.join();
    must(message.done());
    must(pool->release(slot));
    if (round % 50 != 49) continue;
    std::array<Slot, 8> all;  // none is held by anybody
    for (Slot& one : all) one = must(pool->acquire(100, kNoWait));
    for (const Slot& one : all) must(pool->release(one));
  }
}

TEST_CASE("the threads of a forked child join its pool and open its end at once, and each is heard") {
  const harness::BrokerFixture broker;
  constexpr int kThreads = 4, kEach = 20;
  for (int round = 0; round < 10; ++round) {
    CAPTURE(round);
    auto session = open(broker);
    auto pool = must(make_pool(session, growing("p" + std::to_string(round))));
    auto both = must(Queue::open(pool, queue_spec("q", Kind::mpmc, true, true, 64)));
    auto child = harness::Child::run([&] {
      std::atomic<int> ready = 0;
      Findings findings;
      std::vector<std::thread> threads;
      for (int i = 0; i < kThreads; ++i)
        threads.emplace_back([&, i] {
          ++ready;
          while (ready < kThreads) std::this_thread::yield();
          for (int n = 0; n < kEach; ++n) {
            std::array<std::byte, 300> bytes;
            write_pattern(bytes.data(), bytes.size(), static_cast<std::uint32_t>(i * 1000 + n));
            if (i % 2 == 0) {
              findings.expect(both->send(bytes, kForever), "not sent");
            } else if (auto slot = pool->acquire(300, kForever); findings.expect(slot, "no slot")) {
              write_pattern(slot->data, 300, static_cast<std::uint32_t>(n));
              findings.expect(both->send(*slot, kForever), "no slot sent");
              findings.expect(pool->release(*slot), "not released");
            }
          }
        });
      for (std::thread& thread : threads) thread.join();
      return findings.none() ? 0 : 3;
    });
    Message message;
    int fine = 0;
    for (const Deadline patience = Deadline::after(60'000'000'000); fine < kThreads * kEach && !patience.passed();) {
      const bool ended = child.wait_ended(0);
      auto got = both->receive(message, true, 50'000'000);
      if (got) fine += is_pattern(message.part(0).data, message.part(0).length) ? 1 : 0;
      else if (got.error().status == Status::deadline && ended) break;
      else if (got.error().status != Status::deadline && got.error().status != Status::peer_gone)
        FAIL(got.error().sentence);
    }
    CHECK(fine == kThreads * kEach);
    CHECK(child.wait() == 0);
    must(message.done());
    must(pool->remove());
  }
}

namespace {

constexpr std::int64_t kLong = 30'000'000'000;  // a wait that ends by it has missed what it waited for

std::atomic<int> asleep = 0;

// The results of two threads that wait in the same call. `now` is called once both are asleep.
std::array<Status, 2> told_to_two(const std::function<Status(int)>& wait, const std::function<void()>& now) {
  std::array<Status, 2> told{};
  std::vector<std::thread> threads;
  asleep = 0;
  step_hook = [](Step step) { asleep += step == Step::Z5 ? 1 : step == Step::Z5_done ? -1 : 0; };
  for (int i = 0; i < 2; ++i) threads.emplace_back([&, i] { told[static_cast<std::size_t>(i)] = wait(i); });
  CHECK(eventually([&] { return asleep == 2; }));
  now();
  for (std::thread& thread : threads) thread.join();
  step_hook = nullptr;
  return told;
}

QueueSpec without_spin(QueueSpec spec) {
  spec.spin = -1;
  return spec;
}

}  // namespace

TEST_CASE("all threads that wait for room in a queue wake when it closes or its reader dies") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  SUBCASE("closed") {
    auto out = must(Queue::open(pool, without_spin(queue_spec("q", Kind::mpmc, false, true, 2))));
    for (int i = 0; i < 2; ++i) must(out->send(bytes_of("m"), kNoWait));
    const auto told = told_to_two([&](int) { return status_of(out->send(bytes_of("m"), kLong)); },
                                  [&] { must(out->shutdown(false)); });
    for (const Status one : told) CHECK(one == Status::closed);
  }
  SUBCASE("the reader has died") {
    const harness::Gate opened;
    auto child = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
      auto in = Queue::open(joined, queue_spec("q", Kind::spsc, true, false, 2));
      STEP(3, in);
      opened.open();
      ::pause();
      return 0;
    });
    REQUIRE(opened.wait());
    auto out = must(Queue::open(pool, without_spin(queue_spec("q", Kind::spsc, false, true, 2))));
    for (int i = 0; i < 2; ++i) must(out->send(bytes_of("m"), kNoWait));
    const auto told =
        told_to_two([&](int i) { return status_of(i == 0 ? out->send(bytes_of("m"), kLong) : out->drain(kLong)); },
                    [&] { child.kill(); });
    CHECK(told[0] == Status::peer_gone);
    CHECK((told[1] == Status::peer_gone || told[1] == Status::ok));  // nothing is on its way to the dead any more
  }
}

TEST_CASE("a sender that releases the lock to lease a region gets the close that another thread has seen meanwhile") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto joined = must(try_pool(beside(broker, pool), "p"));
  auto out = must(Queue::open(pool, without_spin(queue_spec("q", Kind::mpmc, false, true, 2))));
  auto in = reader(joined, "q", Kind::mpmc, 2);
  CreateItem item;
  item.length = 4096;
  item.group = pool->group();
  auto region = must(create_region(session, item));
  for (int i = 0; i < 2; ++i) must(out->send(bytes_of("m"), kNoWait));
  const auto asked = [&](Session& of) {
    CHECK(eventually([&] { return sys::unread_bytes(of.socket_descriptor()).value_or(0) > 128; }));
  };
  harness::stop(broker.pid());
  std::atomic<bool> over = false;
  Status told{};
  std::thread closes([&] { (void)in->shutdown(false); });
  asked(*joined->session());  // the broker serves it first
  std::thread sends([&] {
    const OutPart part = region_part(*region);
    told = status_of(out->send(std::span(&part, 1), 0, 0, kLong));
    over = true;
  });
  asked(*session);
  ::kill(broker.pid(), SIGCONT);
  while (!over) (void)out->facts();
  closes.join();
  sends.join();
  CHECK(told == Status::closed);
}

TEST_CASE("all threads that wait for a message wake when their writer dies") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  const harness::Gate opened;
  auto child = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
    auto out = Queue::open(joined, queue_spec("q", Kind::mpmc, false, true));
    STEP(3, out);
    opened.open();
    ::pause();
    return 0;
  });
  auto in = must(Queue::open(pool, without_spin(queue_spec("q", Kind::mpmc, true, false))));
  REQUIRE(opened.wait());
  std::array<Message, 2> messages;
  CHECK(status_of(in->receive(messages[0], true, kNoWait)) == Status::empty);  // it knows its writer
  const auto told =
      told_to_two([&](int i) { return status_of(in->receive(messages[static_cast<std::size_t>(i)], true, kLong)); },
                  [&] { child.kill(); });
  for (const Status one : told) CHECK(one == Status::peer_gone);
  CHECK(status_of(in->receive(messages[0], true, kNoWait)) == Status::empty);  // once each
}

TEST_CASE("a thread that waits for another to add memory is woken when that has failed, and adds its own") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  constexpr std::uint64_t kTooLarge = std::uint64_t{1} << 42;
  PoolSpec spec = slots_of("p", 64, 1, 4);
  spec.later = {{kTooLarge, 0, 1}};
  auto pool = must(make_pool(session, spec));
  const Slot first = must(pool->acquire(1, kNoWait));
  harness::stop(broker.pid());
  Status refused{}, waited{};
  std::thread adds([&] { refused = status_of(pool->acquire(kTooLarge, kNoWait)); });
  CHECK(eventually([&] { return sys::unread_bytes(session->socket_descriptor()).value_or(0) > 128; }));
  std::atomic<bool> has_one = false;
  std::thread waits([&] {
    waited = status_of(pool->acquire(1, kForever));
    has_one = true;
  });
  for (int i = 0; i < 3000 && !is_asleep(*pool); ++i) ::usleep(1000);  // who comes later has it all the same
  ::kill(broker.pid(), SIGCONT);
  adds.join();
  CHECK(eventually([&] { return has_one.load(); }));
  must(pool->release(first));  // else it would wait for ever
  waits.join();
  CHECK(refused == Status::full);
  CHECK(waited == Status::ok);
}

TEST_CASE("two threads wait for an at-least-once message: one gets it, the other gets BUSY") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  QueueSpec spec = without_spin(queue_spec("q", Kind::mpmc, true, false));
  spec.flags = pool::kQueueAtLeastOnce;
  auto in = must(Queue::open(pool, spec));
  spec.reader = false;
  spec.writer = true;
  auto joined = must(try_pool(beside(broker, pool), "p")), joined_too = must(try_pool(beside(broker, pool), "p"));
  auto out = must(Queue::open(joined, spec)), out_too = must(Queue::open(joined_too, spec));
  std::array<Message, 2> messages;
  CHECK(status_of(in->receive(messages[0], false, kNoWait)) == Status::empty);
  const auto told =
      told_to_two([&](int i) { return status_of(in->receive(messages[static_cast<std::size_t>(i)], false, kLong)); },
                  [&] {
                    must(out->send(bytes_of("first"), kForever));
                    must(out_too->send(bytes_of("second"), kForever));
                  });
  CHECK(std::ranges::count(told, Status::ok) == 1);
  CHECK(std::ranges::count(told, Status::busy) == 1);
  Message& had = messages[told[0] == Status::ok ? 0 : 1];
  const std::string text = text_of(had);
  must(had.done());
  must((text == "first" ? out : out_too)->drain(kLong));
  must(in->receive(had, false, kLong));
  CHECK(text_of(had) == (text == "first" ? "second" : "first"));
  must(had.done());
  must((text == "first" ? out_too : out)->drain(kLong));
}

TEST_CASE("an end of a queue whose opening was answered too late is given back, and can be opened again") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    QueueSpec spec = queue_spec("q" + std::to_string(static_cast<int>(kind)), kind, true, true);
    spec.timeout = 50'000'000;
    harness::stop(broker.pid());
    CHECK(status_of(Queue::open(pool, spec)) == Status::deadline);
    CHECK(status_of(Queue::open(pool, spec)) == Status::deadline);
    ::kill(broker.pid(), SIGCONT);
    spec.timeout = kLong;
    auto both = must(Queue::open(pool, spec));
    must(both->send(bytes_of("m"), kNoWait));
    Message message;
    must(both->receive(message, false, kNoWait));
    CHECK(text_of(message) == "m");
  }
}
