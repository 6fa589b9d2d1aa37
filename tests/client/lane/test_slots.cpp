// SPDX-License-Identifier: Apache-2.0
// Owning, dropping and keeping slots.
#include <thread>

#include "tests/client/lane/pool_memory.hpp"

namespace {

using namespace pool_tests;

TEST_CASE("a slot that was acquired is held by its owner alone, and has a new generation") {
  PoolMemory memory(4);
  Participant me(memory.view(), 1, 1);
  const std::uint32_t slot = must_acquire(me, memory);
  CHECK(memory.mask(slot) == 2);
  CHECK(me.generation(slot) == 1);
  CHECK(me.holds(slot));
  me.hold(slot);
  me.drop(slot);
  CHECK(memory.mask(slot) == 2);
  me.set_cache_limit(0);
  me.drop(slot);
  CHECK(memory.mask(slot) == 0);
  CHECK_FALSE(me.holds(slot));
  CHECK(must_acquire(me, memory) == slot);
  CHECK(me.generation(slot) == 2);
}

TEST_CASE("a segment stays what the directory said first, and an impossible one is none") {
  PoolMemory memory(8);
  memory.split(4);
  pool::SegmentEntry &first = memory.view().segment(0), &second = memory.view().segment(1);
  SUBCASE("written over after it was read") {
    Participant me(memory.view(), 1, 1);
    REQUIRE(me.segments().size() == 2);
    for (pool::SegmentEntry* entry : {&first, &second}) {
      entry->first_slot = 1;
      entry->slots = UINT32_MAX;
      entry->slot_size = entry->stride = UINT64_MAX;
    }
    CHECK(me.slot_size(3) == PoolMemory::kSlotBytes);
    CHECK(me.slot_size(4) == 2 * PoolMemory::kSlotBytes);
    CHECK(me.slot_size(8) == std::nullopt);
    CHECK(me.segments()[1].slots == 4);
  }
  SUBCASE("one of them is impossible") {
    SUBCASE("it has slots of the one before") { second.first_slot = 3; }
    SUBCASE("it leaves a gap") { second.first_slot = 5; }
    SUBCASE("it has no slot") { second.slots = 0; }
    SUBCASE("it has more slots than the pool") { second.slots = 5; }
    SUBCASE("its slots overlap") { second.stride = second.slot_size - 1; }
    SUBCASE("its slots have no bytes") { second.slot_size = 0; }
    SUBCASE("it is larger than any memory") { second.stride = UINT64_MAX / 2; }
    Participant me(memory.view(), 1, 1);
    CHECK(me.segments().size() == 1);
    CHECK(me.slot_size(3) == PoolMemory::kSlotBytes);
    CHECK(me.slot_size(4) == std::nullopt);
  }
}

TEST_CASE("a pool without a free slot gives none, and a range only its own") {
  PoolMemory memory(4);
  Participant me(memory.view(), 0, 1), other(memory.view(), 1, 1);
  const SlotRange upper{2, 2}, beyond{3, 100}, nowhere{4, 1};
  CHECK(me.acquire({&upper, 1}) >= 2U);
  CHECK(me.acquire({&upper, 1}) >= 2U);
  CHECK_FALSE(me.acquire({&upper, 1}).has_value());
  CHECK_FALSE(me.acquire({&beyond, 1}).has_value());
  CHECK_FALSE(me.acquire({&nowhere, 1}).has_value());
  CHECK(must_acquire(other, memory) < 2);
  CHECK(must_acquire(other, memory) < 2);
  const SlotRange all = memory.all();
  CHECK_FALSE(other.acquire({&all, 1}).has_value());
}

TEST_CASE("an impossible mask makes a slot not free") {
  PoolMemory memory(2);
  Participant me(memory.view(), 0, 1);
  memory.view().slot(0).holders = ~std::uint64_t{0};
  CHECK(must_acquire(me, memory) == 1);
  const SlotRange all = memory.all();
  CHECK_FALSE(me.acquire({&all, 1}).has_value());
}

TEST_CASE("an idle slot stays with its owner and is used again without being free in between") {
  PoolMemory memory(64);
  Participant me(memory.view(), 0, 1);
  me.set_cache_limit(2);
  const std::uint32_t slot = must_acquire(me, memory);
  me.drop(slot);
  CHECK(memory.mask(slot) == 1);
  CHECK_FALSE(me.holds(slot));
  CHECK(must_acquire(me, memory) == slot);
  CHECK(me.generation(slot) == 2);

  SUBCASE("but not while somebody else keeps it") {
    me.drop(slot);
    memory.view().slot(slot).holders.fetch_or(2);
    CHECK(must_acquire(me, memory) != slot);
  }
  SUBCASE("not more than the limit") {
    const std::uint32_t second = must_acquire(me, memory), third = must_acquire(me, memory);
    for (const std::uint32_t each : {slot, second, third}) me.drop(each);
    CHECK((memory.mask(slot) | memory.mask(second)) == 1);
    CHECK(memory.mask(third) == 0);
    me.set_cache_limit(1);
    memory.check_no_holders();
  }
  SUBCASE("not while somebody waits for a slot") {
    memory.view().control().slot_waiters.mask = 4;
    me.drop(slot);
    CHECK(memory.mask(slot) == 0);
  }
  SUBCASE("not while its owner sleeps") {
    me.drop(slot);
    me.sleeper().set_spin(0);
    const std::lock_guard guard(me.lock());
    (void)me.sleeper().wait({}, [] { return false; }, Deadline::after(1'000'000));
    CHECK(memory.mask(slot) == 0);
  }
}

TEST_CASE("idle slots of all participants together leave two fifths of a pool") {
  constexpr std::uint32_t kSlots = 512;
  PoolMemory memory(kSlots, {});
  std::vector<std::unique_ptr<Participant>> all;
  std::uint32_t idle = 0;
  for (std::uint32_t i = 0; i < pool::kParticipants; ++i) {
    memory.set(i, 1, ParticipantState::live);
    all.push_back(std::make_unique<Participant>(memory.view(), i, 1));
    std::vector<std::uint32_t> slots;
    for (int n = 0; n < 10 && idle + slots.size() < kSlots; ++n) slots.push_back(must_acquire(*all.back(), memory));
    for (const std::uint32_t slot : slots) all.back()->drop(slot);
    for (const std::uint32_t slot : slots) idle += memory.mask(slot) != 0;
  }
  CHECK(idle > 0);
  CHECK(idle * 5 <= kSlots * 3);
}

TEST_CASE("idle slots of a class leave most of it, however many slots other classes have") {
  constexpr std::uint32_t kSlots = 1024, kLarge = 8;
  PoolMemory memory(kSlots, {});
  memory.split(kSlots - kLarge);
  memory.set(0, 1, ParticipantState::live);
  Participant one(memory.view(), 0, 1);
  const SlotRange large[] = {{kSlots - kLarge, kLarge}};
  std::vector<std::uint32_t> slots;
  for (std::uint32_t i = 0; i < kLarge; ++i) slots.push_back(one.acquire(large).value_or(pool::kNone));
  for (const std::uint32_t slot : slots) one.drop(slot);
  std::uint32_t idle = 0;
  for (const std::uint32_t slot : slots) idle += memory.mask(slot) != 0;
  CHECK(idle == 1);
}

TEST_CASE("a slot that was kept is held by both until each has dropped it") {
  PoolMemory memory(2);
  Participant owner(memory.view(), 0, 1), reader(memory.view(), 1, 1);
  const std::uint32_t slot = must_acquire(owner, memory);
  CHECK(reader.keep(slot, owner.generation(slot)));
  CHECK(reader.keep(slot, owner.generation(slot)));
  CHECK(memory.mask(slot) == 3);
  owner.drop(slot);
  CHECK(memory.mask(slot) == 2);
  reader.drop(slot);
  CHECK(memory.mask(slot) == 2);
  reader.drop(slot);  // what came from others is not kept idle
  CHECK(memory.mask(slot) == 0);
}

TEST_CASE("keeping a slot of another generation is refused and changes nothing") {
  PoolMemory memory(64);
  Participant owner(memory.view(), 0, 1), reader(memory.view(), 1, 1);
  const std::uint32_t slot = must_acquire(owner, memory);
  CHECK_FALSE(reader.keep(slot, owner.generation(slot) + 1));
  CHECK(memory.mask(slot) == 1);
  CHECK_FALSE(reader.keep(1000, 1));
  CHECK(reader.keep(slot, owner.generation(slot)));
  CHECK_FALSE(reader.keep(slot, 77));
  CHECK(memory.mask(slot) == 3);
  reader.undo(slot);
  CHECK(memory.mask(slot) == 1);
  owner.set_cache_limit(1);
  owner.drop(slot);
  CHECK_FALSE(owner.keep(slot, 77));  // idle there: the bit is not touched
  CHECK(memory.mask(slot) == 1);
  CHECK(owner.keep(slot, 1));
  CHECK(must_acquire(owner, memory) != slot);
}

TEST_CASE("a handle must lie within a slot that exists") {
  PoolMemory memory(4);
  Participant me(memory.view(), 0, 1);
  pool::Handle handle{};
  handle.length = PoolMemory::kSlotBytes;
  CHECK(me.fits(handle));
  handle.offset = 1;
  CHECK_FALSE(me.fits(handle));
  handle.offset = UINT64_MAX;
  handle.length = 2;
  CHECK_FALSE(me.fits(handle));
  handle.offset = PoolMemory::kSlotBytes;
  handle.length = 0;
  CHECK(me.fits(handle));
  handle.slot = 4;
  CHECK_FALSE(me.fits(handle));
  handle.slot = pool::kNone;
  CHECK_FALSE(me.fits(handle));

  pool::SegmentEntry& second = memory.view().segment(1);  // promises more slots than the pool has
  second.first_slot = 4;
  second.slots = 100;
  second.slot_size = 4096;
  second.in_use = 1;
  handle = {};
  handle.slot = 4;
  CHECK_FALSE(me.fits(handle));
}

TEST_CASE("after a search in vain no slot of a large pool is looked at again until one is free, wherever that is") {
  constexpr std::uint32_t kMany = 1000;
  PoolMemory memory(kMany);
  Participant holder(memory.view(), 0, 1), searcher(memory.view(), 1, 1);
  holder.set_cache_limit(0);
  for (std::uint32_t i = 0; i < kMany; ++i) (void)must_acquire(holder, memory);
  const SlotRange all = memory.all();
  const auto search = [&](std::uint32_t* looks) {
    const AtStep counted(Step::A1, [&] { ++*looks; }, INT_MAX);
    return searcher.acquire({&all, 1});
  };
  std::uint32_t looks = 0;
  CHECK_FALSE(search(&looks));
  CHECK(looks == kMany);
  looks = 0;
  CHECK_FALSE(search(&looks));
  CHECK(looks == 0);
  for (const std::uint32_t slot : {0U, 63U, 64U, 500U, 511U, 998U, 999U}) {
    CAPTURE(slot);
    holder.drop(slot);
    looks = 0;
    CHECK(search(&looks).value_or(pool::kNone) == slot);
    CHECK(looks <= 2 * pool::kGroupSlots);
    CHECK(holder.keep(slot, searcher.generation(slot)));  // as if it had been sent there
    searcher.undo(slot);
    looks = 0;
    CHECK_FALSE(search(&looks));
    CHECK(looks <= 2 * pool::kGroupSlots);
  }
}

TEST_CASE("a slot that a reader gives back last is found by a search that had seen it taken") {
  PoolMemory memory(130);
  Participant owner(memory.view(), 0, 1), reader(memory.view(), 1, 1), searcher(memory.view(), 2, 1);
  owner.set_cache_limit(0);
  for (int i = 0; i < 128; ++i) (void)must_acquire(owner, memory);
  const std::uint32_t slot = must_acquire(owner, memory), second = must_acquire(owner, memory);
  CHECK(reader.keep(slot, owner.generation(slot)));
  const SlotRange all = memory.all();
  owner.drop(slot);
  CHECK_FALSE(searcher.acquire({&all, 1}));
  reader.drop(slot);
  CHECK(must_acquire(searcher, memory) == slot);
  CHECK_FALSE(searcher.acquire({&all, 1}));
  owner.drop(second);
  CHECK(must_acquire(searcher, memory) == second);
}

TEST_CASE("a search for slots of one size does not hide those of another in the same group") {
  PoolMemory memory(65);
  Participant holder(memory.view(), 0, 1), searcher(memory.view(), 1, 1);
  const SlotRange small{0, 10}, large{10, 7}, rest{17, 47};
  for (int i = 0; i < 10; ++i) CHECK(holder.acquire({&small, 1}));
  CHECK_FALSE(searcher.acquire({&small, 1}));
  CHECK(searcher.acquire({&large, 1}).value_or(0) - 10 < 7);
  CHECK(searcher.acquire({&rest, 1}).value_or(0) >= 17);
  const SlotRange both[] = {small, large};
  CHECK(searcher.acquire(both).value_or(0) - 10 < 7);
}

TEST_CASE("wrong counts of freed slots cost only searches") {
  PoolMemory memory(200);
  Participant me(memory.view(), 0, 1), other(memory.view(), 1, 1);
  me.set_cache_limit(0);
  other.set_cache_limit(0);
  const SlotRange all = memory.all();
  for (int i = 0; i < 200; ++i) (void)must_acquire(me, memory);
  CHECK_FALSE(other.acquire({&all, 1}));
  for (std::uint32_t group = 0; group < memory.view().groups(); ++group) memory.view().freed(group) = ~group;
  CHECK_FALSE(other.acquire({&all, 1}));
  me.drop(70);
  memory.view().freed(1) = ~1U;  // hidden, until the count moves again
  CHECK_FALSE(other.acquire({&all, 1}));
  me.drop(71);
  CHECK(must_acquire(other, memory) / 2 == 35);
  CHECK(must_acquire(other, memory) / 2 == 35);
}

TEST_CASE("threads that acquire and drop never own a slot twice and leave none behind") {
  constexpr std::uint32_t kThreads = 3, kSlots = 4;
  PoolMemory memory(kSlots);
  std::array<std::atomic<int>, kSlots> owners{};
  std::atomic<int> twice{0};
  std::vector<std::thread> threads;
  for (std::uint32_t index = 0; index < kThreads; ++index)
    threads.emplace_back([&, index] {
      Participant me(memory.view(), index, 1);
      me.set_cache_limit(index);  // none, one, two
      const SlotRange all = memory.all();
      for (std::uint64_t n = 0; n < 100'000 / static_cast<std::uint64_t>(harness::slowdown()); ++n) {
        const auto slot = me.acquire({&all, 1});
        if (!slot) continue;
        twice += owners[*slot].fetch_add(1, std::memory_order_relaxed);
        fill(memory.data(*slot), n);  // a data race here is what the thread sanitizer would see
        owners[*slot].fetch_sub(1, std::memory_order_relaxed);
        me.drop(*slot);
      }
      me.flush_cache();
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(twice == 0);
  memory.check_no_holders();
}

}  // namespace
