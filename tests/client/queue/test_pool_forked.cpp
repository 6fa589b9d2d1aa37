// SPDX-License-Identifier: Apache-2.0
// Forked children in pools: they join as themselves, once, whichever of their threads comes first and by which way.
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <thread>

#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

// So long that a thread has come to where it waits for a stopped broker. Should it not have: the case sees less.
void let_threads_wait() { ::usleep(200'000); }

// Places in the pool that are taken: ours, and those of who was not told to leave.
std::uint32_t participants_in(Pool& pool) {
  auto facts = pool.facts();
  return facts ? facts->participants : 0;
}

}  // namespace

TEST_CASE("a forked child that opens an inherited pool by its name has the pool that it inherited") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 2)));
  auto in = reader(pool, "q", Kind::spsc);
  auto child = harness::Child::run([&] {
    auto opened = try_pool(session, "p");
    STEP(1, opened && opened->get() == pool.get());
    STEP(2, participants_in(*pool) == 2);
    STEP(3, (*opened)->acquire(1, kNoWait));
    auto again = try_pool(session, "p", true);
    STEP(4, again && again->get() == pool.get());
    return 0;
  });
  CHECK(child.wait() == 0);
  CHECK(eventually([&] { return participants_in(*pool) == 1; }));
}

TEST_CASE("a forked child joins a pool that its parent joined read-only as the parent did") {
  const harness::BrokerFixture broker;
  auto pool = must(make_pool(open(broker), slots_of("p", 64, 2)));
  auto looking = must(try_pool(beside(broker, pool), "p", true));
  auto child = harness::Child::run([&] {
    STEP(1, looking->facts());
    STEP(2, status_of(looking->remove()) == Status::denied);  // the broker's answer
    return 0;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("a forked child joins a pool as soon as what the broker granted it before has been left") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 2)));
  auto child = harness::Child::run([&] {
    std::array<std::byte, 128> buffer;
    wire::Writer writer(buffer);
    shmbw_pool_join request{};
    request.pool = pool->id();
    writer.begin(SHMBW_OP_POOL_JOIN, 0, Status::ok, request);
    const auto join = writer.finish(0).size();
    STEP(1, session->call(std::span(buffer).first(join), Deadline::after(0)));
    Status joined = Status::broken;
    std::thread joins([&] { joined = status_of(pool->facts()); });
    let_threads_wait();
    wire::Writer again(buffer);
    again.begin(SHMBW_OP_POOL_LEAVE, 0, Status::ok, shmbw_pool_leave{pool->id(), 0, 0});
    const auto leave = again.finish(0).size();
    const auto left = session->call(std::span(buffer).first(leave), Deadline::after(0));
    joins.join();
    STEP(2, left);
    STEP(3, joined == Status::ok);
    return 0;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("two threads of a forked child use one inherited queue at once, and one of them opens its end again") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 2)));
  auto in = reader(pool, "q", Kind::mpmc);
  auto child = harness::Child::run([&] {
    STEP(1, pool->facts());
    harness::stop(broker.pid());
    std::array<Status, 2> heard{};
    std::array<Message, 2> messages;
    std::array<std::thread, 2> threads;
    for (std::size_t i = 0; i < 2; ++i)
      threads[i] = std::thread([&, i] { heard[i] = status_of(in->receive(messages[i], true, kNoWait)); });
    let_threads_wait();
    ::kill(broker.pid(), SIGCONT);
    for (std::thread& thread : threads) thread.join();
    STEP(2, heard[0] == Status::empty);
    STEP(3, heard[1] == Status::empty);
    return 0;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("a forked child does not take a queue that has come since for the one that it inherited") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 2)));
  auto first = reader(pool, "q", Kind::mpmc, 8);
  QueueSpec spec;
  spec.name = "q";
  spec.kind = Kind::none;
  spec.writer = spec.open_only = true;
  auto as_it_is = must(Queue::open(pool, spec));
  const harness::Gate replaced;
  auto child = harness::Child::run([&] {
    STEP(1, replaced.wait());
    const auto sent = as_it_is->send(bytes_of("to the first"), kNoWait);
    STEP(2, status_of(sent) == Status::exists);
    STEP(3, sent.error().sentence.find("the forked child could not open its own end") != std::string::npos);
    return 0;
  });
  must(first->close(true, true));
  auto next = reader(pool, "q", Kind::mpmc, 16);
  replaced.open();
  CHECK(child.wait() == 0);
  Message message;
  CHECK(status_of(next->receive(message, false, kNoWait)) == Status::empty);
}

TEST_CASE("only the parent can keep a message that a forked child inherits") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 512, 4)));
  auto queue = must(Queue::open(pool, queue_spec("q", Kind::spsc, true, true)));
  const std::string text(300, 'm');  // in a slot
  must(queue->send(bytes_of(text), kNoWait));
  Message message;
  must(queue->receive(message, false, kNoWait));
  auto child = harness::Child::run([&] {
    STEP(1, status_of(message.keep()) == Status::forked);
    return 0;
  });
  CHECK(child.wait() == 0);
  must(message.keep());
  Message other;
  for (int i = 0; i < 8; ++i) {
    must(queue->send(bytes_of(std::string(300, 'o')), kNoWait));
    must(queue->receive(other, false, kNoWait));
  }
  CHECK(text_of(message) == text);
}

TEST_CASE("a grandchild finds the pool unlocked though its parent was just joining it in another thread") {
  if (harness::kThreadSanitizer || harness::kAddressSanitizer)
    SKIP_CASE("a sanitizer's own locks do not survive the fork of a threaded program");
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 2)));
  auto child = harness::Child::run([&] {
    STEP(1, session->ping(Deadline::after(0)));
    harness::stop(broker.pid());
    Status joined = Status::broken;
    pid_t grandchild = -1;
    std::thread joins([&] { joined = status_of(pool->facts()); });
    let_threads_wait();
    std::thread forks([&] {
      grandchild = ::fork();
      if (grandchild != 0) return;
      ::alarm(20);
      ::_exit(pool->facts() ? 0 : 1);
    });
    let_threads_wait();
    ::kill(broker.pid(), SIGCONT);
    joins.join();
    forks.join();
    int status = -1;
    STEP(2, grandchild > 0 && ::waitpid(grandchild, &status, 0) == grandchild);
    STEP(3, joined == Status::ok);
    STEP(4, status == 0);
    return 0;
  });
  CHECK(child.wait() == 0);
}
