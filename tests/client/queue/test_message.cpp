// SPDX-License-Identifier: Apache-2.0
// Messages of all forms: inline, slots, regions, lists of them, kept and borrowed, and expired ones.
#include <linux/sockios.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/harness/stopped.hpp"
#include "tests/support/pools.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

// A request of this session lies in its socket, and the broker has not read it.
bool has_asked(Session& session) {
  int bytes = 0;
  return ::ioctl(session.socket_descriptor(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

Region::Handle filled_region(const std::shared_ptr<Session>& session, std::uint64_t length, int number) {
  auto region = must(create_region(session, named("", length)));
  std::memcpy(region->data(), &number, sizeof number);
  return region;
}

void check_regions(const Message& message, std::size_t count) {
  REQUIRE(message.count() == count);
  for (std::size_t i = 0; i < count; ++i) {
    CAPTURE(i);
    REQUIRE(message.part(i).status == Status::ok);
    int number = -1;
    std::memcpy(&number, message.part(i).data, sizeof number);
    CHECK(number == static_cast<int>(i));
  }
}

}  // namespace

TEST_CASE("a receive that finds nothing empties the message, whatever it held before") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 4096, 4)));
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    auto queue = must(Queue::open(pool, queue_spec("q" + std::to_string(static_cast<int>(kind)), kind, true, true)));
    for (const std::size_t size : {8UL, 1000UL}) {
      CAPTURE(size);
      Message message;
      must(queue->send(bytes_of(std::string(size, 'a')), kNoWait));
      must(queue->receive(message, false, kNoWait));
      REQUIRE(message.count() == 1);
      CHECK_FALSE(queue->receive(message, false, kNoWait).has_value());
      CHECK(message.count() == 0);
    }
  }
}

TEST_CASE("bytes of every size arrive: inline to the last byte, then in slots, and too many are refused") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 4096, 4)));
  for (const std::uint32_t cell : {64U, 128U}) {
    auto spec = queue_spec("q" + std::to_string(cell), Kind::spsc, true, true);
    spec.cell_size = cell;
    auto queue = must(Queue::open(pool, spec));
    Message message;
    for (const std::size_t size : {0UL, 1UL, 8UL, 55UL, 56UL, 57UL, 119UL, 120UL, 121UL, 4095UL, 4096UL}) {
      CAPTURE(size);
      const std::string text(size, 'a');
      must(queue->send(bytes_of(text), kNoWait));
      must(queue->receive(message, false, kNoWait));
      CHECK(text_of(message) == text);
      CHECK((message.part(0).kind == PartKind::bytes) == (size <= cell - 8));
    }
    CHECK(status_of(queue->send(bytes_of(std::string(4097, 'a')), kNoWait)) == Status::invalid);
  }
}

TEST_CASE("a list of bytes, slots and regions is one message, with its type") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 4096, 4)));
  auto other_session = beside(broker, pool);
  auto out = writer(pool, "q", Kind::spsc);
  auto in = reader(must(try_pool(other_session, "p")), "q", Kind::spsc);
  auto region = must(create_region(session, named("r", 100000)));
  std::memset(region->data(), 'r', 100000);
  for (const bool keep : {false, true}) {
    CAPTURE(keep);
    Slot slot = must(pool->acquire(10, kNoWait));
    std::memcpy(slot.data, "0123456789", 10);
    OutPart stretch = slot_part(slot);
    stretch.offset = 2, stretch.length = 5;
    OutPart part_of_region = region_part(*region);
    part_of_region.offset = 50, part_of_region.length = 3;
    const OutPart parts[] = {bytes_part("head"), slot_part(slot), stretch, part_of_region, bytes_part("")};
    must(out->send(parts, 77, 0, kNoWait));
    must(pool->release(slot));
    Message message;
    must(in->receive(message, keep, kForever));
    REQUIRE(message.count() == 5);
    CHECK(message.type() == 77);
    CHECK(text_of(message, 0) == "head");
    CHECK(text_of(message, 1) == "0123456789");
    CHECK(text_of(message, 2) == "23456");
    CHECK(text_of(message, 3) == "rrr");
    CHECK(message.part(4).length == 0);
    const Slot taken = must(message.take_slot(1));
    auto own = must(message.take_region(3));
    CHECK(status_of(message.take_region(3)) == Status::invalid);
    CHECK(status_of(message.take_slot(0)) == Status::invalid);
    must(message.done());
    CHECK(std::memcmp(taken.data, "0123456789", 10) == 0);
    CHECK(own->data()[50] == std::byte{'r'});
    must(in->pool().release(taken));
  }
  CHECK(must(in->pool().facts()).slots_own == 0);  // what came from others goes back to them
}

TEST_CASE("a type number and a single region travel in one cell, and a list needs no slots") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto queue = must(Queue::open_alone(session, "mail", queue_spec("", Kind::mpmc, true, true)));
  auto region = must(create_region(session, named("", 5000)));
  const OutPart typed[] = {bytes_part("with a number")};
  must(queue->send(typed, 5, 0, kNoWait));
  const OutPart alone[] = {region_part(*region)};
  must(queue->send(alone, 6, 0, kNoWait));
  std::vector<OutPart> many(100, bytes_part("twelve bytes"));
  must(queue->send(many, 7, 0, kNoWait));
  Message message;
  must(queue->receive(message, false, kNoWait));
  CHECK(message.type() == 5);
  CHECK(text_of(message) == "with a number");
  must(queue->receive(message, false, kNoWait));
  CHECK(message.type() == 6);
  CHECK(message.part(0).length == 5000);
  CHECK(message.part(0).data != nullptr);
  must(queue->receive(message, false, kNoWait));
  CHECK(message.type() == 7);
  REQUIRE(message.count() == 100);
  CHECK(text_of(message, 99) == "twelve bytes");
}

TEST_CASE("twenty thousand parts are one message, and it survives the death of its sender") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 64, 32)));
  auto in = reader(pool, "q", Kind::mpmc);
  auto child = child_in(broker, pool, [&](const std::shared_ptr<Pool>& joined) {
    auto out = Queue::open(joined, queue_spec("q", Kind::mpmc, false, true));
    STEP(3, out);
    CreateItem item;
    item.length = 4096;
    std::vector<Region::Handle> regions;
    for (int i = 0; i < 300; ++i) {
      auto made = create_region(joined->session(), item);
      STEP(4, made);
      std::memcpy((*made)->data(), &i, sizeof i);
      regions.push_back(std::move(*made));
    }
    auto slot = joined->acquire(4, 0);
    STEP(5, slot);
    std::memcpy(slot->data, "slot", 4);
    std::vector<OutPart> parts;
    for (int i = 0; i < 20000; ++i) {
      if (i % 100 == 0) parts.push_back(region_part(*regions[static_cast<std::size_t>(i / 100)]));
      else if (i % 100 == 1) parts.push_back(slot_part(*slot));
      else parts.push_back(bytes_part("tensor"));
    }
    STEP(6, (*out)->send(parts, 1, 0, 0));
    ::kill(::getpid(), SIGKILL);
    return 0;
  });
  CHECK(child.wait() == 128 + SIGKILL);
  Message message;
  must(in->receive(message, true, kForever));
  REQUIRE(message.count() == 20000);
  for (std::size_t i = 0; i < 20000; ++i) {
    const Message::Part& part = message.part(i);
    if (i % 100 == 0) {
      if (part.status != Status::ok) FAIL("region " << i << ": " << part.failure.sentence);
      int value = -1;
      std::memcpy(&value, part.data, sizeof value);
      CHECK(value == static_cast<int>(i / 100));
    } else if (text_of(message, i) != (i % 100 == 1 ? "slot" : "tensor")) {
      FAIL("part " << i << " is " << text_of(message, i));
    }
  }
  must(message.done());
  CHECK(status_of(in->receive(message, true, kForever)) == Status::peer_gone);
}

TEST_CASE("a kept message stays unchanged while its writer goes on, and a borrowed one holds its cell") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 512, 8)));
  auto out = writer(pool, "q", Kind::spsc, 2);
  auto in = reader(must(try_pool(beside(broker, pool), "p")), "q", Kind::spsc, 2);
  Message kept, borrowed;
  must(out->send(bytes_of(std::string(500, 'k')), kNoWait));
  must(in->receive(kept, true, kNoWait));
  for (int i = 0; i < 50; ++i) {
    must(out->send(bytes_of(std::string(500, static_cast<char>('0' + i % 10))), kNoWait));
    must(in->receive(borrowed, false, kNoWait));
    CHECK(text_of(borrowed) == std::string(500, static_cast<char>('0' + i % 10)));
  }
  CHECK(text_of(kept) == std::string(500, 'k'));
  must(out->send(bytes_of("1"), kNoWait));
  CHECK(status_of(out->send(bytes_of("2"), kNoWait)) == Status::full);  // one cell is borrowed
  must(borrowed.done());
  must(out->send(bytes_of("2"), kNoWait));
  must(kept.done());
  // Made a kept one later.
  must(in->receive(borrowed, false, kNoWait));
  must(in->receive(borrowed, false, kNoWait));
  must(out->send(bytes_of(std::string(500, 'z')), kNoWait));
  must(in->receive(borrowed, false, kNoWait));
  must(borrowed.keep());
  must(out->send(bytes_of("a"), kNoWait));
  must(out->send(bytes_of("b"), kNoWait));
  CHECK(text_of(borrowed) == std::string(500, 'z'));
}

TEST_CASE("a message whose lifetime has passed is not delivered, and its slot is free again") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 512, 2)));
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    auto spec = queue_spec("q" + std::to_string(static_cast<int>(kind)), kind, true, true);
    spec.flags = pool::kQueueExpiring;
    auto queue = must(Queue::open(pool, spec));
    const OutPart soon[] = {bytes_part("soon")}, later[] = {bytes_part("later")};
    must(queue->send(soon, 0, 1, kNoWait));
    must(queue->send(later, 0, 60'000'000'000, kNoWait));
    must(queue->send(later, 0, 0, kNoWait));
    CHECK(status_of(queue->send(later, 0, -5, kNoWait)) == Status::invalid);
    Message message;
    must(queue->receive(message, false, kNoWait));
    CHECK(text_of(message) == "later");
    must(queue->receive(message, false, kNoWait));
    CHECK(status_of(queue->receive(message, false, kNoWait)) == Status::empty);
    CHECK(must(queue->facts()).expired == 1);
  }
  auto plain = must(Queue::open(pool, queue_spec("plain", Kind::spsc, true, true)));
  const OutPart part[] = {bytes_part("x")};
  CHECK(status_of(plain->send(part, 0, 1, kNoWait)) == Status::invalid);
}

TEST_CASE("parts that are not what they say are refused, and nothing is lost by it") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 512, 2))),
       elsewhere = must(make_pool(session, slots_of("e", 512, 2)));
  auto queue = must(Queue::open(pool, queue_spec("q", Kind::spsc, true, true)));
  const Slot slot = must(pool->acquire(10, kNoWait)), foreign = must(elsewhere->acquire(10, kNoWait));
  CHECK(status_of(queue->send(foreign, kNoWait)) == Status::invalid);
  const std::vector<OutPart> too_many(kMostParts + 1, bytes_part(""));
  CHECK(status_of(queue->send(too_many, 0, 0, kNoWait)) == Status::invalid);
  Slot wrong = slot;
  ++wrong.generation;
  CHECK(status_of(queue->send(wrong, kNoWait)) == Status::stale);
  wrong = slot;
  wrong.length = 513;
  CHECK(status_of(queue->send(wrong, kNoWait)) == Status::invalid);
  OutPart beyond = slot_part(slot);
  beyond.offset = 500, beyond.length = 13;
  CHECK(status_of(queue->send(std::span(&beyond, 1), 0, 0, kNoWait)) == Status::invalid);
  auto other_session = open(broker);
  auto region = must(create_region(other_session, named("", 100)));
  const OutPart not_ours[] = {bytes_part("x"), region_part(*region)};
  CHECK(status_of(queue->send(not_ours, 0, 0, kNoWait)) == Status::invalid);
  CHECK(status_of(queue->send(std::span<const OutPart>(), 0, 0, kNoWait)) == Status::invalid);
  must(pool->release(slot));
  CHECK(status_of(queue->send(slot, kNoWait)) == Status::stale);
  Message message;
  CHECK(status_of(queue->receive(message, false, kNoWait)) == Status::empty);
  CHECK(must(pool->facts()).slots_used <= 1);
  must(elsewhere->release(foreign));
}

TEST_CASE("a list that a peer wrote wrongly is refused, whatever is in it") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 512, 2)));
  std::vector<ListEntry> table;
  ListHeader header{};
  const OutPart parts[] = {bytes_part("abc"), bytes_part("defgh")};
  std::vector<std::byte> good(*list_bytes(parts));
  write_list(parts, 3, good);
  REQUIRE(read_list(good, 2, pool->me(), table, header));
  CHECK(header.type == 3);
  CHECK_FALSE(read_list(good, 3, pool->me(), table, header));
  for (std::size_t size = 0; size < good.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(read_list(std::span(good).first(size), 2, pool->me(), table, header));
  }
  // Every byte of header and table set to all ones: refused, or still within its bounds.
  for (std::size_t at = 0; at < sizeof(ListHeader) + 2 * sizeof(ListEntry); ++at) {
    auto bad = good;
    bad[at] = std::byte{0xff};
    if (!read_list(bad, 2, pool->me(), table, header)) continue;
    for (const ListEntry& entry : table) {
      if (entry.kind() != PartKind::bytes) continue;
      CHECK(entry.offset <= bad.size());
      CHECK(entry.length <= bad.size() - entry.offset);
    }
  }
}

TEST_CASE("regions in messages stay while the message does, also when their writer's queue is closed before") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 512, 4)));
  auto in = reader(pool, "q", Kind::mpmc);
  {
    auto out = writer(pool, "q", Kind::mpmc);
    auto region = must(create_region(session, named("", 8192)));
    std::memcpy(region->data(), "stays", 5);
    const OutPart parts[] = {region_part(*region), bytes_part("x")};
    must(out->send(parts, 0, 0, kNoWait));
  }
  Message message;
  must(in->receive(message, false, kForever));
  REQUIRE(message.part(0).status == Status::ok);
  CHECK(std::memcmp(message.part(0).data, "stays", 5) == 0);
  must(message.done());
  CHECK(status_of(in->receive(message, false, kForever)) == Status::peer_gone);
  must(in->close(false, true));
  CHECK(must(pool->facts()).slots_own <= 1);  // the lane is over, and what it held is given up
}

TEST_CASE("a large region that was read and that everybody has released goes, though its sender never calls again") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto watcher = beside(broker, pool);
  auto other_pool = must(try_pool(beside(broker, pool), "p"));
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    const std::string name = "q" + std::to_string(static_cast<int>(kind));
    auto in = reader(other_pool, name, kind);
    auto out = writer(pool, name, kind);
    auto region = must(create_region(session, named("", 4 << 20)));
    AttachItem again;
    again.target = Target::with_id(region->ref());
    const OutPart parts[] = {region_part(*region)};
    must(out->send(parts, 0, 0, kNoWait));
    region.reset();
    sys::rest(1'500'000'000);  // longer than the broker waits before it looks
    Message message;
    must(in->receive(message, false, kForever));
    REQUIRE(message.part(0).status == Status::ok);  // unread, it was held
    must(message.done());
    Status status = Status::ok;
    for (int i = 0; i < 100 && status == Status::ok; ++i) {
      sys::rest(100'000'000);
      status = status_of(attach_region(watcher, again));
    }
    CHECK(status == Status::not_found);
  }
}

TEST_CASE("a region that its sender has attached again is held again by the message that names it") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto in = reader(must(try_pool(beside(broker, pool), "p")), "q", Kind::spsc);
  auto out = writer(pool, "q", Kind::spsc);
  CreateItem item = named("kept", 4 << 20);
  item.flags = SHMBW_CREATE_MANY_WRITERS | SHMBW_CREATE_KEEP_GIVEN;
  item.keep = kForever;
  auto region = must(create_region(session, item));
  const shmbw_region_ref ref = region->ref();
  Message message;
  auto send_and_read = [&] {
    const OutPart parts[] = {region_part(*region)};
    must(out->send(parts, 0, 0, kNoWait));
    region.reset();
  };
  send_and_read();
  must(in->receive(message, false, kForever));
  must(message.done());
  sys::rest(1'500'000'000);  // the broker has let go of it for the lane
  AttachItem again;
  again.target = Target::with_id(ref);
  again.rights = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE | SHMBW_RIGHT_SHARE;
  region = must(attach_region(session, again));
  must(unname(*session, Target::with_id(ref), Deadline::after(0)));
  send_and_read();
  must(in->receive(message, false, kForever));
  CHECK(message.part(0).status == Status::ok);
}

TEST_CASE("the regions of a message stay held while its sender asks for more and another thread sends") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, slots_of("p", 4096, 4)));  // the list needs no region to lie in
  auto in = reader(must(try_pool(beside(broker, pool), "p")), "q", Kind::mpmc);
  auto spec = queue_spec("q", Kind::mpmc, false, true);
  spec.timeout = 60'000'000'000;
  auto out = must(Queue::open(pool, spec));
  auto old = filled_region(session, 2 << 20, 0), fresh = filled_region(session, 4096, 1);
  Message message;
  const OutPart first[] = {region_part(*old)}, both[] = {region_part(*old), region_part(*fresh)};
  must(out->send(first, 0, 0, kNoWait));
  must(in->receive(message, true, kForever));
  check_regions(message, 1);
  must(message.done());
  CHECK(must(out->facts()).depth == 0);  // it looked: no message names the region now
  must(session->ping(Deadline::after(0)));

  harness::stop(broker.pid());
  std::thread sends([&] { must(out->send(both, 0, 0, kNoWait)); });
  CHECK(eventually([&] { return has_asked(*session); }));
  must(out->send(bytes_of("between"), kNoWait));
  ::kill(broker.pid(), SIGCONT);
  sends.join();
  old.reset();
  fresh.reset();
  must(session->ping(Deadline::after(0)));  // behind all that was given back
  must(in->receive(message, true, kForever));
  CHECK(text_of(message) == "between");
  must(in->receive(message, true, kForever));
  check_regions(message, 2);
}

TEST_CASE(
    "the regions of a list that takes several requests are all held when it is sent, whatever other threads send") {
  constexpr int kRegions = 600, kRounds = 4;
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto pool = must(make_pool(session, PoolSpec{.name = "p"}));
  auto in = reader(must(try_pool(beside(broker, pool), "p")), "q", Kind::mpmc);
  auto out = writer(pool, "q", Kind::mpmc);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Region::Handle> regions;
    std::vector<OutPart> parts;
    for (int i = 0; i < kRegions; ++i) {
      regions.push_back(filled_region(session, 4096, i));
      parts.push_back(region_part(*regions.back()));
    }
    std::atomic<bool> sent = false;
    std::thread others([&] {
      while (!sent) {
        const auto small = out->send(bytes_of("small"), kNoWait);
        if (!small) CHECK(small.error().status == Status::full);
        std::this_thread::yield();
      }
    });
    std::thread sends([&] {
      must(out->send(parts, 0, 0, kForever));
      sent = true;
      regions.clear();
    });
    Message message;
    do must(in->receive(message, true, kForever));
    while (message.count() == 1);
    sends.join();
    others.join();
    check_regions(message, kRegions);
    must(message.done());
    while (in->receive(message, true, kNoWait)) CHECK(text_of(message) == "small");
  }
}
