// SPDX-License-Identifier: Apache-2.0
// Spsc lanes: one sender, one receiver.
#include <thread>

#include "base/sys_process.hpp"
#include "tests/client/lane/pool_memory.hpp"

namespace {

using namespace pool_tests;

struct Spsc {
  explicit Spsc(std::uint32_t slots = 4, std::uint32_t cells = 4, std::uint32_t cell_size = 64, std::uint32_t flags = 0,
                std::uint64_t start = 0)
      : memory(slots),
        view(memory.lane(QueueKind::spsc, cells, cell_size)),
        writer(memory.view(), 0, 1),
        reader(memory.view(), 1, 1) {
    view.head() = start;
    sender.emplace(writer, view, flags, 0, [this](Held&& held) { regions.push_back(std::move(held)); }, start);
    receiver.emplace(reader, view, flags, 0, 0, 1, start);
    writer.set_cache_limit(0);
  }
  PoolMemory memory;
  pool::LaneView view;
  Participant writer, reader;
  std::vector<Held> regions;
  std::optional<SpscSender> sender;
  std::optional<SpscReceiver> receiver;
  LaneReceiver::Received received;
};

TEST_CASE("messages of an spsc lane arrive in order, and a full one has no room until the reader is done") {
  Spsc line;
  CHECK(line.receiver->look(line.received) == Look::empty);
  for (std::uint64_t n = 0; n < 4; ++n) send_number(*line.sender, n);
  CHECK(line.sender->room() == Room::full);
  CHECK(line.sender->in_flight() == 4);
  CHECK(line.receiver->lag() == 4);
  for (std::uint64_t n = 0; n < 4; ++n) {
    REQUIRE(line.receiver->look(line.received) == Look::message);
    CHECK(number_of(line.received) == n);
    CHECK(line.received.bytes == 8);
    CHECK(line.received.position == n);
    REQUIRE(line.receiver->look(line.received) == Look::message);  // the same one again
    CHECK(number_of(line.received) == n);
    CHECK(line.sender->room() == (n == 0 ? Room::full : Room::yes));
    line.receiver->done();
    CHECK(line.sender->room() == Room::yes);
  }
  CHECK(line.receiver->look(line.received) == Look::empty);
  CHECK(line.sender->in_flight() == 0);
  CHECK(line.receiver->lag() == 0);
}

TEST_CASE("an inline message has any length that its cell has room for") {
  for (const std::uint32_t cell_size : {64U, 128U})
    for (const std::uint32_t flags : {0U, pool::kQueueExpiring}) {
      Spsc line(0, 2, cell_size, flags);
      const std::uint32_t most = cell_size - 8 - (flags ? 8 : 0);
      REQUIRE(line.sender->body_room() == most);
      std::byte body[pool::kTagMaxInline];
      for (std::uint32_t length = 0; length <= most; ++length) {
        for (std::uint32_t i = 0; i < length; ++i) body[i] = static_cast<std::byte>(i * 7 + length);
        REQUIRE(line.sender->room() == Room::yes);
        line.sender->publish(static_cast<std::uint8_t>(length), {body, length}, {}, 1000 + length);
        REQUIRE(line.receiver->look(line.received) == Look::message);
        REQUIRE(line.received.bytes == length);
        REQUIRE(std::memcmp(line.received.body, body, length) == 0);
        REQUIRE(line.received.deadline == (flags ? 1000 + length : 0));
        line.receiver->done();
      }
    }
}

TEST_CASE("a sender that looks ahead has back what its reader is done with, and takes that next") {
  Spsc line(64, 8);
  line.writer.set_cache_limit(2);
  const std::uint32_t first = must_acquire(line.writer, line.memory), second = must_acquire(line.writer, line.memory);
  CHECK_FALSE(line.writer.look_ahead(first).has_value());  // nothing is under way
  for (const std::uint32_t slot : {first, second}) {
    send_slot(line.writer, *line.sender, slot);
    line.writer.drop(slot);
  }
  CHECK_FALSE(line.writer.look_ahead(first).has_value());  // its reader has taken nothing
  CHECK(line.writer.holds(first));
  for (int n = 0; n < 2; ++n) {
    REQUIRE(line.receiver->look(line.received) == Look::message);
    line.receiver->done();
  }
  // After a look for nothing some are spared.
  std::optional<std::uint32_t> next;
  for (int sends = 0; sends < 20 && !next; ++sends) next = line.writer.look_ahead(first);
  REQUIRE(next.has_value());
  CHECK((*next == first || *next == second));
  CHECK_FALSE(line.writer.holds(*next));
  CHECK(must_acquire(line.writer, line.memory) == *next);
}

TEST_CASE("of few slots none stays idle, and a sender that looked ahead need not ask its reader to have the next") {
  Spsc line(6, 8);
  const std::uint32_t first = must_acquire(line.writer, line.memory);
  send_slot(line.writer, *line.sender, first);
  line.writer.drop(first);
  const std::uint32_t second = must_acquire(line.writer, line.memory);
  CHECK(second != first);
  send_slot(line.writer, *line.sender, second);
  line.writer.drop(second);
  REQUIRE(line.receiver->look(line.received) == Look::message);
  line.receiver->done();
  std::optional<std::uint32_t> next;
  for (int sends = 0; sends < 20 && !next; ++sends) next = line.writer.look_ahead(second);
  CHECK(next == first);
  CHECK(line.memory.mask(first) == 0);  // anybody may have it
  REQUIRE(line.receiver->look(line.received) == Look::message);
  line.receiver->done();
  CHECK(must_acquire(line.writer, line.memory) == first);
  CHECK(line.memory.mask(second) == 1);  // so the reader was not asked
  CHECK(must_acquire(line.writer, line.memory) != first);
}

TEST_CASE("a slot in flight is held by its sender until the reader is done with the cell") {
  Spsc line;
  const std::uint32_t slot = must_acquire(line.writer, line.memory);
  send_slot(line.writer, *line.sender, slot);
  line.writer.drop(slot);
  CHECK(line.memory.mask(slot) == 1);
  REQUIRE(line.receiver->look(line.received) == Look::message);
  CHECK(handle_in(line.received).slot == slot);
  line.sender->reclaim();
  CHECK(line.memory.mask(slot) == 1);

  SUBCASE("borrowed: it is free once the sender has looked") {
    line.receiver->done();
    CHECK(line.memory.mask(slot) == 1);
    line.sender->reclaim();
    CHECK(line.memory.mask(slot) == 0);
  }
  SUBCASE("kept: it is the reader's until it drops it") {
    REQUIRE(line.reader.keep(slot, handle_in(line.received).generation));
    line.receiver->done();
    line.sender->reclaim();
    CHECK(line.memory.mask(slot) == 2);
    line.reader.drop(slot);
    CHECK(line.memory.mask(slot) == 0);
  }
  SUBCASE("an acquire that finds none looks at the lanes by itself") {
    for (int i = 0; i < 3; ++i) must_acquire(line.writer, line.memory);
    const SlotRange all = line.memory.all();
    CHECK_FALSE(line.writer.acquire({&all, 1}).has_value());
    line.receiver->done();
    CHECK(must_acquire(line.writer, line.memory) == slot);
  }
  SUBCASE("a sender that gives up holds nothing") {
    line.sender->give_up_all();
    CHECK(line.memory.mask(slot) == 0);
  }
}

TEST_CASE("the same slot sent twice and taken twice is held until both are dropped") {
  Spsc line;
  const std::uint32_t slot = must_acquire(line.writer, line.memory);
  send_slot(line.writer, *line.sender, slot);
  send_slot(line.writer, *line.sender, slot);
  line.writer.drop(slot);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(line.receiver->look(line.received) == Look::message);
    REQUIRE(line.reader.keep(slot, handle_in(line.received).generation));
    line.receiver->done();
    line.sender->reclaim();
    CHECK(line.memory.mask(slot) == (i == 0 ? 3 : 2));
  }
  line.reader.drop(slot);
  CHECK(line.memory.mask(slot) == 2);
  line.reader.drop(slot);
  CHECK(line.memory.mask(slot) == 0);
}

TEST_CASE("a list in flight holds each of its slots, and its regions are let go when it is done") {
  Spsc line;
  const std::uint32_t one = must_acquire(line.writer, line.memory), two = must_acquire(line.writer, line.memory);
  Held held;
  held.list = std::make_unique<HeldList>();
  held.list->slots = {one, two};
  held.list->regions = {77, 78};
  pool::Handle handle{};
  handle.slot = pool::kNone;
  REQUIRE(line.sender->room() == Room::yes);
  line.sender->publish(pool::kTagListInRegion, bytes_of(&handle, sizeof(handle)), std::move(held));
  CHECK(line.sender->holding());
  std::vector<std::atomic<std::uint64_t>*> sources;
  line.writer.slot_sources(sources);
  CHECK(sources.size() == 2);
  REQUIRE(line.receiver->look(line.received) == Look::message);
  CHECK(line.received.tag == pool::kTagListInRegion);
  line.receiver->done();
  CHECK(line.sender->in_flight() == 0);
  CHECK((line.memory.mask(one) | line.memory.mask(two)) == 0);
  REQUIRE(line.regions.size() == 1);
  CHECK(line.regions[0].list->regions == std::vector<std::uint64_t>{77, 78});
  CHECK_FALSE(line.sender->holding());
}

TEST_CASE("a reader of a dead sender's lane sees every message before the end") {
  Spsc line;
  send_number(*line.sender, 1);
  line.memory.set(0, 1, ParticipantState::dead);
  REQUIRE(line.receiver->look(line.received) == Look::message);
  line.receiver->done();
  CHECK(line.receiver->look(line.received) == Look::drained);

  SUBCASE("also one that was published between its look and the sender's death") {
    line.memory.set(0, 1, ParticipantState::live);
    const AtStep late(Step::R1_done, [&] {
      send_number(*line.sender, 2);
      line.memory.set(0, 1, ParticipantState::dead);
    });
    REQUIRE(line.receiver->look(line.received) == Look::message);
    CHECK(number_of(line.received) == 2);
  }
  SUBCASE("and the next life of the index is not that sender") {
    line.memory.set(0, 2, ParticipantState::live);
    CHECK(line.receiver->look(line.received) == Look::drained);
  }
}

TEST_CASE("positions go on behind the 49 bits of a cell") {
  Spsc line(0, 4, 64, 0, pool::kPositionMask - 5);
  for (std::uint64_t n = 0; n < 20; ++n) {
    send_number(*line.sender, n);
    send_number(*line.sender, n + 100);
    for (const std::uint64_t expected : {n, n + 100}) {
      REQUIRE(line.receiver->look(line.received) == Look::message);
      CHECK(number_of(line.received) == expected);
      line.receiver->done();
    }
    CHECK(line.receiver->look(line.received) == Look::empty);
  }
}

TEST_CASE("a sender calls a head that no reader could have written broken") {
  Spsc line;
  for (std::uint64_t n = 0; n < 4; ++n) send_number(*line.sender, n);
  SUBCASE("beyond the tail") { line.view.head() = 5; }
  SUBCASE("far beyond it") { line.view.head() = UINT64_MAX; }
  SUBCASE("before what it was") {
    line.view.head() = 2;
    CHECK(line.sender->in_flight() == 2);
    for (std::uint64_t n = 0; n < 2; ++n) send_number(*line.sender, n);
    line.view.head() = 1;
  }
  CHECK(line.sender->room() == Room::broken);
}

TEST_CASE("a reader calls words that no sender could have written broken") {
  Spsc line(4, 4, 64);
  auto& word = line.view.cell(0).word;
  SUBCASE("a message of a later lap") { word = CellWord::full(4, 8); }
  SUBCASE("a state of other kinds") { word = CellWord::busy(0); }
  SUBCASE("a claimed cell") { word = CellWord{0, 9, 8}.word(); }
  SUBCASE("all ones") { word = UINT64_MAX; }
  CHECK(line.receiver->look(line.received) == Look::broken);
}

TEST_CASE("a message that cannot be is done, and what is behind it is read") {
  Spsc line(4, 4, 64);
  send_number(*line.sender, 0);
  send_number(*line.sender, 1);
  auto& word = line.view.cell(0).word;
  auto body = [&](const pool::Handle& handle) { std::memcpy(line.view.cell(0).body(), &handle, sizeof(handle)); };
  pool::Handle good{};
  good.length = PoolMemory::kSlotBytes;
  SUBCASE("more bytes than the cell has") { word = CellWord::full(0, 57); }
  SUBCASE("a tag that means nothing") { word = CellWord::full(0, 0xf0); }
  SUBCASE("a slot that does not exist") {
    good.slot = 4;
    body(good);
    word = CellWord::full(0, pool::kTagSlot);
  }
  SUBCASE("the slot of a list that does not exist") {
    good.slot = pool::kNone;
    body(good);
    word = CellWord::full(0, pool::kTagListInSlot);
  }
  SUBCASE("more than the slot has") {
    good.offset = 1;
    body(good);
    word = CellWord::full(0, pool::kTagSlot);
  }
  CHECK(line.receiver->look(line.received) == Look::refused);
  CHECK(line.sender->in_flight() == 1);
  REQUIRE(line.receiver->look(line.received) == Look::message);
  CHECK(number_of(line.received) == 1);
}

TEST_CASE("a hole punched into a lane reads as empty cells") {
  Spsc line;
  for (std::uint64_t n = 0; n < 6; ++n) {
    send_number(*line.sender, n);
    REQUIRE(line.receiver->look(line.received) == Look::message);
    line.receiver->done();
  }
  for (std::uint64_t n = 0; n < 4; ++n) line.view.cell(n).word = 0;
  CHECK(line.receiver->look(line.received) == Look::empty);
}

TEST_CASE("two threads stream numbers and slots through a small spsc lane, in order and whole") {
  constexpr std::uint32_t kSlots = 8;
  Spsc line(kSlots, 4, 64);
  line.writer.set_cache_limit(2);
  const std::uint64_t count = 100'000 / static_cast<std::uint64_t>(harness::slowdown());
  const Deadline patience = Deadline::after(120'000'000'000);
  auto& waiters = line.memory.view().queue_waiters(0);
  std::thread writing([&] {
    const std::lock_guard guard(line.writer.lock());
    std::vector<std::atomic<std::uint64_t>*> room_masks{&waiters.writers.mask}, slot_masks;
    slot_masks = room_masks;
    slot_masks.push_back(&line.memory.view().control().slot_waiters.mask);
    const SlotRange all = line.memory.all();
    for (std::uint64_t n = 0; n < count; ++n) {
      std::optional<std::uint32_t> slot;
      if (n % 3 == 0) {
        const auto got = line.writer.sleeper().wait(
            slot_masks, [&] { return (slot = line.writer.acquire({&all, 1})).has_value(); }, patience);
        if (!got || !*got) return;
        fill(line.memory.data(*slot), n);
      }
      const auto room =
          line.writer.sleeper().wait(room_masks, [&] { return line.sender->room() != Room::full; }, patience);
      if (!room || !*room || line.sender->room() != Room::yes) return;
      if (slot) {
        Held held;
        held.slot = *slot;
        const pool::Handle handle = handle_of(line.writer, *slot);
        line.sender->publish(pool::kTagSlot, bytes_of(&handle, sizeof(handle)), std::move(held));
      } else {
        line.sender->publish(8, bytes_of(&n, 8), {});
      }
    }
  });
  std::uint64_t wrong = 0, n = 0;
  std::vector<std::uint32_t> kept;
  std::unique_lock guard(line.reader.lock());
  std::atomic<std::uint64_t>* const masks[] = {&waiters.readers.mask};
  for (; n < count; ++n) {
    const auto there =
        line.reader.sleeper().wait(masks, [&] { return line.receiver->look(line.received) != Look::empty; }, patience);
    if (!there || !*there || line.receiver->look(line.received) != Look::message) break;
    if (line.received.tag == pool::kTagSlot) {
      const pool::Handle handle = handle_in(line.received);
      if (n % 2 == 0) {  // kept for a while
        wrong += !line.reader.keep(handle.slot, handle.generation);
        kept.push_back(handle.slot);
      }
      wrong += !filled(line.memory.data(handle.slot), n);
    } else {
      wrong += number_of(line.received) != n;
    }
    line.receiver->done();
    if (kept.size() > 3) {
      line.reader.drop(kept.front());
      kept.erase(kept.begin());
    }
  }
  guard.unlock();
  writing.join();
  CHECK(n == count);
  CHECK(wrong == 0);
  for (const std::uint32_t slot : kept) line.reader.drop(slot);
  CHECK(line.sender->in_flight() == 0);
  line.writer.flush_cache();
  line.memory.check_no_holders();
}

}  // namespace
