// SPDX-License-Identifier: Apache-2.0
// Deaths on an spsc lane: at every step of sending inline bytes, slots and the same slot again, of getting slots back
// from a full lane, of receiving (borrowed and kept), of forwarding, and of giving up a lane whose reader has gone.
#include "tests/kill/stage.hpp"

using namespace kill_tests;

TEST_CASE("spsc: a sender killed at any step of sending inline bytes and slots has sent a message or not") {
  Stage stage(one_queue(Kind::spsc, 2));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  Arrived arrived;
  cut_short(stage, {.name = "send inline and slots",
                    .body =
                        [&](Self& self) {
                          auto out = self.open(stage.writes());
                          self.begin();
                          self.send_inline(*out, stage.id(1, 0));
                          self.send_slot(*out, stage.id(1, 1));
                          self.ask(1);  // full: read
                          self.send_slot(*out, stage.id(1, 2));
                          self.send_inline(*out, stage.id(1, 3));
                          self.ask(2);
                          self.send_slot(*out, stage.id(1, 4));
                          self.send_slot(*out, stage.id(1, 5));
                          self.end();
                        },
                    .on_ask = [&](Stage& at, std::uint32_t) { arrived.take(at); },
                    .after = [&](Stage& at, const Actor& actor, bool) { arrived.check(at, actor); }});
}

TEST_CASE("spsc: the same slot in several messages, kept by its sender meanwhile, is free after the last") {
  Stage stage(one_queue(Kind::spsc, 4));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  Arrived arrived;
  cut_short(stage, {.name = "send one slot three times",
                    .body =
                        [&](Self& self) {
                          auto out = self.open(stage.writes());
                          self.begin();
                          const Slot slot = self.fresh_slot(stage.id(1, 0));
                          for (int i = 0; i < 3; ++i) self.send(*out, slot);
                          self.ask(1);  // one of them is read
                          need(self.pool->release(slot), "release");
                          self.ask(2);
                          self.end();
                        },
                    .on_ask =
                        [&](Stage& at, std::uint32_t number) {
                          const Taken taken = at.take_all(*at.in, number == 1 ? 1 : SIZE_MAX);
                          for (const std::uint64_t id : taken.ids) CHECK(id == at.id(1, 0));
                          arrived.ids.insert(arrived.ids.end(), taken.ids.begin(), taken.ids.end());
                        },
                    .after =
                        [&](Stage& at, const Actor& actor, bool) {
                          const Taken taken = at.take_all(*at.in);
                          for (const std::uint64_t id : taken.ids) CHECK(id == at.id(1, 0));
                          CHECK(arrived.ids.size() + taken.ids.size() == actor.published());
                          arrived.ids.clear();
                        }});
}

TEST_CASE("spsc: a reader killed at any step of receiving gives everything back") {
  Stage stage(one_queue(Kind::spsc, 8));
  stage.out = must(Queue::open(stage.bob, stage.writes()));
  cut_short(stage, {.name = "receive, borrowed and kept",
                    .body =
                        [&](Self& self) {
                          auto in = self.open(stage.reads());
                          Message first, second, third;
                          self.ask(1);
                          self.begin();
                          need(self.receive(*in, first, false) == stage.id(2, 0), "inline, borrowed");
                          need(self.receive(*in, first, false) == stage.id(2, 1), "slot, borrowed");
                          need(first.done(), "done");
                          need(self.receive(*in, first, true) == stage.id(2, 2), "inline, kept");
                          need(self.receive(*in, first, true) == stage.id(2, 3), "slot, kept");
                          need(first.done(), "done");
                          self.ask(2);
                          need(self.receive(*in, first, true) == stage.id(3, 0), "the slot");
                          need(self.receive(*in, second, true) == stage.id(3, 0), "the slot again");
                          need(first.done(), "done");
                          need(second.done(), "done");  // it is in an unread cell still
                          need(self.receive(*in, third, false) == stage.id(3, 0), "the slot at last");
                          need(third.keep(), "keep");
                          need(third.done(), "done");
                          self.end();
                        },
                    .on_ask =
                        [&](Stage& at, std::uint32_t number) {
                          if (number == 1) return at.send_some(*at.out, at.id(2, 0), 4);
                          const Slot slot = must(at.bob->acquire(kSlot, kNoWait));
                          fill({slot.data, slot.length}, at.id(3, 0));
                          for (int i = 0; i < 3; ++i) must(at.out->send(slot, kNoWait));
                          must(at.bob->release(slot));
                        }});
}

TEST_CASE("spsc: a reader killed while it drains the lane of a writer that has left leaves no place taken") {
  Stage stage(one_queue(Kind::spsc, 4));
  cut_short(stage, {.name = "drain",
                    .body =
                        [&](Self& self) {
                          auto in = self.open(stage.reads());
                          self.ask(1);
                          self.begin();
                          Message message;
                          need(self.receive(*in, message, true) == stage.id(2, 0), "the first");
                          need(self.receive(*in, message, false) == stage.id(2, 1), "the second");
                          auto received = in->receive(message, false, 0);
                          need(!received && received.error().status == Status::peer_gone, "the writer has left");
                          self.end();
                        },
                    .on_ask =
                        [](Stage& at, std::uint32_t) {
                          auto third = must(try_pool(beside(at.broker, at.ann), "p"));
                          auto out = must(Queue::open(third, at.writes()));
                          std::array<std::byte, kInline> body;
                          fill(body, at.id(2, 0));
                          must(out->send(body, kNoWait));
                          const Slot slot = must(third->acquire(kSlot, kNoWait));
                          fill({slot.data, slot.length}, at.id(2, 1));
                          must(out->send(slot, kNoWait));
                          must(third->release(slot));
                        }});
}

TEST_CASE("spsc: a sender killed while it gives up the lane of a reader that has gone loses no slot") {
  Stage stage(one_queue(Kind::spsc, 4));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  cut_short(stage, {.name = "give up",
                    .body =
                        [&](Self& self) {
                          auto out = self.open(stage.writes());
                          self.begin();
                          self.send_slot(*out, stage.id(1, 0));
                          self.send_inline(*out, stage.id(1, 1));
                          self.send_slot(*out, stage.id(1, 2));
                          self.ask(1);
                          std::array<std::byte, kInline> body{};
                          auto sent = out->send(body, 0);
                          need(!sent && sent.error().status == Status::peer_gone, "the reader has gone");
                          self.end();
                        },
                    .on_ask = [](Stage& at, std::uint32_t) { at.in.reset(); },
                    .after =
                        [](Stage& at, const Actor& actor, bool) {
                          if (at.in) {
                            CHECK(at.take_all(*at.in).ids.size() == actor.published());
                          } else {
                            at.in = must(Queue::open(at.ann, at.reads()));
                            CHECK(at.take_all(*at.in).ids.empty());
                          }
                        }});
}

TEST_CASE("spsc: a process killed at any step of forwarding or returning a slot has done so or not") {
  Stage stage(one_queue(Kind::spsc, 4));
  stage.out = must(Queue::open(stage.bob, stage.writes()));
  auto onward = must(Queue::open(stage.ann, queue_spec("onward", Kind::spsc, true, false, 4)));
  auto home = must(Queue::open(stage.bob, queue_spec("home", Kind::spsc, true, false, 4)));
  cut_short(stage, {.name = "forward",
                    .body =
                        [&](Self& self) {
                          auto in = self.open(stage.reads());
                          auto on = self.open(queue_spec("onward", Kind::spsc, false, true, 4));
                          auto back = self.open(queue_spec("home", Kind::spsc, false, true, 4));
                          self.ask(1);
                          self.begin();
                          Message message;
                          for (unsigned i = 0; i < 3; ++i) {
                            need(self.receive(*in, message, i != 2) == stage.id(2, i), "a slot");
                            const Slot slot = need(message.take_slot(0), "take");
                            self.send(i == 1 ? *back : *on, slot);
                            need(self.pool->release(slot), "release");
                            need(message.done(), "done");
                          }
                          self.end();
                        },
                    .on_ask =
                        [](Stage& at, std::uint32_t) {
                          for (unsigned i = 0; i < 3; ++i) {
                            const Slot slot = must(at.bob->acquire(kSlot, kNoWait));
                            fill({slot.data, slot.length}, at.id(2, i));
                            auto sent = at.out->send(slot, kNoWait);
                            if (!sent && sent.error().status == Status::peer_gone) sent = at.out->send(slot, kNoWait);
                            must(std::move(sent));
                            must(at.bob->release(slot));
                          }
                        },
                    .after =
                        [&](Stage& at, const Actor& actor, bool) {
                          const Taken on = at.take_all(*onward), back = at.take_all(*home);
                          const std::uint32_t published = actor.published();
                          REQUIRE(on.ids.size() == (published >= 1 ? 1U : 0U) + (published >= 3 ? 1U : 0U));
                          REQUIRE(back.ids.size() == (published >= 2 ? 1U : 0U));
                          if (!on.ids.empty()) CHECK(on.ids[0] == at.id(2, 0));
                          if (on.ids.size() > 1) CHECK(on.ids[1] == at.id(2, 2));
                          if (!back.ids.empty()) CHECK(back.ids[0] == at.id(2, 1));
                        }});
}
