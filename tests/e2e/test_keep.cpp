// SPDX-License-Identifier: Apache-2.0
// The regions that stay after a group's end: none, for a while, or until it is released. The last of the group goes by
// exit, so everything here is also what a crashed job leaves.
#include <unistd.h>

#include "base/sys_process.hpp"
#include "tests/e2e/support.hpp"

using namespace e2e;
using namespace std::chrono_literals;

namespace {

// A process of group `job` that makes one filled region called `result` and goes.
void leave_behind(World& world, std::optional<Keep> keep, Keep of_group = Keep::none()) {
  Child maker = actor([&] {
    const Session session = world.connect();
    session.create_group({.name = "job", .keep = of_group});
    session.join("job");
    shmbroker::CreateOptions options;
    options.name = "result";
    options.keep = keep;
    static std::optional<Region> region;  // not released: it ends with the process
    region.emplace(session.create(40 * KiB, options));
    fill(region->bytes(), 9);
    ::_exit(0);
  });
  REQUIRE(maker.wait() == 0);
}

}  // namespace

TEST_CASE("keep 0: a named region is gone with its group") {
  in_every_world([](World& world) {
    leave_behind(world, Keep::none());
    const Session session = world.connect();
    CHECK(eventually([&] { return status_of(session.try_attach("job/result")) == Status::not_found; }));
  });
}

TEST_CASE("keep for a duration: it is there for late readers, and goes by itself after that and not before") {
  in_every_world([](World& world) {
    const std::int64_t began = shmb::sys::now_boottime();
    constexpr std::chrono::nanoseconds kKeep = 700ms;
    leave_behind(world, Keep(kKeep));
    const Session session = world.connect();
    for (;;) {
      const auto region = session.try_attach("job/result");
      const std::int64_t now = shmb::sys::now_boottime();
      if (!region) {
        CHECK(region.error().status() == Status::not_found);
        CHECK(now - began >= kKeep.count());
        break;
      }
      CHECK(holds(region->bytes(), 9));
      REQUIRE(now - began < 60'000'000'000);
      ::usleep(20'000);
    }
  });
}

TEST_CASE("a reader that holds a kept region at its end has it for as long as it likes") {
  in_every_world([](World& world) {
    Gate made, attached;
    Child maker = actor([&] {
      const Session own = world.connect();
      own.create_group({.name = "job"});
      own.join("job");
      Region result = own.create(40 * KiB, {.name = "result", .keep = Keep(200ms)});
      fill(result.bytes(), 9);
      made.open();
      NEED(attached.wait());
    });
    REQUIRE(made.wait());
    const Session session = world.connect();
    const auto region = session.attach("job/result");
    attached.open();
    REQUIRE(maker.wait() == 0);
    CHECK(eventually([&] { return status_of(session.try_stat("job/result")) == Status::not_found; }));
    CHECK(holds(region.bytes(), 9));
    CHECK(session.stat(region.id()).holders == 1);
  });
}

TEST_CASE("until released: the group's own default, and any session with the right releases it") {
  in_every_world([](World& world) {
    leave_behind(world, std::nullopt, Keep::until_released());
    Session session = world.connect();
    ::usleep(50'000);
    REQUIRE(eventually([&] { return session.try_stat("job/result")->holders == 0; }));
    CHECK(session.stat("job/result").keep_ns == SHMB_KEEP_UNTIL_RELEASED);
    CHECK(holds(session.attach("job/result").bytes(), 9));
    session.unname("job/result");
    CHECK(status_of(session.try_attach("job/result")) == Status::not_found);
  });
}

TEST_CASE("a new member revives a kept group and finds what it kept; the clock starts again at its end") {
  in_every_world([](World& world) {
    leave_behind(world, Keep(1h));
    {
      const Session session = world.connect();
      REQUIRE(eventually([&] { return session.try_stat("job/result")->freed_at_ns != 0; }));
      session.join("job");
      CHECK(session.stat("job/result").freed_at_ns == 0);
      CHECK(holds(session.attach("result").bytes(), 9));
    }
    const Session session = world.connect();
    REQUIRE(eventually([&] { return session.try_stat("job/result")->freed_at_ns != 0; }));
    session.unname("job/result");
  });
}
