// SPDX-License-Identifier: Apache-2.0
// Events reach a program that only has a poll set: the descriptor becomes readable for each, in the order in which
// things happened in other processes, and goes quiet again.
#include <poll.h>

#include "tests/e2e/support.hpp"

using namespace e2e;
using shmbroker::EventKind;

namespace {

// An event loop's way: sleep in poll, then take all there is. Only the first is wanted here.
shmbroker::Event polled(const Session& session) {
  const int fd = session.event_descriptor();
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    NEED(::poll(&entry, 1, 20'000) == 1);
    auto event = session.try_next_event(Timeout::no_wait());
    if (event) return *event;
    NEED_STATUS(event, deadline);  // a spurious wake-up
  }
}

bool goes_quiet(const Session& session) {
  pollfd entry{session.event_descriptor(), POLLIN, 0};
  return eventually([&] {
    if (session.try_next_event(Timeout::no_wait())) return false;
    return ::poll(&entry, 1, 0) == 0;
  });
}

}  // namespace

TEST_CASE("everything that is watched makes the poll descriptor readable, in order, and quiet when it is taken") {
  in_every_world([](World& world) {
    struct Facts {
      RegionId id;
      std::uint64_t group;
    };
    Shared<Facts> facts;
    Gate watching, made, appeared, publish, released;
    Child watcher = actor([&] {
      const Session session = world.connect();
      const auto name = session.watch_name("job/result");
      NEED(name.state == 0);
      NEED(goes_quiet(session));
      watching.open();
      auto event = polled(session);
      NEED(event.kind == EventKind::name_appeared);
      NEED(event.watch == name.id);
      NEED(event.text == "result");
      NEED(made.wait());
      NEED(event.region == facts->id);
      const auto region = session.watch(event.region);
      const auto group = session.watch(shmbroker::GroupId{facts->group});
      NEED(goes_quiet(session));
      const std::uint64_t first = event.sequence;
      appeared.open();
      event = polled(session);
      while (event.kind == EventKind::region_ready) event = polled(session);
      NEED(event.kind == EventKind::region_published);
      NEED(event.watch == region.id);
      NEED(event.sequence > first);
      publish.open();
      event = polled(session);
      NEED(event.kind == EventKind::region_gone);
      NEED(event.region == facts->id);
      event = polled(session);
      NEED(event.kind == EventKind::group_ended);
      NEED(event.group.value == facts->group);
      NEED(event.watch == group.id);
      NEED(goes_quiet(session));
      NEED_STATUS(session.try_unwatch(name.id), ok);
      released.open();
    });
    REQUIRE(watching.wait());
    Child maker = actor([&] {
      const Session session = world.connect();
      session.create_group({.name = "job"});
      session.join("job");
      shmbroker::CreateOptions options;
      options.name = "result";
      facts->group = session.group().value;
      Region named = session.create(4096, options);
      facts->id = named.id();
      made.open();
      NEED(appeared.wait());
      auto closed = std::move(named).publish();
      NEED(publish.wait());
      closed.release(true);
      session.leave();
      NEED(released.wait());
    });
    REQUIRE(watcher.wait() == 0);
    REQUIRE(maker.wait() == 0);
  });
}

TEST_CASE("a program that does not take its events loses the oldest of them, and learns how many") {
  in_every_world([](World& world) {
    Gate watching, flooded;
    Child watcher = actor([&] {
      const Session session = world.connect();
      session.create_group({.name = "job"});
      session.join("job");
      const auto watch = session.watch_name("job/result");
      watching.open();
      NEED(flooded.wait());
      std::uint64_t taken = 0, lost = 0, last = 0;
      while (taken + lost < 1000) {
        const auto event = session.next_event(std::chrono::seconds(20));
        if (event.kind == EventKind::gap) lost += event.lost;
        else {
          NEED(event.watch == watch.id);
          NEED(event.sequence > last);
          last = event.sequence;
          ++taken;
        }
      }
      NEED(lost > 0);
      NEED(taken + lost == 1000);
      session.ping();
    });
    REQUIRE(watching.wait());
    {
      const Session session = world.connect();
      session.join("job");
      for (int i = 0; i < 1000; ++i) {
        session.create(1, {.name = "result", .replace = true}).release();
      }
      session.unname("result");
      flooded.open();
      REQUIRE(watcher.wait() == 0);
    }
  });
}
