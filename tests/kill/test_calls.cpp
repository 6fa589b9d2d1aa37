// SPDX-License-Identifier: Apache-2.0
// Deaths at system calls, where the library talks to the broker: joining, opening ends, growing, closing and leaving.
// The client is stopped with ptrace at the entry and at the exit of each call and killed there.
#include <unistd.h>

#include "tests/harness/ptrace_killer.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"
#include "tests/kill/stage.hpp"

using namespace kill_tests;

namespace {

using Start = std::function<void()>;
struct Scene {
  const char* name;
  std::function<int(Self&, const Stage&, const Start&)> play;
};

const std::vector<Scene>& scenes() {
  static const std::vector<Scene> all = {
      {"join",
       [](Self& self, const Stage&, const Start& start) {
         start();
         self.join();
         return 0;
       }},
      {"open ends of each kind",
       [](Self& self, const Stage& stage, const Start& start) {
         self.join();
         start();
         auto out = self.open(stage.writes());
         auto in = self.open(queue_spec("own", Kind::mpmc, true, true, 2));
         need(in->close(true, true), "close");
         return 0;
       }},
      {"send a region, and leave with it unread",
       [](Self& self, const Stage& stage, const Start& start) {
         self.join();
         auto out = self.open(stage.writes());
         CreateItem item;
         item.length = 4096;
         item.group = self.pool->group();
         auto region = need(create_region(self.session, item), "region");
         fill(region->bytes(), stage.id(1, 0));
         const OutPart part = region_part(*region);
         start();
         self.send_parts(*out, std::span(&part, 1));
         return 0;
       }},
      {"close and leave",
       [](Self& self, const Stage& stage, const Start& start) {
         self.join();
         auto out = self.open(stage.writes());
         self.send_slot(*out, stage.id(1, 0));
         start();
         out.reset();
         self.pool.reset();
         return 0;
       }},
  };
  return all;
}

}  // namespace

TEST_CASE("calls: a process killed at any system call of joining, opening, sending and leaving leaves nothing behind") {
  Stage stage(queue_spec("q", Kind::mpmc, false, false, 4));
  stage.in = must(Queue::open(stage.ann, stage.reads()));
  stage.take_rest();
  const SharedActor actor;
  const std::string socket = stage.broker.socket();
  const std::uint64_t group = stage.ann->group();
  unsigned killed = 0;
  for (const Scene& scene : scenes()) {
    const std::string what = scene.name;
    CAPTURE(what);
    const long stride = all_points() ? 1 : 3 * harness::kSlowdown;
    for (long k = 1;; k += stride) {
      CAPTURE(k);
      ++stage.trial;
      actor.clear();
      const auto seen = harness::run_killed_at(k, [&](const Start& start) {
        Self self(*actor, socket, group);
        return scene.play(self, stage, start);
      });
      if (!seen.traced) return harness::skip("ptrace is not to be had here");
      stage.expect_gone();
      stage.expect_bits(*actor);
      stage.use_all_free_slots();
      const Taken taken = stage.take_all(*stage.in);
      CHECK(taken.torn == 0);
      CHECK(taken.ids.size() == actor->published());
      for (const std::uint64_t id : taken.ids) CHECK(id == stage.id(1, 0));
      // "own" may have been made and not removed.
      if (auto own = Queue::open(stage.ann, queue_spec("own", Kind::mpmc, true, false, 2)))
        must((*own)->close(true, true));
      stage.expect_rest();
      if (seen.ended) {
        CHECK(seen.status == 0);
        break;
      }
      ++killed;
    }
    stage.exchange(1000 / harness::kSlowdown);
  }
  MESSAGE("killed at system calls: " << killed);
}
