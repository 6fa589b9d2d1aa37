// SPDX-License-Identifier: Apache-2.0
// Deaths of those who sleep and of those who wake them: at every step by futex and by doorbell, and inside the system
// call itself. A published message reaches its sleeper, though its sender did not get to wake it.
#include <poll.h>
#include <unistd.h>

#include <csignal>

#include "tests/harness/sanitizer.hpp"
#include "tests/kill/stage.hpp"

using namespace kill_tests;

namespace {

QueueSpec sleepy(Kind kind, std::uint32_t cells = 8) {
  QueueSpec spec = queue_spec("q", kind, false, false, cells);
  spec.spin = 0;
  return spec;
}

bool readable(int fd, int milliseconds) {
  pollfd watched{fd, POLLIN, 0};
  return ::poll(&watched, 1, milliseconds) == 1;
}

// In the current writer's ring, and asleep. Other kinds have no rings: asleep.
bool waits(const pool::View& view, Kind kind, std::uint32_t who) {
  for (std::uint32_t i = 0; kind == Kind::broadcast && i < view.lanes(); ++i) {
    const pool::LaneEntry& lane = view.lane(i);
    if (pool::Stamp::of(lane.stamp.load()).state != static_cast<std::uint8_t>(pool::LaneState::open)) continue;
    if (view.queue(lane.queue).kind != static_cast<std::uint8_t>(kind)) continue;
    const pool::LaneView words(view.lane_memory(lane.offset), kind, lane.cells, lane.cell_size);
    if (words.reader(who).position.load() == 0) return false;
  }
  return view.wait(who).sleep.load() != 0;
}

// A peer that stays: it sleeps in receive, and writes down what it got.
Child listen(const Stage& stage, const SharedActor& actor, const QueueSpec& spec) {
  const std::string socket = stage.broker.socket();
  const std::uint64_t group = stage.ann->group();
  Child child = Child::run([&, socket, group]() -> int {
    Self self(*actor, socket, group);
    self.join();
    auto in = self.open(spec);
    actor->ready = true;
    for (Message message;;) {
      actor->heard_ids[actor->heard % actor->heard_ids.size()] = self.receive(*in, message, true, kForever);
      need(message.done(), "done");
      ++actor->heard;
    }
  });
  REQUIRE(stage.eventually([&] { return actor->ready.load(); }));
  return child;
}

}  // namespace

TEST_CASE("sleep: a message reaches a sleeper, though its sender was killed before the wake") {
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    Stage stage(sleepy(kind));
    const SharedActor sleeper;
    const Child child = listen(stage, sleeper, stage.reads());
    std::uint32_t before = 0;
    cut_short(stage, {.name = "wake a sleeper",
                      .body =
                          [&](Self& self) {
                            auto out = self.open(stage.writes());
                            while (!waits(self.pool->view(), kind, sleeper->index)) ::usleep(20);
                            self.begin();
                            self.send_inline(*out, stage.id(1, 0));
                            self.end();
                            self.wait_asleep(sleeper->index);
                            self.begin();
                            self.send_slot(*out, stage.id(1, 1));
                            self.end();
                          },
                      .after =
                          [&](Stage& at, const Actor& actor, bool) {
                            const std::uint32_t due = before + actor.published();
                            const bool came = at.eventually([&] { return sleeper->heard >= due; });
                            CHECK(came);
                            CHECK(sleeper->heard == due);
                            for (std::uint32_t i = 0; i < actor.published(); ++i)
                              CHECK(sleeper->heard_ids[(before + i) % sleeper->heard_ids.size()] == at.id(1, i));
                            // The sleeper's next messages.
                            auto out = must(Queue::open(at.bob, at.writes()));
                            const unsigned count = 1000 / harness::kSlowdown;
                            const bool ready =
                                at.eventually([&] { return waits(at.ann->view(), kind, sleeper->index); });
                            REQUIRE(ready);
                            for (unsigned i = 0; i < count; ++i) {
                              std::array<std::byte, kInline> body;
                              fill(body, at.id(3, i));
                              must(out->send(body, 0));
                            }
                            const bool heard = at.eventually([&] { return sleeper->heard == due + count; });
                            CHECK(heard);
                            before = due + count;
                            out.reset();
                          },
                      .exchanges = false});
  }
}

TEST_CASE("sleep: a doorbell rings for a message whose sender was killed before it rang") {
  Stage stage(sleepy(Kind::spsc));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  const int bell = must(stage.in->descriptor());
  (void)stage.take_all(*stage.in);  // arms it
  cut_short(stage, {.name = "ring a doorbell",
                    .body =
                        [&](Self& self) {
                          auto out = self.open(stage.writes());
                          self.ask(1);  // the opening rang; it is armed again
                          self.begin();
                          self.send_inline(*out, stage.id(1, 0));
                          self.send_slot(*out, stage.id(1, 1));
                          self.end();
                        },
                    .on_ask = [](Stage& at, std::uint32_t) { (void)at.take_all(*at.in); },
                    .after =
                        [&](Stage& at, const Actor& actor, bool died) {
                          if (actor.published() > 0 || died) CHECK(readable(bell, 20'000));
                          CHECK(at.take_all(*at.in).ids.size() == actor.published());
                        }});
}

TEST_CASE("sleep: a sender that waits for room continues after its reader's death at any step of making room") {
  Stage stage(sleepy(Kind::spsc, 2));
  const SharedActor writer;
  const std::string socket = stage.broker.socket();
  const std::uint64_t group = stage.ann->group();
  const Child child = Child::run([&]() -> int {
    Self self(*writer, socket, group);
    self.join();
    auto out = self.open(stage.writes());
    writer->ready = true;
    for (std::uint64_t number = 0;; ++number) {
      std::array<std::byte, kInline> body;
      fill(body, number);
      for (auto sent = out->send(body, kForever); !sent; sent = out->send(body, kForever))
        need(sent.error().status == Status::peer_gone, "send, again for newcomers");
    }
  });
  REQUIRE(stage.eventually([&] { return writer->ready.load(); }));
  std::uint64_t last = 0;
  cut_short(stage, {.name = "make room for a sleeper",
                    .body =
                        [&](Self& self) {
                          auto in = self.open(stage.reads());
                          Message message;
                          const std::uint64_t first = self.receive(*in, message, false, kForever);
                          self.wait_asleep(writer->index);
                          self.begin();
                          need(message.done(), "done");
                          for (unsigned i = 1; i < 4; ++i) {
                            need(self.receive(*in, message, i % 2 == 0, kForever) == first + i, "in order");
                            need(message.done(), "done");
                          }
                          self.end();
                        },
                    .after =
                        [&](Stage& at, const Actor&, bool) {
                          auto in = must(Queue::open(at.ann, at.reads()));
                          Message message;
                          for (unsigned i = 0; i < 1000 / harness::kSlowdown; ++i) {
                            auto received = in->receive(message, false, kForever);
                            REQUIRE(received.has_value());
                            const std::uint64_t id = id_of(message);
                            REQUIRE(id != kTorn);
                            if (i == 0) CHECK(id >= last);
                            else CHECK(id == last + 1);
                            last = id;
                            must(message.done());
                          }
                        },
                    .exchanges = false});
}

TEST_CASE("sleep: a sleeper killed at any step of falling asleep and waking leaves no mark") {
  Stage stage(sleepy(Kind::spsc));
  stage.out = must(Queue::open(stage.bob, stage.writes()));
  auto send_one = [](Stage& at, std::uint32_t number) {
    ::usleep(200);
    auto sent = at.out->send(bytes_of("0123456789abcdef"), kNoWait);
    if (!sent && sent.error().status == Status::peer_gone) sent = at.out->send(bytes_of("0123456789abcdef"), kNoWait);
    (void)number;
  };
  cut_short(stage, {.name = "sleep by futex",
                    .body =
                        [&](Self& self) {
                          auto in = self.open(stage.reads());
                          self.begin();
                          Message message;
                          self.at(Step::Z5, [&] { self.ask_later(1); });
                          need(in->receive(message, false, kForever), "receive");
                          self.end();
                        },
                    .on_ask = send_one});
  cut_short(stage, {.name = "sleep by doorbell",
                    .body =
                        [&](Self& self) {
                          auto in = self.open(stage.reads());
                          Message message;
                          const int bell = need(in->descriptor(), "descriptor");
                          self.begin();
                          need(!in->receive(message, false, kNoWait), "nothing yet");
                          self.ask_later(1);
                          while (!in->receive(message, false, kNoWait)) need(readable(bell, 20'000), "it rings");
                          need(!in->receive(message, false, kNoWait), "nothing more");
                          self.end();
                        },
                    .on_ask = send_one});
}

TEST_CASE("sleep: a sleeper killed inside futex or poll leaves no mark") {
  Stage stage(sleepy(Kind::mpmc));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  stage.take_rest();
  const SharedActor actor;
  const std::string socket = stage.broker.socket();
  const std::uint64_t group = stage.ann->group();
  for (int round = 0; round < 6; ++round) {
    actor.clear();
    Child child = Child::run([&]() -> int {
      Self self(*actor, socket, group);
      self.join();
      auto in = self.open(stage.reads());
      Message message;
      if (round % 2 == 0) (void)in->receive(message, false, kForever);
      const int bell = need(in->descriptor(), "descriptor");
      need(!in->receive(message, false, kNoWait), "nothing");
      while (readable(bell, -1)) need(!in->receive(message, false, kNoWait), "nothing");
      return 1;
    });
    const bool asleep = stage.eventually(
        [&] { return actor->index != pool::kNone && stage.ann->view().wait(actor->index).sleep.load() != 0; });
    REQUIRE(asleep);
    ::usleep(2000);  // from the flag into the kernel
    child.kill();
    CHECK(child.wait() == 128 + SIGKILL);
    stage.expect_gone();
    stage.expect_rest();
    stage.exchange(1000 / harness::kSlowdown);
  }
}
