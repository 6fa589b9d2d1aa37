// SPDX-License-Identifier: Apache-2.0
// Deaths of owners of slots: at every step of taking, keeping at hand and dropping them, also where somebody sleeps
// until one is free.
#include <unistd.h>

#include "tests/kill/stage.hpp"

using namespace kill_tests;

TEST_CASE("slots: an owner killed at any step of acquire and release leaves every slot free") {
  Stage stage(queue_spec("q", Kind::spsc, false, false, 8));
  cut_short(stage, {.name = "acquire and release", .body = [&](Self& self) {
                      self.pool->me().set_cache_limit(1);
                      self.begin();
                      const Slot one = self.fresh_slot(1), two = self.fresh_slot(2);
                      need(self.pool->retain(one), "retain");
                      need(self.pool->release(one), "release");
                      need(self.pool->release(one), "release");  // stays at hand
                      const Slot again = self.fresh_slot(3);     // is taken from there
                      need(self.pool->release(two), "release");
                      need(self.pool->release(again), "release");
                      need(self.pool->release(self.fresh_slot(4)), "release");
                      {
                        Pool::Lock lock(self.pool->me().lock());
                        self.pool->me().flush_cache();
                      }
                      self.end();
                    }});
}

TEST_CASE("slots: a process that searched in vain finds a slot that the dead released at any step") {
  constexpr std::uint32_t kSlots = 70;  // more than one group
  Stage stage(queue_spec("q", Kind::spsc, false, false, 8), kSlots);
  for (const auto& pool : {stage.ann, stage.bob}) pool->me().set_cache_limit(0);
  cut_short(stage, {.name = "release what others have looked for",
                    .body =
                        [&](Self& self) {
                          self.pool->me().set_cache_limit(0);
                          std::vector<Slot> slots;
                          for (std::uint32_t i = 0; i < kSlots; ++i) {
                            if (i == kSlots - 2) self.begin();
                            slots.push_back(self.fresh_slot(i));
                          }
                          self.ask(1);
                          for (std::uint32_t i = 0; i < kSlots; ++i) {
                            if (i == 4) self.end();
                            need(self.pool->release(slots[i]), "release");
                          }
                        },
                    .on_ask =
                        [](Stage& at, std::uint32_t) {
                          for (const auto& pool : {at.ann, at.bob})
                            CHECK(status_of(pool->acquire(kSlot, kNoWait)) == Status::full);
                        },
                    .after =
                        [](Stage& at, const Actor&, bool) {
                          for (const auto& pool : {at.ann, at.bob}) {
                            std::vector<Slot> slots;
                            const bool all = at.eventually([&] {
                              while (auto slot = pool->acquire(kSlot, kNoWait)) slots.push_back(*slot);
                              return slots.size() == kSlots;
                            });
                            CHECK(all);
                            for (const Slot& slot : slots) must(pool->release(slot));
                          }
                        },
                    .before = [](Stage& at) { (void)at.state(); }});  // survivors let go of all they have
}

TEST_CASE("slots: a process that waits for a slot gets one after its owner's death at any step of release") {
  Stage stage(queue_spec("q", Kind::spsc, false, false, 8), 4);
  const SharedActor waiter;
  const std::string socket = stage.broker.socket();
  const std::uint64_t group = stage.ann->group();
  const Child child = Child::run([&]() -> int {
    Self self(*waiter, socket, group);
    self.join();
    self.pool->me().set_cache_limit(0);
    for (std::uint32_t done = 0;; ++done) {
      while (waiter->answered == done) ::usleep(20);
      const Slot slot = need(self.pool->acquire(kSlot, kForever), "acquire");
      need(self.pool->release(slot), "release");
      ++waiter->heard;
    }
  });
  REQUIRE(stage.eventually([&] { return waiter->index != pool::kNone; }));
  cut_short(stage, {.name = "release a slot that somebody waits for",
                    .body =
                        [&](Self& self) {
                          std::vector<Slot> slots;
                          while (auto slot = self.pool->acquire(kSlot, kNoWait)) slots.push_back(*slot);
                          ++waiter->answered;
                          self.wait_asleep(waiter->index);
                          self.begin();
                          for (const Slot& slot : slots) need(self.pool->release(slot), "release");
                          self.end();
                        },
                    .clear =
                        [&] {
                          const bool got = stage.eventually([&] { return waiter->heard == waiter->answered; });
                          CHECK(got);
                        }});
}

TEST_CASE("slots: the place of the dead is given out only when its messages were read") {
  Stage stage(queue_spec("q", Kind::spsc, false, false, 4));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  stage.take_rest();
  const SharedActor actor;
  const std::string socket = stage.broker.socket();
  const std::uint64_t group = stage.ann->group();
  for (int round = 0; round < 5; ++round) {
    ++stage.trial;
    actor.clear();
    Child child = Child::run([&]() -> int {
      Self self(*actor, socket, group);
      self.join();
      auto out = self.open(stage.writes());
      for (unsigned i = 0; i < 4; ++i) self.send_slot(*out, stage.id(1, i));
      ::kill(::getpid(), SIGKILL);
      return 0;
    });
    CHECK(child.wait() == 128 + SIGKILL);
    stage.expect_gone();
    stage.expect_bits(*actor);
    {
      // Unread messages keep the place: a newcomer has another one.
      auto session = beside(stage.broker, stage.ann);
      auto pool = must(try_pool(session, "p"));
      CHECK(pool->me().index() != actor->index);
    }
    stage.use_all_free_slots();
    const Taken taken = stage.take_all(*stage.in);
    REQUIRE(taken.ids.size() == 4);
    for (unsigned i = 0; i < 4; ++i) CHECK(taken.ids[i] == stage.id(1, i));
    stage.expect_rest();
    auto session = beside(stage.broker, stage.ann);
    auto pool = must(try_pool(session, "p"));
    CHECK(pool->me().index() == actor->index);
    CHECK(pool->me().life() > actor->life);
  }
}
