// SPDX-License-Identifier: Apache-2.0
// Deaths on a broadcast queue, with and without drop-oldest: the writer at every step, a reader at every step of
// joining, reading, being overrun and leaving. The writer never waits for the dead, the other readers miss nothing.
#include "tests/kill/stage.hpp"

using namespace kill_tests;

namespace {

// Messages that come are of this trial, in order, never twice.
void check_order(const Stage& stage, const std::vector<std::uint64_t>& ids, std::uint64_t source) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(ids[i] >= stage.id(source, 0));
    if (i > 0) CHECK(ids[i] > ids[i - 1]);
  }
}

}  // namespace

TEST_CASE("broadcast: a writer killed at any step has sent a message to all readers, or to none") {
  Stage stage(one_queue(Kind::broadcast, 2));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  auto second = must(Queue::open(stage.bob, stage.reads()));
  stage.also_reads = second.get();
  std::vector<std::uint64_t> got[2];
  auto take = [&](Stage& at) {
    for (int i = 0; i < 2; ++i) {
      const Taken taken = at.take_all(i == 0 ? *at.in : *second);
      CHECK(taken.torn == 0);
      got[i].insert(got[i].end(), taken.ids.begin(), taken.ids.end());
    }
  };
  cut_short(stage, {.name = "broadcast",
                    .body =
                        [&](Self& self) {
                          auto out = self.open(stage.writes());
                          self.ask(1);  // the readers join the ring
                          self.begin();
                          self.send_inline(*out, stage.id(1, 0));
                          self.send_slot(*out, stage.id(1, 1));
                          std::array<std::byte, kInline> body{};
                          need(!out->send(body, kNoWait), "full");
                          self.ask(2);
                          self.send_slot(*out, stage.id(1, 2));
                          self.send_slot(*out, stage.id(1, 3));
                          self.ask(3);
                          self.send_inline(*out, stage.id(1, 4));
                          self.end();
                        },
                    .on_ask = [&](Stage& at, std::uint32_t) { take(at); },
                    .after =
                        [&](Stage& at, const Actor& actor, bool) {
                          take(at);
                          for (auto& ids : got) {
                            REQUIRE(ids.size() == actor.published());
                            for (std::size_t i = 0; i < ids.size(); ++i) CHECK(ids[i] == at.id(1, i));
                            ids.clear();
                          }
                        }});
  stage.also_reads = nullptr;
  second.reset();
  cut_short(stage, {.name = "broadcast to one",
                    .body =
                        [&](Self& self) {
                          auto out = self.open(stage.writes());
                          self.ask(1);
                          self.begin();
                          self.send_slot(*out, stage.id(1, 0));
                          self.end();
                        },
                    .on_ask = [](Stage& at, std::uint32_t) { (void)at.take_all(*at.in); },
                    .after = [](Stage& at, const Actor& actor,
                                bool) { CHECK(at.take_all(*at.in).ids.size() == actor.published()); }});
}

TEST_CASE("broadcast, drop oldest: a writer killed at any step leaves the newest messages whole") {
  Stage stage(one_queue(Kind::broadcast, 2, pool::kQueueDropOldest));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  cut_short(stage, {.name = "overwrite",
                    .body =
                        [&](Self& self) {
                          auto out = self.open(stage.writes());
                          self.pool->me().set_cache_limit(2);  // so that its own slots come round again (A2l)
                          self.ask(1);
                          self.begin();
                          for (unsigned i = 0; i < 8; ++i) self.send_slot(*out, stage.id(1, i));
                          self.send_inline(*out, stage.id(1, 8));
                          self.end();
                        },
                    .on_ask = [](Stage& at, std::uint32_t) { (void)at.take_all(*at.in); },
                    .after =
                        [](Stage& at, const Actor& actor, bool) {
                          const Taken taken = at.take_all(*at.in);
                          CHECK(taken.torn == 0);
                          check_order(at, taken.ids, 1);
                          const std::uint32_t published = actor.published();
                          CHECK(taken.ids.size() <= 2);
                          // The newest; one that was marked busy took the place of the one before it.
                          if (published > 0) REQUIRE(!taken.ids.empty());
                          if (published > 0) CHECK(taken.ids.back() == at.id(1, published - 1));
                        }});
}

TEST_CASE("broadcast: a reader killed while it joins, reads and leaves delays no other participant") {
  Stage stage(one_queue(Kind::broadcast, 4));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  stage.out = must(Queue::open(stage.bob, stage.writes()));
  std::vector<std::uint64_t> got;
  auto take = [&](Stage& at) {
    const Taken taken = at.take_all(*at.in);
    CHECK(taken.torn == 0);
    got.insert(got.end(), taken.ids.begin(), taken.ids.end());
  };
  auto after = [&](Stage& at, const Actor&, bool) {
    take(at);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == at.id(2, i));
    got.clear();
    // Nobody waits for the dead: more than the ring holds.
    for (unsigned i = 0; i < 6; ++i) {
      at.send_some(*at.out, at.id(4, i), 1);
      CHECK(at.take_all(*at.in).ids.size() == 1);
    }
  };
  cut_short(stage, {.name = "read a broadcast",
                    .body =
                        [&](Self& self) {
                          self.begin();
                          {
                            auto in = self.open(stage.reads());
                            self.ask(1);
                            Message message;
                            need(self.receive(*in, message, false) == stage.id(2, 0), "inline");
                            need(self.receive(*in, message, false) == stage.id(2, 1), "slot, borrowed");
                            need(message.done(), "done");
                            need(self.receive(*in, message, true) == stage.id(2, 2), "inline");
                            need(self.receive(*in, message, true) == stage.id(2, 3), "slot, kept");
                            need(message.done(), "done");
                            need(!in->receive(message, true, kNoWait), "empty");
                          }
                          self.end();
                        },
                    .on_ask = [](Stage& at, std::uint32_t) { at.send_some(*at.out, at.id(2, 0), 4); },
                    .after = after});
}

TEST_CASE("broadcast: a reader killed while the writer goes from under it leaves no mark in the ring") {
  Stage stage(one_queue(Kind::broadcast, 4));
  std::shared_ptr<Pool> third;
  std::unique_ptr<Queue> out;
  cut_short(stage, {.name = "join the ring of one that goes",
                    .body =
                        [&](Self& self) {
                          self.ask(1);
                          self.begin();
                          self.at(Step::J3, [&] { self.ask(2); });
                          auto in = self.open(stage.reads());
                          self.end();
                        },
                    .on_ask =
                        [&](Stage& at, std::uint32_t number) {
                          if (number == 1) {
                            third = must(try_pool(beside(at.broker, at.ann), "p"));
                            out = must(Queue::open(third, at.writes()));
                          } else {
                            out.reset();
                            third.reset();
                          }
                        },
                    .clear =
                        [&] {
                          out.reset();
                          third.reset();
                        }});
  cut_short(stage, {.name = "drain the ring of one that has left",
                    .body =
                        [&](Self& self) {
                          self.ask(1);
                          auto in = self.open(stage.reads());
                          self.ask(2);
                          self.begin();
                          Message message;
                          need(self.receive(*in, message, false) == stage.id(2, 0), "the first");
                          need(self.receive(*in, message, true) == stage.id(2, 1), "the second");
                          auto received = in->receive(message, false, 0);
                          need(!received && received.error().status == Status::peer_gone, "the writer has left");
                          self.end();
                        },
                    .on_ask =
                        [&](Stage& at, std::uint32_t number) {
                          if (number == 1) {
                            third = must(try_pool(beside(at.broker, at.ann), "p"));
                            out = must(Queue::open(third, at.writes()));
                            return;
                          }
                          for (unsigned i = 0; i < 2; ++i) {
                            const Slot slot = must(third->acquire(kSlot, kNoWait));
                            fill({slot.data, slot.length}, at.id(2, i));
                            must(out->send(slot, kNoWait));
                            must(third->release(slot));
                          }
                          out.reset();
                          third.reset();
                        },
                    .clear =
                        [&] {
                          out.reset();
                          third.reset();
                        }});
}

TEST_CASE("broadcast, drop oldest: a reader killed while it is overrun keeps no slot of anybody") {
  Stage stage(one_queue(Kind::broadcast, 2, pool::kQueueDropOldest));
  stage.out = must(Queue::open(stage.bob, stage.writes()));
  cut_short(stage, {.name = "be overrun",
                    .body =
                        [&](Self& self) {
                          auto in = self.open(stage.reads());
                          self.ask(1);
                          self.begin();
                          Message message;
                          // Between its own bit and the look whether the message is still that one.
                          self.at(Step::R3_done, [&] { self.ask(2); });
                          (void)self.receive(*in, message, true);
                          need(message.done(), "done");
                          // Between the copy of the body and that look.
                          self.ask(3);
                          self.at(Step::Q2_done, [&] { self.ask(4); });
                          (void)self.receive(*in, message, true);
                          self.ask(5);
                          (void)self.receive(*in, message, true);
                          need(message.done(), "done");
                          self.end();
                        },
                    .on_ask =
                        [](Stage& at, std::uint32_t number) {
                          for (unsigned i = 0; i < (number == 1 ? 1U : 4U); ++i) {
                            const Slot slot = must(at.bob->acquire(kSlot, kNoWait));
                            fill({slot.data, slot.length}, at.id(2, number * 8 + i));
                            must(at.out->send(slot, kNoWait));
                            must(at.bob->release(slot));
                          }
                        }});
}
