// SPDX-License-Identifier: Apache-2.0
// Pools that outlive their broker: it is killed under its keepers while producers and consumers are at work. A model of
// the messages says that none is lost and none comes twice.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "client/face/shmbroker_pool.hpp"
#include "tests/e2e/kept_daemon.hpp"
#include "tests/e2e/support.hpp"
#include "tests/harness/stopped.hpp"

using namespace e2e;
using shmbroker::Pool;
using shmbroker::Queue;
using shmbroker::QueueKind;
using shmbroker::Role;

namespace {

constexpr std::uint32_t kProducers = 3, kConsumers = 2, kMost = 1 << 22;

// What each producer has sent, and how often each of its messages has come.
struct Model {
  std::atomic<bool> stop;
  std::atomic<std::uint32_t> at_work;
  std::atomic<std::uint32_t> sent[kProducers];
  std::atomic<std::uint8_t> came[kProducers][kMost];
};

struct Content {
  std::uint32_t producer = 0, number = 0;
};

// Every fourth message is in a slot, the others in their cell.
void produce(const World& world, Model& model, std::uint32_t me) {
  const Session session = world.connect();
  const Pool pool = Pool::open(session, "job/hall");
  const Queue queue = pool.open_queue("jobs", Role::writer, {.kind = QueueKind::mpmc, .cells = 64});
  ++model.at_work;
  for (std::uint32_t number = 0; !model.stop && number < kMost; ++number) {
    const Content content{me, number};
    if (number % 4 == 0) {
      const auto slot = pool.acquire(sizeof content, Timeout::forever());
      std::memcpy(slot.bytes().data(), &content, sizeof content);
      queue.send(slot, Timeout::forever());
    } else {
      queue.send(std::as_bytes(std::span(&content, 1)), Timeout::forever());
    }
    model.sent[me] = number + 1;
    if (number % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void consume(const World& world, Model& model) {
  const Session session = world.connect();
  const Pool pool = Pool::open(session, "job/hall");
  const Queue queue = pool.open_queue("jobs", Role::reader, {.kind = QueueKind::mpmc, .cells = 64});
  ++model.at_work;
  for (const auto& message : queue.messages()) {
    Content content;
    NEED(message.bytes().size() >= sizeof content);
    std::memcpy(&content, message.bytes().data(), sizeof content);
    NEED(content.producer < kProducers && content.number < kMost);
    ++model.came[content.producer][content.number];
  }
}

// The first and the last message that did not come just once, and how many.
std::string wrong(const Model& model, std::uint32_t producer, std::uint32_t sent) {
  std::uint32_t lost = 0, doubled = 0;
  for (std::uint32_t number = 0; number < sent; ++number) {
    lost += model.came[producer][number] == 0;
    doubled += model.came[producer][number] > 1;
  }
  if (lost + doubled == 0) return "";
  return std::to_string(lost) + " lost and " + std::to_string(doubled) + " doubled of " + std::to_string(sent);
}

}  // namespace

TEST_CASE("producers and consumers of a pool go on while their broker is killed, and no message is lost or doubled") {
  NEEDS_KEEPERS();
  World world(with_keepers());
  const Processes processes(world.broker());
  const Shared<Model> model{support::Zeros{}};
  const Gate made;
  const auto begin = [&](const std::function<void()>& body) {
    return actor([&] {
      NEED(made.wait());
      body();
    });
  };
  std::vector<Child> producers, consumers;
  for (std::uint32_t me = 0; me < kProducers; ++me) producers.push_back(begin([&, me] { produce(world, *model, me); }));
  for (std::uint32_t each = 0; each < kConsumers; ++each) consumers.push_back(begin([&] { consume(world, *model); }));
  const Session keeper = world.connect();
  keeper.create_group({.name = "job"});
  keeper.join("job");
  const Pool pool = Pool::create(keeper, {.name = "hall", .classes = {{.slot_size = 64, .slots = 32}}});
  const Queue held = pool.open_queue("jobs", Role::writer, {.kind = QueueKind::mpmc, .cells = 64});
  made.open();
  REQUIRE(eventually([&] { return model->at_work == kProducers + kConsumers; }));

  pid_t broker = 0;
  for (int each = 0; each < 20; ++each) {
    const std::uint32_t before = model->sent[1];
    broker = processes.await_broker(broker);
    ::kill(broker, SIGKILL);
    // Requests of the pool itself, from a process of it and from one that joins.
    const Session other = world.connect();
    const auto joined = Pool::try_open(other, "job/hall");
    REQUIRE_MESSAGE(joined, sentence_of(joined));
    const std::string name = "pair" + std::to_string(each);
    auto out = pool.try_open_queue(name, Role::writer, {.kind = QueueKind::spsc});
    REQUIRE_MESSAGE(out, sentence_of(out));
    auto in = joined->try_open_queue(name, Role::reader);
    REQUIRE_MESSAGE(in, sentence_of(in));
    out->send("hello", Timeout::forever());
    CHECK(in->receive(Timeout::forever()).bytes().size() == 5);
    CHECK(in->try_close());
    CHECK(out->try_close(true, true));
    CHECK(eventually([&] { return model->sent[1] > before; }));
  }

  // One of them dies while there is no broker. What it had sent arrives, and its slots are free again.
  harness::stop(world.broker().pid());
  ::kill(processes.await_broker(broker), SIGKILL);
  producers[0].kill();
  producers[0].wait();
  const std::uint32_t sent = model->sent[0];
  ::kill(world.broker().pid(), SIGCONT);

  model->stop = true;
  for (std::uint32_t me = 1; me < kProducers; ++me) CHECK(producers[me].wait() == 0);
  held.shutdown();
  for (Child& consumer : consumers) CHECK(consumer.wait() == 0);
  CHECK(wrong(*model, 0, sent) == "");
  for (std::uint32_t me = 1; me < kProducers; ++me) CHECK(wrong(*model, me, model->sent[me]) == "");
  MESSAGE("21 kills, " << model->sent[0] + model->sent[1] + model->sent[2] << " messages");
  std::vector<shmbroker::Slot> slots;
  CHECK(eventually([&] {
    auto slot = pool.try_acquire(64, Timeout::no_wait());
    if (slot) slots.push_back(std::move(*slot));
    return slots.size() == 32;
  }));
}

TEST_CASE(
    "a pool goes on without a broker, and with the one after those that were killed at each call of their start") {
  NEEDS_KEEPERS();
  constexpr int kLives = 100;                                                      // a start has more calls
  World world(with_keepers("auto", "die_each=" + std::to_string(kLives) + ":1"));  // the first one serves
  const Processes processes(world.broker());
  const Session first = world.connect(), second = world.connect();
  first.create_group({.name = "job"});
  first.join("job");
  const Pool made = Pool::create(first, {.name = "hall", .classes = {{.slot_size = 64, .slots = 4}}});
  const Pool joined = Pool::open(second, "job/hall");
  const Queue out = made.open_queue("jobs", Role::writer, {.kind = QueueKind::mpmc, .cells = 16});
  const Queue in = joined.open_queue("jobs", Role::reader, {.kind = QueueKind::mpmc, .cells = 16});
  ::kill(processes.await_broker(), SIGKILL);
  const auto lives = [&] {
    int told = 0;
    const std::string log = world.broker().log();
    for (std::size_t at = 0; (at = log.find("serving " + world.broker().directory(), at)) != log.npos; ++at) ++told;
    return told;
  };
  std::uint32_t number = 0;
  const auto pass = [&] {
    const auto slot = made.acquire(sizeof number, Timeout::forever());
    std::memcpy(slot.bytes().data(), &number, sizeof number);
    out.send(slot, Timeout::forever());
    std::uint32_t got = 0;
    const auto message = in.receive(Timeout::forever());
    std::memcpy(&got, message.bytes().data(), sizeof got);
    return got == number++;
  };
  CHECK(eventually([&] {
    REQUIRE(pass());
    return lives() > 1;
  }));
  const Session third = world.connect();
  const Pool later = Pool::open(third, "job/hall");
  const Queue more = later.open_queue("jobs", Role::writer, {.kind = QueueKind::mpmc, .cells = 16});
  more.send("from the third", Timeout::forever());
  CHECK(in.receive(Timeout::forever()).bytes().size() == 14);
  for (int each = 0; each < 20; ++each) CHECK(pass());
  CHECK(world.broker().log().find("cannot go on") == std::string::npos);
}
