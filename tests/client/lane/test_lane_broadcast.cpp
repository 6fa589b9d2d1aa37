// SPDX-License-Identifier: Apache-2.0
// Broadcast lanes: every reader has every message, or with drop-oldest the newest ones.
#include <thread>

#include "tests/client/lane/pool_memory.hpp"

namespace {

using namespace pool_tests;

struct Ring {
  explicit Ring(std::uint32_t flags = 0, std::uint32_t cells = 4, std::uint32_t slots = 8, std::uint64_t start = 0)
      : memory(slots), view(memory.lane(QueueKind::broadcast, cells)), writer(memory.view(), 0, 1) {
    view.tail() = start;
    sender.emplace(writer, view, flags, 0, nullptr, start);
    writer.set_cache_limit(0);
    memory.open_readers(6);
    for (std::uint32_t i = 0; i < 2; ++i) {
      readers[i].emplace(memory.view(), i + 1, 1);
      receivers[i].emplace(*readers[i], view, flags, 0, 0, 1);
    }
  }
  Look look(int reader) { return receivers[reader]->look(received); }
  PoolMemory memory;
  pool::LaneView view;
  Participant writer;
  std::optional<BroadcastSender> sender;
  std::optional<Participant> readers[2];
  std::optional<BroadcastReceiver> receivers[2];
  LaneReceiver::Received received;
};

TEST_CASE("every attached reader has every message, and the slowest live one makes the writer wait") {
  Ring ring;
  send_number(*ring.sender, 100);  // nobody is attached: nobody has it
  REQUIRE(ring.receivers[0]->attach());
  REQUIRE(ring.receivers[1]->attach());
  for (std::uint64_t n = 0; n < 4; ++n) send_number(*ring.sender, n);
  CHECK(ring.sender->room() == Room::full);
  for (std::uint64_t n = 0; n < 4; ++n) {
    REQUIRE(ring.look(0) == Look::message);
    CHECK(number_of(ring.received) == n);
    CHECK(ring.receivers[0]->confirm());
    ring.receivers[0]->done();
  }
  CHECK(ring.look(0) == Look::empty);
  CHECK(ring.sender->room() == Room::full);
  CHECK(ring.sender->in_flight() == 4);
  CHECK(ring.receivers[1]->lag() == 4);

  SUBCASE("until it has read") {
    REQUIRE(ring.look(1) == Look::message);
    CHECK(number_of(ring.received) == 0);
    ring.receivers[1]->done();
    CHECK(ring.sender->room() == Room::yes);
  }
  SUBCASE("until it is dead") { ring.memory.set(2, 1, ParticipantState::dead); }
  SUBCASE("until it detaches") { ring.receivers[1]->detach(); }
  CHECK(ring.sender->room() == Room::yes);
}

TEST_CASE("of several readers the slowest one wakes a waiting writer, and so does one that has joined") {
  Ring ring;
  pool::WaitEntry& asleep = ring.memory.view().wait(0);
  pool::Waiters& waiters = ring.memory.view().queue_waiters(0).writers;
  auto sleeps = [&] {
    waiters.mask = 1;
    asleep.sleep = 4 | pool::kSleepFutex;
  };
  auto woken = [&] { return asleep.sleep == 0; };
  auto read = [&](int reader) {
    sleeps();
    REQUIRE(ring.look(reader) == Look::message);
    ring.receivers[reader]->done();
  };
  REQUIRE(ring.receivers[0]->attach());
  REQUIRE(ring.receivers[1]->attach());
  for (std::uint64_t n = 0; n < 4; ++n) send_number(*ring.sender, n);
  read(0);
  CHECK_FALSE(woken());  // the other one stands where both stood
  read(0);
  CHECK_FALSE(woken());
  SUBCASE("it moves") {
    read(1);
    CHECK(woken());
    read(1);
    CHECK(woken());  // where the first one is by now
    read(1);
    CHECK_FALSE(woken());
    read(0);
    CHECK(woken());
  }
  SUBCASE("it takes several at once, past the first one") {
    for (int n = 0; n < 3; ++n) {
      REQUIRE(ring.look(1) == Look::message);
      ring.receivers[1]->mark_done(ring.receivers[1]->position());
    }
    sleeps();
    ring.receivers[1]->wake_writers();
    CHECK(woken());
  }
  SUBCASE("it is dead") {
    ring.memory.set(2, 1, ParticipantState::dead);
    read(0);
    CHECK(woken());
  }
  SUBCASE("it has closed its end") {
    ring.memory.open_readers(2);
    read(0);
    CHECK(woken());
  }
  SUBCASE("it detaches") {
    sleeps();
    ring.receivers[1]->detach();
    CHECK(woken());
    read(0);
    CHECK(woken());
  }
  SUBCASE("it joins, and has held everything up until its place was known") {
    ring.receivers[1]->detach();
    const AtStep joining(Step::J2_done, [&] {
      read(0);
      CHECK_FALSE(woken());
    });
    REQUIRE(ring.receivers[1]->attach());
    CHECK(woken());
  }
  SUBCASE("it wanted to join, and the writer is gone") {
    ring.receivers[1]->detach();
    const AtStep joining(Step::J3_done, [&] {
      sleeps();
      ring.memory.set(0, 1, ParticipantState::dead);
    });
    CHECK_FALSE(ring.receivers[1]->attach());
    CHECK(woken());
  }
  waiters.mask = 0;
  asleep.sleep = 0;
}

TEST_CASE("a writer without readers never waits") {
  Ring ring;
  for (std::uint64_t n = 0; n < 50; ++n) send_number(*ring.sender, n);
  CHECK(ring.sender->in_flight() == 0);
}

TEST_CASE("a reader that joins has everything that is sent from then on") {
  Ring ring;
  for (std::uint64_t n = 0; n < 3; ++n) send_number(*ring.sender, n);
  SUBCASE("also while the writer writes") {
    // Attached, but where is not visible yet: the ring is held from its beginning.
    const AtStep between(Step::J3_done, [&] {
      send_number(*ring.sender, 3);
      CHECK(ring.sender->room() == Room::full);
    });
    REQUIRE(ring.receivers[0]->attach());
  }
  SUBCASE("quietly") { REQUIRE(ring.receivers[0]->attach()); }
  for (std::uint64_t n = 4; n < 8; ++n) send_number(*ring.sender, n);
  for (std::uint64_t n = 4; n < 8; ++n) {
    REQUIRE(ring.look(0) == Look::message);
    CHECK(number_of(ring.received) == n);
    ring.receivers[0]->done();
  }
}

TEST_CASE("the ring of a writer that is gone takes no new reader") {
  Ring ring;
  SUBCASE("before") {
    ring.memory.set(0, 1, ParticipantState::dead);
    CHECK_FALSE(ring.receivers[0]->attach());
  }
  SUBCASE("or while it joins") {
    const AtStep between(Step::J2_done, [&] { ring.memory.set(0, 1, ParticipantState::dead); });
    CHECK_FALSE(ring.receivers[0]->attach());
  }
  CHECK(ring.view.reader(1).position == 0);
}

TEST_CASE("a dead writer's ring is read to its end, and a cell that it left busy is nothing") {
  Ring ring;
  REQUIRE(ring.receivers[0]->attach());
  send_number(*ring.sender, 1);
  ring.view.cell(1).word = CellWord::busy(1);
  ring.memory.set(0, 1, ParticipantState::dead);
  REQUIRE(ring.look(0) == Look::message);
  ring.receivers[0]->done();
  CHECK(ring.look(0) == Look::drained);
}

TEST_CASE("a slot in a ring is held until every reader is done, or has kept it") {
  Ring ring;
  REQUIRE(ring.receivers[0]->attach());
  REQUIRE(ring.receivers[1]->attach());
  const std::uint32_t slot = must_acquire(ring.writer, ring.memory);
  send_slot(ring.writer, *ring.sender, slot);
  ring.writer.drop(slot);
  REQUIRE(ring.look(0) == Look::message);
  REQUIRE(ring.readers[0]->keep(slot, handle_in(ring.received).generation));
  CHECK(ring.receivers[0]->confirm());
  ring.receivers[0]->done();
  ring.sender->reclaim();
  CHECK(ring.memory.mask(slot) == 3);
  REQUIRE(ring.look(1) == Look::message);
  ring.receivers[1]->done();
  ring.sender->reclaim();
  CHECK(ring.memory.mask(slot) == 2);
  ring.readers[0]->drop(slot);
  ring.memory.check_no_holders();
}

TEST_CASE("drop-oldest overwrites what a slow reader has not seen, and the reader counts it") {
  Ring ring(pool::kQueueDropOldest);
  REQUIRE(ring.receivers[0]->attach());
  for (std::uint64_t n = 0; n < 10; ++n) send_number(*ring.sender, n);
  CHECK(ring.sender->in_flight() == 4);
  for (std::uint64_t n = 6; n < 10; ++n) {
    REQUIRE(ring.look(0) == Look::message);
    CHECK(number_of(ring.received) == n);
    ring.receivers[0]->done();
  }
  CHECK(ring.look(0) == Look::empty);
  CHECK(ring.receivers[0]->lost() == 6);
  CHECK(ring.view.reader(1).lost == 6);
}

TEST_CASE("drop-oldest: a message that is overwritten while it is read is lost, never torn") {
  Ring ring(pool::kQueueDropOldest);
  REQUIRE(ring.receivers[0]->attach());
  send_number(*ring.sender, 0);
  const AtStep between(Step::Q1_done, [&] {
    for (std::uint64_t n = 1; n < 6; ++n) send_number(*ring.sender, n);
  });
  REQUIRE(ring.look(0) == Look::message);
  CHECK(number_of(ring.received) == 2);
  CHECK(ring.receivers[0]->lost() == 2);
}

TEST_CASE("drop-oldest: a slot that was kept too late is given back, and its writer may use it at once") {
  Ring ring(pool::kQueueDropOldest);
  REQUIRE(ring.receivers[0]->attach());
  ring.writer.set_cache_limit(8);
  const std::uint32_t slot = must_acquire(ring.writer, ring.memory);
  send_slot(ring.writer, *ring.sender, slot);
  ring.writer.drop(slot);
  REQUIRE(ring.look(0) == Look::message);
  for (std::uint64_t n = 1; n < 5; ++n) send_number(*ring.sender, n);
  CHECK(ring.memory.mask(slot) == 1);  // idle at its writer

  SUBCASE("before the writer uses it again") {
    const std::uint32_t generation = handle_in(ring.received).generation;
    REQUIRE(ring.readers[0]->keep(slot, generation));
    CHECK(must_acquire(ring.writer, ring.memory) != slot);
    CHECK_FALSE(ring.receivers[0]->confirm());
    ring.readers[0]->undo(slot);
  }
  SUBCASE("after that") {
    int locked_looks = 0;
    {
      const AtStep count(Step::A2l, [&] { ++locked_looks; }, 100);
      CHECK(must_acquire(ring.writer, ring.memory) == slot);
    }
    CHECK(locked_looks == 1);
    CHECK_FALSE(ring.readers[0]->keep(slot, handle_in(ring.received).generation));
    CHECK_FALSE(ring.receivers[0]->confirm());
  }
  CHECK(ring.memory.mask(slot) == 1);
  CHECK(ring.receivers[0]->lost() == 1);
  REQUIRE(ring.look(0) == Look::message);
  CHECK(number_of(ring.received) == 1);
}

TEST_CASE("positions of a ring go on behind the 49 bits of a cell") {
  Ring ring(pool::kQueueDropOldest, 4, 0, pool::kPositionMask - 5);
  REQUIRE(ring.receivers[0]->attach());
  REQUIRE(ring.receivers[1]->attach());
  for (std::uint64_t n = 0; n < 20; ++n) {
    send_number(*ring.sender, n);
    REQUIRE(ring.look(0) == Look::message);
    CHECK(number_of(ring.received) == n);
    ring.receivers[0]->done();
    CHECK(ring.look(0) == Look::empty);
  }
  REQUIRE(ring.look(1) == Look::message);
  CHECK(number_of(ring.received) == 16);
  CHECK(ring.receivers[1]->lost() == 16);
}

void check_broken_words(std::uint32_t flags) {
  Ring ring(flags);
  REQUIRE(ring.receivers[0]->attach());
  auto& word = ring.view.cell(0).word;
  Look expected = Look::broken;
  SUBCASE("a position beyond the tail") { word = CellWord::full(4, 8); }
  SUBCASE("busy beyond the tail") { word = CellWord::busy(400); }
  SUBCASE("claimed") { word = CellWord{0, 5, 8}.word(); }
  SUBCASE("empty at a later position") { word = CellWord::empty(8); }
  SUBCASE("more bytes than there are") {
    word = CellWord::full(0, 57);
    expected = Look::refused;
  }
  SUBCASE("a handle that points nowhere") {
    const pool::Handle handle{99, 1, 0, 0, 8, 0, 0};
    std::memcpy(ring.view.cell(0).body(), &handle, sizeof(handle));
    word = CellWord::full(0, pool::kTagSlot);
    expected = Look::refused;
  }
  CHECK(ring.look(0) == expected);
}

TEST_CASE("ring words that no writer could have written are broken") { check_broken_words(0); }
TEST_CASE("drop-oldest ring words that no writer could have written are broken") {
  check_broken_words(pool::kQueueDropOldest);
}

TEST_CASE("a reader's position that is nonsense can only make the writer wait") {
  Ring ring;
  REQUIRE(ring.receivers[0]->attach());
  ring.view.reader(1).position = UINT64_MAX;
  for (std::uint64_t n = 0; n < 10; ++n) send_number(*ring.sender, n);
  CHECK(ring.sender->in_flight() == 0);
  ring.view.reader(1).position = 1;
  while (ring.sender->room() == Room::yes) send_number(*ring.sender, 0);
  CHECK(ring.sender->room() == Room::full);
  ring.memory.set(1, 1, ParticipantState::dead);
  CHECK(ring.sender->room() == Room::yes);
}

void stream(std::uint32_t flags) {
  constexpr std::uint32_t kSlots = 16;
  Ring ring(flags, 4, kSlots);
  const bool drop_oldest = flags != 0;
  ring.writer.set_cache_limit(4);
  const std::uint64_t count = 100'000 / static_cast<std::uint64_t>(harness::slowdown());
  const Deadline patience = Deadline::after(120'000'000'000);
  auto& waiters = ring.memory.view().queue_waiters(0);
  std::atomic<std::uint64_t> wrong{0}, lost{0}, seen_in_all{0};
  for (auto& receiver : ring.receivers) REQUIRE(receiver->attach());
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      BroadcastReceiver& receiver = *ring.receivers[i];
      Participant& me = *ring.readers[i];
      const std::lock_guard guard(me.lock());
      std::atomic<std::uint64_t>* const masks[] = {&waiters.readers.mask};
      LaneReceiver::Received received;
      std::uint64_t seen = 0, expected = 0;
      for (;;) {
        Look look = Look::empty;
        const auto there =
            me.sleeper().wait(masks, [&] { return (look = receiver.look(received)) != Look::empty; }, patience);
        if (!there || !*there || look != Look::message) {
          wrong += look != Look::drained;
          break;
        }
        std::uint64_t n = received.position;
        if (received.tag == pool::kTagSlot) {
          const pool::Handle handle = handle_in(received);
          const bool keep = drop_oldest || n % 2 == 0;  // drop-oldest knows no borrowing
          const bool kept = keep && me.keep(handle.slot, handle.generation);
          if (!receiver.confirm()) {
            if (kept) me.undo(handle.slot);
            continue;
          }
          wrong += keep && !kept;
          wrong += !filled(ring.memory.data(handle.slot), n);
          receiver.done();
          if (kept) me.drop(handle.slot);
        } else {
          wrong += number_of(received) != n;
          receiver.done();
        }
        wrong += n < expected || (!drop_oldest && n != expected);
        expected = n + 1;
        ++seen;
        if (drop_oldest && i == 1 && n % 64 == 0) std::this_thread::yield();
      }
      wrong += seen + receiver.lost() != count;
      lost += receiver.lost();
      seen_in_all += seen;
      receiver.detach();
    });
  std::vector<std::atomic<std::uint64_t>*> masks{&waiters.writers.mask,
                                                 &ring.memory.view().control().slot_waiters.mask};
  const SlotRange all = ring.memory.all();
  std::uint64_t sent = 0;
  std::unique_lock guard(ring.writer.lock());
  for (; sent < count; ++sent) {
    std::optional<std::uint32_t> slot;
    const auto ready = ring.writer.sleeper().wait(
        masks,
        [&] {
          if (sent % 3 == 0 && !slot && !(slot = ring.writer.acquire({&all, 1}))) return false;
          return ring.sender->room() != Room::full;
        },
        patience);
    if (!ready || !*ready || ring.sender->room() != Room::yes) break;
    if (slot) {
      fill(ring.memory.data(*slot), sent);
      const pool::Handle handle = handle_of(ring.writer, *slot);
      Held held;
      held.slot = *slot;
      ring.sender->publish(pool::kTagSlot, bytes_of(&handle, sizeof(handle)), std::move(held));
    } else {
      ring.sender->publish(8, bytes_of(&sent, 8), {});
    }
  }
  guard.unlock();
  CHECK(sent == count);
  ring.memory.set(0, 1, ParticipantState::left);
  for (std::uint32_t i = 1; i <= 2; ++i) ring.memory.wake(i);
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(seen_in_all > 0);
  if (!drop_oldest) CHECK(lost == 0);
  ring.sender->give_up_all();
  ring.writer.flush_cache();
  ring.memory.check_no_holders();
}

TEST_CASE("threads stream through a ring: every reader has every message, whole and in order") { stream(0); }

TEST_CASE("threads stream through a drop-oldest ring: what a reader has is whole, what it has not is counted") {
  stream(pool::kQueueDropOldest);
}

}  // namespace
