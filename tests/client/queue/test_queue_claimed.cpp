// SPDX-License-Identifier: Apache-2.0
// An mpmc queue without AT_LEAST_ONCE: a message is one application's from the moment that it has it. Its cell is done
// by then, and own bits hold its slots. Deaths are tested in tests/kill.
#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;

namespace {

struct Ends {
  explicit Ends(std::uint32_t slots = 4, std::uint32_t cells = 2) {
    pool = must(make_pool(session, slots_of("p", 192, slots)));
    other = must(try_pool(beside(broker, pool), "p"));
    pool->me().set_cache_limit(0);
    other->me().set_cache_limit(0);
    out = writer(pool, "q", Kind::mpmc, cells);
    in = reader(other, "q", Kind::mpmc, cells);
  }
  void send(char content) {
    const Slot slot = must(pool->acquire(64, kNoWait));
    std::memset(slot.data, content, slot.length);
    must(out->send(slot, kNoWait));
    must(pool->release(slot));
  }
  std::uint64_t mask(const Message& message) const { return pool->view().slot(message.part(0).slot).holders.load(); }
  std::uint32_t free_slots() {
    std::vector<Slot> all;
    while (auto slot = pool->acquire(64, kNoWait)) all.push_back(*slot);
    for (const Slot& slot : all) must(pool->release(slot));
    return static_cast<std::uint32_t>(all.size());
  }
  harness::BrokerFixture broker;
  std::shared_ptr<Session> session = open(broker);
  std::shared_ptr<Pool> pool, other;
  std::unique_ptr<Queue> out, in;
};

}  // namespace

TEST_CASE("a slot that was received from an mpmc queue is held by its reader, and its writer has the cell back") {
  Ends ends;
  Message message;
  ends.send('a');
  ends.send('b');
  CHECK(status_of(ends.out->send(bytes_of("c"), kNoWait)) == Status::full);
  must(ends.in->receive(message, false, kNoWait));
  CHECK(text_of(message) == std::string(64, 'a'));
  CHECK((ends.mask(message) & ends.other->me().bit()) != 0);
  must(ends.out->send(bytes_of("c"), kNoWait));
  CHECK(ends.mask(message) == ends.other->me().bit());  // the writer's next send saw that it was taken
  CHECK(ends.free_slots() == 2);
  must(message.done());
  CHECK(ends.free_slots() == 3);
}

TEST_CASE("a message borrowed from an mpmc queue is the reader's until it receives the next one") {
  Ends ends;
  Message first, second;
  ends.send('a');
  ends.send('b');
  must(ends.in->receive(first, false, kNoWait));
  must(ends.in->receive(second, false, kNoWait));
  CHECK(first.count() == 0);
  CHECK(text_of(second) == std::string(64, 'b'));
  CHECK(ends.free_slots() == 3);
  SUBCASE("or closes its end") {
    must(ends.in->close(false, false));
    CHECK(second.count() == 0);
  }
  SUBCASE("or longer, if it keeps it") {
    must(second.keep());
    ends.send('c');
    must(ends.in->receive(first, false, kNoWait));
    CHECK(text_of(second) == std::string(64, 'b'));
    must(second.done());
    must(first.done());
  }
  SUBCASE("or is done with it") { must(second.done()); }
  (void)ends.out->drain(kNoWait);  // refused where nobody reads any more, and takes back what is done all the same
  CHECK(ends.free_slots() == 4);
}

TEST_CASE("a slot is taken out of a borrowed message as often as asked, and each time is one reference more") {
  Ends ends;
  Message message;
  ends.send('a');
  must(ends.in->receive(message, false, kNoWait));
  const Slot once = must(message.take_slot(0)), twice = must(message.take_slot(0));
  CHECK(once.index == twice.index);
  must(ends.other->release(once));
  must(ends.other->release(twice));
  CHECK(status_of(ends.other->release(once)) == Status::stale);
  CHECK(text_of(message) == std::string(64, 'a'));
  CHECK((ends.mask(message) & ends.other->me().bit()) != 0);
  const Slot third = must(message.take_slot(0));
  must(message.done());
  must(ends.out->drain(kNoWait));
  CHECK(ends.pool->view().slot(third.index).holders.load() == ends.other->me().bit());
  must(ends.other->release(third));
  CHECK(ends.free_slots() == 4);
}

TEST_CASE("a list from an mpmc queue is held by its reader, with the slot that it is in") {
  Ends ends(6, 4);
  const Slot one = must(ends.pool->acquire(64, kNoWait));
  std::memset(one.data, 'x', one.length);
  const std::string text(10, 't');
  const OutPart parts[] = {bytes_part(text), slot_part(one)};
  must(ends.out->send(parts, 7, 0, kNoWait));
  must(ends.pool->release(one));
  Message message;
  must(ends.in->receive(message, false, kNoWait));
  must(ends.out->drain(kNoWait));
  CHECK(text_of(message) == text);
  CHECK(text_of(message, 1) == std::string(64, 'x'));
  const std::uint32_t left = ends.free_slots();
  must(message.done());
  CHECK(ends.free_slots() == 6);
  CHECK(left < 6);
}

TEST_CASE("a closed mpmc queue is at its end although another reader still has a message of it") {
  Ends ends;
  auto theirs = reader(ends.pool, "q", Kind::mpmc, 2);
  ends.send('a');
  Message message, none;
  must(ends.in->receive(message, false, kNoWait));
  must(ends.out->close(true, true));
  Status told = Status::peer_gone;
  while (told == Status::peer_gone) told = status_of(theirs->receive(none, false, kNoWait));
  CHECK(told == Status::closed);
  CHECK(text_of(message) == std::string(64, 'a'));
}
