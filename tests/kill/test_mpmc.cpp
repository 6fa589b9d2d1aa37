// SPDX-License-Identifier: Apache-2.0
// Deaths on an mpmc queue: a producer at every step of sending, of getting slots back and of taking expired messages
// back; a consumer at every step of claiming, finishing and giving back. Each message that the dead had not finished
// goes to another consumer, once.
#include <unistd.h>

#include "tests/kill/stage.hpp"

using namespace kill_tests;

namespace {

// A consumer's victim has finished the first of them, in order; the rest comes to Ann, in order.
void check_rest(Stage& stage, const Actor& actor, unsigned sent) {
  REQUIRE(actor.taken() <= sent);
  // No other consumer gets a message that the victim had, in any form. Of the others at most one is lost.
  if ((stage.queue.flags & pool::kQueueAtLeastOnce) == 0) {
    CHECK(actor.taken() >= actor.shown);
    CHECK(actor.taken() - actor.shown <= 1);
  }
  const Taken rest = stage.take_expected(*stage.in, sent - actor.taken());
  CHECK(rest.torn == 0);
  REQUIRE(rest.ids.size() == sent - actor.taken());
  for (std::size_t i = 0; i < rest.ids.size(); ++i) CHECK(rest.ids[i] == stage.id(2, actor.taken() + i));
}

}  // namespace

TEST_CASE("mpmc: a producer killed at any step has sent a message or not") {
  Stage stage(one_queue(Kind::mpmc, 2));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  Arrived arrived;
  cut_short(stage, {.name = "produce",
                    .body =
                        [&](Self& self) {
                          auto out = self.open(stage.writes());
                          self.begin();
                          self.send_slot(*out, stage.id(1, 0));
                          self.send_inline(*out, stage.id(1, 1));
                          std::array<std::byte, kInline> body{};
                          need(!out->send(body, kNoWait), "full");
                          self.ask(1);
                          self.send_slot(*out, stage.id(1, 2));  // its acquire gets slots back
                          self.ask(2);
                          (void)need(out->facts(), "facts");
                          self.send_slot(*out, stage.id(1, 3));
                          self.end();
                        },
                    .on_ask = [&](Stage& at, std::uint32_t) { arrived.take(at); },
                    .after = [&](Stage& at, const Actor& actor, bool) { arrived.check(at, actor); }});
}

TEST_CASE("mpmc: a producer killed while it takes expired messages back has taken them back or not") {
  Stage stage(one_queue(Kind::mpmc, 4, pool::kQueueExpiring));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  cut_short(stage, {.name = "expire",
                    .body =
                        [&](Self& self) {
                          auto out = self.open(stage.writes());
                          self.begin();
                          for (unsigned i = 0; i < 4; ++i) {
                            const Slot slot = self.fresh_slot(stage.id(1, i));
                            const OutPart part = slot_part(slot);
                            need(out->send(std::span(&part, 1), 0, i == 0 ? 0 : 1, kNoWait), "send");
                            need(self.pool->release(slot), "release");
                          }
                          std::array<std::byte, kInline> body{};
                          (void)out->send(body, kNoWait);  // full of what nobody wants any more
                          (void)need(self.pool->acquire(kSlot, 0), "acquire");
                          self.end();
                        },
                    .after =
                        [](Stage& at, const Actor& actor, bool) {
                          // The one that does not expire, if it was sent, and nothing that has.
                          const Taken taken = at.take_all(*at.in);
                          REQUIRE(taken.ids.size() == std::min(actor.published(), 1U));
                          if (!taken.ids.empty()) CHECK(taken.ids[0] == at.id(1, 0));
                        }});
}

TEST_CASE("mpmc: messages that a killed consumer has not finished go to another one") {
  Stage stage(one_queue(Kind::mpmc, 4));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  stage.out = must(Queue::open(stage.bob, stage.writes()));
  cut_short(stage, {.name = "consume",
                    .body =
                        [&](Self& self) {
                          auto in = self.open(stage.reads());
                          self.begin();
                          Message message;
                          need(self.receive(*in, message, true) == stage.id(2, 0), "inline");
                          need(self.receive(*in, message, true) == stage.id(2, 1), "slot, kept");
                          need(message.done(), "done");
                          need(self.receive(*in, message, false) == stage.id(2, 2), "inline");
                          need(self.receive(*in, message, false) == stage.id(2, 3), "slot, borrowed");
                          need(message.done(), "done");
                          need(!in->receive(message, false, kNoWait), "empty");
                          self.end();
                        },
                    .after = [](Stage& at, const Actor& actor, bool) { check_rest(at, actor, 4); },
                    .before = [](Stage& at) { at.send_some(*at.out, at.id(2, 0), 4); }});
}

TEST_CASE("mpmc: a slot in use by the application goes to no other, however its reader uses it before its death") {
  Stage stage(one_queue(Kind::mpmc, 4));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  stage.out = must(Queue::open(stage.bob, stage.writes()));
  cut_short(stage, {.name = "use borrowed slots",
                    .body =
                        [&](Self& self) {
                          auto in = self.open(stage.reads());
                          self.begin();
                          Message message, second;
                          need(self.receive(*in, message, false) == stage.id(2, 0), "inline");
                          need(self.receive(*in, message, false) == stage.id(2, 1), "slot");
                          const Slot slot = need(message.take_slot(0), "take");
                          need(self.pool->release(slot), "release");
                          const Slot again = need(message.take_slot(0), "take again");
                          need(id_of(message) == stage.id(2, 1), "it is there yet");
                          need(self.receive(*in, second, false) == stage.id(2, 2), "inline");
                          need(message.count() == 0, "the next receive ends it");
                          need(id_in({again.data, again.length}) == stage.id(2, 1), "but not what was taken out");
                          need(self.pool->release(again), "release");
                          need(self.receive(*in, message, false) == stage.id(2, 3), "slot");
                          need(message.keep(), "keep");
                          need(in->close(false, false), "close");
                          need(id_of(message) == stage.id(2, 3), "kept");
                          need(message.done(), "done");
                          self.end();
                        },
                    .after = [](Stage& at, const Actor& actor, bool) { check_rest(at, actor, 4); },
                    .before = [](Stage& at) { at.send_some(*at.out, at.id(2, 0), 4); }});
}

TEST_CASE("mpmc: at least once, a killed consumer's message is delivered again unless it was done") {
  Stage stage(one_queue(Kind::mpmc, 4, pool::kQueueAtLeastOnce));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  stage.out = must(Queue::open(stage.bob, stage.writes()));
  cut_short(stage, {.name = "consume at least once",
                    .body =
                        [&](Self& self) {
                          auto in = self.open(stage.reads());
                          self.begin();
                          Message message;
                          need(self.receive(*in, message, false) == stage.id(2, 0), "the first");
                          need(message.give_back(), "give back");
                          for (unsigned i = 0; i < 3; ++i) {
                            need(self.receive(*in, message, false) == stage.id(2, i), "in order");
                            need(message.done(), "done");
                          }
                          need(self.receive(*in, message, false) == stage.id(2, 3), "the last");
                          need(message.give_back(), "give back");
                          self.end();
                        },
                    .after = [](Stage& at, const Actor& actor, bool) { check_rest(at, actor, 4); },
                    .before = [](Stage& at) { at.send_some(*at.out, at.id(2, 0), 4); }});
}

TEST_CASE("mpmc: a consumer killed among others that take messages meanwhile takes none of theirs with it") {
  Stage stage(one_queue(Kind::mpmc, 4));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  stage.out = must(Queue::open(stage.bob, stage.writes()));
  std::vector<std::uint64_t> others;
  cut_short(stage, {.name = "lose a claim",
                    .body =
                        [&](Self& self) {
                          auto in = self.open(stage.reads());
                          self.begin();
                          Message message;
                          self.at(Step::C4, [&] { self.ask(1); });  // the one it saw full is taken by another one
                          need(self.receive(*in, message, true) == stage.id(2, 1), "the second");
                          self.at(Step::C2, [&] { self.ask(2); });  // and its head is moved by another one
                          need(self.receive(*in, message, true) == stage.id(2, 2), "the third");
                          self.end();
                        },
                    .on_ask =
                        [&](Stage& at, std::uint32_t) {
                          const Taken one = at.take_all(*at.in, 1);
                          others.insert(others.end(), one.ids.begin(), one.ids.end());
                        },
                    .after =
                        [&](Stage& at, const Actor& actor, bool) {
                          const std::size_t finished = others.size() + actor.taken();
                          REQUIRE(finished <= 4);
                          const Taken rest = at.take_expected(*at.in, 4 - finished);
                          CHECK(rest.torn == 0);
                          CHECK(others.size() + rest.ids.size() + actor.taken() == 4);
                          others.insert(others.end(), rest.ids.begin(), rest.ids.end());
                          std::ranges::sort(others);
                          CHECK(std::ranges::adjacent_find(others) == others.end());
                          others.clear();
                        },
                    .before = [](Stage& at) { at.send_some(*at.out, at.id(2, 0), 4); }});
}

TEST_CASE("mpmc: a consumer killed while it drains a lane whose producer has left loses nothing of it") {
  Stage stage(one_queue(Kind::mpmc, 4));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  cut_short(stage, {.name = "drain an mpmc lane",
                    .body =
                        [&](Self& self) {
                          auto in = self.open(stage.reads());
                          self.begin();
                          Message message;
                          for (unsigned i = 0; i < 4; ++i)
                            need(self.receive(*in, message, i % 2 == 0) == stage.id(2, i), "in order");
                          auto received = in->receive(message, false, kNoWait);
                          if (!received && received.error().status == Status::peer_gone)
                            received = in->receive(message, false, kNoWait);
                          need(!received, "nothing more");
                          self.end();
                        },
                    .after = [](Stage& at, const Actor& actor, bool) { check_rest(at, actor, 4); },
                    .before =
                        [](Stage& at) {
                          auto third = must(try_pool(beside(at.broker, at.ann), "p"));
                          auto out = must(Queue::open(third, at.writes()));
                          for (unsigned i = 0; i < 4; ++i) {
                            const Slot slot = must(third->acquire(kSlot, kNoWait));
                            fill({slot.data, slot.length}, at.id(2, i));
                            must(out->send(slot, kNoWait));
                            must(third->release(slot));
                          }
                        }});
}
