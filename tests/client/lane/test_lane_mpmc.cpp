// SPDX-License-Identifier: Apache-2.0
// Mpmc lanes: consumers compete, and each message is taken by exactly one.
#include <thread>

#include "tests/client/lane/pool_memory.hpp"

namespace {

using namespace pool_tests;

struct Mpmc {
  explicit Mpmc(std::uint32_t cells = 4, std::uint32_t flags = 0, std::uint32_t slots = 4)
      : memory(slots), view(memory.lane(QueueKind::mpmc, cells)), writer(memory.view(), 0, 1) {
    sender.emplace(writer, view, flags, 0, nullptr);
    writer.set_cache_limit(0);
    for (std::uint32_t i = 0; i < 2; ++i) {
      consumers[i].emplace(memory.view(), i + 1, 1);
      receivers[i].emplace(*consumers[i], view, flags, 0, 0, 1);
    }
  }
  Look look(int consumer) { return receivers[consumer]->look(received); }
  PoolMemory memory;
  pool::LaneView view;
  Participant writer;
  std::optional<MpmcSender> sender;
  std::optional<Participant> consumers[2];
  std::optional<MpmcReceiver> receivers[2];
  LaneReceiver::Received received;
};

TEST_CASE("each message of an mpmc lane goes to one consumer, in order of claims") {
  Mpmc lane;
  CHECK(lane.look(0) == Look::empty);
  for (std::uint64_t n = 0; n < 4; ++n) send_number(*lane.sender, n);
  CHECK(lane.sender->room() == Room::full);
  for (std::uint64_t n = 0; n < 4; ++n) {
    REQUIRE(lane.look(n % 2) == Look::message);
    CHECK(number_of(lane.received) == n);
  }
  CHECK(lane.look(0) == Look::empty);
  CHECK(lane.sender->in_flight() == 4);
  lane.receivers[0]->done(0);
  CHECK(lane.sender->in_flight() == 3);
  CHECK(lane.sender->room() == Room::yes);
  send_number(*lane.sender, 4);
  CHECK(lane.sender->room() == Room::full);  // position 1 is claimed, not done
  lane.receivers[0]->done(2);
  CHECK(lane.sender->room() == Room::full);
  lane.receivers[1]->done(1);
  CHECK(lane.sender->room() == Room::yes);
}

// Each consumer remembers what it saw done, and the head lags behind.
TEST_CASE("a message behind a lap of claimed ones is found by a consumer that looks for the first time") {
  Mpmc lane;
  for (std::uint64_t n = 0; n < 4; ++n) {
    send_number(*lane.sender, n);
    REQUIRE(lane.look(0) == Look::message);
  }
  lane.receivers[0]->done(0);
  REQUIRE(lane.sender->room() == Room::yes);
  send_number(*lane.sender, 4);  // into the cell of 0; those of 1, 2 and 3 are claimed
  CHECK(lane.receivers[1]->unclaimed());
  CHECK(lane.receivers[1]->lag() == 1);
  REQUIRE(lane.look(1) == Look::message);
  CHECK(number_of(lane.received) == 4);
}

TEST_CASE("the head of an mpmc lane stays near the messages that are done") {
  Mpmc lane(64);
  for (std::uint64_t n = 0; n < 1000; ++n) {
    REQUIRE(lane.sender->room() == Room::yes);
    send_number(*lane.sender, n);
    REQUIRE(lane.look(0) == Look::message);
    CHECK(number_of(lane.received) == n);
    lane.receivers[0]->done();
    CHECK(n + 1 - lane.view.head() <= 10);
  }
  CHECK(lane.look(1) == Look::empty);
  send_number(*lane.sender, 1000);
  REQUIRE(lane.look(1) == Look::message);
  CHECK(number_of(lane.received) == 1000);
}

TEST_CASE("several messages of an mpmc lane wake every consumer that sleeps, one message wakes one") {
  Mpmc lane;
  const auto& view = lane.memory.view();
  pool::Waiters& readers = view.queue_waiters(0).readers;
  readers.mask = 6;
  for (std::uint32_t i = 1; i <= 2; ++i) view.wait(i).sleep = 4 | pool::kSleepFutex;
  auto woken = [&] { return view.wait(1).event + view.wait(2).event; };
  send_number(*lane.sender, 0);
  CHECK(woken() == 1);
  for (std::uint32_t i = 1; i <= 2; ++i) view.wait(i).sleep = 4 | pool::kSleepFutex;
  lane.sender->wake_readers(2);
  CHECK(woken() == 3);
  readers.mask = 0;
}

TEST_CASE("a consumer that sleeps is woken for a message that another one gives back") {
  Mpmc lane;
  const auto& view = lane.memory.view();
  send_number(*lane.sender, 0);
  REQUIRE(lane.look(0) == Look::message);
  pool::Waiters& readers = view.queue_waiters(0).readers;
  readers.mask = 4;
  view.wait(2).sleep = 4 | pool::kSleepFutex;
  lane.receivers[0]->give_back();
  CHECK(view.wait(2).event == 1);
  CHECK(view.wait(2).sleep == 0);
  readers.mask = 0;
}

TEST_CASE("a message that was given back is taken again, before later ones") {
  Mpmc lane;
  for (std::uint64_t n = 0; n < 3; ++n) send_number(*lane.sender, n);
  REQUIRE(lane.look(0) == Look::message);
  REQUIRE(lane.look(1) == Look::message);
  CHECK(number_of(lane.received) == 1);
  lane.receivers[1]->done();
  lane.receivers[0]->give_back();
  REQUIRE(lane.look(1) == Look::message);
  CHECK(number_of(lane.received) == 0);
  lane.receivers[1]->done();
  REQUIRE(lane.look(0) == Look::message);
  CHECK(number_of(lane.received) == 2);
}

TEST_CASE("a claim that another consumer wins sends this one to the next message") {
  Mpmc lane;
  for (std::uint64_t n = 0; n < 2; ++n) send_number(*lane.sender, n);
  LaneReceiver::Received theirs;
  const AtStep first(Step::C4, [&] { CHECK(lane.receivers[1]->look(theirs) == Look::message); });
  REQUIRE(lane.look(0) == Look::message);
  CHECK(number_of(theirs) == 0);
  CHECK(number_of(lane.received) == 1);
}

TEST_CASE("a slot in an mpmc lane is held by its sender until the consumer is done, in any order") {
  Mpmc lane;
  const std::uint32_t one = must_acquire(lane.writer, lane.memory), two = must_acquire(lane.writer, lane.memory);
  for (const std::uint32_t slot : {one, two}) {
    send_slot(lane.writer, *lane.sender, slot);
    lane.writer.drop(slot);
  }
  REQUIRE(lane.look(0) == Look::message);
  REQUIRE(lane.look(1) == Look::message);
  REQUIRE(lane.consumers[1]->keep(two, handle_in(lane.received).generation));
  lane.receivers[1]->done();
  lane.sender->reclaim();
  CHECK(lane.memory.mask(one) == 1);
  CHECK(lane.memory.mask(two) == 4);
  lane.receivers[0]->done(0);
  lane.sender->reclaim();
  CHECK(lane.memory.mask(one) == 0);
  lane.consumers[1]->drop(two);
  lane.memory.check_no_holders();
}

TEST_CASE("a message whose deadline has passed is taken back unless a receiver has claimed it") {
  Mpmc lane(4, pool::kQueueExpiring);
  const std::uint32_t slot = must_acquire(lane.writer, lane.memory);
  const std::uint64_t number = 7;
  lane.sender->publish(8, bytes_of(&number, 8), {}, 100);  // 0: claimed below
  REQUIRE(lane.look(0) == Look::message);
  CHECK(lane.received.deadline == 100);
  Held held;
  held.slot = slot;
  const pool::Handle handle = handle_of(lane.writer, slot);
  lane.sender->publish(pool::kTagSlot, bytes_of(&handle, sizeof(handle)), std::move(held), 100);  // 1: expires
  lane.sender->publish(8, bytes_of(&number, 8), {}, 200);                                         // 2: not yet
  lane.sender->publish(8, bytes_of(&number, 8), {}, 0);                                           // 3: never
  CHECK(lane.sender->room() == Room::full);
  lane.sender->expire(99);
  CHECK(lane.sender->expired() == 0);
  lane.sender->expire(100);
  CHECK(lane.sender->expired() == 1);
  CHECK(lane.memory.mask(slot) == 0);
  lane.receivers[0]->give_back();
  lane.sender->expire(150);
  CHECK(lane.sender->expired() == 2);
  CHECK(lane.sender->room() == Room::yes);
  REQUIRE(lane.look(1) == Look::message);
  CHECK(lane.received.position == 2);
  lane.receivers[1]->done();
  lane.sender->expire(INT64_MAX - 1);
  CHECK(lane.sender->expired() == 2);
  REQUIRE(lane.look(1) == Look::message);
  CHECK(lane.received.position == 3);
}

TEST_CASE("a consumer that claims while the sender expires wins or finds nothing, never both") {
  Mpmc lane(4, pool::kQueueExpiring);
  const std::uint64_t number = 7;
  lane.sender->publish(8, bytes_of(&number, 8), {}, 100);
  SUBCASE("the consumer") {
    const AtStep first(Step::KX, [&] { CHECK(lane.look(0) == Look::message); });
    lane.sender->expire(100);
    CHECK(lane.sender->expired() == 0);
  }
  SUBCASE("the sender") {
    const AtStep first(Step::C4, [&] { lane.sender->expire(100); });
    CHECK(lane.look(0) == Look::empty);
    CHECK(lane.sender->expired() == 1);
  }
}

TEST_CASE("a dead sender's mpmc lane is drained when nothing is full or claimed") {
  Mpmc lane;
  for (std::uint64_t n = 0; n < 2; ++n) send_number(*lane.sender, n);
  REQUIRE(lane.look(1) == Look::message);
  lane.memory.set(0, 1, ParticipantState::dead);
  REQUIRE(lane.look(0) == Look::message);
  lane.receivers[0]->done();
  CHECK(lane.look(0) == Look::empty);  // the other one's claim may come back
  lane.receivers[1]->give_back();
  REQUIRE(lane.look(0) == Look::message);
  lane.receivers[0]->done();
  CHECK(lane.look(0) == Look::drained);
}

TEST_CASE("a message published between the look and the death of its sender is found") {
  Mpmc lane;
  const AtStep late(Step::L1, [&] {
    send_number(*lane.sender, 5);
    lane.memory.set(0, 1, ParticipantState::dead);
  });
  REQUIRE(lane.look(0) == Look::message);
  CHECK(number_of(lane.received) == 5);
}

TEST_CASE("impossible claim words are reported as broken, and impossible messages are refused") {
  Mpmc lane;
  auto& word = lane.view.cell(0).word;
  SUBCASE("a reader: busy") {
    word = CellWord::busy(0);
    CHECK(lane.look(0) == Look::broken);
  }
  SUBCASE("a reader: claimed by participant 64") {
    word = CellWord{0, pool::kClaimedBy + 64, 8}.word();
    CHECK(lane.look(0) == Look::broken);
  }
  SUBCASE("a reader: a tag that means nothing") {
    word = CellWord::full(0, 0xf0);
    CHECK(lane.look(0) == Look::refused);
    CHECK(lane.look(0) == Look::empty);
  }
  SUBCASE("a reader: a handle that points nowhere") {
    const pool::Handle handle{99, 1, 0, 0, 8, 0, 0};
    std::memcpy(lane.view.cell(0).body(), &handle, sizeof(handle));
    word = CellWord::full(0, pool::kTagSlot);
    CHECK(lane.look(0) == Look::refused);
    CHECK(lane.look(0) == Look::empty);
  }
  SUBCASE("a reader: the head is ahead of what is done") {
    lane.view.head() = 4;
    CHECK(lane.look(0) == Look::broken);
    lane.view.head() = std::uint64_t{1} << 40;
    CHECK(lane.look(0) == Look::broken);
  }
  SUBCASE("a reader: cells far behind") {
    lane.view.head() = 1;
    lane.view.cell(1).word = 0;
    CHECK(lane.look(0) == Look::broken);
  }
  SUBCASE("a reader: cells that are always done") {
    lane.view.head() = std::uint64_t{0} - (std::uint64_t{1} << 40);
    CHECK(lane.look(0) == Look::broken);
  }
  SUBCASE("a sender: a claim of a later lap") {
    word = CellWord{4, 9, 0}.word();
    CHECK(lane.sender->room() == Room::broken);
  }
  SUBCASE("a sender: all ones") {
    word = UINT64_MAX;
    CHECK(lane.sender->room() == Room::broken);
  }
  SUBCASE("a sender: a message that is not done keeps its slot") {
    const std::uint32_t slot = must_acquire(lane.writer, lane.memory);
    send_slot(lane.writer, *lane.sender, slot);
    lane.writer.drop(slot);
    word = CellWord::empty(40);
    lane.sender->reclaim();
    CHECK(lane.memory.mask(slot) == 1);
  }
}

TEST_CASE("claim positions go on behind the 49 bits of a cell") {
  PoolMemory memory(0);
  const pool::LaneView view = memory.lane(QueueKind::mpmc, 4);
  const std::uint64_t start = pool::kPositionMask - 5;
  for (std::uint64_t k = start; k < start + 4; ++k) view.cell(k).word = CellWord::empty(k);
  view.head() = start;
  Participant writer(memory.view(), 0, 1), reader(memory.view(), 1, 1);
  MpmcSender sender(writer, view, 0, 0, nullptr, start);
  MpmcReceiver receiver(reader, view, 0, 0, 0, 1);
  LaneReceiver::Received received;
  for (std::uint64_t n = 0; n < 20; ++n) {
    send_number(sender, n);
    REQUIRE(receiver.look(received) == Look::message);
    CHECK(number_of(received) == n);
    receiver.done(received.position);
    CHECK(receiver.look(received) == Look::empty);
  }
}

TEST_CASE("threads that compete take each of many messages exactly once, and slots whole") {
  constexpr std::uint32_t kSlots = 8;
  Mpmc lane(8, 0, kSlots);
  const std::uint64_t count = 100'000 / static_cast<std::uint64_t>(harness::slowdown());
  const Deadline patience = Deadline::after(120'000'000'000);
  auto& waiters = lane.memory.view().queue_waiters(0);
  std::vector<std::atomic<std::uint8_t>> taken(count);
  std::atomic<std::uint64_t> total{0}, wrong{0};
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      MpmcReceiver& receiver = *lane.receivers[i];
      Participant& me = *lane.consumers[i];
      const std::lock_guard guard(me.lock());
      std::atomic<std::uint64_t>* const masks[] = {&waiters.readers.mask};
      LaneReceiver::Received received;
      for (std::uint64_t turn = 0;; ++turn) {
        Look seen = Look::empty;
        const auto there =
            me.sleeper().wait(masks, [&] { return (seen = receiver.look(received)) != Look::empty; }, patience);
        if (!there || !*there || seen != Look::message) break;
        if (turn % 17 == 0) {
          receiver.give_back();
          continue;
        }
        std::uint64_t n = 0;
        if (received.tag == pool::kTagSlot) {
          const pool::Handle handle = handle_in(received);
          n = handle.type;
          const bool keep = n % 2 == 0;
          if (keep) {
            wrong += !me.keep(handle.slot, handle.generation);
            receiver.done();
          }
          wrong += !filled(lane.memory.data(handle.slot), n);
          if (keep) me.drop(handle.slot);
          else receiver.done();
        } else {
          n = number_of(received);
          receiver.done();
        }
        if (n < count) ++taken[n];
        ++total;
      }
    });
  std::vector<std::atomic<std::uint64_t>*> masks{&waiters.writers.mask,
                                                 &lane.memory.view().control().slot_waiters.mask};
  const SlotRange all = lane.memory.all();
  std::unique_lock guard(lane.writer.lock());
  for (std::uint64_t n = 0; n < count; ++n) {
    std::optional<std::uint32_t> slot;
    const auto ready = lane.writer.sleeper().wait(
        masks,
        [&] {
          if (n % 3 == 0 && !slot && !(slot = lane.writer.acquire({&all, 1}))) return false;
          return lane.sender->room() != Room::full;
        },
        patience);
    if (!ready || !*ready || lane.sender->room() != Room::yes) break;
    if (slot) {
      fill(lane.memory.data(*slot), n);
      pool::Handle handle = handle_of(lane.writer, *slot);
      handle.type = n;
      Held held;
      held.slot = *slot;
      lane.sender->publish(pool::kTagSlot, bytes_of(&handle, sizeof(handle)), std::move(held));
    } else {
      lane.sender->publish(8, bytes_of(&n, 8), {});
    }
  }
  while (lane.sender->in_flight() > 0 && !patience.passed()) std::this_thread::yield();
  guard.unlock();
  lane.memory.set(0, 1, ParticipantState::left);
  for (std::uint32_t i = 1; i <= 2; ++i) lane.memory.wake(i);
  for (std::thread& thread : threads) thread.join();
  CHECK(total == count);
  CHECK(wrong == 0);
  std::uint64_t once = 0;
  for (const auto& times : taken) once += times == 1;
  CHECK(once == count);
  lane.sender->reclaim();
  lane.memory.check_no_holders();
}

}  // namespace
