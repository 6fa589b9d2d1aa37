// SPDX-License-Identifier: Apache-2.0
// The end of a group, from outside and by death: while creates are in service, and with a report of what was left.
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "tests/e2e/support.hpp"
#include "tests/harness/sanitizer.hpp"

using namespace e2e;
using shmbroker::EventKind;

TEST_CASE("a group that ends while creates are in service refuses or serves each whole, and frees everything") {
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    World world({.engine = engine});
    struct Facts {
      std::atomic<bool> stop;
      std::atomic<long> made, refused;
    };
    Shared<Facts> facts;
    Gate started[3];
    const auto worker = [&](const Gate& me) {
      return actor([&] {
        const Session session = world.connect();
        std::vector<std::uint64_t> lengths(20, 4096);
        while (!facts->stop) {
          if (const auto joined = session.try_join("job"); !joined) {
            NEED(joined.error().status() == Status::not_found || joined.error().status() == Status::group_ended);
            continue;
          }
          for (int i = 0; i < 50 && !facts->stop; ++i) {
            auto regions = session.try_create_many(lengths);
            NEED_STATUS(regions, ok);
            for (auto& region : *regions) {
              if (!region) {
                NEED_STATUS(region, group_ended);
                NEED(!sentence_of(region).empty());
                ++facts->refused;
                i = 50;
              } else {
                region->data()[4095] = std::byte{1};
                ++facts->made;
              }
            }
          }
          me.open();
        }
      });
    };
    Child workers[] = {worker(started[0]), worker(started[1]), worker(started[2])};
    const Session owner = world.connect();
    const int rounds = 300 / harness::kSlowdown;
    for (int round = 0; round < rounds; ++round) {
      const auto group = owner.create_group({.name = "job"});
      if (round == 0)
        for (const Gate& gate : started) REQUIRE(gate.wait());
      ::usleep(static_cast<unsigned>(round % 7) * 300);
      REQUIRE(status_of(owner.try_end_group(group.id)) == Status::ok);
    }
    facts->stop = true;
    for (Child& one : workers) CHECK(one.wait() == 0);
    MESSAGE(engine << ": " << facts->made.load() << " regions made, " << facts->refused.load() << " refused, " << rounds
                   << " ends");
    CHECK(facts->made > 0);
    CHECK(facts->refused > 0);
  }
}

TEST_CASE("SIGKILL of a holder: the event and the log say which process left how much and how it died") {
  in_every_world([](World& world) {
    struct Facts {
      std::uint64_t group;
    };
    Shared<Facts> facts;
    const Session watcher = world.connect();
    const auto watch = watcher.watch_reclaims();
    Gate held;
    Child holder = actor([&] {
      const Session session = world.connect();
      std::vector<Region> regions;
      for (int i = 0; i < 3; ++i) regions.push_back(session.create(2 * MiB));
      facts->group = session.group().value;
      held.open();
      ::pause();
    });
    REQUIRE(held.wait());
    holder.kill();
    REQUIRE(holder.wait() == 128 + SIGKILL);  // reaped: only then the kernel records how it ended
    const auto event = watcher.next_event(std::chrono::seconds(20));
    REQUIRE(event.kind == EventKind::reclaim);
    CHECK(event.watch == watch.id);
    CHECK(event.uid == ::geteuid());
    CHECK(event.pid == static_cast<std::uint32_t>(holder.pid()));
    CHECK(event.group.value == facts->group);
    CHECK(event.regions == 3);
    CHECK(event.bytes == 6 * MiB);
    const bool told = event.how == SHMB_DEATH_KILLED && event.code == SIGKILL;
    // How a process that is not its child died is told by the kernel from 6.15 on, and only to who has its pidfd.
    // Before, /proc knows it until the process is reaped, which here comes at once.
    if (!told) CHECK(event.how == SHMB_DEATH_UNKNOWN);
    if (!told && !world.kernel_is_before(6, 15))
      harness::skip("this kernel does not tell how a process died: " + event.text);
    CAPTURE(event.text);
    CHECK(event.text.find("pid " + std::to_string(holder.pid()) + " ") != std::string::npos);
    CHECK(event.text.find("3 regions, 6.0 MiB freed") != std::string::npos);
    CHECK(event.text.find(told ? "killed by SIGKILL" : "exit unknown") != std::string::npos);
    CHECK(world.broker().log().find(event.text) != std::string::npos);
  });
}

TEST_CASE("two members die: the first death frees what only it held, the second the rest, and each has its report") {
  in_every_world([](World& world) {
    const Session watcher = world.connect();
    watcher.watch_reclaims();
    Shared<RegionId> shared;
    Gate created, attached;
    Child maker = actor([&] {
      const Session session = world.connect();
      session.create_group({.name = "job"});
      session.join("job");
      const Region common = session.create(40 * KiB), own = session.create(8 * KiB);
      *shared = common.id();
      created.open();
      ::pause();
    });
    Child user = actor([&] {
      NEED(created.wait());
      const Session session = world.connect();
      session.join("job");
      const Region common = session.attach_writable(*shared);
      attached.open();
      ::pause();
    });
    REQUIRE(attached.wait());
    maker.kill();
    maker.wait();
    auto event = watcher.next_event(std::chrono::seconds(20));
    CHECK(event.regions == 1);
    CHECK(event.bytes == 8 * KiB);
    user.kill(SIGTERM);
    user.wait();
    event = watcher.next_event(std::chrono::seconds(20));
    CHECK(event.regions == 1);
    CHECK(event.bytes == 40 * KiB);
    CHECK(event.pid == static_cast<std::uint32_t>(user.pid()));
  });
}
