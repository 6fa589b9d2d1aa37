// SPDX-License-Identifier: Apache-2.0
// Many messages in one call: one wake for all of them, and none is held back from a reader that must be waited for.
#include <new>
#include <thread>

#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

struct Sent {
  Result<void> outcome;
  std::size_t count = 0;
};

Sent send_all(Queue& queue, std::span<const OutPart> messages, std::int64_t wait) {
  Sent out;
  out.outcome = queue.send_many(
      messages.size(),
      [&](std::size_t i) -> Result<Queue::Outgoing> { return Queue::Outgoing{messages.subspan(i, 1)}; }, wait,
      out.count,
      [&](std::size_t i) -> std::optional<std::span<const std::byte>> {
        if (messages[i].kind != PartKind::bytes) return std::nullopt;
        return std::span(messages[i].data, messages[i].length);
      });
  return out;
}

// The wake of this number, from 1, finds no memory; the others do.
template <class F>
void failing_wake(int number, F&& body) {
  static int left = 0;
  left = number;
  step_hook = [](Step now) {
    if (now == Step::S4 && --left == 0) throw std::bad_alloc();
  };
  body();
  step_hook = nullptr;
}

// How often the fence of a wake was passed.
template <class F>
int fences(F&& body) {
  static int count = 0;
  count = 0;
  step_hook = [](Step now) { count += now == Step::S4; };
  body();
  step_hook = nullptr;
  return count;
}

}  // namespace

TEST_CASE("a batch is sent and taken with one wake each, in order, of every kind of queue") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 512, 16)));
  const std::string large(300, 'l');
  const OutPart messages[] = {bytes_part("0"), bytes_part("1"),   bytes_part("2"), bytes_part("3"),
                              bytes_part("4"), bytes_part(large), bytes_part("6"), bytes_part("7")};
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    auto both = must(Queue::open(pool, queue_spec("q" + std::to_string(static_cast<int>(kind)), kind, true, true, 16)));
    Sent sent;
    CHECK(fences([&] { sent = send_all(*both, messages, kNoWait); }) == 1);
    must(sent.outcome);
    CHECK(sent.count == 8);
    Message taken[10];
    Message* places[10];
    for (int i = 0; i < 10; ++i) places[i] = &taken[i];
    std::size_t count = 0;
    // One for the first message, whose writers may wait, and one for all others; one more around the list.
    CHECK(fences([&] { count = must(both->receive_many(places, kForever)); }) <= 3);
    REQUIRE(count == 8);
    for (int i = 0; i < 8; ++i) CHECK(text_of(taken[i]) == (i == 5 ? large : std::to_string(i)));
    CHECK(must(both->facts()).received == 8);
    CHECK(status_of(both->receive_many(places, kNoWait)) == Status::empty);
  }
}

TEST_CASE("a batch of bytes alone is taken with one wake where one reader has one lane") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  const OutPart messages[] = {bytes_part("0"), bytes_part("1"), bytes_part("2")};
  for (const Kind kind : {Kind::spsc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    auto both = must(Queue::open(pool, queue_spec("q" + std::to_string(static_cast<int>(kind)), kind, true, true, 16)));
    must(send_all(*both, messages, kNoWait).outcome);
    Message taken[4];
    Message* places[] = {&taken[0], &taken[1], &taken[2], &taken[3]};
    std::size_t count = 0;
    CHECK(fences([&] { count = must(both->receive_many(places, kForever)); }) == 1);
    REQUIRE(count == 3);
    for (int i = 0; i < 3; ++i) CHECK(text_of(taken[i]) == std::to_string(i));
  }
}

TEST_CASE("a batch larger than the queue wakes its reader before it waits for room") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 512, 2)));
  auto other = must(try_pool(beside(broker, pool), "p"));
  auto in = reader(other, "q", Kind::spsc, 2);
  auto out = writer(pool, "q", Kind::spsc, 2);
  std::vector<std::string> texts;
  for (int i = 0; i < 20; ++i) texts.push_back(std::string(100, static_cast<char>('a' + i)));
  std::vector<OutPart> messages;
  for (const std::string& text : texts) messages.push_back(bytes_part(text));
  CHECK(status_of(send_all(*out, messages, kNoWait).outcome) == Status::full);
  Message message;
  int seen = 0;
  for (; in->receive(message, true, kNoWait); ++seen) CHECK(text_of(message) == texts[static_cast<std::size_t>(seen)]);
  CHECK(seen == 2);
  must(message.done());
  std::thread reads([&] {
    Message taken[3];
    Message* places[] = {&taken[0], &taken[1], &taken[2]};
    for (std::size_t got = 0; got < texts.size();) {
      const std::size_t count = must(in->receive_many(places, kForever));
      for (std::size_t i = 0; i < count; ++i) CHECK(text_of(taken[i]) == texts[got + i]);
      got += count;
    }
  });
  const Sent sent = send_all(*out, messages, kForever);
  reads.join();
  must(sent.outcome);
  CHECK(sent.count == texts.size());
}

TEST_CASE("if a close overtakes a batch, only messages that the readers get count as sent") {
  for (const Kind kind : {Kind::spsc, Kind::mpmc}) {
    const harness::BrokerFixture broker;
    auto session = open(broker);
    auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
    auto other = must(try_pool(beside(broker, pool), "p"));
    auto in = reader(other, "q", kind);
    auto out = writer(pool, "q", kind);
    static Queue* closing = nullptr;
    static Status told = Status::ok;
    closing = in.get();
    step_hook = [](Step now) {
      if (now != Step::S1 && now != Step::K2) return;
      step_hook = nullptr;
      must(closing->shutdown(false));
      Message message;
      told = status_of(closing->receive(message, true, kForever));
    };
    const OutPart messages[] = {bytes_part("1"), bytes_part("2"), bytes_part("3")};
    const Sent sent = send_all(*out, messages, kNoWait);
    step_hook = nullptr;
    CHECK(told == Status::closed);
    CHECK(status_of(sent.outcome) == Status::closed);
    CHECK(sent.count == 0);
    CHECK(must(out->facts()).sent == 0);
    Message message;
    if (kind == Kind::mpmc) CHECK(status_of(in->receive(message, true, kNoWait)) == Status::closed);
  }
}

TEST_CASE("a message that cannot be sent ends its batch, and those before it arrive") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto both = must(Queue::open(pool, queue_spec("q", Kind::mpmc, true, true)));
  OutPart wrong;
  wrong.kind = PartKind::region;
  const OutPart messages[] = {bytes_part("1"), bytes_part("2"), wrong, bytes_part("4")};
  const Sent sent = send_all(*both, messages, kNoWait);
  CHECK(status_of(sent.outcome) == Status::invalid);
  CHECK(sent.count == 2);
  Message message;
  for (const char* const text : {"1", "2"}) {
    must(both->receive(message, true, kNoWait));
    CHECK(text_of(message) == text);
  }
  CHECK(status_of(both->receive(message, true, kNoWait)) == Status::empty);
}

TEST_CASE("a batch that memory runs out for says how many were sent, and they arrive") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto both = must(Queue::open(pool, queue_spec("q", Kind::spsc, true, true)));
  const OutPart part = bytes_part("x");
  std::size_t sent = 0;
  auto send = [&](std::size_t most) {
    auto next = [&](std::size_t i) -> Result<Queue::Outgoing> {
      if (i == most) throw std::bad_alloc();
      return Queue::Outgoing{{&part, 1}};
    };
    sent = 77;
    CHECK_THROWS_AS((void)both->send_many(3, next, kNoWait, sent), std::bad_alloc);
  };
  Message message;
  auto check_all_came = [&] {
    for (std::size_t i = 0; i < sent; ++i) must(both->receive(message, true, kNoWait));
    CHECK(status_of(both->receive(message, true, kNoWait)) == Status::empty);
  };
  SUBCASE("while the next message is made") {
    send(2);
    CHECK(sent == 2);
    check_all_came();
  }
  SUBCASE("then and in the wake, too") {
    failing_wake(1, [&] { send(2); });
    CHECK(sent == 2);
    check_all_came();
  }
  SUBCASE("in the wake alone") {
    failing_wake(1, [&] { send(9); });
    CHECK(sent == 3);
    check_all_came();
  }
  SUBCASE("in the wake of what was taken") {
    const OutPart messages[] = {part, part, part};
    must(send_all(*both, messages, kNoWait).outcome);
    Message taken[3];
    Message* places[] = {&taken[0], &taken[1], &taken[2]};
    failing_wake(1, [&] { CHECK_THROWS_AS((void)both->receive_many(places, kNoWait), std::bad_alloc); });
    // The queue is as it was: one message by itself wakes its writers again.
    must(send_all(*both, messages, kNoWait).outcome);
    CHECK(fences([&] { must(both->receive(message, true, kNoWait)); }) >= 1);
  }
}
