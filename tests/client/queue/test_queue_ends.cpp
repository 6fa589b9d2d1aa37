// SPDX-License-Identifier: Apache-2.0
// First contact and last words: who opens a queue that is closed or not there yet, what a drain answers when readers
// have gone, and messages of one part.
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "client/face/shmbroker_pool.hpp"
#include "client/session/views.hpp"
#include "tests/support/face.hpp"
#include "tests/support/pools.hpp"

using namespace shmb;
using namespace support;

namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kLongEnough = 30'000'000'000;

std::unique_ptr<Queue> opened(const std::shared_ptr<Pool>& pool, QueueSpec spec) {
  return must(Queue::open(pool, std::move(spec)));
}

struct Two {
  harness::BrokerFixture broker;
  std::shared_ptr<Session> session = open(broker);
  std::shared_ptr<Pool> pool;
  std::shared_ptr<Pool> other;
  explicit Two(const PoolSpec& spec)
      : pool(must(make_pool(session, spec))), other(must(try_pool(beside(broker, pool), spec.name))) {}
};

client::QueueFacts facts_of(Queue& queue) { return must(queue.facts()); }

}  // namespace

TEST_CASE("a reader that comes after the shutdown takes what an mpmc queue has left") {
  Two two(slots_of("p", 4096, 4));
  auto out = writer(two.pool, "q", Kind::mpmc);
  const std::string large(4096, 'l');
  must(out->send(bytes_of("small"), kNoWait));
  must(out->send(bytes_of(large), kNoWait));
  bool writer_left = false;
  SUBCASE("while its writer is there") {}
  SUBCASE("and its writer has left") { writer_left = true; }
  must(out->shutdown(false));
  if (writer_left) out.reset();
  auto in = reader(two.other, "q", Kind::mpmc);
  Message message;
  must(in->receive(message, false, kLongEnough));
  CHECK(text_of(message) == "small");
  // Another one comes while the first has one in hand.
  auto late = opened(two.pool, queue_spec("q", Kind::mpmc, true, false));
  Message last;
  must(late->receive(last, false, kLongEnough));
  CHECK(text_of(last) == large);
  must(message.done());
  must(last.done());
  CHECK(status_of(in->receive(message, false, kLongEnough)) == Status::closed);
  CHECK(status_of(late->receive(message, false, kLongEnough)) == Status::closed);
  in.reset();
  late.reset();
  const auto refused = Queue::open(two.other, queue_spec("q", Kind::mpmc, true, false));
  CHECK(status_of(refused) == Status::closed);
  CHECK(refused.error().sentence.find("nothing is left") != std::string::npos);
}

TEST_CASE("messages left in a closed mpmc queue are for readers only, and go once its name is removed") {
  Two two(slots_of("p", 64, 2));
  auto out = writer(two.pool, "q", Kind::mpmc);
  must(out->send(bytes_of("left"), kNoWait));
  must(out->shutdown(false));
  CHECK(status_of(Queue::open(two.other, queue_spec("q", Kind::mpmc, false, true))) == Status::closed);
  CHECK(status_of(Queue::open(two.other, queue_spec("q", Kind::mpmc, true, true))) == Status::closed);
  must(out->close(true, true));
  QueueSpec spec = queue_spec("q", Kind::mpmc, true, false);
  spec.open_only = true;
  CHECK(status_of(Queue::open(two.other, spec)) == Status::not_found);
  CHECK(eventually([&] { return must(two.pool->facts()).lanes == 0; }));
}

TEST_CASE("a drain after the last message was taken succeeds, even if the readers have gone since") {
  Two two(slots_of("p", 4096, 4));
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    const std::string name = "q" + std::to_string(static_cast<int>(kind));
    CAPTURE(name);
    auto in = reader(two.other, name, kind);
    auto out = writer(two.pool, name, kind);
    must(out->send(bytes_of(std::string(4096, 'x')), kLongEnough));
    must(out->send(bytes_of("y"), kLongEnough));
    Message message;
    for (int i = 0; i < 2; ++i) must(in->receive(message, false, kLongEnough));
    must(message.done());
    in.reset();
    CHECK(status_of(out->drain(kLongEnough)) == Status::ok);
    CHECK(status_of(out->drain(kNoWait)) == Status::ok);
    CHECK(status_of(out->send(bytes_of("z"), kLongEnough)) == Status::peer_gone);  // this one tells of it
  }
}

TEST_CASE("a drain goes on while others come to the pool and go, until all is taken") {
  Two two(slots_of("p", 64, 2));
  auto out = writer(two.pool, "q", Kind::spsc);
  auto in = reader(two.other, "q", Kind::spsc);
  must(out->send(bytes_of("first"), kNoWait));
  must(out->send(bytes_of("last"), kNoWait));
  std::atomic<bool> is_last_asked_for = false;
  bool drained_too_early = true;
  std::thread drains([&] {
    CHECK(status_of(out->drain(10 * kLongEnough)) == Status::ok);
    drained_too_early = !is_last_asked_for;
  });
  CHECK(eventually([&] { return is_asleep(*two.pool); }));
  for (int i = 0; i < 3; ++i) {
    auto third = must(try_pool(beside(two.broker, two.pool), "p"));
    ::usleep(20'000);  // the drain has looked, as a rule: should it not have, the case sees less
  }
  Message message;
  must(in->receive(message, true, kNoWait));
  ::usleep(20'000);
  is_last_asked_for = true;
  must(in->receive(message, true, kNoWait));
  must(message.done());
  drains.join();
  CHECK_FALSE(drained_too_early);
}

TEST_CASE("a drain tells when readers have gone and left messages behind") {
  Two two(slots_of("p", 4096, 4));
  for (const Kind kind : {Kind::spsc, Kind::mpmc}) {
    const std::string name = "q" + std::to_string(static_cast<int>(kind));
    CAPTURE(name);
    auto in = reader(two.other, name, kind);
    auto out = writer(two.pool, name, kind);
    must(out->send(bytes_of("taken"), kLongEnough));
    must(out->send(bytes_of("left"), kLongEnough));
    Message message;
    must(in->receive(message, false, kLongEnough));
    must(message.done());
    in.reset();
    const auto told = out->drain(kLongEnough);
    CHECK(status_of(told) == Status::peer_gone);
    CHECK(told.error().sentence.find("without taking all") != std::string::npos);
  }
  // A newcomer on an spsc queue does not hide that.
  auto in = reader(two.other, "again", Kind::spsc);
  auto out = writer(two.pool, "again", Kind::spsc);
  must(out->send(bytes_of("left"), kLongEnough));
  in.reset();
  in = reader(two.other, "again", Kind::spsc);
  CHECK(status_of(out->drain(kLongEnough)) == Status::peer_gone);
  CHECK(status_of(out->drain(kLongEnough)) == Status::ok);  // told once
}

TEST_CASE("one part of bytes needs a slot of its own size and no more, typed or not, alone or of many") {
  Two two(slots_of("p", 4096, 4));
  auto in = reader(two.other, "q", Kind::spsc);
  auto out = writer(two.pool, "q", Kind::spsc);
  const std::string text(4096, 'm');
  const OutPart part = bytes_part(text);
  std::uint64_t type = 0;
  SUBCASE("without a type") {}
  SUBCASE("with one") { type = 7; }
  std::size_t sent = 0;
  SUBCASE("alone") {
    must(out->send(std::span(&part, 1), type, 0, kLongEnough));
    must(out->send(std::span(&part, 1), type, 0, kLongEnough));
    sent = 2;
  }
  SUBCASE("of many") {
    const auto next = [&](std::size_t) -> Result<Queue::Outgoing> {
      return Queue::Outgoing{std::span(&part, 1), type, 0};
    };
    must(out->send_many(3, next, kLongEnough, sent));
    CHECK(sent == 3);
  }
  CHECK(facts_of(*out).in_regions == 0);
  CHECK(must(two.pool->facts()).slots_used >= sent);
  for (std::size_t i = 0; i < sent; ++i) {
    Message message;
    must(in->receive(message, false, kLongEnough));
    CHECK(message.count() == 1);
    CHECK(message.type() == type);
    CHECK(text_of(message) == text);
  }
}

TEST_CASE("messages that are larger than every slot are counted, by their sender and in the books") {
  Two two(slots_of("p", 4096, 4));
  auto in = reader(two.other, "q", Kind::mpmc);
  auto out = writer(two.pool, "q", Kind::mpmc);
  const std::string text(4097, 'm'), one = text.substr(0, 1);
  const OutPart part = bytes_part(text), both[] = {bytes_part(one), bytes_part(text)};
  must(out->send(std::span(&part, 1), 0, 0, kLongEnough));
  must(out->send(both, 0, 0, kLongEnough));
  must(out->send(bytes_of("inline"), kLongEnough));
  CHECK(facts_of(*out).in_regions == 2);
  const auto in_books = [&] {
    const auto rows = must(client::list_queues(*two.session, {}, Deadline::after(0)));
    REQUIRE(rows.rows.size() == 1);
    return rows.rows[0].record.in_regions;
  };
  CHECK(in_books() == 2);
  for (const std::string& expected : {text, one}) {
    Message message;
    must(in->receive(message, false, kLongEnough));
    CHECK(text_of(message) == expected);
  }
  Message message;
  must(in->receive(message, false, kLongEnough));
  out.reset();
  CHECK(status_of(in->receive(message, false, kLongEnough)) == Status::peer_gone);
  CHECK(eventually([&] { return must(two.pool->facts()).lanes == 0; }));
  CHECK(in_books() == 2);  // also when the lane is over
}

TEST_CASE("a reader that names no kind waits for the queue and takes it as it is") {
  Two two(slots_of("p", 64, 2));
  QueueSpec any;
  any.name = "q";
  any.reader = true;
  SUBCASE("that comes later") {
    std::unique_ptr<Queue> in;
    std::thread waits([&] {
      auto got = Queue::open(two.other, any);
      if (got) in = std::move(*got);
    });
    CHECK(eventually([&] { return is_asleep(*two.other); }));
    auto out = writer(two.pool, "q", Kind::broadcast, 1024);
    waits.join();
    REQUIRE(in);
    CHECK(facts_of(*in).kind == Kind::broadcast);
    CHECK(facts_of(*in).cells == 1024);
  }
  SUBCASE("but no longer than its timeout, and makes none") {
    any.timeout = 50'000'000;
    const auto late = Queue::open(two.other, any);
    CHECK(status_of(late) == Status::deadline);
    CHECK(must(two.pool->facts()).queues == 0);
  }
  SUBCASE("or as long as it says") {
    any.wait = kNoWait;
    CHECK(status_of(Queue::open(two.other, any)) != Status::ok);
    any.wait = 0;
    any.create_only = true;
    CHECK(status_of(Queue::open(two.other, any)) == Status::invalid);
    any.create_only = false;
    any.writer = true;
    CHECK(status_of(Queue::open(two.other, any)) == Status::invalid);
  }
  SUBCASE("in a pool of its own, which comes later") {
    any.name.clear();
    std::unique_ptr<Queue> in;
    std::thread waits([&] {
      auto got = Queue::open_alone(two.other->session(), "alone", any);
      if (got) in = std::move(*got);
    });
    QueueSpec made = queue_spec("", Kind::mpmc, false, true, 8);
    auto out = must(Queue::open_alone(two.session, "alone", made));
    waits.join();
    REQUIRE(in);
    CHECK(facts_of(*in).cells == 8);
  }
}

TEST_CASE("an open that names a kind and no cells takes those of the queue, and makes one of 256") {
  Two two(slots_of("p", 64, 2));
  QueueSpec spec = queue_spec("large", Kind::spsc, false, true, 1024);
  spec.cell_size = 128;
  auto out = opened(two.pool, spec);
  auto in = opened(two.other, queue_spec("large", Kind::spsc, true, false, 0));
  CHECK(facts_of(*in).cells == 1024);
  CHECK(facts_of(*in).inline_bytes == 120);
  auto fresh = opened(two.other, queue_spec("fresh", Kind::spsc, true, false, 0));
  CHECK(facts_of(*fresh).cells == 256);
  CHECK(facts_of(*fresh).inline_bytes == 56);
  const auto other_kind = Queue::open(two.other, queue_spec("fresh", Kind::mpmc, false, true, 0));
  CHECK(status_of(other_kind) == Status::exists);
  CHECK(other_kind.error().sentence.find("its kind is spsc, not mpmc") != std::string::npos);
}

TEST_CASE("for_each ends when the last writer has left or died, and not before all was taken") {
  const harness::BrokerFixture broker;
  auto session = support::connect(broker.socket());
  auto group = session.create_group({.name = "g"});
  session.join(group.token);
  const std::string variable = group.variable("g");
  auto pool = shmbroker::Pool::create(session, {.name = "p"});
  auto in = pool.open_queue("q", shmbroker::Role::reader, {.kind = shmbroker::QueueKind::mpmc});
  const auto sends = [&](bool dies) {
    return harness::Child::run([&, dies] {
      auto mine = shmbroker::Session::connect({.socket = broker.socket(), .group = variable});
      auto theirs = shmbroker::Pool::open(mine, "p");
      auto out = theirs.open_queue("q", shmbroker::Role::writer, {.kind = shmbroker::QueueKind::mpmc});
      for (int i = 0; i < 100; ++i) out.send("message");
      if (dies) ::_exit(0);
      return 0;
    });
  };
  int taken = 0;
  const auto count = [&](shmbroker::Message&) { ++taken; };
  SUBCASE("it leaves") {
    auto child = sends(false);
    CHECK(in.try_for_each(count, 30s).has_value());
    CHECK(taken == 100);
    CHECK(child.wait() == 0);
  }
  SUBCASE("it dies") {
    auto child = sends(true);
    const auto outcome = in.try_for_each(count, 30s);
    REQUIRE_FALSE(outcome.has_value());
    CHECK(outcome.error().status() == shmbroker::Status::peer_gone);
    CHECK(outcome.error().system_errno() == EOWNERDEAD);
    CHECK(taken == 100);
    CHECK(child.wait() == 0);
  }
}
