// SPDX-License-Identifier: Apache-2.0
// Two deaths: a writer and a reader of one queue, each at each of its steps, one after the other or both at once (the
// broker stopped meanwhile, so that it finds both dead together).
#include <signal.h>

#include "tests/harness/sanitizer.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/kill/stage.hpp"

using namespace kill_tests;

namespace {

constexpr unsigned kMessages = 3;

struct Pair {
  SharedActor writer, reader;
};

void write(Self& self, const Stage& stage) {
  auto out = self.open(stage.writes());
  self.wait_for_go();
  self.begin();
  for (unsigned i = 0; i < kMessages; ++i) {
    const auto sent = [&] {
      if (i == 0) {
        std::array<std::byte, kInline> body;
        fill(body, stage.id(1, i));
        return out->send(body, kNoWait);
      }
      const Slot slot = self.fresh_slot(stage.id(1, i));
      auto done = out->send(slot, kNoWait);
      need(self.pool->release(slot), "release");
      return done;
    }();
    if (!sent) break;  // its reader died first
  }
  self.end();
  self.actor.answered = 1;
  for (;;) ::pause();
}

void read(Self& self, const Stage& stage) {
  auto in = self.open(stage.reads());
  self.wait_for_go();
  self.begin();
  Message message;
  for (unsigned i = 0; i < kMessages; ++i) {
    const auto received = in->receive(message, i % 2 == 1, kNoWait);
    if (!received) continue;
    need(id_of(message) != kTorn, "whole");
    need(message.done(), "done");
  }
  self.end();
  self.actor.answered = 1;
  for (;;) ::pause();
}

struct Deaths {
  std::uint64_t writer = 0, reader = 0;
  bool reader_first = false, at_once = false;
};

// Lets it go on until it dies or has come to its end.
void let_go(const Stage& stage, const SharedActor& actor, const Child& child) {
  actor->go = true;
  const bool through = stage.eventually([&] { return actor->answered == 1 || child.wait_ended(0); });
  REQUIRE(through);
}

void run(Stage& stage, const Pair& pair, const Deaths& deaths) {
  ++stage.trial;
  pair.writer.clear();
  pair.reader.clear();
  pair.writer->target = deaths.writer;
  pair.reader->target = deaths.reader;
  const std::string socket = stage.broker.socket();
  const std::uint64_t group = stage.ann->group();
  Child reader = Child::run([&]() -> int {
    Self self(*pair.reader, socket, group);
    self.join();
    read(self, stage);
    return 0;
  });
  REQUIRE(stage.eventually([&] { return pair.reader->ready.load(); }));
  Child writer = Child::run([&]() -> int {
    Self self(*pair.writer, socket, group);
    self.join();
    write(self, stage);
    return 0;
  });
  REQUIRE(stage.eventually([&] { return pair.writer->ready.load(); }));
  if (stage.in) (void)stage.take_all(*stage.in);  // joins the writer's ring
  if (deaths.at_once) harness::stop(stage.broker.pid());
  let_go(stage, deaths.reader_first ? pair.reader : pair.writer, deaths.reader_first ? reader : writer);
  let_go(stage, deaths.reader_first ? pair.writer : pair.reader, deaths.reader_first ? writer : reader);
  stage.exchange_beside(20);
  writer.kill();
  reader.kill();
  (void)writer.wait();
  (void)reader.wait();
  if (deaths.at_once) ::kill(stage.broker.pid(), SIGCONT);
  note(*pair.writer, true);
  note(*pair.reader, true);
  stage.expect_gone();
  stage.expect_bits(*pair.writer);
  stage.use_all_free_slots();
  if (stage.in) {
    // Claim: what the reader has not finished. Broadcast: everything.
    const unsigned finished = stage.queue.kind == Kind::mpmc ? pair.reader->taken() : 0;
    const std::size_t due = pair.writer->published() - finished;
    const Taken rest = stage.take_expected(*stage.in, due);
    CHECK(rest.torn == 0);
    REQUIRE(rest.ids.size() == due);
    for (std::size_t i = 0; i < rest.ids.size(); ++i) CHECK(rest.ids[i] == stage.id(1, finished + i));
  }
  stage.expect_rest();
}

}  // namespace

TEST_CASE("pairs: a writer and a reader of one queue, killed at each of their steps, leave nothing behind") {
  unsigned pairs = 0;
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    Stage stage(queue_spec("q", kind, false, false, 4));
    if (kind != Kind::spsc) stage.in = must(Queue::open(stage.ann, stage.reads()));
    stage.take_rest();
    const Pair pair;
    for (const bool reader_first : {false, true}) {
      CAPTURE(reader_first);
      run(stage, pair, {0, 0, reader_first, false});
      const std::uint64_t writers = pair.writer->passed, readers = pair.reader->passed;
      REQUIRE(writers > 0);
      REQUIRE(readers > 0);
      // Every pair, or a few that move through both.
      const std::uint64_t stride = all_points() ? 1 : 61 * harness::kSlowdown;
      for (std::uint64_t n = 0; n < (writers + 1) * (readers + 1); n += stride) {
        Deaths deaths{n / (readers + 1), n % (readers + 1), reader_first, n % 2 == 1};
        CAPTURE(deaths.writer);
        CAPTURE(deaths.reader);
        CAPTURE(deaths.at_once);
        run(stage, pair, deaths);
        if (++pairs % 8 == 0) stage.exchange(1000 / harness::kSlowdown);
      }
    }
    stage.exchange(1000 / harness::kSlowdown);
    stage.expect_rest();
  }
  MESSAGE("pairs of deaths: " << pairs);
}

TEST_CASE("pairs: a sender stopped within a message finds a newcomer in its reader's place, which gets none of it") {
  Stage stage(queue_spec("q", Kind::spsc, false, false, 4));
  stage.take_rest();
  for (const Step where : {Step::S1, Step::S1_half, Step::S2, Step::S2_done, Step::S3}) {
    CAPTURE(static_cast<int>(where));
    ++stage.trial;
    const SharedActor actor;
    auto session = beside(stage.broker, stage.ann);
    auto pool = must(try_pool(session, "p"));
    auto in = must(Queue::open(pool, stage.reads()));
    const std::uint32_t index = pool->me().index();
    const std::string socket = stage.broker.socket();
    const std::uint64_t group = stage.ann->group();
    Child child = Child::run([&]() -> int {
      Self self(*actor, socket, group);
      self.join();
      auto out = self.open(stage.writes());
      self.begin();
      self.at(where, [&] { self.ask(1); });
      self.send_slot(*out, stage.id(1, 0));
      self.end();
      self.ask(2);
      // Its reader went; the newcomer is written to now.
      std::array<std::byte, kInline> body;
      fill(body, stage.id(1, 1));
      auto sent = out->send(body, 0);
      if (!sent && sent.error().status == Status::peer_gone) sent = out->send(body, 0);
      need(std::move(sent), "send to the newcomer");
      return 0;
    });
    CHECK(serve(stage, *actor, child, [&](Stage& at, std::uint32_t number) {
            if (number == 1) {
              in.reset();
              pool.reset();
              session = beside(at.broker, at.ann);
              // The old place is free once its repair is through.
              for (int tries = 0; tries < 1000; ++tries) {
                pool = must(try_pool(session, "p"));
                if (pool->me().index() == index) break;
                pool.reset();
                ::usleep(1000);
              }
              CHECK(pool->me().index() == index);
              in = must(Queue::open(pool, at.reads()));
            } else {
              CHECK(at.take_all(*in).ids.empty());
            }
          }) == End::ended);
    CHECK(child.wait() == 0);
    const Taken taken = stage.take_all(*in);
    REQUIRE(taken.ids.size() == 1);
    CHECK(taken.ids[0] == stage.id(1, 1));
    in.reset();
    pool.reset();
    session.reset();
    stage.expect_rest();
  }
  stage.exchange(1000);
}
